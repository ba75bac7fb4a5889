"""Fresh rows, fetched outside the schedule: to begin with exact values, and to see how wrong stale ones are.

Initial values are those of one synchronous forward and backward at the current weights, without dropout. Errors, on
request, compare what an op was given with what a fresh exchange would have brought: rows of the same epoch's run (the
same weights, the same dropout), fetched inside the op; that makes the ranks wait for each other, so a run that measures
errors is no measure of time.
"""

import torch
from torch import Tensor

from halocast.exec.run.notes import RowError
from halocast.exec.run.state import RankState
from halocast.exec.transport.comm import gather_once
from halocast.models.modules import summed_loss, widened
from halocast.schedule.ir import Kind, Rows


def set_initial_values(state: RankState) -> None:
    """Fill buffers that do not begin as zeros, and halo rows that stay as they are; all ranks call it."""
    for buffer in state.schedule.buffers:
        if (
            buffer.rank == state.rank
            and buffer.persistent
            and buffer.rows is Rows.HALO
            and buffer.name not in _written(state)
        ):
            state.kept[buffer.name] = state.gather(state.features, f"{buffer.name} before the start")
    if not any(buffer.exact for buffer in state.schedule.buffers):
        return
    halo, returned = fresh_rows(state)
    for op in state.schedule.by_rank[state.rank]:
        if op.kind is Kind.EXCHANGE:
            layer = op.index[0]
            gathers = state.rows_of(op.reads[0]) is Rows.INNER
            for name in op.writes:
                if state.rows_of(name) in (Rows.HALO, Rows.SENT) and state.is_exact(name):
                    state.initials[name] = halo[layer] if gathers else returned[layer]


def _written(state: RankState) -> set[str]:
    return {name for op in state.schedule.by_rank[state.rank] for name in op.writes}


def fresh_rows(state: RankState) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Halo rows of every layer's input, and the gradients that other ranks give back for our rows of it, by layer."""
    state.model.eval()
    halo, passes = _forward(state)
    logits = passes[-1][1].detach().requires_grad_()
    share = summed_loss(logits[state.mask_rows[0]], state.mask_labels[0]) / state.part.num_train_total
    (grad,) = torch.autograd.grad(share, logits)
    returned: dict[int, Tensor] = {}
    for layer in range(state.job.spec.layers - 1, 0, -1):
        rows, out = passes[layer]
        (joined,) = torch.autograd.grad(out, rows, grad)
        grad = joined[: state.block.num_inner].clone()
        if layer in halo:
            partial = joined[state.block.num_inner :].contiguous()
            what = f"initial gradients of layer {layer}"
            returned[layer] = gather_once(state.link, partial, state.recv_counts, state.send_counts, what)
            grad.index_add_(0, state.send_rows, returned[layer])
    state.model.train()
    return halo, returned


def _forward(state: RankState) -> tuple[dict[int, Tensor], list[tuple[Tensor, Tensor]]]:
    halo: dict[int, Tensor] = {}
    passes: list[tuple[Tensor, Tensor]] = []
    rows = state.features
    for layer in range(state.job.spec.layers):
        joined = rows.detach()
        if state.job.spec.aggregates(layer) and state.part.num_parts > 1:
            halo[layer] = state.gather(joined, f"initial rows of layer {layer}")
            joined = torch.cat([joined, halo[layer]])
        joined.requires_grad_(layer > 0)
        first = passes[0][1].detach() if state.job.spec.mixes_first(layer) else None
        rows = state.model.layer(layer, joined, state.block, state.aggregated if layer == 0 else None, first)
        passes.append((joined, rows))
    return halo, passes


def note_features(state: RankState, layer: int, epoch: int, inner: Tensor, used: Tensor, rows: Tensor | None) -> None:
    """Note how far the halo rows that were used are from fresh ones; `rows` says which, if not all."""
    fresh = state.gather(inner, f"fresh rows of layer {layer} in epoch {epoch}")
    _note(state, epoch, layer, "features", used, fresh if rows is None else fresh[rows])


def note_gradients(state: RankState, layer: int, epoch: int, used: Tensor) -> None:
    """Note how far used gradients are from fresh ones: those of halo rows, sent to their owners at once."""
    partial = state.made_grads[layer]
    what = f"fresh gradients of layer {layer} in epoch {epoch}"
    fresh = gather_once(state.link, partial.contiguous(), state.recv_counts, state.send_counts, what)
    _note(state, epoch, layer, "gradients", used, fresh)


def _note(state: RankState, epoch: int, layer: int, what: str, used: Tensor, fresh: Tensor) -> None:
    used, fresh = widened(used), widened(fresh)
    error, norm = float((used - fresh).square().sum()), float(fresh.square().sum())
    state.errors.append(RowError(epoch=epoch, layer=layer, what=what, squared_error=error, squared_norm=norm))
