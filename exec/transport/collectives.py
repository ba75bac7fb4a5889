"""Collectives of one rank over torch.distributed, among all ranks or some: what a group sums, gathers or passes on.

Each (lane, group) has a process group of its own, made once when the ranks meet. Weights and their gradients are summed
where they lie; any other value is read and written like that of every op.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from halocast.exec.run.state import RankState
from halocast.exec.transport.comm import all_reduce, barrier
from halocast.schedule.ir import Broadcast, Kind, Op


def reduce(state: RankState, op: Op, epoch: int) -> int:
    """Sum a tensor over the ranks of the group, each with its share."""
    flat = state.flat(op.reads[0])
    values = _given(state, op, epoch).clone() if flat is None else flat
    if op.work.scale != 1:
        values.mul_(op.work.scale)
    if len(state.schedule.group(op)) > 1:
        all_reduce(state.link, values, _said(op, epoch), _group(state, op))
    return _taken(state, op, epoch, values)


def gather(state: RankState, op: Op, epoch: int) -> int:
    """Join the pieces of all ranks of the group, one below the other."""
    piece, num = _given(state, op, epoch), len(state.schedule.group(op))
    whole = piece.new_empty((num * len(piece), *piece.shape[1:]))
    _run(state, op, epoch, piece, whole, dist.all_gather_into_tensor)
    return _taken(state, op, epoch, whole)


def scatter(state: RankState, op: Op, epoch: int) -> int:
    """Sum a tensor over the ranks of the group and keep this rank's piece."""
    whole, num = _given(state, op, epoch), len(state.schedule.group(op))
    piece = whole.new_empty((len(whole) // num, *whole.shape[1:]))
    _run(state, op, epoch, whole, piece, dist.reduce_scatter_tensor)
    return _taken(state, op, epoch, piece)


def pass_on(state: RankState, op: Op, epoch: int) -> int:
    """Hand the root's tensor to all ranks of the group."""
    work, link = op.work, state.link
    assert isinstance(work, Broadcast)
    values = _given(state, op, epoch) if op.rank == work.root else state.empty(op.writes[0])
    if len(state.schedule.group(op)) > 1:
        room = link.down(values) if op.rank == work.root else link.room(values)
        sent = dist.broadcast(room, work.root, group=_group(state, op), async_op=True)
        link.wait(sent, _said(op, epoch), f"rank {work.root}")
        link.move(room, values)
    return _taken(state, op, epoch, values)


def _given(state: RankState, op: Op, epoch: int) -> Tensor:
    """The tensor that an op reads: the weights or their gradients where they lie, or the value of another buffer."""
    flat = state.flat(op.reads[0])
    return (state.value(op, op.reads[0], epoch) if flat is None else flat).detach().contiguous()


def _taken(state: RankState, op: Op, epoch: int, values: Tensor) -> int:
    """Keep what the op has made where it writes; returns the bytes it sent."""
    for name in op.writes:
        flat = state.flat(name)
        if flat is None:
            state.put(op, name, values, epoch)
        elif flat.data_ptr() != values.data_ptr():
            flat.copy_(values.reshape(-1))
    state.note_weights(op)
    return state.schedule.num_bytes(op)


def _run(state: RankState, op: Op, epoch: int, given: Tensor, result: Tensor, collective: Callable[..., Any]) -> None:
    link = state.link
    if len(state.schedule.group(op)) == 1:
        result.copy_(given)
        return
    source, target = link.down(given), link.room(result)
    link.wait(collective(target, source, group=_group(state, op), async_op=True), _said(op, epoch), "its group")
    link.move(target, result)


def _said(op: Op, epoch: int) -> str:
    return f"{op.name} of epoch {epoch}"


def meet(state: RankState, op: Op, epoch: int) -> int:
    if len(state.schedule.group(op)) > 1:
        barrier(state.link, _said(op, epoch), _group(state, op))
    return 0


def _group(state: RankState, op: Op) -> Any:
    return state.link.group(op.lane, state.schedule.group(op))


COLLECT: Mapping[Kind, Callable[[RankState, Op, int], int]] = MappingProxyType(
    {
        Kind.ALLREDUCE: reduce,
        Kind.ALLGATHER: gather,
        Kind.REDUCE_SCATTER: scatter,
        Kind.BROADCAST: pass_on,
        Kind.BARRIER: meet,
    }
)
