"""What a stage does with the chunk in a slot: layers forward and backward, the loss, snapshots when an epoch ends."""

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from halocast.exec.chunks.stage import ENTER, NOTHING, Chunk, ChunkState, chunk_logits, chunk_state
from halocast.exec.run.fresh import note_error, other_gradients
from halocast.exec.run.notes import ALL_LAYERS
from halocast.exec.run.state import EpochOutcome, RankState
from halocast.exec.transport.link import Call, Halves
from halocast.models.modules import hits, summed_loss
from halocast.schedule.ir import Op, Role


def shuffle(state: RankState, op: Op, epoch: int) -> int:
    """Do nothing: the order of chunks is drawn where it is asked for, and all lanes of all stages draw the same."""
    return 0


def forward(state: RankState, op: Op, epoch: int) -> int:
    """Run one layer on one chunk, as an autograd graph of its own; its result joins the table of the next layer."""
    here, (layer, _) = chunk_state(state), op.index
    chunk = here.in_slot(op, epoch)
    rows = here.joined(op, chunk, epoch).requires_grad_(layer > 0)
    first = None
    if here.job.spec.mixes_first(layer):
        first = here.table(op.reads, Role.FIRST)[chunk.rows].clone().requires_grad_()
    aggregated = here.aggregated[chunk.rows] if here.aggregated is not None and layer == 0 else None
    if here.job.settings.errors and here.has(op.reads, Role.SNAPSHOT):
        here.compared[layer] = here.table(op.reads, *ENTER), here.table(op.reads, Role.SNAPSHOT)
    here.draw_dropout(epoch, layer, chunk)
    out = here.model.layer(layer, rows, chunk.block, aggregated, first)
    here.made[layer, chunk.number] = rows, out, first
    here.table(op.writes, *ENTER)[chunk.rows] = out.detach()
    return 0


def loss(state: RankState, op: Op, epoch: int) -> int:
    """The chunk's share of the mean loss over all train nodes, and its gradient."""
    here = chunk_state(state)
    chunk = here.in_slot(op, epoch)
    logits = here.table(op.reads, *ENTER)[chunk.rows].clone().requires_grad_()
    rows, labels = chunk.masks[0]
    share = summed_loss(logits[rows], labels) / here.part.num_train_total
    here.table(op.writes, Role.GRAD)[chunk.rows] = torch.autograd.grad(share, logits)[0]
    if len(here.history) <= epoch:
        here.history.append(EpochOutcome(loss=0.0, hits=list(NOTHING)))
    now = here.history[epoch]
    hits_by_mask = [hits(logits.detach()[rows], labels) for rows, labels in chunk.masks]
    now.loss += float(share.detach())
    now.hits = [(a + c, b + d) for (a, b), (c, d) in zip(now.hits, hits_by_mask, strict=True)]
    return 0


def backward(state: RankState, op: Op, epoch: int) -> int:
    """Gradients of one layer on one chunk: of its own rows and of the fresh rows of other chunks, which add up."""
    here, (layer, _) = chunk_state(state), op.index
    chunk = here.in_slot(op, epoch)
    if layer in here.compared:
        _note_snapshot(here, layer, chunk, epoch)
    grad = _take(here.table(op.reads, Role.GRAD), chunk)
    if layer == 0 and here.has(op.reads, Role.FIRST_GRAD):
        grad += _take(here.table(op.reads, Role.FIRST_GRAD), chunk)
    rows, out, first = here.made.pop((layer, chunk.number))
    torch.autograd.backward(out, grad)
    if first is not None and first.grad is not None:
        here.table(op.writes, Role.FIRST_GRAD)[chunk.rows] += first.grad
    if rows.grad is not None:
        here.table(op.writes, Role.GRAD)[chunk.rows] += rows.grad[: chunk.num_rows]
        if len(rows) > chunk.num_rows:
            _give_back(here, op, chunk, rows.grad[chunk.num_rows :], epoch)
    return 0


def _note_snapshot(here: ChunkState, layer: int, chunk: Chunk, epoch: int) -> None:
    """Note how far the snapshot's rows that a chunk used are from this epoch's, which all chunks have made by now."""
    rows, snapshot = here.compared[layer]
    old = chunk.halo[here.divided(chunk, epoch).old]
    note_error(here, epoch, layer, "features", snapshot[old], rows[old])


def note_gradient(here: ChunkState, epoch: int) -> Halves[None]:
    """Note how far the gradient of a stage's weights is from that of all chunks as one, with the same dropout.

    All ranks call it before any has made its step; each goes through all layers, with the weights of all stages.
    """
    used, weights = here.grads.clone(), here.weights.detach().clone()
    yield from here.link.meet(Call(f"the fresh gradient of epoch {epoch}"))
    with here.at_weights(weights), other_gradients(here):  # others may have come after this rank's step
        yield from here.share_weights()
        logits = chunk_logits(here, here.chunks, here.model, partial(here.draw_dropout, epoch))
        loss = summed_loss(logits[here.mask_rows[0]], here.mask_labels[0]) / here.part.num_train_total
        torch.autograd.backward(loss)
        fresh = here.grads.clone()
    own = {id(weight) for weight in here.own.parameters()}
    for weight in (weight for weight in here.model.parameters() if id(weight) not in own):
        weight.grad = None
    if here.way == 0:  # the ways of a stage have summed theirs
        note_error(here, epoch, ALL_LAYERS, "weights", used, fresh)


def _give_back(here: ChunkState, op: Op, chunk: Chunk, grad: Tensor, epoch: int) -> None:
    """Give gradients back to halo rows: fresh ones now; those of the snapshot in the next epoch, if the op says so.

    Chunks in one slot always use each other's fresh rows: of these no gradient is missing that a factor could make up.
    A factor of 0 adds nothing, not zeros: another lane may be sending those rows, and clears them then.
    """
    places, own = here.divided(chunk, epoch), here.table(op.writes, Role.GRAD)
    _add(own, chunk.halo, grad, places.beside, 1.0)
    if op.work.scale:
        _add(own, chunk.halo, grad, places.before, op.work.scale)
    if here.has(op.writes, Role.LATE_GRAD):
        _add(here.table(op.writes, Role.LATE_GRAD), chunk.halo, grad, places.old, op.work.scale)
        own[chunk.rows] += here.table(op.reads, Role.OLD_GRAD)[chunk.rows]


def _add(table: Tensor, halo: Tensor, grad: Tensor, places: Tensor, scale: float) -> None:
    table.index_add_(0, halo[places], grad.index_select(0, places), alpha=scale)


def _take(table: Tensor, chunk: Chunk) -> Tensor:
    """Take a chunk's gradient out of its table, leaving zeros behind."""
    rows = table[chunk.rows]
    taken = rows.clone()
    rows.zero_()
    return taken


def refresh(state: RankState, op: Op, epoch: int) -> int:
    here = chunk_state(state)
    here.tables[op.writes[0]].copy_(here.tables[op.reads[0]])
    return 0


def turn(state: RankState, op: Op, epoch: int) -> int:
    """Make this epoch's late gradients the next one's old ones."""
    here = chunk_state(state)
    here.tables[op.writes[0]].copy_(here.tables[op.reads[0]])
    here.tables[op.reads[0]].zero_()
    return 0


CHUNKS: MappingProxyType[str, Callable[[RankState, Op, int], int]] = MappingProxyType(
    {
        "shuffle": shuffle,
        "forward_chunk": forward,
        "loss_chunk": loss,
        "backward_chunk": backward,
        "refresh": refresh,
        "turn": turn,
    }
)
