"""What graph-parallel methods share: names of buffers, buffers of a part, the ops around the exchanges.

A method chooses when rows and gradients travel and what waits for them; what a layer computes is the same for all.
Buffers of layer l: h.l its input rows, packed.l those that are sent, halo.l the halo rows, keep.l what its backward
needs, gh.l the gradient of its input rows, ghalo.l the partial gradients of halo rows, gsent.l what the ranks that use
our rows send back. gfirst is the gradient of layer 0's output where all later layers mix it in.
"""

from dataclasses import dataclass, field, replace

from halocast.graph.halo import Halo
from halocast.models import arithmetic
from halocast.models.arithmetic import Kernels, PartSize
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import AllReduce, Buffer, Compute, Exchange, Kernel, Lane, Matrix, Numbers, Op, Role, Rows

HALO_MATRIX = "halo"
ADAM_MOMENTS = 2
LABEL_BYTES = 3 * 8  # per node: its class, its place in a mask and its class there, int64


IN_WEIGHTS = frozenset({Role.WEIGHTS, Role.WEIGHT_GRADS})
IN_MASTER = frozenset({"loss", "update"})  # kernels that compute as exactly as weights are kept


def ir_kernels(kernels: Kernels, numbers: Numbers = Numbers.FLOAT32) -> tuple[Kernel, ...]:
    """Kernels that compute with such numbers; of few bits, the loss and the step have more."""
    return tuple(Kernel(kind, dims, numbers.master if kind in IN_MASTER else numbers) for kind, dims in kernels)


def halo_matrices(halo: Halo) -> tuple[Matrix, ...]:
    """The matrix of all halo rows; a single part has none."""
    return (Matrix(HALO_MATRIX, halo.matrix),) if halo.num_parts > 1 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOps:
    """Makes the ops and buffers of one part (= rank) of a graph-parallel method."""

    rank: int
    halo: Halo
    spec: ModelSpec
    numbers: Numbers = Numbers.FLOAT32  # of rows and products; weights have those of its master
    through_store: bool = False  # rows come from a store: no gradients go back, and the input's halo rows stay here
    size: PartSize = field(init=False)

    def __post_init__(self) -> None:
        size = PartSize(
            num_inner=int(self.halo.num_inner[self.rank]),
            num_halo=int(self.halo.num_halo[self.rank]),
            num_edges=int(self.halo.num_edges[self.rank]),
        )
        object.__setattr__(self, "size", size)

    @property
    def itemsize(self) -> int:
        """Bytes of a number of a row."""
        return self.numbers.itemsize

    @property
    def weight_bytes(self) -> int:
        return self.spec.num_weights * self.numbers.master.itemsize

    @property
    def alone(self) -> bool:
        return self.halo.num_parts == 1

    @property
    def num_sent(self) -> int:
        return int(self.halo.matrix[self.rank].sum())

    def compute(
        self,
        name: str,
        kernels: Kernels,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        after: tuple[tuple[str, int], ...],
    ) -> Op:
        return Op(
            name=name,
            rank=self.rank,
            lane=Lane.COMPUTE,
            work=Compute(kernels=ir_kernels(kernels, self.numbers)),
            reads=reads,
            writes=writes,
            after=after,
        )

    def forward(self, layer: int, after: tuple[tuple[str, int], ...] = ()) -> Op:
        halo = (f"halo.{layer}",) if self.has_halo(layer) else ()
        first = ("h.1",) if self.spec.mixes_first(layer) and layer > 1 else ()
        kernels = arithmetic.forward(self.spec, layer, self.size)
        return self.compute(
            f"forward.{layer}", kernels, (f"h.{layer}", *halo, *first), (f"h.{layer + 1}", f"keep.{layer}"), after
        )

    def loss(self) -> Op:
        last = self.spec.layers
        kernels = arithmetic.loss(self.spec, self.size.num_inner)
        return self.compute("loss", kernels, (f"h.{last}",), (f"gh.{last}",), ())

    def backward(self, layer: int, after: tuple[tuple[str, int], ...] = ()) -> Op:
        """The op of the gradients of layer `layer`; first adds what other ranks sent back for its output rows."""
        received = (f"gsent.{layer + 1}",) if self.returns(layer + 1) else ()
        added = arithmetic.add_rows(self.num_sent, self.spec.widths[layer + 1]) if received else ()
        writes = [f"gh.{layer}"] if layer > 0 else []
        writes += [f"ghalo.{layer}"] if self.returns(layer) else []
        writes += ["gfirst"] if self.spec.mixes_first(layer) else []
        first = ("gfirst",) if self.spec.mixes_first(self.spec.layers - 1) and layer < self.spec.layers - 1 else ()
        return self.compute(
            f"backward.{layer}",
            (*added, *arithmetic.backward(self.spec, layer, self.size)),
            (f"gh.{layer + 1}", f"keep.{layer}", *received, *first),
            (*writes, "grads"),
            after,
        )

    def allreduce(self, after: tuple[tuple[str, int], ...]) -> Op:
        return Op(
            name="allreduce",
            rank=self.rank,
            lane=Lane.REDUCE,
            work=AllReduce(num_bytes=self.weight_bytes),
            reads=("grads",),
            writes=("grads",),
            after=after,
        )

    def step(self, after: tuple[tuple[str, int], ...] = ()) -> Op:
        return self.compute("step", arithmetic.step(self.spec), ("grads",), ("weights",), after)

    def exchange(self, layer: int, after: tuple[tuple[str, int], ...]) -> Op:
        """The op that sends rows of h.layer that other parts need into their halo.layer."""
        width = self.spec.widths[layer]
        return self._exchange(
            f"exchange.{layer}",
            width,
            False,
            arithmetic.pack_rows(self.num_sent, width),
            (f"h.{layer}", f"halo.{layer}", f"packed.{layer}"),
            after,
        )

    def exchange_grad(self, layer: int, after: tuple[tuple[str, int], ...]) -> Op:
        """The op that sends partial gradients of halo rows to their owners; already contiguous, nothing to pack."""
        names = (f"ghalo.{layer}", f"gsent.{layer}")
        return self._exchange(f"exchange_grad.{layer}", self.spec.widths[layer], True, (), names, after)

    def _exchange(
        self,
        name: str,
        width: int,
        transposed: bool,
        pack: Kernels,
        names: tuple[str, ...],
        after: tuple[tuple[str, int], ...],
    ) -> Op:
        work = Exchange(
            kernels=ir_kernels(pack, self.numbers),
            matrix=HALO_MATRIX,
            transposed=transposed,
            row_bytes=width * self.itemsize,
            bits=self.numbers.bits,
        )
        return Op(
            name=name,
            rank=self.rank,
            lane=Lane.HALO,
            work=work,
            reads=(names[0],),
            writes=names[1:],
            after=after,
        )

    def has_halo(self, layer: int) -> bool:
        """Whether a layer works on halo rows."""
        return not self.alone and self.spec.aggregates(layer)

    def exchanges(self, layer: int) -> bool:
        """Whether the rows of a layer's input travel."""
        return self.has_halo(layer) and not (self.through_store and layer == 0)

    def returns(self, layer: int) -> bool:
        """Whether gradients of a layer's halo rows travel back; input features need none."""
        return layer > 0 and self.exchanges(layer) and not self.through_store

    def buffers(self) -> tuple[Buffer, ...]:
        """Everything the rank holds: what stays (features, topology, weights) and what an epoch makes."""
        layers = range(self.spec.layers + 1)
        return (*self._kept_buffers(), *(buffer for layer in layers for buffer in self._layer_buffers(layer)))

    def _kept_buffers(self) -> list[Buffer]:
        size, spec = self.size, self.spec
        weights = self.weight_bytes
        columns = size.num_inner + size.num_halo
        # CSR in both directions, int32 and a weight per edge as sparse products want it; degrees of every column
        edges = 2 * (4 + self.itemsize) * size.num_edges
        topology = edges + 4 * (size.num_inner + columns + 2) + 2 * columns * self.itemsize
        kept = [
            ("topology", topology, Rows.NONE, Role.NONE),
            ("labels", LABEL_BYTES * size.num_inner, Rows.NONE, Role.NONE),
            ("weights", weights, Rows.NONE, Role.WEIGHTS),
            ("moments", ADAM_MOMENTS * weights, Rows.NONE, Role.NONE),
            ("grads", weights, Rows.NONE, Role.WEIGHT_GRADS),
            ("h.0", size.num_inner * spec.num_features * self.itemsize, Rows.INNER, Role.FEATURES),
            ("workspace", self._scratch_bytes(), Rows.NONE, Role.NONE),
        ]
        if spec.precompute:
            rows = arithmetic.num_precomputed(spec, size)  # of attention, halo rows are among them
            kept.append(("aggregated.0", rows * spec.num_features * self.itemsize, Rows.NONE, Role.NONE))
        if self.through_store:
            halo = size.num_halo * spec.num_features * self.itemsize
            kept += [("halo.0", halo, Rows.HALO, Role.FEATURES)] if self.has_halo(0) else []
        elif not self.alone:
            kept.append(("send_rows", 8 * self.num_sent, Rows.NONE, Role.NONE))
            kept += [
                (f"packed.{layer}", self.num_sent * spec.widths[layer] * self.itemsize, Rows.NONE, Role.NONE)
                for layer in range(spec.layers)
                if self.exchanges(layer)
            ]
        return [replace(self._buffer(*buffer), persistent=True) for buffer in kept]

    def _buffer(self, name: str, num_bytes: int, rows: Rows, role: Role) -> Buffer:
        bits = (self.numbers.master if role in IN_WEIGHTS else self.numbers).bits
        return Buffer(name=name, rank=self.rank, num_bytes=num_bytes, rows=rows, role=role, bits=bits)

    def _scratch_bytes(self) -> int:
        """Bytes that the op that needs most takes while it runs; an allocator keeps them for the next."""
        layers = range(self.spec.layers)
        return max(arithmetic.scratch_numel(self.spec, layer, self.size) for layer in layers) * self.itemsize

    def _layer_buffers(self, layer: int) -> list[Buffer]:
        size, spec = self.size, self.spec
        row = spec.widths[layer] * self.itemsize
        held: list[tuple[str, int, Rows, Role]] = []
        if layer > 0:
            role = Role.FIRST if layer == 1 and spec.mixes_first(layer) else Role.ROWS
            held += [
                (f"h.{layer}", size.num_inner * row, Rows.INNER, role),
                (f"gh.{layer}", size.num_inner * row, Rows.INNER, Role.GRAD),
            ]
        if layer == 1 and spec.mixes_first(layer):
            held.append(("gfirst", size.num_inner * row, Rows.INNER, Role.FIRST_GRAD))
        if layer < spec.layers:
            kept_bytes = arithmetic.kept_bytes(spec, layer, size, self.itemsize)
            held.append((f"keep.{layer}", kept_bytes, Rows.NONE, Role.NONE))
        if layer < spec.layers and self.exchanges(layer):
            held.append((f"halo.{layer}", size.num_halo * row, Rows.HALO, Role.ROWS))
        if layer < spec.layers and self.returns(layer):
            held += [
                (f"ghalo.{layer}", size.num_halo * row, Rows.HALO, Role.GRAD),
                (f"gsent.{layer}", self.num_sent * row, Rows.SENT, Role.GRAD),
            ]
        return [self._buffer(*buffer) for buffer in held]
