"""The torch modules: layers that turn local rows into local rows and know nothing of ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor, nn

from halocast.models.aggregate import Aggregate
from halocast.models.spec import ModelKind, ModelSpec, Norm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A local graph: neighbour sums from all columns (inner rows first, then halo) into the inner rows.

    Degrees are those of the whole graph, as columns of shape [n, 1].
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
    return block.aggregate(rows) / block.in_degree


def normalised_neighbours(block: Block, rows: Tensor) -> Tensor:
    """Symmetric normalisation: an edge j -> i weighs 1 / sqrt(out_degree(j) in_degree(i))."""
    return block.aggregate(rows * block.out_degree.rsqrt()) * block.in_degree.rsqrt()


NEIGHBOURS: MappingProxyType[ModelKind, Callable[[Block, Tensor], Tensor]] = MappingProxyType(
    {ModelKind.SAGE: mean_neighbours, ModelKind.GCN: normalised_neighbours}
)


class SageLinear(nn.Module):
    """GraphSAGE-mean after aggregation: own row and neighbours' mean through a matrix each."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, out)
        self.neighbours = nn.Linear(width, out)

    def forward(self, own: Tensor, neighbours: Tensor) -> Tensor:
        result: Tensor = self.own(own) + self.neighbours(neighbours)
        return result


class GcnLinear(nn.Module):
    """GCN after aggregation: the self-loop has put the own row into the sum already."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(width, out)

    def forward(self, own: Tensor, neighbours: Tensor) -> Tensor:
        result: Tensor = self.neighbours(neighbours)
        return result


LINEAR: MappingProxyType[ModelKind, Callable[[int, int], nn.Module]] = MappingProxyType(
    {ModelKind.SAGE: SageLinear, ModelKind.GCN: GcnLinear}
)


class Gnn(nn.Module):
    """All layers of a spec; `layer` runs one of them, so that a caller may communicate in between."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        widths = spec.widths
        self.linears = nn.ModuleList(
            LINEAR[spec.kind](widths[k], widths[k + 1])
            if k < spec.num_graph_layers
            else nn.Linear(widths[k], widths[k + 1])
            for k in range(spec.layers)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(widths[k + 1]) if spec.norm is Norm.LAYER else nn.Identity() for k in range(spec.layers - 1)
        )

    def layer(self, index: int, rows: Tensor, block: Block, aggregated: Tensor | None = None) -> Tensor:
        """Layer `index` on its rows (inner, then halo); `aggregated` replaces the neighbour sum of a
        precomputed layer 0."""
        linear = self.linears[index]
        if index >= self.spec.num_graph_layers:
            out: Tensor = linear(self._drop(rows))
        elif aggregated is not None:
            own = self._drop(rows) if self.spec.kind is ModelKind.SAGE else rows  # a GCN has its own row in the sum
            out = linear(own, self._drop(aggregated))
        else:
            rows = self._drop(rows)
            out = linear(rows[: block.num_inner], NEIGHBOURS[self.spec.kind](block, rows))
        return F.relu(self.norms[index](out)) if index < self.spec.layers - 1 else out

    def _drop(self, rows: Tensor) -> Tensor:
        return drop(rows, self.spec.dropout) if self.spec.dropout and self.training else rows


def drop(rows: Tensor, rate: float) -> Tensor:
    """Dropout. On the CPU four 16-bit numbers are cut from every draw: torch's own draws one per element, and is a
    quarter of an epoch. The rate is rounded to 1/65536 and the scale follows the rounded one, so means stay exact."""
    if rows.device.type != "cpu":
        return F.dropout(rows, rate)
    kept = round((1 - rate) * 2**16)
    draws = torch.empty(-(-rows.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.int16)[: rows.numel()] < kept - 2**15
    return rows * keep.view(rows.shape).to(rows.dtype).mul_(2**16 / kept)


def build_model(spec: ModelSpec, seed: int, dtype: torch.dtype = torch.float32) -> Gnn:
    """A model whose initial weights depend on the seed alone; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Gnn(spec).to(dtype)


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss summed over nodes: cross entropy for class ids, binary cross entropy for a row of labels per node."""
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, reduction="sum")
    wanted = labels.to(logits.dtype)  # else the loss takes the precision of the labels
    return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1).sum()


def hits(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """(numerator, denominator) of the score: accuracy for class ids, micro-F1 for multi-label; sums over parts add."""
    if labels.dim() == 1:
        return float((logits.argmax(1) == labels).sum()), float(len(labels))
    predicted, actual = logits > 0, labels > 0.5
    both = float((predicted & actual).sum())
    return 2 * both, float(predicted.sum()) + float(actual.sum())
