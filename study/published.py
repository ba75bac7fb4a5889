"""Predictions of published figures, row by row; every distinct scenario is simulated once."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any, ClassVar

from halocast.base.errors import InputError, unknown
from halocast.base.records import require
from halocast.graph.card import load_card
from halocast.graph.halo import Halo, from_card
from halocast.reports.page.place import require_report_place
from halocast.reports.published import PublishedResult, summarise_published, verdict, write_published
from halocast.reports.published_scores import ScoreResult, summarise_scores
from halocast.reports.timers import BUBBLE, IMBALANCE, Timers, timers
from halocast.schedule.ir import SHARED, Kind, Schedule
from halocast.sim.memory import device_memory
from halocast.study.own_scores import read_scores, shipped_scores
from halocast.study.predict import Prediction, predict_on
from halocast.study.published_rows import (
    LIBRARIES_BYTES,
    Row,
    Setting,
    base_of,
    cuts_edges,
    is_inductive,
    number,
    own_figures,
    params_of,
    read_rows,
    setting_of,
    value_of,
)
from halocast.study.published_scores import is_score, score_results
from halocast.study.showable import Showable
from halocast.study.workload import Say, prepare, silent

Figures = Mapping[str, float]  # metric -> value in SI units
UNITS: Mapping[str, float] = MappingProxyType(
    {"s": 1.0, "ms": 1e-3, "%": 0.01, "x": 1.0, "nodes": 1.0, "epochs/s": 1.0}
    | {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}
)
PARTITION = "partition"  # the method of rows about a partition alone
SPEEDUP = "speedup"
HALO_WAITS, LAYER_WAITS = (Kind.EXCHANGE, Kind.PULL, Kind.PUSH), (Kind.RECV, Kind.SEND)


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


def published(
    data: str | Path | None = None,
    *,
    out: str | Path | None = None,
    scores: str | Path | None = None,
    say: Say = silent,
) -> PublishedStudy:
    """Predict published figures: those of a CSV file, or those that come with the package.

    `out` is a directory for the report: tables, a figure, and all rows. Published scores are not predicted but stand
    beside those of our runs: `scores` is a file of them, instead of the one that comes with the package.
    """
    if out is not None:
        require_report_place(Path(out))
    path = own_figures() if data is None else Path(data)
    rows = read_rows(path)
    require(bool(rows), f"{path}: no rows")
    require(scores is None or Path(scores).is_file(), f"no such file: {scores}")
    own = read_scores(shipped_scores() if scores is None else Path(scores))
    compared = tuple(score_results(rows, own))
    results = tuple(predict_rows(rows, say))
    summary = summarise_published(results) | {"scores": summarise_scores(compared)}
    if out is not None:
        write_published(Path(out), results, compared, summary)
    return PublishedStudy(results=results, scores=compared, summary=summary)


def predict_rows(rows: Sequence[Row], say: Say = silent) -> list[PublishedResult]:
    """Predict every row of published figures, or say why that cannot be done."""
    book = _Book(rows, say)
    return [_result(row, book) for row in rows]


def _result(row: Row, book: "_Book") -> PublishedResult:
    try:
        if is_score(row):
            raise InputError("a score: compared with our runs, not predicted")
        published, scale = value_of(row), _scale(row)
        if row["method"] == PARTITION:
            return PublishedResult(
                row=row, published=published, predicted=book.part_figure(row) / scale, how="sizes: from card"
            )
        setting, figures = book.look_up(row)
        if row["metric"] == SPEEDUP:
            predicted = book.speedup(row, figures)
        elif row["metric"] in figures:
            predicted = figures[row["metric"]] / scale
        else:
            raise InputError(f"metric {row['metric']!r} is not one we predict")
    except InputError as error:
        return PublishedResult(row=row, reason=str(error))
    return PublishedResult(
        row=row,
        published=published,
        predicted=predicted,
        how=f"sizes: from card; constants: {setting.cluster.name}",
        ignored=setting.ignored,
        workload=setting.workload_key,
        setting=setting.key,
    )


def _scale(row: Row) -> float:
    if row["metric"] not in METRICS:
        raise InputError(f"metric {row['metric']!r} is not one we predict")
    if row["unit"] not in UNITS:
        raise unknown("unit", row["unit"], UNITS)
    return UNITS[row["unit"]]


class _Book:
    """Figures of the scenarios met so far."""

    def __init__(self, rows: Sequence[Row], say: Say) -> None:
        self._say = say
        self._figures: dict[str, Figures | InputError] = {}
        self._parts: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for row in rows:
            self._note_part(row)

    def look_up(self, row: Row) -> tuple[Setting, Figures]:
        setting = setting_of(row)
        if setting.key not in self._figures:
            place = f"{setting.cluster.name} x{setting.cluster.num_ranks}"
            self._say(f"{len(self._figures) + 1}: {row['method']}, {row['dataset']}, {row['model']} on {place}")
            self._figures[setting.key] = _figures_or_error(setting)
        outcome = self._figures[setting.key]
        if isinstance(outcome, InputError):
            raise outcome
        return setting, outcome

    def speedup(self, row: Row, figures: Figures) -> float:
        base = base_of(row)
        if base["method"] == row["method"]:
            raise InputError("a speedup over itself is 1 by definition")
        _, of_base = self.look_up(base)
        return of_base["epoch_s"] / figures["epoch_s"]

    def part_figure(self, row: Row) -> float:
        """The figure of a row about a partition alone. Parts of a card have no names, so a single part's figure is that
        of the part which has its place in the order of size."""
        params = params_of(row)
        partitioner = str(params.get("partitioner", "metis"))
        num_parts = number(row, "gpus")
        card = load_card(row["dataset"])
        card = card.cut() if cuts_edges(row) else card
        halo = from_card(card, num_parts, partitioner, inductive=is_inductive(row))
        if row["metric"] not in PART_FIGURES:
            raise InputError(f"metric {row['metric']!r} is not one of a partition ({', '.join(PART_FIGURES)})")
        each = PART_FIGURES[row["metric"]](halo)
        if "part" not in params:
            total = row["metric"] == "boundary_nodes" and "average" not in row["note"]
            return sum(each) if total else mean(each)
        published = sorted(self._parts[_part_key(row)])
        if len(published) != num_parts:
            raise InputError(f"{len(published)} of {num_parts} parts are given: which part is meant cannot be known")
        return sorted(each)[published.index(float(row["value"]))]

    def _note_part(self, row: Row) -> None:
        try:
            if row["method"] == PARTITION and "part" in params_of(row):
                self._parts[_part_key(row)].append(float(row["value"]))
        except ValueError:
            return  # a bad row; it will be told when its turn comes


def _part_key(row: Row) -> tuple[str, ...]:
    names = ("source", "where", "dataset", "train_graph", "gpus", "metric")
    return (*(row[name] for name in names), str(params_of(row).get("partitioner")))


PART_FIGURES: Mapping[str, Callable[[Halo], list[float]]] = MappingProxyType(
    {
        "inner_nodes": lambda halo: halo.num_inner.tolist(),
        "boundary_nodes": lambda halo: halo.num_halo.tolist(),
        "boundary_inner_ratio": lambda halo: (halo.num_halo / halo.num_inner).tolist(),
    }
)


def _figures_or_error(setting: Setting) -> Figures | InputError:
    try:
        workload = prepare(setting.scenario, setting.cluster.num_ranks)
        return figures_of(predict_on(workload, setting.cluster), setting)
    except InputError as error:
        return error


def figures_of(prediction: Prediction, setting: Setting) -> Figures:
    """Every metric of a predicted scenario, as published timers and counters would show it."""
    return {
        **_times(prediction),
        **_traffic(prediction, setting),
        **memory_figures(prediction.workload.schedule, setting),
    }


def _times(prediction: Prediction) -> Figures:
    schedule, summary = prediction.workload.schedule, prediction.summary
    ranks = timers(prediction.trace, schedule, summary.warmup_epochs)
    computes = [rank.compute_s for rank in ranks]
    graph, layer = _waited(ranks, *HALO_WAITS), _waited(ranks, *LAYER_WAITS)
    reduce_s, epoch_s = _waited(ranks, Kind.ALLREDUCE), summary.epoch_s
    return {
        "epoch_s": epoch_s,
        "throughput": 1 / epoch_s,
        "compute_s": mean(computes),
        "compute_s_min": min(computes),
        "compute_s_max": max(computes),
        "graph_comm_s": graph,
        "layer_comm_s": layer,
        "comm_s": graph + layer,
        "comm_ratio": (graph + layer) / epoch_s,
        "reduce_s": reduce_s,
        "optim_s": reduce_s + _computed(ranks, "step"),
        "other_s": _computed(ranks, "loss", "refresh", "turn"),
        "sampling_ratio": _computed(ranks, "sample_rows", "sample_drop", "rebuild") / epoch_s,
        "bubble_s": _waited(ranks, BUBBLE),
        "imbalance_s": _waited(ranks, IMBALANCE),
    }


def _waited(ranks: Sequence[Timers], *kinds: str) -> float:
    return mean(sum(rank.waits.get(kind, 0.0) for kind in kinds) for rank in ranks)


def _computed(ranks: Sequence[Timers], *verbs: str) -> float:
    return mean(sum(rank.by_verb.get(verb, 0.0) for verb in verbs) for rank in ranks)


def _traffic(prediction: Prediction, setting: Setting) -> Figures:
    schedule = prediction.workload.schedule
    kinds = {op.name: op.kind for op in schedule.ops}
    by_kind: dict[Kind, float] = defaultdict(float)
    for op, num_bytes in prediction.summary.bytes_per_epoch_by_op.items():
        by_kind[kinds[op]] += num_bytes
    total, exchanges = sum(by_kind.values()), Kind.EXCHANGE in by_kind  # a pipeline of layers has none
    return {
        "bytes_total": total if setting.counts_weights else total - by_kind[Kind.ALLREDUCE],
        "bytes_graph": by_kind[Kind.EXCHANGE],
        "bytes_layer": by_kind[Kind.SEND] + by_kind[Kind.RECV],
        "bytes_weight_sync": by_kind[Kind.ALLREDUCE],
        "boundary_nodes": prediction.workload.halo.volume if exchanges else 0,
    }


def memory_figures(schedule: Schedule, setting: Setting) -> Figures:
    cluster = setting.cluster
    ranks = [device_memory(schedule, cluster, rank) for rank in range(schedule.num_ranks)]
    held, beside_bytes = [memory.allocated_bytes for memory in ranks], 0.0
    if setting.undivided is not None:
        stages = prepare(setting.undivided, setting.undivided.method.options.stages).schedule
        held = [device_memory(stages, cluster, stage).allocated_bytes for stage in range(stages.num_ranks)]
        beside_bytes = LIBRARIES_BYTES + mean(memory.total_bytes - memory.allocated_bytes for memory in ranks)
    return {
        "memory_gb": beside_bytes + mean(held),
        "memory_gb_max": beside_bytes + max(held),
        "memory_host_kvs": sum(buffer.num_bytes for buffer in schedule.buffers if buffer.rank == SHARED),
    }


METRICS = frozenset(
    {"epoch_s", "throughput", "compute_s", "compute_s_min", "compute_s_max", "graph_comm_s", "layer_comm_s", "comm_s"}
    | {"comm_ratio", "reduce_s", "optim_s", "other_s", "sampling_ratio", "bubble_s", "imbalance_s", "bytes_total"}
    | {"bytes_graph", "bytes_layer", "bytes_weight_sync", "boundary_nodes", "memory_gb", "memory_gb_max"}
    | {"memory_host_kvs", SPEEDUP, *PART_FIGURES}
)
