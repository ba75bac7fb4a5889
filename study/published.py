"""Predictions of published figures, row by row; every distinct run is simulated once."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any, ClassVar

from halocast.base.errors import InputError, unknown
from halocast.base.records import require
from halocast.graph.halo import from_card
from halocast.reports.page.place import require_report_place
from halocast.reports.published import PublishedResult, summarise_published, verdict
from halocast.reports.published_report import MadeBy, write_published
from halocast.reports.published_scores import ScoreResult, summarise_scores
from halocast.study.accuracy import accuracy, with_bands
from halocast.study.bands import Evidence, Sure, family_of
from halocast.study.constants import is_in_sample
from halocast.study.descriptions import Descriptions, read_descriptions
from halocast.study.evidence import case_of, read_evidence
from halocast.study.own_scores import read_scores, shipped_scores
from halocast.study.published_cards import find_card
from halocast.study.published_figures import METRICS, PART_FIGURES, Figures
from halocast.study.published_rows import (
    Row,
    base_of,
    cuts_edges,
    is_inductive,
    number,
    own_figures,
    params_of,
    read_rows,
    value_of,
)
from halocast.study.published_runs import Asked, Runs
from halocast.study.published_scores import is_score, score_results
from halocast.study.queries import Progress
from halocast.study.showable import Showable
from halocast.study.sources import is_known
from halocast.study.version import prediction_version

UNITS: Mapping[str, float] = MappingProxyType(
    {"s": 1.0, "ms": 1e-3, "%": 0.01, "x": 1.0, "nodes": 1.0, "edges": 1.0, "flag": 1.0, "epochs/s": 1.0}
    | {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}
)
PARTITION = "partition"  # the method of rows about a partition alone
SPEEDUP = "speedup"
UNKNOWN_CODE = "other"  # predicted as ours, which is no evidence of ours


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PublishedStudy(Showable):
    """Published figures beside their predictions, what the errors come to, and published scores beside our runs'."""

    columns: ClassVar[tuple[str, ...]] = (
        *("source", "testbed", "gpus", "dataset", "model", "method", "metric", "value", "unit"),
        *("predicted", "error", "reason"),
    )
    results: tuple[PublishedResult, ...]
    scores: tuple[ScoreResult, ...]
    summary: dict[str, Any]

    def line(self) -> str:
        return " ".join(verdict(self.summary))

    def records(self) -> list[dict[str, Any]]:
        return [result.as_dict() for result in self.results]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a study of published figures takes beside them: descriptions of one's own, a file of our scores, and
    one implementation in place of all the sources' own."""

    clusters: Path | None = None
    cards: Path | None = None
    scores: Path | None = None
    code: str | None = None


NOTHING = Beside()


def published(
    data: str | Path | Sequence[str | Path] = (),
    *,
    out: str | Path | None = None,
    beside: Beside = NOTHING,
    results: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, of: None,
) -> PublishedStudy:
    """Predict published figures: those of CSV files, or those that come with the package.

    `out` is a directory for the report: tables, a page, and all rows. Published scores are not predicted but stand
    beside those of our runs: `beside.scores` is a file of them, instead of the one that comes with the package.
    `results` names the file that keeps predictions [in the user's cache], `jobs` how many processes predict [one per
    core].
    """
    if out is not None:
        require_report_place(Path(out))
    paths = [data] if isinstance(data, str | Path) else [*data] or own_figures()
    rows = [row for path in paths for row in read_rows(Path(path))]
    require(bool(rows), f"{', '.join(map(str, paths))}: no rows")
    require(beside.scores is None or beside.scores.is_file(), f"no such file: {beside.scores}")
    own = read_scores(beside.scores or shipped_scores())
    compared = tuple(score_results(rows, own))
    predicted = predict_rows(rows, beside=beside, results=results, jobs=jobs, progress=progress)
    evidence = _evidence(predicted, of_package=not data)
    predicted = with_bands(predicted, evidence)
    summary = summarise_published(predicted) | {"scores": summarise_scores(compared)}
    summary |= {"accuracy": accuracy(predicted, evidence)}
    if out is not None:
        write_published(Path(out), predicted, compared, summary, _made(data, paths, beside, Path(out)))
    return PublishedStudy(results=tuple(predicted), scores=compared, summary=summary)


def _made(data: object, paths: Sequence[str | Path], beside: Beside, out: Path) -> MadeBy:
    options = [(name, getattr(beside, name)) for name in ("clusters", "cards", "scores", "code")]
    said = [*(shlex.quote(str(path)) for path in (paths if data else ()))]
    said += [f"--{name} {shlex.quote(str(value))}" for name, value in options if value is not None]
    return MadeBy(f"halocast {prediction_version()}", " ".join(["halocast published", *said, f"--out {out}"]))


def _evidence(results: Sequence[PublishedResult], *, of_package: bool) -> Evidence:
    """What bands are made of: the package's rows themselves where they are predicted anew, else what comes with it."""
    if of_package:
        return Evidence(tuple(case for case in map(case_of, results) if case is not None))
    return read_evidence().get(Sure.SPEC, Evidence(()))


def predict_rows(
    rows: Sequence[Row],
    *,
    beside: Beside = NOTHING,
    results: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, of: None,
) -> list[PublishedResult]:
    """Predict every row of published figures, or say why that cannot be done."""
    own = read_descriptions(beside.clusters, beside.cards, beside.code)
    runs = Runs(Asked(own=own, results=None if results is None else Path(results), jobs=jobs))
    runs.predict([run for row in rows for run in _needed(row)], progress)
    book = _Book(rows, runs, own)
    return [_result(row, book) for row in rows]


def _needed(row: Row) -> list[Row]:
    """The rows whose runs the prediction of a row needs; none if there is to be no prediction."""
    if is_score(row) or row["method"].lower() == PARTITION or row["metric"] not in METRICS | {SPEEDUP}:
        return []
    try:
        return [row, base_of(row)] if row["metric"] == SPEEDUP else [row]
    except InputError:
        return []


def _result(row: Row, book: "_Book") -> PublishedResult:
    try:
        if is_score(row):
            raise InputError("a score: compared with our runs, not predicted")
        published, scale = value_of(row), _scale(row)
        if row["method"].lower() == PARTITION:
            return PublishedResult(
                row=row, published=published, predicted=book.part_figure(row) / scale, how="sizes: from card"
            )
        figures = book.runs.figures(row)
        if row["metric"] == SPEEDUP:
            predicted = book.speedup(row, figures)
        elif row["metric"] in figures:
            predicted = figures[row["metric"]] / scale
        else:
            raise InputError(f"metric {row['metric']!r} is not one we predict")
    except InputError as error:
        return PublishedResult(row=row, reason=str(error))
    return PublishedResult(row=row, published=published, predicted=predicted, **_facts(row, book))


def _facts(row: Row, book: "_Book") -> dict[str, Any]:
    """What else is known of a prediction: where it comes from, and which rows it may be compared with."""
    setting = book.runs.setting(row)
    cluster = setting.cluster
    return {
        "how": f"sizes: from card; constants: {setting.cluster.name}",
        "ignored": setting.ignored,
        "workload": setting.workload_key,
        "setting": setting.key,
        "in_sample": is_in_sample(row),
        "out_of_memory": bool(book.runs.figures(row)["oom"]),
        "facts": {
            "code": setting.scenario.code.name if book.runs.own.code or is_known(row["source"]) else UNKNOWN_CODE,
            "method": family_of(row["method"].lower()),
            "transport": str(cluster.transport),
            "device": cluster.device(0).name,
            "testbed": cluster.name,
            "dataset": setting.card.name,
            "model": str(setting.scenario.model.kind),
            "gpus": str(cluster.num_ranks),
        },
    }


def _scale(row: Row) -> float:
    if row["metric"] not in METRICS | {SPEEDUP, *PART_FIGURES}:
        raise InputError(f"metric {row['metric']!r} is not one we predict")
    if row["unit"] not in UNITS:
        raise unknown("unit", row["unit"], UNITS)
    return UNITS[row["unit"]]


class _Book:
    """Figures of the runs met so far, and what rows say of parts."""

    def __init__(self, rows: Sequence[Row], runs: Runs, own: Descriptions) -> None:
        self.runs = runs
        self._own = own
        self._parts: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for row in rows:
            self._note_part(row)

    def speedup(self, row: Row, figures: Figures) -> float:
        base = base_of(row)
        if base["method"] == row["method"]:
            raise InputError("a speedup over itself is 1 by definition")
        of_base = self.runs.figures(base)
        return of_base["epoch_s"] / figures["epoch_s"]

    def part_figure(self, row: Row) -> float:
        """The figure of a row about a partition alone. Parts of a card have no names, so a single part's figure is that
        of the part which has its place in the order of size."""
        params = params_of(row)
        partitioner = str(params.get("partitioner", "metis"))
        num_parts = number(row, "gpus")
        card = find_card(row["dataset"], params, self._own.cards)
        card = card.cut() if cuts_edges(row) else card
        halo = from_card(card, num_parts, partitioner, inductive=is_inductive(row))
        metric = row["metric"].removesuffix("_max")
        if metric not in PART_FIGURES:
            raise InputError(f"metric {row['metric']!r} is not one of a partition ({', '.join(PART_FIGURES)})")
        each = PART_FIGURES[metric](halo)
        if metric != row["metric"]:
            return max(each)
        if "part" not in params:
            total = row["metric"] == "boundary_nodes" and "average" not in row["note"]
            return sum(each) if total else mean(each)
        published = sorted(self._parts[_part_key(row)])
        if len(published) != num_parts:
            raise InputError(f"{len(published)} of {num_parts} parts are given: which part is meant cannot be known")
        return sorted(each)[published.index(float(row["value"]))]

    def _note_part(self, row: Row) -> None:
        try:
            if row["method"].lower() == PARTITION and "part" in params_of(row):
                self._parts[_part_key(row)].append(float(row["value"]))
        except ValueError:
            return  # a bad row; it will be told when its turn comes


def _part_key(row: Row) -> tuple[str, ...]:
    names = ("source", "where", "dataset", "train_graph", "gpus", "metric")
    return (*(row[name] for name in names), str(params_of(row).get("partitioner")))
