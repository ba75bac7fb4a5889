"""Collectives of one rank, among all ranks or some: what a group sums, gathers or passes on.

Weights and their gradients are summed where they lie; any other value is read and written like that of every op.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from halocast.exec.run.state import RankState
from halocast.exec.transport.link import Call, Halves
from halocast.schedule.ir import Broadcast, Kind, Op


def reduce(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Sum a tensor over the ranks of the group, each with its share."""
    flat = state.flat(op.reads[0])
    values = _given(state, op, epoch).clone() if flat is None else flat
    if op.work.scale != 1:
        values.mul_(op.work.scale)
    if len(state.schedule.group(op)) > 1:
        yield from state.link.sum(values, _call(state, op, epoch))
    return _taken(state, op, epoch, values)


def gather(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Join the pieces of all ranks of the group, one below the other."""
    piece, num = _given(state, op, epoch), len(state.schedule.group(op))
    whole = piece.new_empty((num * len(piece), *piece.shape[1:]))
    if num == 1:
        whole.copy_(piece)
    else:
        yield from state.link.join(piece, whole, _call(state, op, epoch))
    return _taken(state, op, epoch, whole)


def scatter(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Sum a tensor over the ranks of the group and keep this rank's piece."""
    whole, num = _given(state, op, epoch), len(state.schedule.group(op))
    piece = whole.new_empty((len(whole) // num, *whole.shape[1:]))
    if num == 1:
        piece.copy_(whole)
    else:
        yield from state.link.share_out(whole, piece, _call(state, op, epoch))
    return _taken(state, op, epoch, piece)


def pass_on(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Hand the root's tensor to all ranks of the group."""
    work = op.work
    assert isinstance(work, Broadcast)
    values = _given(state, op, epoch) if op.rank == work.root else state.empty(op.writes[0])
    if len(state.schedule.group(op)) > 1:
        yield from state.link.pass_on(values, work.root, _call(state, op, epoch))
    return _taken(state, op, epoch, values)


def meet(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Wait for the ranks of the group."""
    if len(state.schedule.group(op)) > 1:
        yield from state.link.meet(_call(state, op, epoch))
    return 0


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


def _call(state: RankState, op: Op, epoch: int) -> Call:
    return Call(op.name, epoch, op.lane, state.schedule.group(op))


COLLECT: Mapping[Kind, Callable[[RankState, Op, int], Halves[int]]] = MappingProxyType(
    {
        Kind.ALLREDUCE: reduce,
        Kind.ALLGATHER: gather,
        Kind.REDUCE_SCATTER: scatter,
        Kind.BROADCAST: pass_on,
        Kind.BARRIER: meet,
    }
)
