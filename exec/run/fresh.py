"""Fresh rows, fetched outside the schedule: to begin with exact values, and to see how wrong stale ones are.

Initial values are those of one synchronous forward and backward at the current weights, without dropout. Errors, on
request, compare what an op was given with what a fresh exchange would have brought: rows of the same epoch's run (the
same weights, the same dropout), fetched inside the op; and the gradient of a step with that of a forward and backward
in which every row is fresh. That makes the ranks wait for each other, so a run that measures errors is no measure of
time, and ranks that run freely cannot.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from halocast.exec.run.notes import ALL_LAYERS, RowError
from halocast.exec.run.state import RankState
from halocast.exec.transport.link import Call, Halves
from halocast.models.modules import summed_loss, widened, with_random_states
from halocast.schedule.ir import Kind, Role, Rows


def set_initial_values(state: RankState) -> Halves[None]:
    """Fill buffers that do not begin as zeros, and halo rows that stay as they are; all ranks call it."""
    for buffer in state.schedule.buffers:
        if (
            buffer.rank == state.rank
            and buffer.persistent
            and buffer.rows is Rows.HALO
            and buffer.name not in _written(state)
        ):
            state.kept[buffer.name] = yield from state.gather(state.features, f"{buffer.name} before the start")
    if not any(buffer.exact for buffer in state.schedule.buffers):
        return
    halo, returned = yield from fresh_rows(state)
    for op in state.schedule.by_rank[state.rank]:
        if op.kind is Kind.EXCHANGE:
            layer = op.index[0]
            gathers = state.rows_of(op.reads[0]) is Rows.INNER
            for name in op.writes:
                if state.rows_of(name) in (Rows.HALO, Rows.SENT) and state.is_exact(name):
                    state.initials[name] = halo[layer] if gathers else returned[layer]


def _written(state: RankState) -> set[str]:
    return {name for op in state.schedule.by_rank[state.rank] for name in op.writes}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerPass:
    """One layer of a fresh forward: its input and layer 0's rows as mixed in, both leaves, and its output."""

    rows: Tensor
    first: Tensor | None
    out: Tensor


def fresh_rows(state: RankState) -> Halves[tuple[dict[int, Tensor], dict[int, Tensor]]]:
    """Halo rows of every layer's input, and the gradients that other ranks give back for our rows of it, by layer."""
    state.model.eval()
    with other_gradients(state):
        halo, passes = yield from _forward(state)
        returned = yield from _backward(state, halo, passes)
    state.model.train()
    return halo, returned


def fresh_gradient(state: RankState, random: tuple[Tensor, ...]) -> Halves[Tensor]:
    """This rank's share of the weights' gradient with all rows fresh, and with the dropout of such random states."""
    with other_gradients(state), with_random_states(random, state.link.device):
        halo, passes = yield from _forward(state)
        yield from _backward(state, halo, passes)
        return state.grads.clone()


@contextmanager
def other_gradients(state: RankState) -> Iterator[None]:
    """Begin with gradients of zero, and put those of before back in the end."""
    before = state.grads.clone()
    state.grads.zero_()
    yield
    state.grads.copy_(before)


def _forward(state: RankState) -> Halves[tuple[dict[int, Tensor], list[LayerPass]]]:
    halo: dict[int, Tensor] = {}
    passes: list[LayerPass] = []
    rows = state.features
    for layer in range(state.spec.layers):
        joined = rows.detach()
        if state.spec.aggregates(layer) and state.part.num_parts > 1:
            halo[layer] = yield from state.gather(joined, f"fresh rows of layer {layer}")
            joined = torch.cat([joined, halo[layer]])
        joined.requires_grad_(layer > 0)
        first = passes[0].out.detach().clone().requires_grad_() if state.spec.mixes_first(layer) else None
        rows = state.model.layer(layer, joined, state.block, state.aggregated if layer == 0 else None, first)
        passes.append(LayerPass(rows=joined, first=first, out=rows))
    return halo, passes


def _backward(state: RankState, halo: dict[int, Tensor], passes: list[LayerPass]) -> Halves[dict[int, Tensor]]:
    """The gradients that come back from other ranks, by layer; those of the weights add up in the state."""
    logits = passes[-1].out.detach().requires_grad_()
    share = summed_loss(logits[state.mask_rows[0]], state.mask_labels[0]) / state.part.num_train_total
    (grad,) = torch.autograd.grad(share, logits)
    returned: dict[int, Tensor] = {}
    for layer in range(state.spec.layers - 1, 0, -1):
        joined = _back(passes[layer], grad)
        grad = joined[: state.block.num_inner].clone()
        if layer in halo:
            partial, what = joined[state.block.num_inner :], f"fresh gradients of layer {layer}"
            returned[layer] = yield from state.give_back(partial, what)
            grad.index_add_(0, state.send_rows, returned[layer])
    mixed = [one.first.grad for one in passes if one.first is not None and one.first.grad is not None]
    torch.autograd.backward(passes[0].out, sum(mixed, grad))
    return returned


def _back(done: LayerPass, grad: Tensor) -> Tensor:
    """The gradient of what a layer was given."""
    torch.autograd.backward(done.out, grad)
    assert done.rows.grad is not None, "only layer 0's input needs none"
    return done.rows.grad


def note_features(
    state: RankState, layer: int, epoch: int, inner: Tensor, used: Tensor, rows: Tensor | None
) -> Halves[None]:
    """Note how far the halo rows that were used are from fresh ones; `rows` says which, if not all."""
    used = used.clone()  # fresh ones may come when their buffer has been used again
    fresh = yield from state.gather(inner, f"fresh rows of layer {layer} in epoch {epoch}")
    note_error(state, epoch, layer, "features", used, fresh if rows is None else fresh[rows])


def note_gradients(state: RankState, layer: int, epoch: int, used: Tensor) -> Halves[None]:
    """Note how far used gradients are from fresh ones: those of halo rows, sent to their owners at once."""
    used = used.clone()
    fresh = yield from state.give_back(state.made_grads[layer], f"fresh gradients of layer {layer} in epoch {epoch}")
    note_error(state, epoch, layer, "gradients", used, fresh)


def note_weights(state: RankState, epoch: int) -> Halves[None]:
    """Note how far the gradient of this epoch's step is from a fresh one at the same weights; all ranks call it.

    Dropout is that of the epoch, where a layer draws for all its rows at once. The sum over ranks is noted, once.
    """
    used, weights, random = state.grads.clone(), state.weights.detach().clone(), state.draws.pop(epoch)
    yield from state.link.meet(Call(f"the fresh gradient of epoch {epoch}"))
    with state.at_weights(weights):  # others may have come after this rank's step
        yield from _sum_used(state, epoch, used)
        fresh = yield from fresh_gradient(state, random)
        yield from state.link.sum(fresh, Call(f"the sum of fresh gradients of epoch {epoch}"))
    if state.rank == 0:
        note_error(state, epoch, ALL_LAYERS, "weights", used, fresh)


def _sum_used(state: RankState, epoch: int, used: Tensor) -> Halves[None]:
    """Make the gradient that a step uses of a rank's own: the ranks' sum, of what each counts in the mean weights,
    where they step alone."""
    for op in state.schedule.by_rank[state.rank]:
        if op.kind is Kind.ALLREDUCE and state.names(op.writes, role=Role.WEIGHTS):
            used *= op.work.scale
            yield from state.link.sum(used, Call(f"the gradients of epoch {epoch}"))


def note_error(state: RankState, epoch: int, layer: int, what: str, used: Tensor, fresh: Tensor) -> None:
    used, fresh = widened(used), widened(fresh)
    error, norm = float((used - fresh).square().sum()), float(fresh.square().sum())
    state.errors.append(RowError(epoch=epoch, layer=layer, what=what, squared_error=error, squared_norm=norm))
