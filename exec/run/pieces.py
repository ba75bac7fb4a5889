"""A layer in pieces: neighbours' rows are summed as they come, some at a time, and freed; the last piece finishes it.

A sum over neighbours is linear, so the columns of the local graph may be summed in any order: a piece adds those of the
rows it reads, the part's own or what one exchange has brought. Backward, the sum's gradient goes back to the columns of
each piece by itself; their rows are not needed for that, only what dropout drew, which is drawn again. Attention has no
such sum.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from halocast.graph.graph import Ints
from halocast.graph.parts import Part
from halocast.models.aggregate import Aggregate, neighbour_sum, neighbour_sum_back
from halocast.models.modules import NEIGHBOURS, Block, make_block, random_states, with_random_states
from halocast.models.spec import ModelKind
from halocast.schedule.ir import Exchange, Op, Role, Rows

if TYPE_CHECKING:
    from halocast.exec.run.state import RankState

ENTER = (Role.FEATURES, Role.ROWS, Role.FIRST)  # of buffers whose rows enter a layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Some columns of a part's graph: sums over them, and what a sum's gradient gives to each of them."""

    block: Block
    back: Aggregate


@dataclass(slots=True, kw_only=True, eq=False)
class Begun:
    """A layer under way: its own rows as a leaf, what dropout left of them, their sum; how other rows were drawn."""

    own: Tensor
    dropped: Tensor
    summed: Tensor
    random: dict[str, tuple[Tensor, ...]]  # by matrix: the state of the random generators before its rows


def is_piece(state: "RankState", op: Op) -> bool:
    """Whether an op computes only a part of its layer."""
    names = (*op.reads, *op.writes)
    return bool(state.names(names, role=Role.SUM) or state.names(names, role=Role.SUM_GRAD))


def forward(state: "RankState", op: Op, epoch: int) -> Tensor | None:
    """Add a piece's columns to the layer's sum; returns the layer's output, not yet detached, if this was the last."""
    layer = op.index[0]
    sums = state.names(op.reads, role=Role.SUM)
    total = state.value(op, sums[0], epoch) if sums else _begin(state, op, epoch)
    for name in state.names(op.reads, Rows.HALO):
        total = total + _summed(state, layer, _matrix_of(state, op, name), state.value(op, name, epoch))
    for name in state.names(op.writes, role=Role.SUM):
        state.put(op, name, total, epoch)
        return None
    leaf, begun = total.detach().requires_grad_(), state.begun[layer]
    out = state.model.transform(layer, begun.own, begun.dropped, leaf, state.leaf_of_first(op, layer, epoch))
    state.saved[layer] = leaf, out
    return out


def _begin(state: "RankState", op: Op, epoch: int) -> Tensor:
    """Begin a layer with the sum over the part's own columns."""
    layer = op.index[0]
    name = next(name for name in state.names(op.reads, Rows.INNER) if state.role_of(name) in ENTER)
    own = state.value(op, name, epoch).detach().requires_grad_(layer > 0)
    dropped = state.model.drop(own)
    summed = NEIGHBOURS[state.job.spec.kind](_columns(state, "").block, dropped)
    state.begun[layer] = Begun(own=own, dropped=dropped, summed=summed, random={})
    return summed.detach()


@torch.no_grad()
def _summed(state: "RankState", layer: int, matrix: str, rows: Tensor) -> Tensor:
    state.begun[layer].random[matrix] = random_states(rows.device)
    return NEIGHBOURS[state.job.spec.kind](_columns(state, matrix).block, state.model.drop(rows))


def backward(state: "RankState", op: Op, epoch: int, grad: Tensor | None) -> None:
    """Go from the gradient of a layer's output to those of its own rows and of its sum; without one, from the sum's to
    those of the rows of one exchange."""
    layer = op.index[0]
    if grad is None:
        _back_to_columns(state, op, epoch)
        return
    (leaf, out), begun = state.saved.pop(layer), state.begun[layer]
    torch.autograd.backward(out, grad, retain_graph=layer > 0)  # what dropout left went into the sum as well
    assert leaf.grad is not None, "backward has just made it"
    if layer > 0:
        torch.autograd.backward(begun.summed, leaf.grad)
    for name in state.names(op.writes, Rows.INNER, role=Role.GRAD):
        state.put(op, name, begun.own.grad, epoch)
    for name in state.names(op.writes, role=Role.SUM_GRAD):
        state.put(op, name, leaf.grad, epoch)


@torch.no_grad()
def _back_to_columns(state: "RankState", op: Op, epoch: int) -> None:
    layer = op.index[0]
    grad = state.value(op, state.names(op.reads, role=Role.SUM_GRAD)[0], epoch)
    for name in state.names(op.writes, Rows.HALO):
        matrix = _matrix_of(state, op, name)
        rows = BACK[state.job.spec.kind](_columns(state, matrix), grad)
        with with_random_states(state.begun[layer].random[matrix], rows.device):
            state.put(op, name, state.model.drop(rows), epoch)  # scaled by the same draw as the rows were


def _matrix_of(state: "RankState", op: Op, name: str) -> str:
    """The matrix of the exchange that fills or empties a buffer of halo rows."""
    ends = [*state.schedule.writers(op.rank, name), *state.readers[name]]
    return next(end.work.matrix for end in ends if isinstance(end.work, Exchange))


def _columns(state: "RankState", matrix: str) -> Columns:
    """The columns whose rows an exchange of a matrix brings; those of the part itself for no matrix."""
    if matrix not in state.columns:
        counted = state.schedule.matrix(matrix)
        places = np.arange(state.part.num_inner)
        if counted is not None:
            peers = np.flatnonzero(counted.counts[:, state.rank])
            bounds = state.part.halo_offsets
            lists = [np.arange(bounds[peer], bounds[peer + 1]) for peer in peers]
            places = state.part.num_inner + np.concatenate([*lists, np.arange(0)])
        state.columns[matrix] = cut(state.part, state.block, places)
    return state.columns[matrix]


def cut(part: Part, full: Block, places: Ints) -> Columns:
    """The edges of a part that come from some of its columns, which are renumbered in the order given."""
    number = np.full(part.num_inner + part.num_halo, -1)
    number[places] = np.arange(len(places))
    kept = number[part.indices] >= 0
    before = np.r_[0, np.cumsum(kept)]
    device = full.in_degree.device
    indptr, indices = torch.from_numpy(before[part.indptr]), torch.from_numpy(number[part.indices[kept]])
    csr = indptr.to(device), indices.to(device), len(places)
    degrees = full.in_degree, full.out_degree[torch.from_numpy(places).to(device)]
    return Columns(block=make_block(neighbour_sum(*csr), *degrees), back=neighbour_sum_back(*csr))


def _mean_back(columns: Columns, grad: Tensor) -> Tensor:
    return columns.back(grad / columns.block.in_degree).to(grad.dtype)


def _normalised_back(columns: Columns, grad: Tensor) -> Tensor:
    summed = columns.back(grad * columns.block.in_degree.rsqrt())
    return (summed * columns.block.out_degree.rsqrt()).to(grad.dtype)


BACK: Mapping[ModelKind, Callable[[Columns, Tensor], Tensor]] = MappingProxyType(
    {
        ModelKind.SAGE: _mean_back,
        **dict.fromkeys((ModelKind.GCN, ModelKind.RESGCN, ModelKind.GCNII), _normalised_back),
    }
)
