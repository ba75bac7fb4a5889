"""The torch modules: layers that turn local rows into local rows and know nothing of ranks."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor, nn

from halocast.models.aggregate import Aggregate
from halocast.models.attention import attend
from halocast.models.spec import ModelKind, ModelSpec, Norm


def master(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which weights, their gradients and their steps are kept where rows have such numbers."""
    return torch.float32 if dtype is torch.bfloat16 else dtype


def widened(rows: Tensor) -> Tensor:
    """Rows as exact as weights are kept: bfloat16 ones as float32, others as they are.

    Sums over neighbours, attention, norms and the loss are computed with these and rounded once, at their end: torch's
    sparse products on a CPU take no bfloat16, and a running sum of 8-bit fractions would stop growing.
    """
    return rows.to(master(rows.dtype))


class Linear(nn.Linear):
    """A matrix whose weights are as they are kept, and whose product has the numbers of the rows."""

    def forward(self, rows: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(rows.dtype)
        return F.linear(rows, self.weight.to(rows.dtype), bias)


class LayerNorm(nn.LayerNorm):
    """The norm of rows, computed as exactly as weights are kept."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(widened(rows)).to(rows.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A local graph: neighbour sums from all columns (inner rows first, then halo) into the inner rows.

    Degrees are those of the whole graph, as columns of shape [n, 1], as exact as weights are kept.
    """

    aggregate: Aggregate
    num_inner: int
    in_degree: Tensor  # of the inner rows
    out_degree: Tensor  # of all columns


def make_block(aggregate: Aggregate, in_degree: Tensor, out_degree: Tensor) -> Block:
    return Block(
        aggregate=aggregate,
        num_inner=len(in_degree),
        in_degree=in_degree.reshape(-1, 1),
        out_degree=out_degree.reshape(-1, 1),
    )


def mean_neighbours(block: Block, rows: Tensor) -> Tensor:
    """Means of neighbours; of bfloat16 rows the sums are float32 and the means are rounded (see `widened`)."""
    return (block.aggregate(widened(rows)) / block.in_degree).to(rows.dtype)


def normalised_neighbours(block: Block, rows: Tensor) -> Tensor:
    """Sums of neighbours with symmetric normalisation: an edge j -> i weighs 1 / sqrt(out_degree(j) in_degree(i))."""
    summed = block.aggregate(widened(rows) * block.out_degree.rsqrt())
    return (summed * block.in_degree.rsqrt()).to(rows.dtype)


def all_rows(block: Block, rows: Tensor) -> Tensor:
    """The rows themselves: attention changes with the weights, so nothing else can be known beforehand."""
    return rows


# what a precomputed layer 0 keeps; for all but attention also what any layer sums
NEIGHBOURS: MappingProxyType[ModelKind, Callable[[Block, Tensor], Tensor]] = MappingProxyType(
    {
        ModelKind.SAGE: mean_neighbours,
        ModelKind.GCN: normalised_neighbours,
        ModelKind.GAT: all_rows,
        ModelKind.RESGCN: normalised_neighbours,
        ModelKind.GCNII: normalised_neighbours,
    }
)


class SageLinear(nn.Module):
    """GraphSAGE-mean after aggregation: own row and neighbours' mean through a matrix each."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.own = Linear(width, out)
        self.neighbours = Linear(width, out)

    def forward(self, own: Tensor, neighbours: Tensor) -> Tensor:
        result: Tensor = self.own(own) + self.neighbours(neighbours)
        return result


class GcnLinear(nn.Module):
    """GCN after aggregation: the self-loop has put the own row into the sum already."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.neighbours = Linear(width, out)

    def forward(self, own: Tensor, neighbours: Tensor) -> Tensor:
        result: Tensor = self.neighbours(neighbours)
        return result


class GatLinear(nn.Module):
    """Graph attention: all rows through a matrix, then every row the mean of its neighbours that the attention makes,
    head by head. An edge's score is the sum of one number per end, each a vector times the row there."""

    def __init__(self, width: int, out: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.rows = Linear(width, heads * head_width, bias=False)
        self.ends = nn.Parameter(torch.empty(heads, head_width, 2))  # of the source, of the target
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.xavier_uniform_(self.rows.weight)
        nn.init.uniform_(self.ends, -(head_width**-0.5), head_width**-0.5)

    def forward(self, block: Block, rows: Tensor) -> Tensor:
        heads, width, _ = self.ends.shape
        values = widened(self.rows(rows))
        scores = (values @ torch.block_diag(*self.ends)).view(-1, heads, 2)  # type: ignore[no-untyped-call]
        source, target = scores[..., 0].contiguous(), scores[: block.num_inner, :, 1].contiguous()
        mixed = attend(block.aggregate.edges, source, target, values.view(-1, heads, width))
        joined = mixed.flatten(1) if heads * width == len(self.bias) else mixed.mean(1)
        return (joined + self.bias).to(rows.dtype)


class GcniiLinear(nn.Module):
    """GCNII after aggregation: neighbours and the projection's rows, mixed, through a matrix that is mostly the
    identity; after the last convolution the classifier."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        width, last = spec.hidden, layer == spec.layers - 1
        self.share, self.strength = spec.first_share, math.log(spec.weight_decline / layer + 1)
        self.matrix = Linear(width, width, bias=False)
        self.classify = Linear(width, spec.num_classes) if last else None
        self.drop = partial(drop, rate=spec.dropout) if spec.dropout and last else None

    def forward(self, first: Tensor, neighbours: Tensor) -> Tensor:
        mixed = torch.lerp(neighbours, first, self.share)
        out = torch.lerp(mixed, self.matrix(mixed), self.strength)
        if self.classify is None:
            return out
        active = F.relu(out)
        result: Tensor = self.classify(self.drop(active) if self.drop and self.training else active)
        return result


def make_linear(spec: ModelSpec, layer: int) -> nn.Module:
    if spec.is_linear(layer):
        return Linear(spec.widths[layer], spec.widths[layer + 1])
    return LINEAR[spec.kind](spec, layer)


LINEAR: MappingProxyType[ModelKind, Callable[[ModelSpec, int], nn.Module]] = MappingProxyType(
    {
        ModelKind.SAGE: lambda spec, k: SageLinear(spec.widths[k], spec.widths[k + 1]),
        ModelKind.GCN: lambda spec, k: GcnLinear(spec.widths[k], spec.widths[k + 1]),
        ModelKind.GAT: lambda spec, k: GatLinear(spec.widths[k], spec.widths[k + 1], spec.heads, spec.head_width(k)),
        ModelKind.RESGCN: lambda spec, k: GcnLinear(spec.widths[k], spec.widths[k + 1]),
        ModelKind.GCNII: GcniiLinear,
    }
)


class Gnn(nn.Module):
    """All layers of a spec; `layer` runs one of them, so that a caller may communicate in between."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.linears = nn.ModuleList(make_linear(spec, layer) for layer in range(spec.layers))
        self.norms = nn.ModuleList(
            LayerNorm(width) if spec.norm is Norm.LAYER else nn.Identity() for width in spec.widths[1:-1]
        )

    def layer(
        self, index: int, rows: Tensor, block: Block, aggregated: Tensor | None = None, first: Tensor | None = None
    ) -> Tensor:
        """Run layer `index` on its rows (inner, then halo); `aggregated` is what a precomputed layer 0 keeps of its
        neighbours, `first` the inner output rows of layer 0, where later layers mix them in."""
        if self.spec.recompute and torch.is_grad_enabled():
            anchor = next(self.linears[index].parameters())
            output: Tensor = _Again.apply(  # type: ignore[no-untyped-call]
                lambda rows, first: self._layer(index, rows, block, aggregated, first), anchor, rows, first
            )
            return output
        return self._layer(index, rows, block, aggregated, first)

    def _layer(self, index: int, rows: Tensor, block: Block, aggregated: Tensor | None, first: Tensor | None) -> Tensor:
        linear = self.linears[index]
        if self.spec.is_linear(index):
            out: Tensor = linear(self.drop(rows))
        elif self.spec.attends(index):
            out = linear(block, self.drop(rows if aggregated is None else aggregated))
        elif first is not None:
            out = linear(first, NEIGHBOURS[self.spec.kind](block, self.drop(rows)))
        elif aggregated is not None:
            own = self.drop(rows) if self.spec.kind is ModelKind.SAGE else rows  # a GCN has its own row in the sum
            out = linear(own, self.drop(aggregated))
        else:
            dropped = self.drop(rows)
            out = linear(dropped[: block.num_inner], NEIGHBOURS[self.spec.kind](block, dropped))
        return self._done(index, out, rows[: block.num_inner])

    def transform(
        self, index: int, own: Tensor, dropped: Tensor, neighbours: Tensor, first: Tensor | None = None
    ) -> Tensor:
        """Finish layer `index` after its sum over neighbours: its inner rows, what dropout left of them, the sum."""
        out: Tensor = self.linears[index](dropped if first is None else first, neighbours)
        return self._done(index, out, own)

    def _done(self, index: int, out: Tensor, own: Tensor) -> Tensor:
        """Finish a layer's output after its matrices; the last layer's stays as it is."""
        if index == self.spec.layers - 1:
            return out
        done = self._finish(index, out)
        return done + own if self.spec.adds_input(index) else done

    def _finish(self, index: int, out: Tensor) -> Tensor:
        active = F.relu(self.norms[index](out))
        return unit_rows(active) if self.spec.norm is Norm.L2 else active

    def drop(self, rows: Tensor) -> Tensor:
        """Dropout as a layer does it to its rows; nothing while scores are taken."""
        return drop(rows, self.spec.dropout) if self.spec.dropout and self.training else rows


class _Again(torch.autograd.Function):
    """Keeps nothing but the input; backward runs forward again, with the same dropout. (torch's own checkpoint imports
    its compiler first.) The anchor needs a gradient, so backward comes even where the input needs none."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], anchor: Tensor, *given: Tensor | None) -> Tensor:
        ctx.run, ctx.given, ctx.random = run, given, random_states(anchor.device)
        return run(*given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [t if t is None else t.detach().requires_grad_(t.requires_grad) for t in ctx.given]
        with torch.enable_grad(), with_random_states(ctx.random, grads[0].device):
            out = ctx.run(*leaves)
        torch.autograd.backward(out, grads[0])
        return None, None, *(None if leaf is None else leaf.grad for leaf in leaves)


def random_states(device: torch.device) -> tuple[Tensor, ...]:
    """The states of the generators that dropout on a device draws from."""
    own = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return torch.get_rng_state(), *own


@contextmanager
def with_random_states(states: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Draw as when `random_states` gave these states; what is drawn later is as if nothing had been drawn here."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.set_rng_state(states[0])
        if devices:
            torch.cuda.set_rng_state(states[1], device)
        yield


class _UnitRows(torch.autograd.Function):
    """Rows scaled to length 1; only they and the lengths are kept: plain autograd would take twice the passes back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        lengths.masked_fill_(lengths == 0, 1)
        result: Tensor = rows / lengths
        ctx.save_for_backward(result, lengths)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        result, lengths = ctx.saved_tensors
        along = (grads[0] * result).sum(1, keepdim=True)
        across: Tensor = torch.addcmul(grads[0], result, along, value=-1).div_(lengths)
        return across


def unit_rows(rows: Tensor) -> Tensor:
    """Rows scaled to length 1; rows of zeros stay."""
    result: Tensor = _UnitRows.apply(widened(rows))  # type: ignore[no-untyped-call]
    return result.to(rows.dtype)


def drop(rows: Tensor, rate: float) -> Tensor:
    """Dropout. On the CPU four 16-bit numbers are cut from every draw: torch's own draws one per element, and is a
    quarter of an epoch. The rate is rounded to 1/65536 and the scale follows the rounded one, so means stay exact."""
    if rows.device.type != "cpu":
        return F.dropout(rows, rate)
    kept = round((1 - rate) * 2**16)
    draws = torch.empty(-(-rows.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.int16)[: rows.numel()] < kept - 2**15
    scale = 2**16 / kept
    if rows.dtype is torch.bfloat16:  # which would round the scale of a mask, and with it all means
        return (rows * keep.view(rows.shape)).mul(scale)
    return rows * keep.view(rows.shape).to(rows.dtype).mul_(scale)


def build_model(spec: ModelSpec, seed: int, dtype: torch.dtype = torch.float32) -> Gnn:
    """A model for rows of such numbers whose initial weights depend on the seed alone; the caller's random state is
    left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Gnn(spec).to(master(dtype))


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss summed over nodes: cross entropy for class ids, binary cross entropy for a row of labels per node."""
    logits = widened(logits)
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, reduction="sum")
    wanted = labels.to(logits.dtype)  # else the loss takes the precision of the labels
    return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1).sum()


def hits(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The score's numerator and denominator, which add over parts: accuracy for class ids, micro-F1 for multi-label."""
    if labels.dim() == 1:
        return float((logits.argmax(1) == labels).sum()), float(len(labels))
    predicted, actual = logits > 0, labels > 0.5
    both = float((predicted & actual).sum())
    return 2 * both, float(predicted.sum()) + float(actual.sum())
