"""Plans: the best method, options, machines and number of GPUs of all that a scenario's [plan] allows.

First what does not fit is dropped and every other choice's best time bounded, then choices are predicted, the most
promising first, until no other can be better. An epoch is never shorter than what its busiest device computes alone. So
a choice whose bound is not better than what was found needs no simulation, and the answer is the same as if everything
had been tried.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.cluster.catalogue import Cluster, list_clusters, load_cluster
from halocast.methods import METHODS
from halocast.reports.summary import MemoryFigures, Summary, from_flat
from halocast.study.bands import Sure, sure_of
from halocast.study.pool import Pool, open_pool
from halocast.study.predictor import SCREEN
from halocast.study.queries import complete, query_of
from halocast.study.results import ResultFile, State
from halocast.study.scenario import PlanSection, Scenario, tables_of
from halocast.study.screen import Screened
from halocast.study.showable import Showable
from halocast.study.sweep import result_path

ALL = "all"
MOST_CANDIDATES = 100_000
Chosen = Mapping[str, Any]  # options of a method


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """One of the choices; `tables` are its scenario."""

    cluster: str
    gpus: int
    method: str
    options: Chosen
    partitioner: str
    tables: Mapping[str, Any]

    @property
    def group(self) -> tuple[str, str]:
        """The cluster and the method: of the choices that share both, the best is shown."""
        return self.cluster, self.method

    @property
    def chosen(self) -> str:
        """The chosen options as text, and the partitioner where it is not the usual one."""
        named = {**self.options, **({"partitioner": self.partitioner} if self.partitioner != "metis" else {})}
        return ", ".join(f"{key}={value}" for key, value in named.items())

    @property
    def label(self) -> str:
        chosen = self.chosen
        return f"{self.method}{f' ({chosen})' if chosen else ''} on {self.gpus} x {Path(self.cluster).stem}"


def candidates(scenario: Scenario) -> list[Candidate]:
    """All choices of a scenario's [plan], in order."""
    plan, listed = scenario.plan, []
    for name in _clusters(scenario):
        cluster = load_cluster(name, transport=scenario.cluster.transport)
        for gpus, method, partitioner in product(_gpus(plan, cluster), _methods(plan), plan.partitioners):
            for options in _options(plan, method):
                tables = _tables(scenario, name, gpus, method, options, partitioner)
                listed.append(
                    Candidate(
                        cluster=name,
                        gpus=gpus,
                        method=method,
                        options=options,
                        partitioner=str(partitioner),
                        tables=tables,
                    )
                )
                require(len(listed) <= MOST_CANDIDATES, f"more than {MOST_CANDIDATES:,} choices: narrow [plan]")
    require(bool(listed), "nothing to choose from: [plan] leaves no method, cluster or number of GPUs")
    return listed


def _clusters(scenario: Scenario) -> Sequence[str]:
    """The clusters that a plan names; without any, the scenario's own, and without that all whose ranks are GPUs."""
    own = scenario.cluster.file or scenario.cluster.name
    named = scenario.plan.clusters or ((own,) if own else (ALL,))
    if ALL not in named:
        return list(dict.fromkeys(named))
    return [name for name in list_clusters() if load_cluster(name).staged]


def _gpus(plan: PlanSection, cluster: Cluster) -> Iterator[int]:
    """Numbers of GPUs: those asked for that the cluster has; else powers of two and the most that is allowed."""
    most = min(plan.max_gpus, cluster.num_ranks)
    if plan.gpus:
        yield from sorted(num for num in set(plan.gpus) if num <= cluster.num_ranks)
        return
    yield from sorted({most, *(2**k for k in range(most.bit_length()))})


def _methods(plan: PlanSection) -> Sequence[str]:
    if plan.methods:
        return list(dict.fromkeys(plan.methods))
    firsts: dict[Any, str] = {}
    for name, method in METHODS.items():
        firsts.setdefault(method.make, name)
    return list(firsts.values())


def _options(plan: PlanSection, name: str) -> Iterator[Chosen]:
    """All combinations of the ranges of a method's options, but for those that keep too little."""
    method = METHODS[name]
    asked = plan.options.get(name, {})
    ranges = {**method.ranges, **asked}
    for chosen in product(*ranges.values()):
        options = dict(zip(ranges, chosen, strict=True))
        if method.share is None or method.share in asked or options[method.share] >= plan.min_rate:
            yield MappingProxyType(options)


def _tables(
    scenario: Scenario, cluster: str, gpus: int, method: str, options: Chosen, partitioner: str
) -> Mapping[str, Any]:
    """The scenario with these choices; options of its own method stay where they are not chosen."""
    tables: dict[str, Any] = dict(tables_of(scenario))
    own = tables["method"] if tables["method"]["name"] == method else {}
    tables["method"] = {**own, "name": method, **options}
    tables["graph"] = {**tables["graph"], "partitioner": str(partitioner)}
    rest = {key: value for key, value in tables["cluster"].items() if key not in ("name", "file")}
    is_file = cluster not in list_clusters()
    tables["cluster"] = {**rest, "file" if is_file else "name": cluster, "gpus": gpus}
    return tables


Tell = Callable[[str, int, int, str], None]  # what is done, how many, of how many, the best so far
NONE = float("inf")


class Aim(StrEnum):
    FASTEST = "fastest"
    CHEAPEST = "cheapest"
    FEWEST = "fewest"  # GPUs, under a limit of time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """A candidate with what is known of it: before its prediction only bounds and memory."""

    candidate: Candidate
    screened: Screened
    figures: Summary | None = None

    @property
    def epoch_s(self) -> float:
        """The predicted epoch, or before its prediction the least that it can be."""
        return self.screened.bound_s if self.figures is None else self.figures.epoch_s

    @property
    def predicted(self) -> Summary:
        """The figures of a choice of a plan, all of which were predicted."""
        assert self.figures is not None, self.candidate.label
        return self.figures

    @property
    def price(self) -> float | None:
        """The price of an epoch, predicted or the least that it can be; None where the cluster has no price."""
        rate = self.screened.price_per_s
        return None if rate is None else rate * self.epoch_s

    @property
    def gpus(self) -> int:
        return self.candidate.gpus

    @property
    def headroom_bytes(self) -> int:
        memory = self.screened.memory
        return memory.device_memory_bytes - memory.memory_bytes

    @property
    def ages(self) -> list[int]:
        """Ages, in epochs, of rows of others when they are read."""
        return self.predicted.ages

    @property
    def any_age(self) -> bool:
        """Whether rows may be of any age, since ranks run freely without a bound."""
        return any(read.free for read in self.predicted.staleness)

    @property
    def staleness(self) -> str:
        """The reason why the rows that it reads may be too old."""
        return "rows of any age: ranks run freely" if self.any_age else f"rows up to {self.ages[-1]} epochs old"

    @property
    def sure(self) -> Sure:
        return sure_of(self.predicted)

    def record(self) -> dict[str, Any]:
        """A row of the plan's table: what is chosen, and its figures."""
        chosen = {"label": self.candidate.label, **self.candidate.options, "sure": str(self.sure)}
        known = {"headroom_bytes": self.headroom_bytes, "price": self.price}
        return {**chosen, **self.predicted.plain_figures(), **known}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The aim of a plan: a choice of smaller rank is better. Bounds never have larger ranks than predictions."""

    aim: Aim = Aim.FASTEST
    limit_s: float | None = None
    max_staleness: int | None = None  # epochs
    pareto: bool = False  # also keep all that no other beats in both time and price

    def __post_init__(self) -> None:
        needed = self.aim is not Aim.FEWEST or self.limit_s is not None
        require(needed, "fewest GPUs: under which time? give a limit of seconds per epoch (--limit-s)")
        legal = self.limit_s is None or self.limit_s > 0
        require(legal, f"limit_s = {self.limit_s}: needs to be above 0")

    def rank(self, choice: Choice) -> tuple[float, ...]:
        return RANKS[self.aim](choice)

    def allows(self, choice: Choice) -> bool:
        return (self.limit_s is None or choice.epoch_s <= self.limit_s) and not self.too_stale(choice)

    def too_stale(self, choice: Choice) -> bool:
        """Whether a choice reads older rows than allowed, which is known when it is predicted."""
        if self.max_staleness is None or choice.figures is None:
            return False
        return choice.any_age or (bool(choice.ages) and choice.ages[-1] > self.max_staleness)


def _cheapest(choice: Choice) -> tuple[float, ...]:
    """Rank a choice by its price; those without one come last."""
    return (NONE if choice.price is None else choice.price, choice.epoch_s)


RANKS: Mapping[Aim, Callable[[Choice], tuple[float, ...]]] = MappingProxyType(
    {
        Aim.FASTEST: lambda choice: (choice.epoch_s,),
        Aim.CHEAPEST: _cheapest,
        Aim.FEWEST: lambda choice: (choice.gpus, choice.epoch_s),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RankedPlan(Showable):
    """The answer: every choice that was predicted, the best first, and what became of the others."""

    columns: ClassVar[tuple[str, ...]] = ("label", "epoch_s", "exposed_comm_s", "headroom_bytes", "price", "sure")
    choices: tuple[Choice, ...]
    dropped: tuple[tuple[Candidate, str], ...]  # not legal, or too large, and why
    hopeless: tuple[Choice, ...]  # not simulated: their bounds show that they are not better
    goal: Goal

    @property
    def best(self) -> Choice:
        return self.choices[0]

    def line(self) -> str:
        best, others = self.best, len(self.choices) - 1
        dropped = f"{len(self.dropped)} dropped, {len(self.hopeless)} not better by their bounds"
        return f"{self.goal.aim}: {best.candidate.label}, {best.epoch_s:.3g} s an epoch; {others} others, {dropped}"

    def records(self) -> list[dict[str, Any]]:
        """A row per predicted choice, the best first."""
        return [choice.record() for choice in self.choices]

    def best_by(self, what: Callable[[Candidate], str]) -> dict[str, Choice]:
        """The best choice of each method, or on each cluster."""
        best: dict[str, Choice] = {}
        for choice in self.choices:
            best.setdefault(what(choice.candidate), choice)
        return best

    def best_of_groups(self) -> list[Choice]:
        """The best choice that was predicted of every method on every cluster, in order: surely the best of a method
        and the best on a cluster, and for other pairs one that is not far from it."""
        best: dict[tuple[str, str], Choice] = {}
        for choice in self.choices:
            best.setdefault(choice.candidate.group, choice)
        return list(best.values())

    def front(self) -> list[Choice]:
        """Choices with a price that no other beats in both time and price, the fastest first."""
        return pareto(self.choices)


def pareto(choices: Iterable[Choice]) -> list[Choice]:
    priced = [(choice.epoch_s, choice.price, choice) for choice in choices if choice.price is not None]
    front, cheapest = [], NONE
    for _, price, choice in sorted(priced, key=lambda item: item[:2]):
        if price < cheapest:
            front.append(choice)
            cheapest = price
    return front


def find_plan(
    listed: Sequence[Candidate],
    goal: Goal,
    file: ResultFile,
    pool: Pool,
    *,
    exhaustive: bool = False,
    tell: Tell = lambda what, done, of, best: None,
) -> RankedPlan:
    """Screen all candidates, then predict those that may be the best of their group, or all of them."""
    screened, dropped = _screen(listed, file, pool, tell)
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
    return RankedPlan(choices=tuple(ranked), dropped=tuple(dropped), hopeless=(*search.hopeless, *too_slow), goal=goal)


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
        self._best_ranks: dict[Any, tuple[float, ...]] = {}

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
        firsts: dict[tuple[str, str], Choice] = {}
        for choice in left:
            firsts.setdefault(choice.candidate.group, choice)
        more = [choice for choice in left if choice not in firsts.values()]
        return [*firsts.values(), *more[: max(0, self._pool.num_slots - len(firsts))]]

    def _is_hopeless(self, choice: Choice) -> bool:
        """Whether a choice's bound is no better than the best of its method on its cluster; or than both the best of
        its method anywhere and the best on its cluster. If asked for, the front of time and price is kept."""
        group = cluster, method = choice.candidate.group
        if group not in self._best_ranks:
            return False
        rank, best = self._goal.rank(choice), self._best_ranks
        beaten = rank >= best[group] or (rank >= best[cluster] and rank >= best[method])
        return beaten and (not self._goal.pareto or choice not in pareto([*self.done, choice]))

    def _note(self, choice: Choice) -> None:
        """Keep the best rank of the choice's method, of its cluster, and of both together."""
        if self._goal.allows(choice):
            rank, (cluster, method) = self._goal.rank(choice), choice.candidate.group
            for key in (choice.candidate.group, cluster, method):
                self._best_ranks[key] = min(rank, self._best_ranks.get(key, rank))

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
        best = min(allowed, key=self._goal.rank)
        return f"{best.candidate.label}: {best.epoch_s:.3g} s"


FASTEST = Goal()


def plan(
    scenario: Scenario,
    goal: Goal = FASTEST,
    *,
    results: str | Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    exhaustive: bool = False,
    tell: Tell = lambda what, done, of, best: None,
) -> RankedPlan:
    """The best of all that a scenario's [plan] allows, ranked.

    Choices that do not fit in memory are dropped with the reason. Without `exhaustive` a choice is predicted only if
    its bound leaves it a chance to be the best of its method and cluster.
    """
    listed = candidates(scenario)
    bounded = replace(goal, max_staleness=scenario.plan.max_staleness)
    with result_path(results) as path, ResultFile(path) as file, open_pool(jobs, dask) as pool:
        return find_plan(listed, bounded, file, pool, exhaustive=exhaustive, tell=tell)
