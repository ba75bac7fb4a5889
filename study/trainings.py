"""The trainings of a study: which cases train with which values, seeds and lengths, made by a pool and kept in a file.

A training of a method whose ranks meet serves all machines with as many ranks. Its length is one of a few, so that
budgets that differ a little share it; a longer one serves as well, since its first epochs are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from halocast.base.records import require
from halocast.schedule.approximation import Approximation
from halocast.study.cases import has_option
from halocast.study.placed import Placed
from halocast.study.pool import Pool
from halocast.study.queries import Progress, Query, complete, training_of
from halocast.study.results import ResultFile, Stored, Tables
from halocast.study.scenario import set_key
from halocast.study.sweep import key_place
from halocast.study.timing import EpochTiming

DRAWS = "method.seed"  # of what a method samples
LEAST_EPOCHS = 10  # of a training that a short budget needs
OF_MACHINES = ("cluster", "world", "plan")  # sections that a training knows nothing of
Values = Mapping[str, Any]  # of searched keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How cases train: seeds, the longest training, when one ends early, the graph that stands in, what is searched."""

    seeds: Sequence[int]
    num_tuned: int  # of the seeds, with which the search trains
    tries: tuple[Values, ...]  # of the search; one empty choice: none
    epochs: int
    patience: int | None
    eval_every: int
    graph: Mapping[str, Any] | None = None  # the [graph] section that is trained; none: the one that is timed

    def __post_init__(self) -> None:
        require(len(self.seeds) >= 1, f"seeds = {len(self.seeds)}: needs to be at least 1")
        require(self.num_tuned >= 1, f"tune_seeds = {self.num_tuned}: needs to be at least 1")
        require(self.epochs >= 1, f"epochs = {self.epochs}: needs to be at least 1")

    @property
    def searches(self) -> bool:
        return len(self.tries) > 1

    @property
    def lengths(self) -> list[int]:
        """The lengths that trainings may have, the shortest first: the longest, halved again and again."""
        lengths = [self.epochs]
        while lengths[-1] > LEAST_EPOCHS:
            lengths.append(-(-lengths[-1] // 2))
        return lengths[::-1]

    def query(self, placed: Placed, timing: EpochTiming, values: Values, seed: int, length: int) -> Query:
        """A training; what the case says itself wins over searched values, and over the seed of its draws."""
        tables = self._tables(placed, timing)
        for key, value in values.items():
            if key not in placed.case.overrides and has_option(placed.case.method, key):
                set_key(tables, *key_place(key), value)
        said = {"seed": seed, "epochs": length, "eval_every": self.eval_every}
        tables["run"] = {**tables.get("run", {}), **said}
        if seed == self.seeds[0] and timing.comparable and timing.approximation is not Approximation.EXACT:
            tables["run"]["errors"] = True
        if has_option(placed.case.method, DRAWS) and "seed" not in placed.tables["method"]:
            tables["method"]["seed"] = seed
        clock = placed.tables if timing.order_matters else None
        return training_of(tables, patience=self.patience, clock=clock)

    def _tables(self, placed: Placed, timing: EpochTiming) -> Tables:
        """What is trained: the timed scenario's model and method, on as many ranks, on the graph that has data."""
        tables = {
            name: dict(table) for name, table in placed.tables.items() if name not in ("cluster", "world", "plan")
        }
        tables["method"] = dict(timing.method)
        tables["cluster"] = {"gpus": timing.summary.ranks}
        if self.graph is not None:
            tables["graph"] = dict(self.graph)
        return tables

    def perturbed(self, placed: Placed, timing: EpochTiming, number: int) -> Placed:
        """The case in a world whose ranks are each faster or slower than predicted, as far as predictions err."""
        if timing.band is None:
            return placed
        low, high = timing.summary.epoch_s / timing.band.high_s, timing.summary.epoch_s / timing.band.low_s
        drawn = np.random.default_rng(number).uniform(low, high, timing.summary.ranks)
        world = dict(placed.tables.get("world", {}))
        own = world.get("speed", {})
        world["speed"] = {str(rank): round(float(x) * own.get(str(rank), 1.0), 4) for rank, x in enumerate(drawn)}
        return Placed(case=placed.case, setting=placed.setting, tables={**placed.tables, "world": world})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedTraining:
    """A training that is wanted: a case, how it is timed, searched values, a seed, and as many epochs at least."""

    placed: Placed
    timing: EpochTiming
    values: Values
    seed: int
    epochs: int
    queries: tuple[Query, ...]  # that would do, the shortest first

    @property
    def identity(self) -> str:
        """What it has in common with those that differ in length alone."""
        return self.queries[-1].key


def wanted(plan: Plan, placed: Placed, timing: EpochTiming, values: Values, seed: int, epochs: int) -> WantedTraining:
    lengths = [length for length in plan.lengths if length >= epochs]
    queries = tuple(plan.query(placed, timing, values, seed, length) for length in lengths)
    return WantedTraining(placed=placed, timing=timing, values=values, seed=seed, epochs=epochs, queries=queries)


@dataclass(slots=True)
class Trainings:
    """Trainings in a file, made by a pool where one is given."""

    file: ResultFile
    pool: Pool | None
    progress: Progress
    on_found: Callable[[], None] = lambda: None  # told that there is more than before
    stored: dict[str, Stored] = field(default_factory=dict)  # by key

    def make(self, wanted: Sequence[WantedTraining]) -> None:
        """Train what is wanted and not in the file yet; of those that differ in length alone, the longest."""
        self.stored |= self.file.finished(list({query.key for want in wanted for query in want.queries}))
        longest: dict[str, WantedTraining] = {}
        for want in wanted:
            other = longest.get(want.identity)
            if other is None or want.epochs > other.epochs:
                longest[want.identity] = want
        lacking = [want.queries[0] for want in longest.values() if self.found(want) is None]
        legal = {query.key: query for query in lacking if not query.reason}
        if self.pool is not None and legal:
            self.stored |= complete(self.file, legal.values(), self.pool, partial(self._tell, list(legal)))
        self.on_found()

    def _tell(self, keys: Sequence[str], done: int, of: int) -> None:
        self.progress(done, of)
        if done > sum(key in self.stored for key in keys):
            self.stored |= self.file.finished([key for key in keys if key not in self.stored])
            self.on_found()

    def is_over(self, want: WantedTraining) -> bool:
        """Whether a training has ended, or cannot be."""
        return bool(want.queries[0].reason) or self.found(want) is not None

    def found(self, want: WantedTraining) -> Stored | None:
        """A finished training that is long enough, the shortest of them."""
        return next((self.stored[query.key] for query in want.queries if query.key in self.stored), None)
