"""SAR: the rows of one peer at a time, added to a partial sum and freed; exact, with less memory for halo rows."""

from dataclasses import dataclass, replace

import numpy as np

from halocast.base.records import require
from halocast.graph.halo import Halo
from halocast.methods.common import PartOps, ir_kernels
from halocast.methods.sampled import smaller
from halocast.methods.skeleton import After, Epoch, assemble, meta_of, parts_of
from halocast.models import arithmetic
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Buffer, Exchange, Matrix, Numbers, Op, Role, Schedule

DIVIDED = ("halo.", "packed.", "ghalo.", "gsent.")  # what an exchange holds, here each round of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    ahead: int = 1  # rounds that may be on their way while another's rows are summed


def sar(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    """Round k takes the rows that rank r needs of rank r + k to it."""
    require(not spec.attends(0), f"model.kind = {spec.kind}: a softmax needs all neighbours at once, not one peer's")
    require(not spec.recompute, "model.recompute = true: rows that were freed would have to be fetched again")
    require(options.ahead >= 0, f"ahead = {options.ahead}: needs to be at least 0")
    cut, ranks = halo.cut_edges(), np.arange(halo.num_parts)
    away = (ranks[:, None] - ranks) % halo.num_parts  # [i, j]: the round in which i gives to j
    rounds = [np.where(away == k, halo.matrix, 0) for k in ranks[1:]]
    edges = [halo.num_edges - cut.sum(axis=0), *(np.where(away == k, cut, 0).sum(axis=0) for k in ranks[1:])]
    sizes = [smaller(halo, *size) for size in zip((0 * halo.matrix, *rounds), edges, strict=True)]
    epochs = [
        _InRounds(part=part, pieces=tuple(replace(part, halo=size) for size in sizes), ahead=options.ahead)
        for part in parts_of(halo, spec, numbers)
    ]
    return assemble(epochs, meta_of("sar", halo), tuple(Matrix(f"round.{k + 1}", m) for k, m in enumerate(rounds)))


@dataclass(frozen=True, kw_only=True)
class _InRounds(Epoch):
    pieces: tuple[PartOps, ...]  # with the part's own columns only, and with what each round brings only
    ahead: int

    def fetch(self, layer: int) -> list[Op]:
        """All pieces of the layer but the last; a round before them as soon as rows of an earlier one are freed."""
        rounds = [(k - self.ahead - 0.5, self._round(layer, k)) for k in self._rounds(self.part.exchanges(layer))]
        pieces = [(k - 1.0, self._piece(layer, k - 1)) for k in self._rounds(self.part.exchanges(layer))]
        return [op for _, op in sorted((*rounds, *pieces), key=lambda placed: placed[0])]

    def forward(self, layer: int) -> Op:
        return self._piece(layer, len(self.pieces) - 1) if self.part.exchanges(layer) else self.part.forward(layer)

    def rows_made(self, layer: int) -> After:
        return ((self.forward(layer - 1).name, 0),) if layer else (("step", 1),)

    def _piece(self, layer: int, k: int) -> Op:
        """The sum over own columns, or the sum so far with a round's; the last one also does what follows the sum."""
        whole, spec, size = self.part.forward(layer), self.part.spec, self.pieces[k].size
        add = arithmetic.add_columns if k else arithmetic.aggregate
        reads, kernels = (f"halo.{layer}.{k}", f"sum.{layer}") if k else whole.reads[:1], add(spec, layer, size)
        waits = ((f"exchange.{layer}.{k}", 0),) if k else ()
        if k < len(self.pieces) - 1:
            return self.part.compute(f"forward.{layer}.{k}", kernels, reads, (f"sum.{layer}",), waits)
        own = tuple(name for name in whole.reads if name != f"halo.{layer}")
        kernels += arithmetic.transform(spec, layer, size)
        return self.part.compute(f"forward.{layer}.{k}", kernels, (*reads, *own), whole.writes, waits)

    def backward(self, layer: int) -> Op:
        """Own rows' gradients and the sum's, after adding all that came back for the layer's output."""
        op, back = self.part.backward(layer), self._rounds(self.part.returns(layer + 1))
        added = [arithmetic.add_rows(self.pieces[k].num_sent, self.part.spec.widths[layer + 1]) for k in back]
        kernels = (*sum(added, ()), *arithmetic.backward(self.part.spec, layer, self.pieces[0].size))
        reads = (name for name in op.reads if name != f"gsent.{layer + 1}")
        return replace(
            op,
            name=f"{op.name}.0" if self.part.returns(layer) else op.name,
            work=replace(op.work, kernels=ir_kernels(kernels, self.part.numbers)),
            reads=(*reads, *(f"gsent.{layer + 1}.{k}" for k in back)),
            writes=tuple(name.replace("ghalo.", "gsum.") for name in op.writes),
            after=tuple((f"exchange_grad.{layer + 1}.{k}", 0) for k in back),
        )

    def give_back(self, layer: int) -> list[Op]:
        """The sum's gradient to the columns of every round; `ahead` of them may wait to leave."""
        rounds, ops = self._rounds(self.part.returns(layer)), list[tuple[float, Op]]()
        for k in rounds:
            kernels = arithmetic.add_columns_back(self.part.spec, layer, self.pieces[k].size)
            gone = ((f"exchange_grad.{layer}.{k - self.ahead - 1}", 0),) if k > self.ahead + 1 else ()
            name, names = f"backward.{layer}.{k}", ((f"gsum.{layer}",), (f"ghalo.{layer}.{k}",))
            leaves = _of_round(self.pieces[k].exchange_grad(layer, ((name, 0),)), k)
            ops += [(k, self.part.compute(name, kernels, *names, gone)), (k + self.ahead + 0.5, leaves)]
        return [op for _, op in sorted(ops, key=lambda placed: placed[0])]

    def buffers(self) -> list[Buffer]:
        """As vanilla's, with what exchanges hold divided into rounds, no joined rows kept, and the sums."""
        own = {buffer.name: buffer for buffer in self.pieces[0].buffers()}
        whole = [b for b in self.part.buffers() if not b.name.startswith(DIVIDED)]
        kept = [own[b.name] if b.name.startswith(("keep.", "workspace")) else b for b in whole]
        of_rounds = [
            replace(buffer, name=f"{buffer.name}.{k}")
            for k in self._rounds()
            for buffer in self.pieces[k].buffers()
            if buffer.name.startswith(DIVIDED)
        ]
        return [*kept, *of_rounds, *self._sums(own)]

    def _sums(self, own: dict[str, Buffer]) -> list[Buffer]:
        layers = [layer for layer in range(self.part.spec.layers) if self.part.exchanges(layer)]
        sums = [(f"sum.{layer}", Role.SUM, layer) for layer in layers]
        sums += [(f"gsum.{layer}", Role.SUM_GRAD, layer) for layer in layers if self.part.returns(layer)]
        return [replace(own[f"h.{n}"], name=name, role=role, persistent=False) for name, role, n in sums]

    def _rounds(self, some: bool = True) -> range:
        return range(1, len(self.pieces) if some else 1)

    def _round(self, layer: int, k: int) -> Op:
        freed = ((f"forward.{layer}.{k - self.ahead - 1}", 0),) if k > self.ahead else ()
        return _of_round(self.pieces[k].exchange(layer, (*self.rows_made(layer), *freed)), k)


def _of_round(op: Op, k: int) -> Op:
    """An exchange of a layer's rows or gradients, made that of one round."""
    assert isinstance(op.work, Exchange)
    names = [
        tuple(f"{name}.{k}" if name.startswith(DIVIDED) else name for name in names) for names in (op.reads, op.writes)
    ]
    work = replace(op.work, matrix=f"round.{k}")
    return replace(op, name=f"{op.name}.{k}", work=work, reads=names[0], writes=names[1])
