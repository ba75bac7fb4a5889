"""What ops do on a rank: a table by verb for COMPUTE, by kind for communication. No method is named here."""

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor

from halocast.base.errors import InputError
from halocast.exec.chunks.chunk_ops import CHUNKS, note_gradient
from halocast.exec.chunks.stage import ChunkState
from halocast.exec.run import pieces
from halocast.exec.run.drawn import Ids, LocalBlock
from halocast.exec.run.draws import SAMPLING, exchange_ids
from halocast.exec.run.fresh import note_features, note_gradients, note_weights
from halocast.exec.run.importance import IMPORTANCE
from halocast.exec.run.state import EpochOutcome, RankState
from halocast.exec.store.push_pull import pull, push
from halocast.exec.transport.collectives import COLLECT
from halocast.exec.transport.link import Halves, drain
from halocast.exec.transport.pairs import receive, send, swap
from halocast.models.modules import random_states, summed_loss
from halocast.schedule.ir import IDS, Kind, Op, Role, Rows, Schedule

Handler = Callable[[RankState, Op, int], int]
Communication = Callable[[RankState, Op, int], Halves[int]]
BY_VERB = frozenset({Kind.COMPUTE, Kind.SAMPLE})


def handle(state: RankState, op: Op, epoch: int) -> int:
    """Do what the op says; returns the bytes it sent."""
    return VERBS[op.verb](state, op, epoch) if op.kind in BY_VERB else drain(KINDS[op.kind](state, op, epoch))


def require_handlers(schedule: Schedule) -> None:
    """Refuse a schedule before any work is done if some op has no handler."""
    for op in schedule.ops:
        table, key = (VERBS, op.verb) if op.kind in BY_VERB else (KINDS, op.kind)
        if key not in table:
            raise InputError(f"op {op.label}: the executor has no handler for {key!r} (has: {', '.join(table)})")
        if op.kind is Kind.EXCHANGE and (not op.writes or not _moves_one(schedule, op)):
            raise InputError(f"op {op.label}: the executor exchanges one buffer into another, not {op.reads}")


def _moves_one(schedule: Schedule, op: Op) -> bool:
    """Whether all that an exchange reads after its first buffer are ids, which say what of it is moved."""
    others = [schedule.buffer(op.rank, name) for name in op.reads[1:]]
    return bool(op.reads) and all(buffer is not None and buffer.rows in IDS for buffer in others)


def forward(state: RankState, op: Op, epoch: int) -> int:
    """Run one layer on inner and halo rows, as an autograd graph of its own: its input is a leaf."""
    layer = op.index[0]
    if state.job.settings.compares_gradients:
        state.draws.setdefault(epoch, random_states(state.link.device))
    if pieces.is_piece(state, op):
        done = pieces.forward(state, op, epoch)
        if done is not None:
            state.write(op, Rows.INNER, done.detach(), epoch)
        return 0
    inner, halo = _given(state.read(op, Rows.INNER, epoch)), state.read(op, Rows.HALO, epoch)
    graph: LocalBlock | None = state.read(op, Rows.GRAPH, epoch)
    block = state.block if graph is None else graph.block
    if halo is not None and state.job.settings.errors:
        rows_read = None if graph is None else graph.halo
        state.later(note_features(state, layer, epoch, inner.detach(), halo, rows_read))
    scale = _scale(state, layer, graph)
    halo = halo if scale is None else (halo * scale).to(halo.dtype)
    rows = inner.detach() if halo is None or not len(halo) else torch.cat([inner.detach(), halo])
    rows.requires_grad_(layer > 0)
    first = state.leaf_of_first(op, layer, epoch)
    out = state.model.layer(layer, rows, block, state.aggregated if layer == 0 else None, first)
    state.saved[layer] = rows, out
    state.write(op, Rows.INNER, out.detach(), epoch)
    return 0


def loss(state: RankState, op: Op, epoch: int) -> int:
    """The local share of the mean loss over all train nodes, and its gradient."""
    logits = _given(state.read(op, Rows.INNER, epoch)).detach().requires_grad_()
    share = summed_loss(logits[state.mask_rows[0]], state.mask_labels[0]) / state.part.num_train_total
    state.write(op, Rows.INNER, torch.autograd.grad(share * op.work.scale, logits)[0], epoch)
    state.history.append(EpochOutcome(loss=float(share.detach()), hits=state.hits(logits.detach())))
    return 0


def backward(state: RankState, op: Op, epoch: int) -> int:
    """Add what the users of our rows sent back, then the layer's gradients; weight gradients accumulate in `grads`."""
    layer = op.index[0]
    if state.names(op.reads, role=Role.SUM_GRAD):
        pieces.backward(state, op, epoch, None)
        return 0
    grad = add_returned(state, op, epoch, _given(state.read(op, Rows.INNER, epoch)))
    if pieces.is_piece(state, op):
        pieces.backward(state, op, epoch, _with_first(state, op, layer, epoch, grad))
        _pass_first(state, op, layer, epoch)
        return 0
    rows, out = state.saved.pop(layer)
    torch.autograd.backward(out, _with_first(state, op, layer, epoch, grad))
    _pass_first(state, op, layer, epoch)
    if rows.grad is not None:
        scale = _scale(state, layer, state.read(op, Rows.GRAPH, epoch))
        if scale is not None:
            rows.grad[state.block.num_inner :].mul_(scale)
        state.write(op, Rows.INNER, rows.grad[: state.block.num_inner], epoch)
        state.write(op, Rows.HALO, rows.grad[state.block.num_inner :], epoch)
        if state.job.settings.errors:
            state.made_grads[layer] = rows.grad[state.block.num_inner :]
    return 0


def add_returned(state: RankState, op: Op, epoch: int, grad: Tensor) -> Tensor:
    """The gradient of rows with what the ranks that use them have sent back, in one message or several."""
    sent: Ids | None = state.read(op, Rows.SENT_IDS, epoch)
    for name in state.names(op.reads, Rows.SENT):
        returned = state.value(op, name, epoch)
        if state.job.settings.errors and sent is None:  # else other rows than those made now
            state.later(note_gradients(state, op.index[0] + 1, epoch, returned))
        if len(returned):
            grad.index_add_(0, state.returned_rows(op, name) if sent is None else sent.rows, returned)
    return grad


def _with_first(state: RankState, op: Op, layer: int, epoch: int, grad: Tensor) -> Tensor:
    """The gradient of the op's output; layer 0's also has what the later layers added up."""
    for name in state.names(op.reads, role=Role.FIRST_GRAD) if layer == 0 else ():
        grad = grad + state.value(op, name, epoch)
    return grad


def _pass_first(state: RankState, op: Op, layer: int, epoch: int) -> None:
    """Add this layer's share of the gradient of layer 0's output and hand the sum to the layer below."""
    for name in state.names(op.writes, role=Role.FIRST_GRAD):
        share = state.firsts.pop(layer).grad
        assert share is not None, "backward has just made it"
        state.put(op, name, share + state.value(op, name, epoch) if name in op.reads else share, epoch)


def _scale(state: RankState, layer: int, graph: LocalBlock | None) -> Tensor | None:
    """The factors that halo rows are multiplied by, since only some of them are there."""
    return None if graph is None or state.job.spec.attends(layer) else graph.scale


def step(state: RankState, op: Op, epoch: int) -> int:
    if state.job.settings.compares_gradients:
        state.later(note_gradient(state, epoch) if isinstance(state, ChunkState) else note_weights(state, epoch))
    if state.job.settings.audit:
        state.kept_grads.copy_(state.grads)
    state.optimizer.step()
    state.grads.zero_()
    state.note_weights(op)
    return 0


def smooth(state: RankState, op: Op, epoch: int) -> int:
    """A running mean of what arrives, in place; it begins at the initial value of what it averages."""
    received, mean = op.reads
    rows = state.value(op, received, epoch)
    if mean not in state.kept:
        state.kept[mean] = state.initial(received).clone()
    state.put(op, mean, state.kept[mean].mul_(op.work.scale).add_(rows, alpha=1 - op.work.scale), epoch)
    return 0


def exchange(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Send rows to the ranks that need them; inner rows are picked first, halo rows lie grouped by owner already."""
    moves = state.rows_of(op.reads[0])
    if moves in IDS:
        return (yield from exchange_ids(state, op, epoch))
    if moves is Rows.ALL:
        return (yield from swap(state, op, epoch))
    rows = state.value(op, op.reads[0], epoch)
    instance = state.instance(op, op.reads[0], epoch)
    state.ages.made[op.name][epoch] = epoch if instance is None else instance  # what nobody writes is as new as can be
    channel = state.channels[op.name]
    sent: Ids | None = state.read(op, Rows.SENT_IDS, epoch)
    picked = state.send_lists(op) if sent is None else sent.rows
    yield channel.give(epoch, rows.detach(), picked if moves is Rows.INNER else None)
    return channel.take(epoch)


def _given(value: Tensor | None) -> Tensor:
    assert value is not None, "the checker saw to it that the op reads such a buffer"
    return value


VERBS: MappingProxyType[str, Handler] = MappingProxyType(
    {
        "forward": forward,
        "loss": loss,
        "backward": backward,
        "step": step,
        "smooth": smooth,
        "smooth_grad": smooth,
        **SAMPLING,
        **IMPORTANCE,
        **CHUNKS,
    }
)
KINDS: MappingProxyType[Kind, Communication] = MappingProxyType(
    {
        Kind.EXCHANGE: exchange,
        Kind.SEND: send,
        Kind.RECV: receive,
        **COLLECT,
        Kind.PUSH: push,
        Kind.PULL: pull,
    }
)
