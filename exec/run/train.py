"""A rank's whole training: its epochs, and exact scores of the weights in between, which no span contains.

Ranks that meet in every epoch stop together, the clock with them, and score. Ranks that run freely must not meet: the
last one to finish an epoch that is to be scored keeps a copy of the weights, and all are scored after the end.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from halocast.exec.run.interpret import Interpreter
from halocast.exec.run.state import RankState
from halocast.exec.store.push_pull import settle, shared_weights, slowest_other, tell_done
from halocast.exec.transport.comm import Endpoint, smallest
from halocast.exec.transport.link import Call, drain

PROGRESS_EVERY_S = 0.1
Scores = dict[int, list[list[float]]]  # by epoch: (numerator, denominator) of every mask


@dataclass(slots=True)
class Clock:
    """Seconds that stand still while the run is paused, so that evaluation is in no span.

    Clocks of different hosts have nothing in common; `aligned` ones begin when all have met, which they do within the
    latency of a barrier. How they drift apart later is not corrected.
    """

    aligned: bool = False
    stopped_s: float = 0.0

    def __call__(self) -> float:
        return time.perf_counter() - self.stopped_s


def train(state: RankState, interpreter: Interpreter, clock: Clock, directory: Path) -> Scores:
    """Train all epochs; returns the scores by epoch, those after the last one among them."""
    drain(state.link.meet(Call("the start")))
    if clock.aligned:
        clock.stopped_s = time.perf_counter()
    note = _progress(directory, state.rank)
    kind = _train_freely if state.schedule.free else _train_together
    return kind(state, interpreter, clock, note)


def _train_together(state: RankState, interpreter: Interpreter, clock: Clock, note: Callable[[int], None]) -> Scores:
    settings, scores = state.job.settings, Scores()
    length = settings.eval_every or settings.epochs
    for first in range(0, settings.epochs, length):
        last = min(first + length, settings.epochs)
        ending = interpreter.ending(last, finished=lambda epoch: note(epoch + 1))
        interpreter.run(ending, first)
        what = f"evaluation after epoch {last - 1}"
        drain(state.link.meet(Call(what)))
        paused = time.perf_counter()
        scores[last - 1] = _score(state)
        # one length for all ranks, or their clocks would drift apart
        assert isinstance(state.link, Endpoint)
        clock.stopped_s += smallest(state.link, time.perf_counter() - paused, what)
    return scores


def _train_freely(state: RankState, interpreter: Interpreter, clock: Clock, note: Callable[[int], None]) -> Scores:
    epochs, every = state.job.settings.epochs, state.job.settings.eval_every
    copies: dict[int, np.ndarray] = {}  # of the weights, by epoch

    def finished(epoch: int) -> None:
        tell_done(state, epoch)
        done = min(epoch + 1, slowest_other(state))
        note(min(done, epochs))
        if every and done == epoch + 1 and done % every == 0 and done < epochs:
            copies[epoch] = shared_weights(state)

    interpreter.run(interpreter.ending(epochs, slowest=lambda: slowest_other(state), finished=finished))
    drain(state.link.meet(Call("the end of all ranks' epochs")))
    scores = {epoch: _score_copy(state, owner, copies.get(epoch)) for epoch, owner in _owners(state, copies)}
    settle(state)
    return scores | {epochs - 1: _score(state)}


def _owners(state: RankState, copies: dict[int, np.ndarray]) -> list[tuple[int, int]]:
    """The epochs of which some rank has a copy of the weights, and the first such rank; alike on all ranks."""
    epochs_of: list[list[int]] = [[] for _ in range(state.schedule.num_ranks)]
    dist.all_gather_object(epochs_of, sorted(copies))
    owners = {epoch: rank for rank, epochs in reversed(list(enumerate(epochs_of))) for epoch in epochs}
    return sorted(owners.items())


def _score_copy(state: RankState, owner: int, copy: np.ndarray | None) -> list[list[float]]:
    weights = state.weights.detach()
    if owner == state.rank:
        assert copy is not None
        weights.copy_(torch.from_numpy(copy))
    dist.broadcast(weights, src=owner)
    return _score(state)


def _score(state: RankState) -> list[list[float]]:
    return [list(pair) for pair in state.score(drain(state.logits()))]


def _progress(directory: Path, rank: int) -> Callable[[int], None]:
    """A call by which rank 0 leaves the number of finished epochs in the job for whoever shows it."""
    if rank != 0:
        return lambda epochs: None
    last = [0.0]

    def note(epochs: int) -> None:
        if time.monotonic() - last[0] > PROGRESS_EVERY_S:
            last[0] = time.monotonic()
            (directory / "progress").write_text(str(epochs), encoding="utf-8")

    return note
