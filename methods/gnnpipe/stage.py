"""A rank of the pipeline, which is one way of a stage: the ops it does in an epoch, slot by slot, and its buffers.

Buffers: h.l the rows of all nodes that enter layer l, hist.l their snapshot, gh.l their gradient, gfirst that of layer
0's output where later layers mix it in, glate.l and gold.l what users of the snapshot give back (this epoch's and the
last one's), keep.l.k what the backward of layer l on slot k needs.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from halocast.graph.halo import Halo
from halocast.methods.common import ADAM_MOMENTS, IN_WEIGHTS, LABEL_BYTES, ir_kernels
from halocast.methods.gnnpipe.options import Options, StageGrid
from halocast.methods.gnnpipe.slots import in_step, turns
from halocast.methods.skeleton import After
from halocast.models import arithmetic
from halocast.models.arithmetic import Kernels, PartSize
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import AllReduce, Buffer, Compute, Exchange, Kind, Lane, Numbers, Op, Recv, Role, Rows, Send


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Makes the ops and buffers of one rank, which holds `layers` and takes its way's share of every slot."""

    stage: int
    way: int
    grid: StageGrid
    halo: Halo
    spec: ModelSpec
    options: Options
    layers: range
    numbers: Numbers

    @property
    def itemsize(self) -> int:
        """Bytes of a number of a row."""
        return self.numbers.itemsize

    @property
    def weight_bytes(self) -> int:
        return self.num_weights * self.numbers.master.itemsize

    @property
    def rank(self) -> int:
        return self.grid.rank(self.stage, self.way)

    @property
    def num_slots(self) -> int:
        return self.halo.num_parts // self.grid.ways

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.grid.stages - 1

    @cached_property
    def sizes(self) -> list[PartSize]:
        """The sizes of the chunk in every slot."""
        columns = zip(
            *(x.tolist() for x in (self.halo.num_inner, self.halo.num_halo, self.halo.num_edges)), strict=True
        )
        own = list(columns)[self.way * self.num_slots : (self.way + 1) * self.num_slots]
        return [PartSize(num_inner=inner, num_halo=halo, num_edges=edges) for inner, halo, edges in own]

    @cached_property
    def num_nodes(self) -> int:
        return int(self.halo.num_inner.sum())

    @cached_property
    def num_weights(self) -> int:
        return sum(self.spec.layer_weights(layer) for layer in self.layers)

    def ops(self) -> list[Op]:
        shuffles = self.options.shuffle and self.num_slots > 1
        ops = [self._compute("shuffle", (), (), ("order",))] if shuffles else []
        for forth, slot in turns(self.options.order, self.stage, self.grid.stages, self.num_slots):
            ops += self._forward(slot) if forth else self._backward(slot)
        if self.options.lockstep:
            ops = in_step(ops, self.stage, self.grid.stages, self.num_slots)
        ops += self._turn()
        reduced: After = ()
        if self.grid.ways > 1:
            ops.append(self._reduce())
            reduced = ((ops[-1].name, 0),)
        step = arithmetic.step(self.spec, self.num_weights)
        return [*ops, self._compute("step", step, ("grads",), ("weights",), reduced)]

    def _forward(self, slot: int) -> list[Op]:
        ops = [] if self.is_first else [self._pass(self.layers.start, slot, "h", -1)]
        for layer in self.layers:
            needs = layer == self.layers.start or self.spec.mixes_first(layer)
            after: After = ((f"pass.{self.layers.start}.{slot}", 0),) if needs and not self.is_first else ()
            if self._swaps(layer):
                ops.append(self._swap(layer, slot, self._rows_made(layer, slot)))
                after = (*after, (ops[-1].name, 0))
            reads = [f"h.{layer}", *self._hist(layer), *self._drawn]
            reads += ["h.1"] if self.spec.mixes_first(layer) and layer > 1 else []
            writes = (f"h.{layer + 1}", f"keep.{layer}.{slot}")
            kernels = (*self._gathered(layer, slot), *arithmetic.forward(self.spec, layer, self.sizes[slot]))
            ops.append(self._compute(f"forward_chunk.{layer}.{slot}", kernels, tuple(reads), writes, after))
        if self.is_last:
            kernels = arithmetic.loss(self.spec, self.sizes[slot].num_inner)
            logits = self.spec.layers
            ops.append(self._compute(f"loss_chunk.{slot}", kernels, (f"h.{logits}",), (f"gh.{logits}",)))
        else:
            ops.append(self._pass(self.layers.stop, slot, "h", 1))
        return ops

    def _backward(self, slot: int) -> list[Op]:
        ops = [] if self.is_last else [self._pass(self.layers.stop, slot, "gh", 1)]
        for layer in reversed(self.layers):
            after: After = ((ops[-1].name, 0),) if ops and ops[-1].kind is not Kind.COMPUTE else ()
            ops.append(self._backward_layer(layer, slot, after))
            if self._swaps(layer):
                ops.append(self._swap(layer, slot, f"backward_chunk.{layer}.{slot}", back=True))
        return ops if self.is_first else [*ops, self._pass(self.layers.start, slot, "gh", -1)]

    def _backward_layer(self, layer: int, slot: int, after: After) -> Op:
        late = self.options.late_gradients and bool(self._hist(layer))
        first = ["gfirst"] if self.spec.mixes_first(self.spec.layers - 1) else []
        reads = [f"gh.{layer + 1}", f"keep.{layer}.{slot}", *([f"gold.{layer}"] if late else []), *first]
        writes = [*([f"gh.{layer}"] if layer > 0 else []), *([f"glate.{layer}"] if late else [])]
        writes += [*(first if layer > 0 else []), "grads"]
        kernels = (*arithmetic.backward(self.spec, layer, self.sizes[slot]), *self._scattered(layer, slot))
        op = self._compute(f"backward_chunk.{layer}.{slot}", kernels, tuple(reads), tuple(writes), after)
        return replace(op, work=replace(op.work, scale=self.options.crossing))

    def _gathered(self, layer: int, slot: int) -> Kernels:
        """Kernels that gather halo rows: of this epoch and, of chunks yet to come, half on average, older ones."""
        size, width = self.sizes[slot], self.spec.widths[layer]
        if self.options.lockstep or not (size.num_halo and self.spec.aggregates(layer)):
            return ()  # the released code, which lock-step stands for, sums rows where they lie in its tables
        old = size.num_halo // 2 if self._hist(layer) else 0
        older: Kernels = (("gather", (old, width)), ("gather", (old, width))) if old else ()
        return (("gather", (size.num_halo, width)), *older)

    def _scattered(self, layer: int, slot: int) -> Kernels:
        """Kernels that put gradients of a chunk's own rows, and those of fresh halo rows, into their table."""
        size, width = self.sizes[slot], self.spec.widths[layer]
        if self.options.lockstep or layer == 0:
            return ()
        own: Kernels = arithmetic.blend_rows(size.num_inner, width)
        back = size.num_halo // 2 if self.spec.aggregates(layer) else 0
        return (*own, ("gather", (back, width)), *arithmetic.add_rows(back, width)) if back else own

    def _turn(self) -> list[Op]:
        """The ops at the end of an epoch: snapshots of the rows, late gradients for the next epoch.

        The first snapshot is of the last of the first `freeze` epochs, so that none is of weights that have not learnt.
        """
        ops, freeze = [], self.options.freeze
        for layer in self.layers:
            if self._hist(layer):
                kernels = arithmetic.copy_rows(self.num_nodes, self.spec.widths[layer])
                verb = "swap" if self._swaps(layer) else "pass" if layer == self.layers.start else ""
                came: After = ((f"{verb}.{layer}.{self.num_slots - 1}", 0),) if verb else ()
                refresh = self._compute(f"refresh.{layer}", kernels, (f"h.{layer}",), (f"hist.{layer}",), came)
                ops.append(replace(refresh, every=freeze, offset=freeze - 1, carries=True))
            if self._hist(layer) and self.options.late_gradients:
                ops.append(self._compute(f"turn.{layer}", (), (f"glate.{layer}",), (f"gold.{layer}",)))
        return ops

    def _pass(self, layer: int, slot: int, what: str, towards: int) -> Op:
        """The op that moves rows into `layer`, or their gradients, from or to the stage before (-1) or after (1)."""
        sends = (what == "h") == (towards == 1)
        names = (f"{what}.{layer}", *self._first_rows(what))
        peer, num_bytes = self.grid.rank(self.stage + towards, self.way), self._passed_bytes(layer, slot)
        if sends:
            maker = f"forward_chunk.{layer - 1}.{slot}" if what == "h" else f"backward_chunk.{layer}.{slot}"
            added: After = ((f"swap_grad.{layer}.{slot}", 0),) if what == "gh" and self._swaps(layer) else ()
            lane, after = Lane.SEND, ((maker, 0), *added, *self._first_made(what, slot))
        else:
            lane, after = Lane.RECV, (("step", 1),)
        return Op(
            name=f"{'pass' if what == 'h' else 'pass_grad'}.{layer}.{slot}",
            rank=self.rank,
            lane=lane,
            work=(Send if sends else Recv)(peer=peer, num_bytes=num_bytes),
            reads=names if sends else (),
            writes=() if sends else names,
            after=after,
        )

    def _passed_bytes(self, layer: int, slot: int) -> int:
        num_columns = self.spec.widths[layer] + (self.spec.hidden if self.spec.mixes_first(self.spec.layers - 1) else 0)
        return self.sizes[slot].num_inner * num_columns * self.itemsize

    def _first_rows(self, what: str) -> tuple[str, ...]:
        """The buffer of layer 0's output rows, or of their gradient; travels along where later layers mix them in."""
        if not self.spec.mixes_first(self.spec.layers - 1):
            return ()
        return ("h.1",) if what == "h" else ("gfirst",)

    def _first_made(self, what: str, slot: int) -> After:
        """The wait for layer 0's output rows of a slot, if what makes them is not what makes the others."""
        if what != "h" or not self._first_rows(what) or self.layers.stop == 1:
            return ()
        return ((f"forward_chunk.0.{slot}" if self.is_first else f"pass.{self.layers.start}.{slot}", 0),)

    def _swaps(self, layer: int) -> bool:
        """Whether the ways exchange the rows that enter a layer, and their gradients."""
        return self.grid.ways > 1 and layer > 0 and self.spec.aggregates(layer)

    def _rows_made(self, layer: int, slot: int) -> str:
        arrives = layer == self.layers.start and not self.is_first
        return f"pass.{layer}.{slot}" if arrives else f"forward_chunk.{layer - 1}.{slot}"

    def _swap(self, layer: int, slot: int, maker: str, *, back: bool = False) -> Op:
        """The op that moves a slot's rows to the ways that need them, or the gradients they added up to the owner."""
        row_bytes, name = self.spec.widths[layer] * self.itemsize, f"{'gh' if back else 'h'}.{layer}"
        return Op(
            name=f"{'swap_grad' if back else 'swap'}.{layer}.{slot}",
            rank=self.rank,
            lane=Lane.HALO,
            work=Exchange(matrix=f"ways.{slot}", transposed=back, row_bytes=row_bytes, bits=self.numbers.bits),
            reads=(name,),
            writes=(name,),
            after=((maker, 0),),
        )

    def _reduce(self) -> Op:
        return Op(
            name=f"reduce_ways.{self.stage}",
            rank=self.rank,
            lane=Lane.REDUCE,
            work=AllReduce(num_bytes=self.weight_bytes),
            reads=("grads",),
            writes=("grads",),
            after=((f"backward_chunk.{self.layers.start}.0", 0),),
        )

    def _hist(self, layer: int) -> tuple[str, ...]:
        """The layer's snapshot, needed where rows of other chunks are read that change from epoch to epoch."""
        needed = self.num_slots > 1 and layer > 0 and self.spec.aggregates(layer)
        return (f"hist.{layer}",) if needed else ()

    @property
    def _drawn(self) -> tuple[str, ...]:
        return ("order",) if self.options.shuffle and self.num_slots > 1 else ()

    def _compute(
        self, name: str, kernels: Kernels, reads: tuple[str, ...], writes: tuple[str, ...], after: After = ()
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

    def buffers(self) -> list[Buffer]:
        """Buffers of the rank. All but what a slot's backward needs stay: the topology, tables of rows of all nodes."""
        stays = [self._buffer(name, size, Rows.NONE, role) for name, (size, role) in self._kept().items()]
        tables = [
            self._buffer(name, self._table(layer), Rows.ALL, role) for name, (layer, role) in self._tables().items()
        ]
        return [
            *stays,
            *tables,
            *(self._slot_buffer(layer, slot) for layer in self.layers for slot in range(self.num_slots)),
        ]

    def _slot_buffer(self, layer: int, slot: int) -> Buffer:
        size = self.sizes[slot]
        joined = replace(size, num_halo=0) if self.options.lockstep else size  # see _gathered
        num_bytes = arithmetic.kept_bytes(self.spec, layer, joined, self.itemsize)
        return Buffer(name=f"keep.{layer}.{slot}", rank=self.rank, num_bytes=num_bytes)

    def _buffer(self, name: str, num_bytes: int, rows: Rows, role: Role) -> Buffer:
        bits = (self.numbers.master if role in IN_WEIGHTS else self.numbers).bits
        return Buffer(name=name, rank=self.rank, num_bytes=num_bytes, rows=rows, role=role, bits=bits, persistent=True)

    def _kept(self) -> dict[str, tuple[int, Role]]:
        """Bytes and roles of the buffers that do not hold rows, by name."""
        weights, num_edges = self.weight_bytes, sum(size.num_edges for size in self.sizes)
        num_columns = sum(size.num_inner + size.num_halo for size in self.sizes)
        topology = 2 * (4 + self.itemsize) * num_edges + 4 * (self.num_nodes + num_columns + 2 * self.num_slots)
        topology += num_columns * (8 + 2 * self.itemsize)  # where a column's row is, and its degrees
        scratch = [arithmetic.scratch_numel(self.spec, layer, size) for layer in self.layers for size in self.sizes]
        kept = {
            "topology": (topology, Role.NONE),
            "weights": (weights, Role.WEIGHTS),
            "moments": (ADAM_MOMENTS * weights, Role.NONE),
            "grads": (weights, Role.WEIGHT_GRADS),
            "workspace": (max(scratch) * self.itemsize, Role.NONE),
        }
        if self.is_last:
            kept["labels"] = LABEL_BYTES * self.num_nodes, Role.NONE
        return kept | ({"order": (8 * self.num_slots, Role.NONE)} if self._drawn else {})

    def _tables(self) -> dict[str, tuple[int, Role]]:
        """Tables of rows by name: the layer whose input is as wide, and the role."""
        first, last = self.layers.start, self.layers.stop
        tables = {f"h.{layer}": (layer, Role.ROWS if layer else Role.FEATURES) for layer in range(first, last + 1)}
        tables |= {f"gh.{layer}": (layer, Role.GRAD) for layer in range(max(first, 1), last + 1)}
        for layer in self.layers:
            tables |= dict.fromkeys(self._hist(layer), (layer, Role.SNAPSHOT))
            if self._hist(layer) and self.options.late_gradients:
                tables |= {f"glate.{layer}": (layer, Role.LATE_GRAD), f"gold.{layer}": (layer, Role.OLD_GRAD)}
        if self.spec.mixes_first(self.spec.layers - 1):
            tables |= {"h.1": (1, Role.FIRST), "gfirst": (1, Role.FIRST_GRAD)}
        return tables

    def _table(self, layer: int) -> int:
        return self.num_nodes * self.spec.widths[layer] * self.itemsize
