"""Predicted against published figures: errors by source and method, the order of methods, and the report of it."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any

from halocast.base.files import whole_directory
from halocast.reports.figures import Bars, Dot, draw_errors
from halocast.reports.page.report import require_report_place
from halocast.reports.published_scores import (
    UNITS,
    ScoreResult,
    not_compared,
    score_cells,
    score_verdict,
    stand_in_lines,
)
from halocast.reports.table import aligned, csv_table, markdown_rows

ORDERED = ("epoch_s", "throughput", "speedup")  # metrics that put methods in order
CLOSE = 0.1  # published figures that differ by less hardly show an order
ERRORS_HEAD = ("source", "method", "metric", "rows", "median", "mean", "lean")
ROWS_HEAD = ("row", "metric", "predicted", "published", "error", "provenance")
AIMED = 0.2  # the median absolute error of epochs that we aim at


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """A published row and its prediction in the row's unit, or the reason why there is none."""

    row: dict[str, str]
    published: float | None = None
    predicted: float | None = None
    reason: str = ""
    how: str = ""  # where sizes and constants come from
    ignored: tuple[str, ...] = ()  # params that say nothing to us
    workload: str = ""  # equal for rows that differ in the method only
    setting: str = ""  # equal for rows of one scenario
    facts: Mapping[str, str] = field(default_factory=dict)  # what the error may depend on: code, device, ...
    in_sample: bool = False  # a constant was chosen from its run
    band: tuple[float, float] | None = None  # of an epoch, in the row's unit
    out_of_memory: bool | None = None  # the verdict of the prediction

    @property
    def error(self) -> float | None:
        """The error relative to the published figure; a published zero has none."""
        if self.predicted is None or not self.published:
            return None
        return self.predicted / self.published - 1

    @property
    def off_s(self) -> float:
        """By how much the prediction is off, in the row's unit."""
        assert self.predicted is not None
        return self.predicted - (self.published or 0.0)

    def as_dict(self) -> dict[str, Any]:
        ours = {"predicted": self.predicted, "error": self.error, "reason": self.reason, "in_sample": self.in_sample}
        ours |= {"low": self.band[0] if self.band else None, "high": self.band[1] if self.band else None}
        return {**self.row, **ours, "facts": dict(self.facts), "how": self.how, "ignored": " ".join(self.ignored)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two settings that differ in the method only, the one with the smaller published figure first."""

    metric: str
    first: PublishedResult
    second: PublishedResult
    published: tuple[float, float]

    @property
    def right(self) -> bool:
        assert self.first.predicted is not None
        assert self.second.predicted is not None
        return self.first.predicted < self.second.predicted

    @property
    def clear(self) -> bool:
        return self.published[1] > (1 + CLOSE) * self.published[0]


def pairs(results: Iterable[PublishedResult]) -> list[Pair]:
    """Every two methods of one source on one workload; repeated measurements of a setting count once, as their mean."""
    groups: dict[tuple[str, ...], dict[str, list[PublishedResult]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result.predicted is not None and result.row["metric"] in ORDERED and result.setting:
            group = (result.row["source"], result.row["metric"], result.workload)
            groups[group][result.setting].append(result)
    return [pair for (_, metric, _), settings in groups.items() for pair in _pairs(metric, settings.values())]


def _pairs(metric: str, settings: Iterable[list[PublishedResult]]) -> Iterator[Pair]:
    measured = [
        (mean(result.published for result in same if result.published is not None), same[0]) for same in settings
    ]
    for (value, setting), (other_value, other) in combinations(measured, 2):
        if value < other_value:
            yield Pair(metric=metric, first=setting, second=other, published=(value, other_value))
        elif value > other_value:
            yield Pair(metric=metric, first=other, second=setting, published=(other_value, value))


def summarise_published(results: Sequence[PublishedResult]) -> dict[str, Any]:
    """Errors in all, by metric, and by source, method and metric; the order of methods; what was not predicted."""
    compared = pairs(results)
    epochs = errors_of(result for result in results if result.row["metric"] == "epoch_s")
    return {
        "rows": len(results),
        "predicted": sum(result.predicted is not None for result in results),
        "epoch_s": epochs,
        "order": order_of(compared) | {"clear": order_of([pair for pair in compared if pair.clear])},
        "wrong_order": [_describe(pair) for pair in compared if not pair.right],
        "by_metric": _grouped(results, ("metric",)),
        "by_source": _grouped(results, ("source", "method", "metric")),
        "not_predicted": dict(Counter(result.reason for result in results if result.reason).most_common()),
    }


def order_of(compared: Sequence[Pair]) -> dict[str, Any]:
    right = sum(pair.right for pair in compared)
    return {"pairs": len(compared), "right": right, "share": right / len(compared) if compared else None}


def _describe(pair: Pair) -> dict[str, Any]:
    row, predicted = pair.first.row, [pair.first.predicted, pair.second.predicted]
    place = {name: row[name] for name in ("source", "dataset", "model", "testbed", "gpus")}
    methods = [f"{one.row['method']} {one.row['params']}" for one in (pair.first, pair.second)]
    return {**place, "metric": pair.metric, "methods": methods, "published": pair.published, "predicted": predicted}


def _grouped(results: Sequence[PublishedResult], names: tuple[str, ...]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[PublishedResult]] = defaultdict(list)
    for result in results:
        if result.error is not None:
            groups[tuple(result.row[name] for name in names)].append(result)
    return [{**dict(zip(names, key, strict=True)), **errors_of(group)} for key, group in sorted(groups.items())]


def errors_of(results: Iterable[PublishedResult]) -> dict[str, Any]:
    """The number of rows with an error, and its size; the sign of the median tells which way they lean."""
    errors = [result.error for result in results if result.error is not None]
    sizes = [abs(error) for error in errors]
    if not errors:
        return {"num": 0, "median": None, "mean": None, "lean": None}
    return {"num": len(errors), "median": median(sizes), "mean": mean(sizes), "lean": median(errors)}


def text_summary(summary: dict[str, Any]) -> str:
    """Errors by source, method and metric for a terminal, then what they come to."""
    cells = [[row["source"], row["method"], row["metric"], *_shown(row)] for row in summary["by_source"]]
    cells += [["all", "all", row["metric"], *_shown(row)] for row in summary["by_metric"]]
    return "\n".join([aligned([ERRORS_HEAD, *cells]), "", *verdict(summary)])


def _shown(row: dict[str, Any]) -> list[str]:
    return [str(row["num"]), f"{row['median']:.0%}", f"{row['mean']:.0%}", f"{row['lean']:+.0%}"]


def verdict(summary: dict[str, Any]) -> list[str]:
    """Sentences that say what the errors of published figures come to."""
    epochs, order = summary["epoch_s"], summary["order"]
    said = [f"{summary['predicted']} of {summary['rows']} rows are predicted."]
    if epochs["num"]:
        median_error, mean_error = f"{epochs['median']:.0%}", f"{epochs['mean']:.0%}"
        said.append(f"epoch_s: median absolute error {median_error}, mean {mean_error} over {epochs['num']} rows.")
    if order["pairs"]:
        clear = order["clear"]
        said.append(
            f"Order of methods: right in {order['right']} of {order['pairs']} pairs ({order['share']:.0%}); "
            f"in {clear['right']} of the {clear['pairs']} whose published figures differ by more than {CLOSE:.0%}."
        )
    return said


def write_published(
    path: Path, results: Sequence[PublishedResult], scores: Sequence[ScoreResult], summary: dict[str, Any]
) -> None:
    """Write the report directory, whole or not at all: report.md, a figure, results as CSV and JSON, scores as CSV."""
    require_report_place(path)
    rows, score_rows = [result.as_dict() for result in results], [score.as_dict() for score in scores]
    texts = {
        "results.csv": csv_table(rows),
        "scores.csv": csv_table(score_rows),
        "results.json": json.dumps({"rows": rows, "scores": score_rows, "summary": summary}, indent=1),
        "report.md": _markdown(results, summary) + _markdown_scores(scores, summary["scores"]),
    }
    with whole_directory(path) as directory:
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
        draw_published(directory / "published.svg", results, summary)


def _markdown(results: Sequence[PublishedResult], summary: dict[str, Any]) -> str:
    said = [result for result in results if result.predicted is not None]
    wrong = [
        f"- {row['source']}, {row['dataset']}, {row['model']}, {row['testbed']} ×{row['gpus']}, {row['metric']}: "
        + " before ".join(row["methods"])
        for row in summary["wrong_order"]
    ]
    errors = [[row["source"], row["method"], row["metric"], *_shown(row)] for row in summary["by_source"]]
    return "\n".join(
        [
            "# Predicted and published figures",
            "",
            " ".join(verdict(summary)),
            "",
            "![Predicted over published epochs](published.svg)",
            "",
            "## Errors",
            "",
            markdown_rows([ERRORS_HEAD, *errors]),
            "",
            "Absolute errors relative to the published figure; `lean` is the median with its sign.",
            "",
            "## Pairs of methods in the wrong order",
            "",
            *(wrong or ["None."]),
            "",
            "## Rows",
            "",
            markdown_rows([ROWS_HEAD, *map(_row_cells, said)]),
            "",
            "## Not predicted",
            "",
            markdown_rows([("rows", "reason"), *([str(num), why] for why, num in summary["not_predicted"].items())]),
            "",
        ]
    )


def _markdown_scores(scores: Sequence[ScoreResult], summary: dict[str, Any]) -> str:
    if not scores:
        return ""
    return "\n".join(
        [
            "\n## Scores",
            "",
            score_verdict(summary),
            "",
            markdown_rows(score_cells(scores)),
            "",
            UNITS,
            "",
            *(f"- {line}" for line in stand_in_lines(scores)),
            *(f"- {num} scores: {reason}." for reason, num in not_compared(summary).items()),
            "",
        ]
    )


def _row_cells(result: PublishedResult) -> list[str]:
    row, error = result.row, result.error
    name = f"{row['dataset']} {row['model']} ×{row['gpus']} {row['method']} {row['params']}"
    figures = [f"{result.predicted:.4g} {row['unit']}", f"{result.published:.4g} {row['unit']}"]
    provenance = f"{row['source']}, {row['where']}; {result.how}"
    return [name, row["metric"], *figures, "-" if error is None else f"{error:+.0%}", provenance]


def draw_published(path: Path, results: Sequence[PublishedResult], summary: dict[str, Any]) -> None:
    """Draw epochs, predicted over published, a colour per source; beside them the errors of every metric."""
    dots = [
        Dot(group=result.row["source"], true=result.published, predicted=result.predicted)
        for result in results
        if result.row["metric"] == "epoch_s" and result.published and result.predicted is not None
    ]
    shares = {f"{row['metric']} ({row['num']})": row["median"] for row in summary["by_metric"]}
    bars = Bars(label="median absolute error, %", shares=shares)
    draw_errors(path, dots, bars, true="published", unit="s", aim=AIMED)
