"""A study of accuracy over predicted time under way: graphs, predicted epochs, the search, trainings, curves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import mean
from typing import Any

import tomli_w

from halocast.base.errors import InputError
from halocast.reports.curves import Converged, Curve
from halocast.reports.scores import Trial
from halocast.reports.summary import from_flat
from halocast.schedule.approximation import Approximation
from halocast.study.cases import Case
from halocast.study.convergence import Convergence
from halocast.study.curves import Parts, curve_of, curve_without, trained_of
from halocast.study.graph_figures import GRAPH, KnownGraph
from halocast.study.placed import Placed, placed, require_some_placed
from halocast.study.pool import Pool
from halocast.study.queries import Query, complete, query_of
from halocast.study.results import ResultFile, State, Stored, Tables
from halocast.study.scenario import Scenario, build_scenario, changed_tables
from halocast.study.showable import made_now
from halocast.study.targets import Target, require_above_chance
from halocast.study.timing import TIME, EpochTiming
from halocast.study.training import Trained
from halocast.study.trainings import Plan, Trainings, Values, WantedTraining, wanted

LEARNING_RATE = "run.lr"
PERTURBED = 2  # further trainings where numbers depend on predicted speeds
Phase = Callable[[str, int, int], None]  # what is done, how many, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question: cases, machines, target, budget and how cases train."""

    tables: Tables
    cases: tuple[Case, ...]
    machines: Mapping[str, Sequence[Any]]  # varied keys of the machine
    target: Target
    budget_s: float | None
    plan: Plan
    baseline: str | None
    command: str  # that asks the same beside its scenario.toml

    @property
    def scenario(self) -> str:
        """The scenario as TOML, with what trainings last; defaults are left out, so that presets may change them."""
        last = {"epochs": self.plan.epochs, "eval_every": self.plan.eval_every}
        changed = changed_tables(build_scenario(self.tables, "scenario"))
        return tomli_w.dumps({**changed, "run": {**changed.get("run", {}), **last}})

    def epochs(self, timing: EpochTiming) -> int:
        """How many epochs a budget needs; exact methods, which others are measured by, train to their end."""
        if self.budget_s is None or timing.approximation is Approximation.EXACT:
            return self.plan.epochs
        return max(1, min(self.plan.epochs, ceil(self.budget_s / timing.summary.epoch_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A case on a machine: how it is timed, or why it cannot be."""

    placed: Placed
    timing: EpochTiming | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A row with what the search found for it, and the trainings that it needs."""

    row: _Row
    values: Values
    trials: tuple[Trial, ...]
    seeds: tuple[WantedTraining, ...]
    perturbed: tuple[WantedTraining, ...]

    @property
    def wants(self) -> tuple[WantedTraining, ...]:
        return (*self.seeds, *self.perturbed)

    def curve(self, trainings: Trainings) -> Curve:
        """The curve of what is trained so far."""
        if self.row.timing is None:
            return curve_without(self.row.placed, self.row.reason)
        return curve_of(
            Parts(
                placed=self.row.placed,
                timing=self.row.timing,
                chosen=self.values,
                trials=self.trials,
                seeds=[(want, trainings.found(want)) for want in self.seeds],
                perturbed=[(want, trainings.found(want)) for want in self.perturbed],
            )
        )


@dataclass(slots=True, kw_only=True)
class Study:
    """A study under way."""

    asked: Question
    file: ResultFile
    pool: Pool
    train: bool
    progress: Phase
    on_curve: Callable[[Curve], None]

    def answer(self) -> Convergence:
        asked = self.asked
        cases = placed(asked.tables, asked.cases, asked.machines)
        timed, trained = self._graphs(cases)
        if not asked.target.relative:  # known before hours of training
            require_above_chance(asked.target.value, trained.chance, trained.figures.name)
        rows = self._timed(cases)
        curves = self._trained(
            [self._chosen(row, trials) for row, trials in zip(rows, self._search(rows), strict=True)]
        )
        reference = _reference(curves)
        target = asked.target.score(_best_of(reference))
        require_above_chance(target, trained.chance, trained.figures.name)
        return Convergence(
            content=Converged(
                curves=tuple(curves),
                target=target,
                target_text=asked.target.text(of=reference.label if reference else ""),
                budget_s=asked.budget_s,
                max_epochs=asked.plan.epochs,
                timed=timed.figures,
                trained=trained.figures,
                num_seeds=len(asked.plan.seeds),
                scenario=asked.scenario,
                command=asked.command,
                baseline=asked.baseline,
                made=made_now(),
            )
        )

    def _ask(self, queries: Sequence[Query], what: str) -> list[Stored | None]:
        """What a pool answers, in order; none where a query is not legal."""
        legal = {query.key: query for query in queries if not query.reason}
        stored = complete(self.file, legal.values(), self.pool, partial(self.progress, what)) if legal else {}
        return [stored.get(query.key) for query in queries]

    def _graphs(self, cases: Sequence[Placed]) -> tuple[KnownGraph, KnownGraph]:
        """The graph that is timed, and the one that is trained on."""
        tables = next(placed.tables for placed in cases if not placed.is_single)
        timed = query_of(tables, GRAPH)
        stand_in = self.asked.plan.graph
        trained = query_of({**tables, "graph": stand_in or tables.get("graph", {})}, GRAPH, data=True)
        for query in (timed, trained):
            if query.reason:
                raise InputError(query.reason)
        known = [_known(stored) for stored in self._ask([timed, trained], "measuring graphs")]
        return known[0], known[1]

    def _timed(self, cases: Sequence[Placed]) -> list[_Row]:
        """Every case with its predicted epoch."""
        queries = [query_of(placed.tables, TIME) for placed in cases]
        answers = self._ask(queries, "predicting epochs")
        rows = [_row(*known) for known in zip(cases, queries, answers, strict=True)]
        require_some_placed([row.reason for row in rows if not row.placed.is_single])
        return rows

    def _search(self, rows: Sequence[_Row]) -> list[tuple[Trial, ...]]:
        """What the search tried for every row; nothing where nothing is searched."""
        plan = self.asked.plan
        if not plan.searches:
            return [() for _ in rows]
        wants = [[self._wants(row, values, plan.seeds[: plan.num_tuned]) for values in plan.tries] for row in rows]
        trainings = self._trainings("searching")
        trainings.make([want for tries in wants for some in tries for want in some])
        return [
            tuple(_trial(values, some, trainings) for values, some in zip(plan.tries, tries, strict=True))
            if row.timing
            else ()
            for row, tries in zip(rows, wants, strict=True)
        ]

    def _wants(self, row: _Row, values: Values, seeds: Sequence[int]) -> list[WantedTraining]:
        if row.timing is None:
            return []
        epochs = self.asked.epochs(row.timing)
        return [wanted(self.asked.plan, row.placed, row.timing, values, seed, epochs) for seed in seeds]

    def _chosen(self, row: _Row, trials: tuple[Trial, ...]) -> _Chosen:
        plan = self.asked.plan
        values = best_trial(trials).values if trials else plan.tries[0]
        return _Chosen(
            row=row,
            values=values or {LEARNING_RATE: self._learning_rate(row)},
            trials=trials,
            seeds=tuple(self._wants(row, values, plan.seeds)),
            perturbed=tuple(self._perturbed(row, values)),
        )

    def _learning_rate(self, row: _Row) -> float:
        return float(row.placed.tables.get("run", {}).get("lr", Scenario().run.lr))

    def _perturbed(self, row: _Row, values: Values) -> Iterator[WantedTraining]:
        """The first seed again, with other speeds, where they decide the numbers and their error is known."""
        timing, plan = row.timing, self.asked.plan
        if timing is None or not timing.order_matters or timing.band is None:
            return
        for number in range(PERTURBED):
            other = plan.perturbed(row.placed, timing, number)
            yield wanted(plan, other, timing, values, plan.seeds[0], self.asked.epochs(timing))

    def _trained(self, chosen: Sequence[_Chosen]) -> list[Curve]:
        trainings = self._trainings("training")
        trainings.on_found = partial(self._tell, chosen, trainings, set())
        trainings.make([want for case in chosen for want in case.wants])
        return [case.curve(trainings) for case in chosen]

    def _tell(self, chosen: Sequence[_Chosen], trainings: Trainings, known: set[int]) -> None:
        """Tell the curves that are whole now and were not yet."""
        for place, case in enumerate(chosen):
            if place not in known and all(trainings.is_over(want) for want in case.wants):
                known.add(place)
                self.on_curve(case.curve(trainings))

    def _trainings(self, what: str) -> Trainings:
        return Trainings(file=self.file, pool=self.pool if self.train else None, progress=partial(self.progress, what))


def _row(placed: Placed, query: Query, answer: Stored | None) -> _Row:
    if answer is None or answer.state is not State.DONE:
        return _Row(placed=placed, timing=None, reason=query.reason or (answer.reason if answer else ""))
    return _Row(placed=placed, timing=from_flat(EpochTiming, answer.figures))


def _known(stored: Stored | None) -> KnownGraph:
    assert stored is not None, "its query is legal"
    if stored.state is not State.DONE:
        raise InputError(stored.reason)
    return from_flat(KnownGraph, stored.figures)


def _trial(values: Values, wants: Sequence[WantedTraining], trainings: Trainings) -> Trial:
    """The mean over seeds of the best validation score, if all have trained; test scores are not read."""
    trained = [trained_of(trainings.found(want)) for want in wants]
    best = [best_validation(record) for record in trained if record is not None]
    return Trial(values=values, val=mean(best) if best and len(best) == len(wants) else None)


def best_validation(record: Trained) -> float:
    """The best validation score of a training; one that diverged before it was evaluated has 0."""
    return max((scores["val"] for scores in record.evaluated.values()), default=0.0)


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The trial with the best validation score, the first of equal ones."""
    return max(trials, key=lambda trial: -1.0 if trial.val is None else trial.val)


def _reference(curves: Sequence[Curve]) -> Curve | None:
    """The exact training whose best score a target is a share of: the first case's that is exact, in any setting."""
    exact = (curve for curve in curves if curve.approximation is Approximation.EXACT and curve.seeds)
    return next(exact, None)


def _best_of(reference: Curve | None) -> float | None:
    """The mean over seeds of the best validation score."""
    if reference is None:
        return None
    best = [max((point.val for point in seed.points), default=0.0) for seed in reference.seeds]
    return mean(best)
