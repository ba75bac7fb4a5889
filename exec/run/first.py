"""Layer 0's output rows where all later layers mix them in, and their gradient, which those layers add up."""

from torch import Tensor

from halocast.exec.run.state import RankState
from halocast.schedule.ir import Op

ROWS, GRAD = "h.1", "gfirst"


def leaf_of_first(state: RankState, op: Op, epoch: int) -> Tensor | None:
    """The rows as a leaf of this layer's graph; None for a layer that does not mix them in."""
    (layer,) = op.index
    if not state.job.spec.mixes_first(layer):
        return None
    state.firsts[layer] = state.value(op, ROWS, epoch).detach().clone().requires_grad_()
    return state.firsts[layer]


def with_first(state: RankState, op: Op, epoch: int, grad: Tensor) -> Tensor:
    """The gradient of the op's output; layer 0's also has what the later layers added up."""
    (layer,) = op.index
    return grad + state.value(op, GRAD, epoch) if layer == 0 and GRAD in op.reads else grad


def pass_first(state: RankState, op: Op, epoch: int) -> None:
    """Add this layer's share and hand the sum to the layer below."""
    if GRAD in op.writes:
        (layer,) = op.index
        share = state.firsts.pop(layer).grad
        assert share is not None, "backward has just made it"
        state.put(op, GRAD, share + state.value(op, GRAD, epoch) if GRAD in op.reads else share, epoch)
