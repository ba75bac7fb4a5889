"""Convergence: methods with options, trained for real with several seeds on one graph, and their scores compared.

Values of some keys (the learning rate) are searched for every case alike, on validation scores of the first seeds; the
other seeds train with the best. What is trained is kept in a file, as in a sweep.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.reports.convergence import answer, seed_records, write_report
from halocast.reports.scores import CaseScores, SeedScores, Trial, paired
from halocast.reports.summary import from_flat
from halocast.study.cases import (
    Case,
    base_of,
    combined_cases,
    has_option,
    parse_case,
    require_distinct,
    require_own_options_used,
)
from halocast.study.pool import Pool, open_pool
from halocast.study.queries import Progress, Query, complete, training_of
from halocast.study.results import ResultFile, State, Stored, Tables
from halocast.study.run import require_torch
from halocast.study.scenario import Scenario, build_scenario, changed_tables, format_scenario, set_key
from halocast.study.showable import Showable
from halocast.study.sweep import key_place, result_path
from halocast.study.training import Trained

LEARNING_RATE = "run.lr"
DRAWS = "method.seed"  # of what a method samples
WITHIN = 0.5  # points of the baseline that count as as good
Values = Mapping[str, Any]  # of searched keys
NOT_YET = "not trained yet"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Convergence(Showable):
    """Cases with their scores, in the order in which they were given."""

    columns: ClassVar[tuple[str, ...]] = ("case", "test", "test_std", "difference", "difference_error", "best_epoch")
    rows: tuple[CaseScores, ...]
    within: float  # points of the baseline that count as as good
    scenario: str  # of the first legal case, as TOML

    def line(self) -> str:
        return answer(self.rows, self.within)

    def records(self) -> list[dict[str, Any]]:
        """A row per case; scores are shares, differences are those to the baseline."""
        return [row.flat() for row in self.rows]

    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation of every training: case, seed, epoch, scores."""
        return seed_records(self.rows)

    def write(self, directory: str | Path) -> None:
        """Write the report into a directory: report.md, results.csv, curves.csv and figures; other files stay."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        write_report(Path(directory), self.rows, self.within, self.scenario)


def convergence(
    scenario: Scenario | Mapping[str, Any],
    *,
    cases: Sequence[str] = (),
    methods: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 5,
    tune_seeds: int = 2,
    baseline: str | None = None,
    within: float = WITHIN,
    results: str | Path | None = None,
    jobs: int | None = None,
    train: bool = True,
    progress: Progress = lambda done, of: None,
) -> Convergence:
    """Train cases of a scenario for real and compare their scores.

    `cases` are written as "bns rate=0.1"; `methods` and `vary` are combined ({"method.gamma": [0.5, 0.95]}). `tune`
    maps keys to values, of which every case gets the best on validation: {"run.lr": [0.003, 0.01]}. `baseline` is the
    case that others are compared with [vanilla in the same setting, else the first]. `results` names an SQLite file
    that keeps every finished training, `jobs` says how many train side by side [one per core]; `train=False` trains
    nothing and tells what the file has.
    """
    require_torch("halocast convergence")
    tables = changed_tables(scenario) if isinstance(scenario, Scenario) else dict(scenario)
    study = _Study(
        tables=tables,
        cases=tuple(chosen_cases(tables, cases, methods, vary or {})),
        tries=_tries(tune or {}),
        num_seeds=seeds,
        num_tuned=min(tune_seeds, seeds),
    )
    bases = [base_of(case, study.cases, baseline) for case in study.cases]
    described = study.described
    with result_path(results) as path, ResultFile(path) as file, open_pool(jobs) as pool:
        rows = _rows(study, _Trainings(file, pool if train else None, study.num_trainings, progress))
    by_label = {row.label: row for row in rows}
    compared = [_compared(row, by_label[base.label]) for row, base in zip(rows, bases, strict=True)]
    return Convergence(rows=tuple(compared), within=within, scenario=described)


def chosen_cases(
    tables: Mapping[str, Any], written: Sequence[str], methods: Sequence[str], vary: Mapping[str, Sequence[Any]]
) -> list[Case]:
    """The cases that were asked for; without any, vanilla and the scenario's own method."""
    own = str(tables.get("method", {}).get("name", "vanilla"))
    usual = () if written else tuple(dict.fromkeys(("vanilla", own)))
    require(
        not (vary and written) or bool(methods), "vary: which methods? a case says its own keys (--methods bns,psc)"
    )
    combined = combined_cases(methods or usual, vary) if methods or vary or not written else []
    cases = [*(parse_case(text) for text in written), *combined]
    require_distinct(cases)
    require_own_options_used(tables, cases)
    return cases


def _tries(tune: Mapping[str, Sequence[Any]]) -> tuple[Values, ...]:
    for key, values in tune.items():
        key_place(key, "tune")
        require(len(values) > 0, f"tune {key}: no values")
    return tuple(dict(zip(tune, values, strict=True)) for values in product(*tune.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    """What is to be trained: cases, the values that are searched (one empty choice: none), and seeds."""

    tables: Tables
    cases: tuple[Case, ...]
    tries: tuple[Values, ...]
    num_seeds: int
    num_tuned: int

    def __post_init__(self) -> None:
        require(self.num_seeds >= 1, f"seeds = {self.num_seeds}: needs to be at least 1")
        require(self.num_tuned >= 1, f"tune_seeds = {self.num_tuned}: needs to be at least 1")

    @property
    def searches(self) -> bool:
        return len(self.tries) > 1

    @property
    def seeds(self) -> range:
        first = int(self.tables.get("run", {}).get("seed", 0))
        return range(first, first + self.num_seeds)

    @property
    def num_trainings(self) -> int:
        searched = self.num_tuned * len(self.tries) if self.searches else 0
        left = self.num_seeds - (self.num_tuned if self.searches else 0)
        return len(self.cases) * (searched + left)

    def query(self, case: Case, values: Values, seed: int) -> Query:
        """The training of a case; what it says itself wins over searched values, and over the seed of its draws."""
        tables = case.tables(self.tables)
        for key, value in values.items():
            if key not in case.overrides and has_option(case.method, key):
                set_key(tables, *key_place(key), value)
        set_key(tables, "run", "seed", seed)
        if has_option(case.method, DRAWS) and "seed" not in tables["method"]:
            set_key(tables, *key_place(DRAWS), seed)
        return training_of(tables)

    @property
    def described(self) -> str:
        """The scenario of the first legal case as TOML; a study without any is refused with the first mistake."""
        queries = [self.query(case, self.tries[0], self.seeds[0]) for case in self.cases]
        for query in queries:
            if not query.reason:
                sections = {name: table for name, table in query.tables.items() if name != "task"}
                return format_scenario(build_scenario(sections, "scenario"))
        raise InputError(f"none of {len(queries)} cases is legal; the first: {queries[0].reason}")

    def learning_rate(self, case: Case) -> float:
        tables = case.tables(self.tables)
        return float(tables.get("run", {}).get("lr", Scenario().run.lr))


@dataclass(slots=True)
class _Trainings:
    """Trainings in a file, made by a pool where one is given; progress counts all of the study."""

    file: ResultFile
    pool: Pool | None
    total: int
    progress: Progress
    before: int = 0

    def of(self, queries: Iterable[Query]) -> dict[str, Stored]:
        """The trainings of some queries by key, those that fail with their reason; illegal ones are left out."""
        legal = {query.key: query for query in queries if not query.reason}
        if self.pool is None:
            return self.file.finished(list(legal))
        before = self.before
        stored = complete(self.file, legal.values(), self.pool, lambda done, of: self._tell(before + done))
        self.before = before + len(legal)
        return stored

    def _tell(self, done: int) -> None:
        self.progress(min(done, self.total), self.total)


def _rows(study: _Study, trainings: _Trainings) -> list[CaseScores]:
    """The scores of every case: first the search, then the seeds that are left with what it chose."""
    tuned = study.seeds[: study.num_tuned]
    search = {
        (case.label, number): [study.query(case, values, seed) for seed in tuned]
        for case in study.cases
        for number, values in enumerate(study.tries)
        if study.searches
    }
    stored = trainings.of(query for queries in search.values() for query in queries)
    rows, wanted = [], {}
    for case in study.cases:
        trials = tuple(
            _trial(values, search[case.label, number], stored)
            for number, values in enumerate(study.tries)
            if study.searches
        )
        values = best_trial(trials).values if trials else study.tries[0]
        wanted[case.label] = [study.query(case, values, seed) for seed in study.seeds]
        rows.append(_row(study, case, values, trials))
    done = {query.key for queries in search.values() for query in queries}
    left = [query for queries in wanted.values() for query in queries if query.key not in done]
    stored |= trainings.of(left)
    return [_scored(row, study.seeds, wanted[row.label], stored) for row in rows]


def _trial(values: Values, queries: Sequence[Query], stored: Mapping[str, Stored]) -> Trial:
    """The mean over seeds of the best validation score, if all have trained; test scores are not read."""
    done = [stored[query.key] for query in queries if query.key in stored]
    best = [
        max(scores["val"] for scores in _trained(one).evaluated.values()) for one in done if one.state is State.DONE
    ]
    return Trial(values=values, val=mean(best) if len(best) == len(queries) else None)


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The trial with the best validation score, the first of equal ones."""
    return max(trials, key=lambda trial: -1.0 if trial.val is None else trial.val)


def _row(study: _Study, case: Case, values: Values, trials: tuple[Trial, ...]) -> CaseScores:
    searched = {key: case.overrides.get(key, value) for key, value in values.items()}
    return CaseScores(
        label=case.label,
        baseline=case.label,
        settings={"method.name": case.method, **case.overrides},
        chosen=searched or {LEARNING_RATE: study.learning_rate(case)},
        seeds=(),
        trials=trials,
        wanted=study.num_seeds,
    )


def _scored(
    row: CaseScores, seeds: Sequence[int], queries: Sequence[Query], stored: Mapping[str, Stored]
) -> CaseScores:
    scores, reasons = [], []
    for seed, query in zip(seeds, queries, strict=True):
        training = stored.get(query.key)
        if training is not None and training.state is State.DONE:
            scores.append(_scores(seed, _trained(training)))
        else:
            reasons.append(query.reason or (training.reason if training else NOT_YET))
    counted = [f"{reasons.count(reason)} of {len(seeds)}: {reason}" for reason in dict.fromkeys(reasons)]
    chosen = row.chosen if scores else dict.fromkeys(row.chosen)  # nothing was found to choose by
    return replace(row, seeds=tuple(scores), chosen=chosen, reasons=tuple(counted))


def _trained(training: Stored) -> Trained:
    return from_flat(Trained, training.figures)


def _scores(seed: int, trained: Trained) -> SeedScores:
    return SeedScores(seed=seed, evaluated=trained.evaluated, errors=trained.errors, total_s=trained.total_s)


def _compared(row: CaseScores, base: CaseScores) -> CaseScores:
    return replace(row, baseline=base.label, difference=paired(row.seeds, base.seeds))
