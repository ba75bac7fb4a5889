"""How wrong stale rows are: what an op was given against what a fresh exchange would have brought, on request.

Fresh rows are those of the same epoch's run (the same weights, the same dropout), fetched by an exchange of their own
inside the op; that makes the ranks wait for each other, so a run that measures errors is no measure of time.
"""

from torch import Tensor

from halocast.exec.run.notes import RowError
from halocast.exec.run.state import RankState
from halocast.exec.transport.comm import gather_once


def note_features(state: RankState, layer: int, epoch: int, inner: Tensor, used: Tensor, rows: Tensor | None) -> None:
    """`rows`: which halo rows were used, if not all."""
    fresh = state.gather(inner, f"fresh rows of layer {layer} in epoch {epoch}")
    _note(state, epoch, layer, "features", used, fresh if rows is None else fresh[rows])


def note_gradients(state: RankState, layer: int, epoch: int, used: Tensor) -> None:
    """The partial gradients of halo rows that were made in this epoch, sent to their owners at once."""
    made = state.made_grads[layer]
    what = f"fresh gradients of layer {layer} in epoch {epoch}"
    fresh = gather_once(state.link, made.contiguous(), state.recv_counts, state.send_counts, what)
    _note(state, epoch, layer, "gradients", used, fresh)


def _note(state: RankState, epoch: int, layer: int, what: str, used: Tensor, fresh: Tensor) -> None:
    error, norm = float((used - fresh).square().sum()), float(fresh.square().sum())
    state.errors.append(RowError(epoch=epoch, layer=layer, what=what, squared_error=error, squared_norm=norm))
