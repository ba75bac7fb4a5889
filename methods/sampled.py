"""What sampling methods share: an epoch's draw, the ids that travel, the local graph that is rebuilt, scaled sizes.

Buffers: `sends` are the ids of the rows a rank sends, `needs` those of the halo rows it gets, `graph` is the local
graph over them; where every layer draws for itself, each has its own, `sends.1`. Rows may be drawn by their owner, who
tells the receiver, or edges by their receiver, who asks the owner for the rows he needs. A draw is for `lag` epochs
later; what travelled with it is used then, too.
"""

from dataclasses import dataclass, replace

import numpy as np

from halocast.base.kernels import built_rows
from halocast.graph.graph import Ints, Reals
from halocast.graph.halo import Halo
from halocast.graph.inclusion import Expected
from halocast.methods.common import PartOps, ir_kernels
from halocast.methods.skeleton import After, Epoch
from halocast.models import arithmetic
from halocast.models.arithmetic import Kernels
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Buffer, Exchange, Lane, Matrix, Op, Rows, Sample

SENDS, NEEDS, GRAPH = "sends", "needs", "graph"
DRAWN, ASKED = "drawn", "asked"  # matrices: rows that travel, and ids
ID_BYTES = 8


def smaller(halo: Halo, matrix: Ints, num_edges: Reals) -> Halo:
    """The sizes of an epoch in which only some rows travel and only some edges count."""
    return replace(halo, matrix=matrix, num_edges=np.rint(num_edges).astype(np.int64), row_edges=())


def rounded(expected: Expected, matrix: Ints) -> Ints:
    """Whole numbers of rows; a pair that may exchange any has one at least, so that both ends are known to meet."""
    whole = np.rint(expected.mean).astype(np.int64)
    return np.minimum(np.maximum(whole, matrix > 0), matrix)


def with_sizes(counts: Ints) -> Ints:
    """Counts of ids that are asked for, with one more for their number, which comes before them."""
    return counts + (counts > 0)


def drawn_matrices(expected: Expected, matrix: Ints) -> tuple[Matrix, Matrix]:
    """Matrices of the rows that travel, and of their ids: as many as on average, with their spread over epochs."""
    rows, spread = rounded(expected, matrix), np.sqrt(expected.variance)
    return Matrix(DRAWN, rows, spread), Matrix(ASKED, with_sizes(rows), spread)


def draw_numbers(count: int) -> Kernels:
    """Kernels that draw a random number each and compare or sort them: written, read twice, the choice written."""
    return (("draw", (count, 4)),)


@dataclass(frozen=True, kw_only=True)
class SampledEpoch(Epoch):
    """One rank's epoch in which only some halo rows are there: `part` has the sizes of an average one."""

    full: PartOps  # with all rows
    draw: str  # the op that draws
    params: tuple[tuple[str, str], ...]
    by_receiver: bool  # edges are drawn where they end, not rows where they are owned
    announced: bool = True  # how many rows travel differs from epoch to epoch, so that it has to be said
    weighted: bool = False  # every edge that is left has a weight of its own
    lane: Lane = Lane.COMPUTE  # of the draws
    each: bool = False  # every layer has a draw of its own
    id_lane: Lane = Lane.HALO
    grad_lane: Lane = Lane.HALO

    @property
    def drawn_layers(self) -> tuple[int, ...]:
        """The layers that have a draw; the first one's serves them all, unless each has its own."""
        layers = tuple(self.part.spec.exchanged_layers)
        return layers if self.each else layers[:1]

    def of(self, name: str, layer: int) -> str:
        """The name of a layer's own buffer or op, where it has its own."""
        return f"{name}.{layer}" if self.each else name

    def sample(self, layer: int, after: After, reads: tuple[str, ...] = ()) -> Op:
        count = self.full.size.num_edges if self.by_receiver else self.full.num_sent
        return Op(
            name=self.of(self.draw, layer),
            rank=self.part.rank,
            lane=self.lane,
            work=Sample(kernels=ir_kernels(draw_numbers(count)), params=self.params),
            reads=reads,
            writes=(self.of(NEEDS if self.by_receiver else SENDS, layer),),
            after=after,
        )

    def exchange_ids(self, layer: int) -> Op:
        """The op by which the end that drew tells the other."""
        drawn, named = (NEEDS, SENDS) if self.by_receiver else (SENDS, NEEDS)
        matrix = ASKED if self.announced else DRAWN
        return Op(
            name=self.of("exchange_ids", layer),
            rank=self.part.rank,
            lane=self.id_lane,
            work=Exchange(matrix=matrix, transposed=self.by_receiver, row_bytes=ID_BYTES, bits=8 * ID_BYTES),
            reads=(self.of(drawn, layer),),
            writes=(self.of(named, layer),),
            after=((self.of(self.draw, layer), 0),),
        )

    def rebuild(self, layer: int) -> Op:
        kernels: Kernels = (("build", (built_rows(self.full.size.num_edges, self.part.size.num_edges), 1)),)
        waits = ((self.of(self.draw if self.by_receiver else "exchange_ids", layer), 0),)
        reads, writes = (self.of(NEEDS, layer),), (self.of(GRAPH, layer),)
        op = self.part.compute(self.of("rebuild", layer), kernels, reads, writes, waits)
        params = () if self.by_receiver else self.params  # who draws edges knows what they weigh
        return replace(op, lane=self.lane, work=replace(op.work, params=params))

    def fetch(self, layer: int) -> list[Op]:
        return [self._picked(op, layer, 0) for op in super().fetch(layer)]

    def give_back(self, layer: int) -> list[Op]:
        """Gradients of the rows of this epoch's graph, which was drawn `lag` epochs ago."""
        return [replace(self._picked(op, layer, self.lag), lane=self.grad_lane) for op in super().give_back(layer)]

    def _picked(self, op: Op, layer: int, lag: int) -> Op:
        assert isinstance(op.work, Exchange)
        return replace(
            op,
            work=replace(op.work, matrix=DRAWN),
            reads=(*op.reads, self.of(SENDS, layer), self.of(NEEDS, layer)),
            after=(*op.after, (self.of(self.draw, layer), lag), (self.of("exchange_ids", layer), lag)),
        )

    def forward(self, layer: int) -> Op:
        op = self._whole(super().forward(layer), layer, ())
        if not self.part.exchanges(layer):
            return op
        built = (self.of("rebuild", layer), self.lag)
        return self._weighed(replace(op, reads=(*op.reads, self.of(GRAPH, layer)), after=(*op.after, built)))

    def _weighed(self, op: Op) -> Op:
        """The op with the kernel of weighted sums over neighbours, where edges have weights."""
        if not self.weighted:
            return op
        kernels = tuple(replace(k, kind="spmm_weighted") if k.kind == "spmm" else k for k in op.work.kernels)
        return replace(op, work=replace(op.work, kernels=kernels))

    def backward(self, layer: int) -> Op:
        """The backward op: what comes back belongs to the rows sent with the draw of another `lag` epochs before."""
        reads, waits = list[str](), list[tuple[str, int]]()
        added: Kernels = ()
        if self.part.returns(layer + 1):
            added = arithmetic.add_rows(self.part.num_sent, self.part.spec.widths[layer + 1])
            sent = "exchange_ids" if self.by_receiver else self.draw
            reads, waits = [self.of(SENDS, layer + 1)], [(self.of(sent, layer + 1), 2 * self.lag)]
        if self.part.exchanges(layer):
            reads, waits = [*reads, self.of(GRAPH, layer)], [*waits, (self.of("rebuild", layer), self.lag)]
        op = self._whole(super().backward(layer), layer, added)
        op = self._weighed(op) if self.part.exchanges(layer) else op
        return replace(op, reads=(*op.reads, *reads), after=(*op.after, *waits))

    def _whole(self, op: Op, layer: int, added: Kernels) -> Op:
        """The op with the whole part's kernels for attention over precomputed rows: all are there in every epoch."""
        if self.part.exchanges(layer) or not self.part.spec.attends(layer):
            return op
        makes = arithmetic.forward if op.verb == "forward" else arithmetic.backward
        kernels = ir_kernels((*added, *makes(self.part.spec, layer, self.full.size)), self.part.numbers)
        return replace(op, work=replace(op.work, kernels=kernels))

    def buffers(self) -> list[Buffer]:
        """Buffers of an average epoch, with all that stays whole, and those of the draw."""
        whole = {"topology", "send_rows", "aggregated.0"}
        whole |= {f"keep.{layer}" for layer in range(self.part.spec.layers) if not self.part.exchanges(layer)}
        kept = {buffer.name: buffer for buffer in self.full.buffers()}
        average = [kept[buffer.name] if buffer.name in whole else buffer for buffer in self.part.buffers()]
        size, row = self.part.size, 2 * ID_BYTES  # the id and the place of the row
        drawn = [
            (SENDS, row * self.part.num_sent, Rows.SENT_IDS),
            (NEEDS, row * size.num_halo + (self.full.size.num_edges if self.by_receiver else 0), Rows.HALO_IDS),
            (GRAPH, self._graph_bytes(), Rows.GRAPH),
        ]
        rank = self.part.rank
        return average + [
            Buffer(name=self.of(name, layer), rank=rank, num_bytes=num_bytes, rows=rows)
            for layer in self.drawn_layers
            for name, num_bytes, rows in drawn
        ]

    def _graph_bytes(self) -> int:
        """Bytes of CSR in both directions with a weight per edge, the columns' degrees, and the scale of halo rows."""
        size, item = self.part.size, self.part.itemsize
        columns = size.num_inner + size.num_halo
        return 2 * (4 + item) * size.num_edges + 4 * (size.num_inner + columns + 2) + item * (columns + size.num_halo)


def unsampled(halo: Halo, spec: ModelSpec) -> bool:
    """Whether no row ever travels, so that there is nothing to draw."""
    return halo.num_parts == 1 or not spec.exchanged_layers
