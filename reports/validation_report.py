"""The report of predicted against measured scenarios: tables for a terminal and for files, and a figure."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halocast.base.files import whole_file
from halocast.reports.figures import Bars, Dot, draw_errors
from halocast.reports.table import aligned, csv_table, markdown_rows, seconds, size
from halocast.reports.validation import AIMED_MEAN, AIMED_MOST, CLEAR, ValidatedScenario, verbs

HEAD = (
    "method",
    "link",
    "ranks",
    "model",
    "graph",
    "predicted",
    "measured",
    "error",
    "exposed p",
    "exposed m",
    "bytes p",
    "bytes m",
    "most to blame",
)
NAMED = 2  # parts of a scenario's miss that its row names
SHOWN_BLAME = 12  # rows of the table of blame
WANDERS = 0.1  # of the machine's own pace, beyond which a reader should know


def row_cells(row: ValidatedScenario) -> list[str]:
    place = [str(row.case[name]) for name in HEAD[:5]]
    if row.predicted is None or row.measured is None or row.error is None:
        return [*place, *["-"] * 7, row.reason]
    p, m = row.predicted, row.measured
    times = [seconds(p.epoch_s), seconds(m.epoch_s), f"{row.error:+.0%}"]
    rest = [seconds(p.exposed_comm_s), seconds(m.exposed_comm_s), size(p.bytes_total), size(m.bytes_total)]
    return [*place, *times, *rest, blamed(row)]


def blamed(row: ValidatedScenario) -> str:
    """The ops with the largest parts in an epoch's error, in hundredths of the measured epoch."""
    assert row.measured is not None
    parts = [(entry, entry.miss_s / row.measured.epoch_s) for entry in verbs(row.blame)[:NAMED]]
    return ", ".join(f"{entry.op} {entry.part} {share:+.0%}" for entry, share in parts)


def text_rows(rows: Sequence[ValidatedScenario]) -> str:
    return aligned([HEAD, *(row_cells(row) for row in rows)])


def verdict(summary: dict[str, Any]) -> list[str]:
    """Sentences that say what the errors of a validation come to."""
    said = [f"{summary['compared']} of {summary['scenarios']} scenarios were compared."]
    if summary["compared"]:
        said += [
            f"Absolute error of the epoch: mean {summary['mean_error']:.1%} (aim {AIMED_MEAN:.0%}), "
            f"median {summary['median_error']:.1%}, maximum {summary['max_error']:.1%} (aim {AIMED_MOST:.0%}; "
            f"{summary['within_aim']} are within it); they lean {summary['lean']:+.1%}.",
            f"Exposed communication is off by {summary['exposed_error']:.1%} of the epoch on average; "
            f"bytes are equal within 1 % in {summary['bytes_equal']}.",
            *_order(summary),
            _how(summary["profile"]),
        ]
    if summary["machine"] is not None:
        pace = summary["machine"]
        wandered = f"between {pace['fastest']:.2f} and {pace['slowest']:.2f} of its median"
        loud = max(pace["slowest"] - 1, 1 - pace["fastest"]) > WANDERS
        steady = ": the machine was not steady" if loud else ""
        said.append(f"A small kernel on all cores between the runs took {wandered}{steady}.")
    return said


def _how(profile: str | None) -> str:
    if profile is not None:
        return f"Predicted with {profile}."
    return (
        "Predicted with constants of cluster files, not with this machine's: run `halocast calibrate` and then this "
        "again; it finds profile.toml here, and the runs are kept."
    )


def _order(summary: dict[str, Any]) -> list[str]:
    order, correlation = summary["order"], summary["rank_correlation"]
    if not order["pairs"]:
        return []
    said = [
        f"Order of methods: right in {order['right']} of the {order['pairs']} pairs of a cell "
        f"that differ by more than {CLEAR:.0%}"
    ]
    return [said[0] + (f"; rank correlation {correlation:.2f}." if correlation is not None else ".")]


BLAME_HEAD = ("verb", "part", "predicted", "measured", "miss", "size")


def blame_cells(summary: dict[str, Any]) -> list[list[str]]:
    shares = ("predicted", "measured", "size")
    cells = [[row["verb"], row["part"], *(f"{row[name]:.1%}" for name in shares)] for row in summary["blame"]]
    return [[*row[:-1], f"{found['miss']:+.1%}", row[-1]] for row, found in zip(cells, summary["blame"], strict=True)]


def text_blame(summary: dict[str, Any]) -> str:
    return aligned([BLAME_HEAD, *blame_cells(summary)[:SHOWN_BLAME]])


BY_HEAD = ("by", "which", "scenarios", "mean", "max", "lean")


def by_cells(summary: dict[str, Any]) -> list[list[str]]:
    """Rows of absolute errors by group of scenarios; a word that all scenarios share makes no groups."""
    return [
        [name, key, str(errors["num"]), f"{errors['mean']:.1%}", f"{errors['max']:.1%}", f"{errors['lean']:+.1%}"]
        for name, parts in summary["by"].items()
        if len(parts) > 1
        for key, errors in parts.items()
    ]


def text_by(summary: dict[str, Any]) -> str:
    return aligned([BY_HEAD, *by_cells(summary)])


def write_validation(path: Path, rows: Sequence[ValidatedScenario], summary: dict[str, Any]) -> None:
    """Write validate.md, .csv, .json and a figure, each whole or not at all, beside the runs they are made from."""
    table = [row.as_dict() for row in rows]
    texts = {
        "validate.csv": csv_table(table),
        "validate.json": json.dumps({"rows": table, "summary": summary}, indent=1) + "\n",
        "validate.md": markdown(rows, summary),
    }
    for name, text in texts.items():
        with whole_file(path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    draw(path / "validate.svg", rows, summary)


def markdown(rows: Sequence[ValidatedScenario], summary: dict[str, Any]) -> str:
    wrong = [
        f"- {pair['method']}: {pair['link']}, {pair['ranks']} ranks, {pair['model']}, {pair['graph']}"
        for pair in summary["order"]["wrong"]
    ]
    failed = [f"- {row_name(row)}: {row.reason}" for row in rows if row.reason]
    return "\n".join(
        [
            "# Predicted and measured epochs",
            "",
            *[f"{sentence}  " for sentence in verdict(summary)],
            "",
            "![Predicted over measured epochs](validate.svg)",
            "",
            "## Scenarios",
            "",
            markdown_rows([HEAD, *(row_cells(row) for row in rows)]),
            "",
            "`p` is predicted, `m` measured. Epochs are medians over cycles of all runs, of the slowest rank; exposed",
            "communication is the mean over ranks; bytes are those of one epoch, all ranks together.",
            "",
            "## Blame",
            "",
            markdown_rows([BLAME_HEAD, *blame_cells(summary)]),
            "",
            "Where the compute lane's time goes, in hundredths of the measured epoch, means over all scenarios:",
            "`miss` is predicted less measured, `size` the mean of its absolute value. An op runs; or the lane stands",
            "still while an awaited op waits for other ranks, moves bytes or runs beside; or for no reason that the",
            "schedule has: overhead.",
            "",
            "## Errors by",
            "",
            markdown_rows([BY_HEAD, *by_cells(summary)]),
            "",
            "## Pairs of methods in the wrong order",
            "",
            *(wrong or ["None."]),
            "",
            "## Not compared",
            "",
            *(failed or ["None."]),
            "",
        ]
    )


def row_name(row: ValidatedScenario) -> str:
    return ", ".join(str(row.case[name]) for name in HEAD[:5])


def draw(path: Path, rows: Sequence[ValidatedScenario], summary: dict[str, Any]) -> None:
    """Draw epochs, predicted over measured, a colour per method and a mark per link; beside them what is to blame."""
    dots = [
        Dot(
            group=row.case["method"],
            kind=row.case["link"],
            true=1e3 * row.measured.epoch_s,
            predicted=1e3 * row.predicted.epoch_s,
        )
        for row in rows
        if row.predicted is not None and row.measured is not None
    ]
    shares = {f"{row['verb']} {row['part']}": row["miss"] for row in summary["blame"][:SHOWN_BLAME]}
    bars = Bars(label="predicted less measured, % of the epoch", shares=shares)
    draw_errors(path, dots, bars, true="measured", unit="ms", aim=AIMED_MOST)
