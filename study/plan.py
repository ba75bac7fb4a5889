"""Plans: the best method, options, machines and number of GPUs of all that a scenario's [plan] allows.

First what does not fit is dropped and every other choice's best time bounded, then choices are predicted, the most
promising first, until no other can be better. An epoch is never shorter than what its busiest device computes alone. So
a choice whose bound is not better than what was found needs no simulation, and the answer is the same as if everything
had been tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from halocast.base.errors import InputError
from halocast.methods import METHODS
from halocast.reports.summary import MemoryFigures, from_flat
from halocast.study.asked_accuracy import Accuracy
from halocast.study.candidates import Candidate, candidates
from halocast.study.choices import Choice, Goal, RankedPlan, pareto
from halocast.study.known import Known, learn
from halocast.study.pool import Pool, open_pool
from halocast.study.predictor import SCREEN
from halocast.study.queries import complete, query_of
from halocast.study.results import ResultFile, State
from halocast.study.scenario import Scenario
from halocast.study.screen import Screened
from halocast.study.sweep import result_path

Tell = Callable[[str, int, int, str], None]  # what is done, how many, of how many, the best so far
Group = tuple[object, ...]
SAME = "does the same as"
Ask = Callable[[Sequence[Choice]], Known | None]


def find_plan(
    listed: Sequence[Candidate],
    goal: Goal,
    file: ResultFile,
    pool: Pool,
    *,
    exhaustive: bool = False,
    ask: Ask = lambda choices: None,
    tell: Tell = lambda what, done, of, best: None,
) -> RankedPlan:
    """Screen all candidates, then predict those that may be the best of their group, or all of them.

    `ask` is asked what trainings tell of the choices that fit.
    """
    screened, dropped = _screen(listed, file, pool, tell)
    screened, same = _different(screened)
    known = ask(screened) if screened else None
    screened, missed = known.told(screened) if known else (screened, [])
    dropped += same + missed
    search = _Search(goal, file, pool, tell, exhaustive)
    search.run([choice for choice in screened if goal.allows(choice)])
    too_slow = [choice for choice in screened if not goal.allows(choice)]
    stale = [choice for choice in search.done if goal.too_stale(choice)]
    dropped += [(choice.candidate, choice.staleness) for choice in stale]
    dropped += search.failed
    kept = [choice for choice in search.done if goal.allows(choice)]
    if not kept:
        raise InputError(_nothing(dropped, too_slow, goal))
    ranked = sorted(kept, key=lambda choice: (goal.rank(choice), choice.candidate.label))
    return RankedPlan(
        exact=tuple(choice for choice in ranked if choice.exact),
        approximate=tuple(choice for choice in ranked if not choice.exact),
        dropped=tuple(dropped),
        hopeless=(*search.hopeless, *too_slow),
        goal=goal,
        target=known.target if known else None,
    )


def _different(choices: Sequence[Choice]) -> tuple[list[Choice], list[tuple[Candidate, str]]]:
    """Of choices that do the same on the same machine only one, and the others with the reason: on one GPU there is
    nothing to exchange, so most methods are one."""
    names = list(METHODS)
    first: dict[Group, Choice] = {}
    for choice in sorted(choices, key=lambda choice: names.index(choice.candidate.method)):
        first.setdefault(_does(choice), choice)
    kept = [choice for choice in choices if first[_does(choice)] is choice]
    same = [choice for choice in choices if first[_does(choice)] is not choice]
    return kept, [(choice.candidate, f"{SAME} {first[_does(choice)].candidate.method}") for choice in same]


def _does(choice: Choice) -> Group:
    return choice.candidate.cluster, choice.screened.fingerprint


def _nothing(dropped: Sequence[tuple[Candidate, str]], too_slow: Sequence[Choice], goal: Goal) -> str:
    if too_slow:
        best = min(too_slow, key=lambda choice: choice.epoch_s)
        label, least = best.candidate.label, best.epoch_s
        return f"no choice has an epoch within {goal.limit_s:g} s; {label} takes at least {least:.3g} s"
    first = f"; the first: {dropped[0][0].label}: {dropped[0][1]}" if dropped else f" within {goal.limit_s} s"
    return f"no choice is left of {len(dropped)}{first}"


def _screen(
    listed: Sequence[Candidate], file: ResultFile, pool: Pool, tell: Tell
) -> tuple[list[Choice], list[tuple[Candidate, str]]]:
    jobs = [query_of(candidate.tables, SCREEN) for candidate in listed]
    stored = complete(file, jobs, pool, lambda done, of: tell("checking what fits", done, of, ""))
    choices, dropped = [], []
    for candidate, job in zip(listed, jobs, strict=True):
        known = stored[job.key]
        if known.state is State.REFUSED:
            dropped.append((candidate, known.reason))
            continue
        screened = from_flat(Screened, known.figures)
        if screened.memory.fits:
            choices.append(Choice(candidate=candidate, screened=screened))
        else:
            dropped.append((candidate, _too_large(screened.memory)))
    return choices, dropped


def _too_large(memory: MemoryFigures) -> str:
    used, have = memory.memory_bytes / 1e9, memory.device_memory_bytes / 1e9
    largest = ", ".join(f"{name} {num_bytes / 1e9:.2g} GB" for name, num_bytes in memory.largest_buffers[:2])
    return f"does not fit: {used:.3g} of {have:.3g} GB on rank {memory.memory_rank} (largest: {largest})"


class _Search:
    """Choices under way: rounds of the most promising of every group, until bounds rule out the rest."""

    def __init__(self, goal: Goal, file: ResultFile, pool: Pool, tell: Tell, exhaustive: bool) -> None:
        self._goal, self._file, self._pool, self._tell, self._exhaustive = goal, file, pool, tell, exhaustive
        self.done: list[Choice] = []
        self.failed: list[tuple[Candidate, str]] = []
        self.hopeless: list[Choice] = []
        self._best_ranks: dict[Group, tuple[float, ...]] = {}

    def run(self, choices: Sequence[Choice]) -> None:
        left = sorted(choices, key=self._goal.rank)
        while left:
            if not self._exhaustive:
                hopeless = [choice for choice in left if self._is_hopeless(choice)]
                self.hopeless += hopeless
                left = [choice for choice in left if choice not in hopeless]
            batch = left if self._exhaustive else self._most_promising(left)
            self._predict(batch, len(left))
            left = [choice for choice in left if choice not in batch]

    def _most_promising(self, left: Sequence[Choice]) -> list[Choice]:
        """The first choice of every group, and as many more as keep the pool busy."""
        firsts: dict[Group, Choice] = {}
        for choice in left:
            firsts.setdefault((*choice.kind, *choice.candidate.group), choice)
        more = [choice for choice in left if choice not in firsts.values()]
        return [*firsts.values(), *more[: max(0, self._pool.num_slots - len(firsts))]]

    def _is_hopeless(self, choice: Choice) -> bool:
        """Whether a choice's bound is no better than the best of its method on its cluster; or than both the best of
        its method anywhere and the best on its cluster. If asked for, the front of time and price is kept. It is only
        compared with choices of its kind."""
        both, cluster, method = _groups(choice)
        if both not in self._best_ranks:
            return False
        rank, best = self._goal.rank(choice), self._best_ranks
        beaten = rank >= best[both] or (rank >= best[cluster] and rank >= best[method])
        return beaten and (not self._goal.pareto or choice not in pareto([*self._like(choice), choice]))

    def _like(self, choice: Choice) -> list[Choice]:
        """What is predicted already of the list that a choice would be in."""
        return [done for done in self.done if done.kind[:2] == choice.kind[:2]]

    def _note(self, choice: Choice) -> None:
        """Keep the best rank of the choice's method, of its cluster, and of both together."""
        if self._goal.allows(choice):
            rank = self._goal.rank(choice)
            for group in _groups(choice):
                self._best_ranks[group] = min(rank, self._best_ranks.get(group, rank))

    def _predict(self, batch: Sequence[Choice], num_left: int) -> None:
        jobs = [query_of(choice.candidate.tables) for choice in batch]
        so_far, of = len(self.done), len(self.done) + num_left
        best = self._best()
        stored = complete(
            self._file,
            jobs,
            self._pool,
            lambda done, _: self._tell("predicting", so_far + done, of, best),
        )
        for choice, job in zip(batch, jobs, strict=True):
            known = stored[job.key]
            if known.state is State.DONE:
                self.done.append(replace(choice, figures=known.summary))
                self._note(self.done[-1])
            else:
                self.failed.append((choice.candidate, known.reason))

    def _best(self) -> str:
        allowed = [choice for choice in self.done if self._goal.allows(choice)]
        if not allowed:
            return ""
        best = min(allowed, key=lambda choice: (not choice.exact, self._goal.rank(choice)))
        return f"{best.candidate.label}: {best.epoch_s:.3g} s an epoch"


def _groups(choice: Choice) -> tuple[Group, Group, Group]:
    """The choices of a kind with the same cluster and method, those with the same cluster, those with the same method.

    Names of clusters and methods never meet, as they stand in different places.
    """
    cluster, method = choice.candidate.group
    return (*choice.kind, cluster, method), (*choice.kind, cluster, ""), (*choice.kind, "", method)


FASTEST = Goal()


def plan(
    scenario: Scenario,
    goal: Goal = FASTEST,
    *,
    results: str | Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    exhaustive: bool = False,
    accuracy: Accuracy | None = None,
    train: bool = False,
    tell: Tell = lambda what, done, of, best: None,
) -> RankedPlan:
    """The best of all that a scenario's [plan] allows, ranked.

    Choices that do not fit in memory are dropped with the reason. Without `exhaustive` a choice is predicted only if
    its bound leaves it a chance to be the best of its method and cluster. With `accuracy` choices are ranked by their
    time or price to its target where trainings that are kept tell how many epochs they need; with `train` all are.
    """
    listed = candidates(scenario)

    def ask(choices: Sequence[Choice]) -> Known | None:
        return None if accuracy is None else learn(scenario, choices, accuracy, train=train)

    bounded = replace(goal, max_staleness=scenario.plan.max_staleness)
    with result_path(results) as path, ResultFile(path) as file, open_pool(jobs, dask) as pool:
        return find_plan(listed, bounded, file, pool, exhaustive=exhaustive, ask=ask, tell=tell)
