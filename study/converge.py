"""Training in virtual time: what accuracy, after how many seconds and dollars, on machines that are only described.

Numbers are trained for real, in one process per training; seconds are predicted. Cases and machines are predicted
first; then values of some keys (the learning rate) are searched for every case alike on validation, and the other seeds
train with the best. What is predicted and trained is kept in a file, as in a sweep.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

from halocast.base.errors import InputError
from halocast.base.files import cache_dir
from halocast.base.records import require
from halocast.methods import families
from halocast.reports.curves import Converged, Curve
from halocast.reports.scores import Trial
from halocast.reports.summary import from_flat
from halocast.schedule.approximation import Approximation
from halocast.study.cases import Case, combined_cases, parse_case, require_distinct, require_own_options_used
from halocast.study.convergence import Convergence
from halocast.study.curves import Parts, curve_of, curve_without, trained_of
from halocast.study.graph_figures import GRAPH, KnownGraph
from halocast.study.placed import Placed, divided, placed, require_some_placed
from halocast.study.pool import Pool, open_pool
from halocast.study.queries import Query, complete, query_of
from halocast.study.results import ResultFile, State, Stored, Tables
from halocast.study.run import require_torch
from halocast.study.scenario import Scenario, build_scenario, changed_tables, format_scenario
from halocast.study.sweep import key_place
from halocast.study.targets import Target, parse_budget, parse_target, require_above_chance
from halocast.study.timing import TIME, Timing
from halocast.study.training import Trained
from halocast.study.trainings import Plan, Trainings, Values, Wanted, wanted

EPOCHS = 200  # of a training that does not say how many
EVALUATIONS = 100  # of the longest training: epochs to a target are known to 1 % of it
PATIENCE = 0.25  # of the longest training: without a better validation score for so long, it ends
PERTURBED = 2  # further trainings where numbers depend on predicted speeds
LEARNING_RATE = "run.lr"
RESULTS = "converge.sqlite"
TRIED = 3.0  # factor between learning rates that are tried
Phase = Callable[[str, int, int], None]  # what is done, how many, of how many


def converge(
    scenario: Scenario | Mapping[str, Any],
    *,
    cases: Sequence[str] = (),
    methods: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    tune: int | Mapping[str, Sequence[Any]] = 1,
    seeds: int = 3,
    tune_seeds: int = 1,
    patience: int | None = None,
    target: str | float = "95%",
    budget: str | float | None = None,
    stand_in: str | None = None,
    baseline: str | None = None,
    results: str | Path | None = None,
    jobs: int | None = None,
    train: bool = True,
    progress: Phase = lambda what, done, of: None,
    on_curve: Callable[[Curve], None] = lambda curve: None,
) -> Convergence:
    """Train cases of a scenario in virtual time: score over predicted seconds, dollars and epochs.

    `cases` are written as "bns rate=0.1"; `methods` and `vary` are combined ({"method.gamma": [0.5, 0.95]}). Keys of
    [cluster] and [world] in `vary` make a group of curves each: the same trainings where ranks meet. `tune` N tries as
    many learning rates per case, on validation; or it maps keys to values. `target` is a validation score, or a share
    of the best that exact training reaches. `budget` is in predicted time ("10min"). `stand_in` is a graph with data
    that is trained in place of the scenario's, whose seconds are predicted all the same. `results` names an SQLite file
    that keeps what is finished [one in the user's cache]; `train=False` trains nothing and tells what it has. A
    training ends after `patience` epochs without a better validation score [a quarter of run.epochs; 0: never].
    """
    require_torch("halocast converge")
    tables = changed_tables(scenario) if isinstance(scenario, Scenario) else dict(scenario)
    asked = _Asked(
        tables=tables,
        cases=tuple(_cases(tables, cases, methods, vary or {})),
        machines=divided(vary or {})[1],
        target=parse_target(target),
        budget_s=parse_budget(budget),
        plan=_plan(tables, range(seeds), tune, tune_seeds, patience, stand_in),
        baseline=baseline,
    )
    path = Path(results) if results is not None else usual_results()
    with ResultFile(path) as file, open_pool(jobs) as pool:
        return _Study(asked=asked, file=file, pool=pool, train=train, progress=progress, on_curve=on_curve).answer()


def usual_results() -> Path:
    """The file that keeps what was predicted and trained, where none is named."""
    path = cache_dir() / RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _cases(
    tables: Tables, written: Sequence[str], methods: Sequence[str], vary: Mapping[str, Sequence[Any]]
) -> list[Case]:
    """The cases that were asked for; without any, one method of each family."""
    varied, _ = divided(vary)
    require(
        not (varied and written) or bool(methods), "vary: which methods? a case says its own keys (--methods bns,psc)"
    )
    named = methods or (() if written else families())
    cases = [*(parse_case(text) for text in written), *combined_cases(named, varied)]
    require_distinct(cases)
    require_own_options_used(tables, cases)
    return cases


def _plan(
    tables: Tables,
    seeds: range,
    tune: int | Mapping[str, Sequence[Any]],
    tune_seeds: int,
    patience: int | None,
    stand_in: str | None,
) -> Plan:
    run = tables.get("run", {})
    epochs, first = int(run.get("epochs", EPOCHS)), int(run.get("seed", 0))
    usual = max(1, round(PATIENCE * epochs))
    require(patience is None or patience >= 0, f"patience = {patience}: needs to be at least 0")
    return Plan(
        seeds=[first + number for number in seeds],
        num_tuned=min(tune_seeds, len(seeds)),
        tries=_tries(_rates(tables, tune) if isinstance(tune, int) else tune),
        epochs=epochs,
        patience=usual if patience is None else patience or None,
        eval_every=int(run.get("eval_every", 0)) or max(1, epochs // EVALUATIONS),
        graph=None if stand_in is None else {"dataset": stand_in, "source": "data"},
    )


def _rates(tables: Tables, num: int) -> dict[str, Sequence[float]]:
    """As many learning rates around the scenario's, each three times the one before."""
    require(num >= 1, f"tune = {num}: needs to be at least 1")
    middle = float(tables.get("run", {}).get("lr", Scenario().run.lr))
    rates = [float(f"{middle * TRIED ** (k - (num - 1) / 2):.2g}") for k in range(num)]
    return {LEARNING_RATE: rates} if num > 1 else {}


def _tries(tune: Mapping[str, Sequence[Any]]) -> tuple[Values, ...]:
    for key, values in tune.items():
        key_place(key, "tune")
        require(len(values) > 0, f"tune {key}: no values")
    return tuple(dict(zip(tune, values, strict=True)) for values in product(*tune.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A question: cases, machines, target, budget and how cases train."""

    tables: Tables
    cases: tuple[Case, ...]
    machines: Mapping[str, Sequence[Any]]  # varied keys of the machine
    target: Target
    budget_s: float | None
    plan: Plan
    baseline: str | None

    def epochs(self, timing: Timing) -> int:
        """How many epochs a budget needs; exact methods, which others are measured by, train to their end."""
        if self.budget_s is None or timing.approximation is Approximation.EXACT:
            return self.plan.epochs
        return max(1, min(self.plan.epochs, ceil(self.budget_s / timing.summary.epoch_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A case on a machine: how it is timed, or why it cannot be."""

    placed: Placed
    timing: Timing | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A row with what the search found for it, and the trainings that it needs."""

    row: _Row
    values: Values
    trials: tuple[Trial, ...]
    seeds: tuple[Wanted, ...]
    perturbed: tuple[Wanted, ...]

    @property
    def wants(self) -> tuple[Wanted, ...]:
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
class _Study:
    """A study under way."""

    asked: _Asked
    file: ResultFile
    pool: Pool
    train: bool
    progress: Phase
    on_curve: Callable[[Curve], None]

    def answer(self) -> Convergence:
        asked = self.asked
        cases = placed(asked.tables, asked.cases, asked.machines)
        timed, trained = self._graphs(cases)
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
                scenario=format_scenario(build_scenario(asked.tables, "scenario")),
                command="",
                baseline=asked.baseline,
            )
        )

    def _ask(self, queries: Sequence[Query], what: str) -> list[Stored | None]:
        """What a pool answers, in order; none where a query is not legal."""
        legal = {query.key: query for query in queries if not query.reason}
        told = partial(self.progress, what)
        stored = complete(self.file, legal.values(), self.pool, told) if legal else {}
        return [stored.get(query.key) for query in queries]

    def _graphs(self, cases: Sequence[Placed]) -> tuple[KnownGraph, KnownGraph]:
        """The graph that is timed, and the one that is trained on."""
        tables = next(one.tables for one in cases if not one.is_single)
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
        queries = [query_of(one.tables, TIME) for one in cases]
        stored = self._ask(queries, "predicting epochs")
        rows = []
        for one, query, found in zip(cases, queries, stored, strict=True):
            done = found is not None and found.state is State.DONE
            timing = from_flat(Timing, found.figures) if done and found else None
            rows.append(_Row(placed=one, timing=timing, reason=query.reason or (found.reason if found else "")))
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

    def _wants(self, row: _Row, values: Values, seeds: Sequence[int]) -> list[Wanted]:
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

    def _perturbed(self, row: _Row, values: Values) -> Iterator[Wanted]:
        """The first seed again, with other speeds, where they decide the numbers and their error is known."""
        timing, plan = row.timing, self.asked.plan
        if timing is None or not timing.order_matters or timing.band is None:
            return
        for number in range(PERTURBED):
            other = plan.perturbed(row.placed, timing, number)
            yield wanted(plan, other, timing, values, plan.seeds[0], self.asked.epochs(timing))

    def _trained(self, chosen: Sequence[_Chosen]) -> list[Curve]:
        trainings = self._trainings("training")
        trainings.on_found = partial(self._tell, chosen, trainings, set[int]())
        trainings.make([want for one in chosen for want in one.wants])
        return [one.curve(trainings) for one in chosen]

    def _tell(self, chosen: Sequence[_Chosen], trainings: Trainings, told: set[int]) -> None:
        """Tell the curves that are whole now and were not yet."""
        for place, one in enumerate(chosen):
            if place not in told and all(trainings.is_over(want) for want in one.wants):
                told.add(place)
                self.on_curve(one.curve(trainings))

    def _trainings(self, what: str) -> Trainings:
        return Trainings(file=self.file, pool=self.pool if self.train else None, progress=partial(self.progress, what))


def _known(stored: Stored | None) -> KnownGraph:
    assert stored is not None, "its query is legal"
    if stored.state is not State.DONE:
        raise InputError(stored.reason)
    return from_flat(KnownGraph, stored.figures)


def _trial(values: Values, wants: Sequence[Wanted], trainings: Trainings) -> Trial:
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
