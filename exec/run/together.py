"""All ranks of a job in one process, without torch.distributed: somebody else says when ops begin and end.

The numbers are the executor's: its states, its handlers, its routines. What is new is only who waits: nobody. A moment
begins or ends an op. A computation is done when it begins; a communication runs its first half then and its second when
it ends. Routines that all ranks go through together are gone through in step. Every rank has random numbers of its own,
as a process would.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TypeVar

import torch
from torch import Tensor

from halocast.base.errors import RunError
from halocast.exec.chunks.stage import make_state, works_on_chunks
from halocast.exec.launch.job import Job
from halocast.exec.run.begin import begin
from halocast.exec.run.handlers import BY_VERB, KINDS, VERBS, require_handlers
from halocast.exec.run.interpret import Progress
from halocast.exec.run.outcome import Hits, Outcome, Scores, joined, rank_seed, result_of, scores_of
from halocast.exec.run.state import RankState
from halocast.exec.store.push_pull import make_store, shared_weights, tables_of
from halocast.exec.transport.inside import Inside, Post
from halocast.exec.transport.inside_channel import inside_channels
from halocast.exec.transport.link import Halves, Ready
from halocast.graph.parts import Part
from halocast.schedule.ir import Op
from halocast.schedule.order import Moment

T = TypeVar("T")
NO_LIMIT_S = 0.0  # nobody waits
OnScores = Callable[[int, float, Scores], bool]  # (epoch, time, scores) -> whether to go on


class Together:
    """The ranks of a job; `do` a moment after the other, each legal after those before."""

    def __init__(self, job: Job, parts: Sequence[Part], scored: Sequence[Part] = ()) -> None:
        require_handlers(job.schedule)
        self.job = replace(job, settings=replace(job.settings, store="private:"))
        self.post = Post(job.schedule.num_ranks)
        self.states = [self._state(rank, list(parts), list(scored)) for rank in range(job.schedule.num_ranks)]
        self._random = [_first_random(job.settings.seed, rank) for rank in range(job.schedule.num_ranks)]
        self._drawing: int | None = None  # the rank whose random numbers are drawn from now
        self._under_way: dict[tuple[int, str], Halves[int]] = {}
        self._pending: list[tuple[int, Halves[None], Ready | None]] = []
        self._final = _FinalWeights(job, self.states)
        for state in self.states:
            state.progress = Progress(job.schedule, state.rank, NO_LIMIT_S)
            state.channels = inside_channels(state, self.post)
            state.later = self._later(state.rank)
        self.in_step([begin(state) for state in self.states])
        if tables_of(self.states[0]):
            store = make_store(self.states[0])
            for state in self.states:
                state.store = store

    def _state(self, rank: int, parts: list[Part], scored: list[Part]) -> RankState:
        link = Inside(rank=rank, post=self.post)
        if works_on_chunks(self.job):
            return make_state(self.job, parts, scored, rank, link)
        return make_state(self.job, [parts[rank]], scored[rank : rank + 1], rank, link)

    def do(self, moment: Moment) -> int | None:
        """Begin or end an op; returns an epoch whose weights are final now on all ranks, if there is one.

        Ops of another schedule are known by their rank and name.
        """
        op = self.job.schedule.find(moment.op.rank, moment.op.name)
        if op is None:
            raise RunError(f"a moment of {moment.op.label}, which the schedule has not")
        if moment.begins:
            self._begin(op, moment.epoch)
            return None
        self._end(op, moment.epoch)
        return self._final.note(op, moment.epoch)

    def _begin(self, op: Op, epoch: int) -> None:
        state = self.states[op.rank]
        if op.kind in BY_VERB:
            self._draw_as(op.rank)  # a communication draws nothing
            VERBS[op.verb](state, op, epoch)
            return
        steps = KINDS[op.kind](state, op, epoch)
        if _goes_on(steps):
            self._under_way[op.rank, op.name] = steps

    def _end(self, op: Op, epoch: int) -> None:
        state, steps = self.states[op.rank], self._under_way.pop((op.rank, op.name), None)
        if steps is not None:
            assert not _goes_on(steps), f"{op.name} has more than two halves"
        state.running().finish(op, epoch)
        state.forget(op)
        if op.name == state.last_step:
            self._settle_pending()

    def _draw_as(self, rank: int) -> None:
        """Let random numbers be those of a rank from now on."""
        if self._drawing != rank:
            if self._drawing is not None:
                self._random[self._drawing] = torch.get_rng_state()
            torch.set_rng_state(self._random[rank])
            self._drawing = rank

    def in_step(self, routines: Sequence[Halves[T]]) -> list[T]:
        """Run a routine that all ranks go through together; returns what it returns on each."""
        results: dict[int, T] = {}
        while len(results) < len(routines):
            for rank, steps in enumerate(routines):
                if rank not in results:
                    self._draw_as(rank)
                    try:
                        next(steps)
                    except StopIteration as stop:
                        results[rank] = stop.value
        return [results[rank] for rank in range(len(routines))]

    def _later(self, rank: int) -> Callable[[Halves[None]], None]:
        """Begin a routine beside the schedule now, and go on with it when all that it takes has been given."""

        def begin_it(steps: Halves[None]) -> None:
            try:
                self._pending.append((rank, steps, next(steps)))
            except StopIteration:
                return

        return begin_it

    def _settle_pending(self) -> None:
        """Go on with routines beside the schedule as far as they can."""
        moved = bool(self._pending)
        while moved:
            moved, waiting = False, self._pending
            self._pending = []
            for rank, steps, ready in waiting:
                if ready is not None and not ready():
                    self._pending.append((rank, steps, ready))
                    continue
                moved = True
                self._draw_as(rank)
                self._later(rank)(steps)

    def evaluate(self, epoch: int) -> list[Hits]:
        """The exact scores of the weights after an epoch that `do` has just told of, as each rank counts them."""
        weights = self._final.weights[epoch]
        return self.in_step([_scored(state, own) for state, own in zip(self.states, weights, strict=True)])

    def loss(self, epoch: int) -> float:
        """The loss of an epoch over all ranks."""
        return sum(state.history[epoch].loss for state in self.states)

    def outcome(self, scores: dict[int, list[Hits]]) -> Outcome:
        """What the ranks leave, with the scores by epoch that were asked for."""
        self._settle_pending()
        results = [
            result_of(state, {epoch: hits[state.rank] for epoch, hits in scores.items()}) for state in self.states
        ]
        return Outcome(**joined(results, self.job.settings.epochs))


def _goes_on(steps: Halves[int]) -> bool:
    """Run the next half; returns whether there is another."""
    try:
        next(steps)
    except StopIteration:
        return False
    return True


def _first_random(seed: int, rank: int) -> Tensor:
    return torch.Generator().manual_seed(rank_seed(seed, rank)).get_state()


def _scored(state: RankState, weights: Tensor) -> Halves[Hits]:
    with state.at_weights(weights):
        logits = yield from state.logits()
    return [list(pair) for pair in state.score(logits)]


class _FinalWeights:
    """Knows when the weights of an epoch are final, and keeps those of the newest such epoch.

    Where ranks meet, they are final with the last op of an epoch that writes them, on every rank. Ranks that run freely
    have them in the store, where they are what they are when the slowest has finished the epoch.
    """

    def __init__(self, job: Job, states: Sequence[RankState]) -> None:
        self.weights: dict[int, list[Tensor]] = {}
        self._free, self._states = job.schedule.free, states
        self._copies: dict[int, dict[int, Tensor]] = defaultdict(dict)  # by epoch and rank
        self._ended: Counter[tuple[int, int]] = Counter()  # ops, by rank and epoch
        self._done = [0] * len(states)  # epochs, by rank

    def note(self, op: Op, epoch: int) -> int | None:
        """Take note of the end of an op; returns an epoch that all ranks have done now."""
        return self._note_free(op, epoch) if self._free else self._note_step(op, epoch)

    def _note_step(self, op: Op, epoch: int) -> int | None:
        state = self._states[op.rank]
        if op.name != state.last_step:
            return None
        self._copies[epoch][op.rank] = state.weights.detach().clone()
        if len(self._copies[epoch]) < len(self._states):
            return None
        copies = self._copies.pop(epoch)
        self.weights = {epoch: [copies[rank] for rank in range(len(self._states))]}
        return epoch

    def _note_free(self, op: Op, epoch: int) -> int | None:
        key, ops = (op.rank, epoch), self._states[op.rank].schedule.by_rank[op.rank]
        self._ended[key] += 1
        if self._ended[key] < sum(one.exists(epoch) for one in ops):
            return None
        del self._ended[key]
        before, self._done[op.rank] = min(self._done), epoch + 1
        if min(self._done) == before:
            return None
        self.weights = {epoch: [torch.from_numpy(shared_weights(state)) for state in self._states]}
        return min(self._done) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Outcome):
    """The outcome of a training in virtual time: when epochs were evaluated, and where its loss was no number."""

    times_s: dict[int, float] = field(default_factory=dict)  # by evaluated epoch
    diverged: int | None = None  # epochs after which the loss was no number


def train_together(
    job: Job,
    parts: Sequence[Part],
    moments: Iterable[Moment],
    *,
    scored: Sequence[Part] = (),
    on_scores: OnScores = lambda epoch, time_s, scores: True,
) -> Timed:
    """Train all ranks in this process, in the order of the moments.

    Scores are taken every `eval_every` epochs and after the last; `on_scores` is told of them and may end the training.
    A loss that is no number ends it, too.
    """
    ranks, scores, times_s = Together(job, parts, scored), dict[int, list[Hits]](), dict[int, float]()
    every, diverged = job.settings.eval_every or job.settings.epochs, None
    for moment in moments:
        epoch = ranks.do(moment)
        if epoch is None:
            continue
        if not isfinite(ranks.loss(epoch)):
            diverged = epoch + 1
            break
        if (epoch + 1) % every == 0 or epoch == job.settings.epochs - 1:
            scores[epoch], times_s[epoch] = ranks.evaluate(epoch), moment.time_s
            if not on_scores(epoch, moment.time_s, scores_of(scores[epoch])):
                break
    known = ranks.outcome(scores)
    fields = {name: getattr(known, name) for name in Outcome.__slots__}
    return Timed(**fields, times_s=times_s, diverged=diverged)
