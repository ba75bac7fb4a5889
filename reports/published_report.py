"""The report of published figures: a directory with the accuracy page, tables, a figure and all rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halocast.base.files import whole_directory
from halocast.reports.figures import Bars, Dot, draw_errors
from halocast.reports.page.accuracy import render_accuracy
from halocast.reports.page.place import require_report_place
from halocast.reports.published import ERRORS_HEAD, PublishedResult, shown_errors, verdict
from halocast.reports.published_scores import (
    UNITS,
    ScoreResult,
    not_compared,
    score_cells,
    score_verdict,
    stand_in_lines,
)
from halocast.reports.table import csv_table, markdown_rows

ROWS_HEAD = ("row", "metric", "predicted", "published", "error", "provenance")
AIMED = 0.2  # the median absolute error of epochs that we aim at


@dataclass(frozen=True, slots=True)
class MadeBy:
    """By which version and command a report was made."""

    text: str
    command: str


def write_published(
    path: Path,
    results: Sequence[PublishedResult],
    scores: Sequence[ScoreResult],
    summary: dict[str, Any],
    made_by: MadeBy,
) -> None:
    """Write the report directory, whole or not at all: page, report.md, a figure, results as CSV and JSON, scores."""
    require_report_place(path)
    rows, score_rows = [result.as_dict() for result in results], [score.as_dict() for score in scores]
    texts = {
        "results.csv": csv_table(rows),
        "scores.csv": csv_table(score_rows),
        "results.json": json.dumps({"rows": rows, "scores": score_rows, "summary": summary}, indent=1),
        "report.html": render_accuracy(results, summary, made_by.text, made_by.command),
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
    errors = [[row["source"], row["method"], row["metric"], *shown_errors(row)] for row in summary["by_source"]]
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
