"""Predicted against published figures: errors by source and method, the order of methods, and the report of it."""

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any

from halocast.base.files import whole_directory
from halocast.reports.page.report import require_report_place

ORDERED = ("epoch_s", "throughput", "speedup")  # metrics that put methods in order
CLOSE = 0.1  # published figures that differ by less hardly show an order
AIMED = 0.2  # the median absolute error of epochs that we aim at


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A published row and its prediction in the row's unit, or the reason why there is none."""

    row: dict[str, str]
    published: float | None = None
    predicted: float | None = None
    reason: str = ""
    how: str = ""  # where sizes and constants come from
    ignored: tuple[str, ...] = ()  # params that say nothing to us
    workload: str = ""  # equal for rows that differ in the method only
    setting: str = ""  # equal for rows of one scenario

    @property
    def error(self) -> float | None:
        """Relative; a published zero has none."""
        if self.predicted is None or not self.published:
            return None
        return self.predicted / self.published - 1

    def as_dict(self) -> dict[str, Any]:
        ours = {"predicted": self.predicted, "error": self.error, "reason": self.reason}
        return {**self.row, **ours, "how": self.how, "ignored": " ".join(self.ignored)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two settings that differ in the method only, the one with the smaller published figure first."""

    metric: str
    first: Result
    second: Result
    published: tuple[float, float]

    @property
    def right(self) -> bool:
        assert self.first.predicted is not None
        assert self.second.predicted is not None
        return self.first.predicted < self.second.predicted

    @property
    def clear(self) -> bool:
        return self.published[1] > (1 + CLOSE) * self.published[0]


def pairs(results: Iterable[Result]) -> list[Pair]:
    """Every two methods of one source on one workload; repeated measurements of a setting count once, as their mean."""
    groups: dict[tuple[str, ...], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result.predicted is not None and result.row["metric"] in ORDERED and result.setting:
            group = (result.row["source"], result.row["metric"], result.workload)
            groups[group][result.setting].append(result)
    return [pair for (_, metric, _), settings in groups.items() for pair in _pairs(metric, settings.values())]


def _pairs(metric: str, settings: Iterable[list[Result]]) -> Iterator[Pair]:
    measured = [(mean(one.published for one in same if one.published is not None), same[0]) for same in settings]
    for (value, one), (other_value, other) in combinations(measured, 2):
        if value < other_value:
            yield Pair(metric=metric, first=one, second=other, published=(value, other_value))
        elif value > other_value:
            yield Pair(metric=metric, first=other, second=one, published=(other_value, value))


def summarise_published(results: Sequence[Result]) -> dict[str, Any]:
    """Errors in all, by metric, and by source, method and metric; the order of methods; what was not predicted."""
    found = pairs(results)
    epochs = _errors(result for result in results if result.row["metric"] == "epoch_s")
    return {
        "rows": len(results),
        "predicted": sum(result.predicted is not None for result in results),
        "epoch_s": epochs,
        "order": _order(found) | {"clear": _order([pair for pair in found if pair.clear])},
        "wrong_order": [_describe(pair) for pair in found if not pair.right],
        "by_metric": _grouped(results, ("metric",)),
        "by_source": _grouped(results, ("source", "method", "metric")),
        "not_predicted": dict(Counter(result.reason for result in results if result.reason).most_common()),
    }


def _order(found: Sequence[Pair]) -> dict[str, Any]:
    right = sum(pair.right for pair in found)
    return {"pairs": len(found), "right": right, "share": right / len(found) if found else None}


def _describe(pair: Pair) -> dict[str, Any]:
    row, predicted = pair.first.row, [pair.first.predicted, pair.second.predicted]
    place = {name: row[name] for name in ("source", "dataset", "model", "testbed", "gpus")}
    methods = [f"{one.row['method']} {one.row['params']}" for one in (pair.first, pair.second)]
    return {**place, "metric": pair.metric, "methods": methods, "published": pair.published, "predicted": predicted}


def _grouped(results: Sequence[Result], names: tuple[str, ...]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in results:
        if result.error is not None:
            groups[tuple(result.row[name] for name in names)].append(result)
    return [{**dict(zip(names, key, strict=True)), **_errors(group)} for key, group in sorted(groups.items())]


def _errors(results: Iterable[Result]) -> dict[str, Any]:
    """How many rows have an error, and how large it is; the median's sign tells which way they lean."""
    found = [result.error for result in results if result.error is not None]
    sizes = [abs(error) for error in found]
    if not found:
        return {"num": 0, "median": None, "mean": None, "lean": None}
    return {"num": len(found), "median": median(sizes), "mean": mean(sizes), "lean": median(found)}


def text_summary(summary: dict[str, Any]) -> str:
    """For a terminal: errors by source, method and metric, then what they come to."""
    head = ("source", "method", "metric", "rows", "median", "mean", "lean")
    cells = [[row["source"], row["method"], row["metric"], *_shown(row)] for row in summary["by_source"]]
    cells += [["all", "all", row["metric"], *_shown(row)] for row in summary["by_metric"]]
    widths = [max(len(row[k]) for row in [head, *cells]) for k in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *cells]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*(line.rstrip() for line in lines), "", *verdict(summary)])


def _shown(row: dict[str, Any]) -> list[str]:
    return [str(row["num"]), f"{row['median']:.0%}", f"{row['mean']:.0%}", f"{row['lean']:+.0%}"]


def verdict(summary: dict[str, Any]) -> list[str]:
    """What the figures come to, in sentences."""
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


def write_published(path: Path, results: Sequence[Result], summary: dict[str, Any]) -> None:
    """The report directory, whole or not at all: report.md, results.csv, results.json and a figure."""
    require_report_place(path)
    rows = [result.as_dict() for result in results]
    with whole_directory(path) as directory:
        (directory / "results.csv").write_text(_csv(rows), encoding="utf-8")
        text = json.dumps({"rows": rows, "summary": summary}, indent=1)
        (directory / "results.json").write_text(text, encoding="utf-8")
        (directory / "report.md").write_text(_markdown(results, summary), encoding="utf-8")
        draw_published(directory / "published.svg", results, summary)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _markdown(results: Sequence[Result], summary: dict[str, Any]) -> str:
    said = [result for result in results if result.predicted is not None]
    wrong = [
        f"- {row['source']}, {row['dataset']}, {row['model']}, {row['testbed']} ×{row['gpus']}, {row['metric']}: "
        + " before ".join(row["methods"])
        for row in summary["wrong_order"]
    ]
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
            *_table(
                ("source", "method", "metric", "rows", "median", "mean", "lean"),
                ([row["source"], row["method"], row["metric"], *_shown(row)] for row in summary["by_source"]),
            ),
            "",
            "Absolute errors relative to the published figure; `lean` is the median with its sign.",
            "",
            "## Pairs of methods in the wrong order",
            "",
            *(wrong or ["None."]),
            "",
            "## Rows",
            "",
            *_table(("row", "metric", "predicted", "published", "error", "provenance"), map(_row_cells, said)),
            "",
            "## Not predicted",
            "",
            *_table(("rows", "reason"), ([str(num), why] for why, num in summary["not_predicted"].items())),
            "",
        ]
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _row_cells(result: Result) -> list[str]:
    row, error = result.row, result.error
    name = f"{row['dataset']} {row['model']} ×{row['gpus']} {row['method']} {row['params']}"
    figures = [f"{result.predicted:.4g} {row['unit']}", f"{result.published:.4g} {row['unit']}"]
    provenance = f"{row['source']}, {row['where']}; {result.how}"
    return [name, row["metric"], *figures, "-" if error is None else f"{error:+.0%}", provenance]


def draw_published(path: Path, results: Sequence[Result], summary: dict[str, Any]) -> None:
    """Epochs, predicted over published, a colour per source; beside them the errors of every metric."""
    import matplotlib as mpl  # slow to import, and only reports need it
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "halocast"  # the same report twice is the same file
    figure = Figure(figsize=(10, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        if result.row["metric"] == "epoch_s" and result.error is not None:
            assert result.published is not None
            assert result.predicted is not None
            points[result.row["source"]].append((result.published, result.predicted))
    for source, found in points.items():
        left.loglog(*zip(*found, strict=True), "o", label=source, alpha=0.7)
    if points:
        values = [value for found in points.values() for point in found for value in point]
        ends = [min(values), max(values)]
        left.loglog(ends, ends, color="black", linewidth=0.8)
        left.fill_between(ends, [(1 - AIMED) * x for x in ends], [(1 + AIMED) * x for x in ends], color="#dddddd")
        left.legend(frameon=False, fontsize="small")
    left.set_xlabel("published epoch, s")
    left.set_ylabel("predicted epoch, s (band: ±20 %)")
    metrics = summary["by_metric"]
    right.barh([f"{row['metric']} ({row['num']})" for row in metrics], [100 * row["median"] for row in metrics])
    right.set_xlabel("median absolute error, %")
    right.invert_yaxis()
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
