"""The report of an answer: a directory with a page, Markdown, tables and figures; files of others in it stay."""

import json
from collections.abc import Mapping
from pathlib import Path
from re import fullmatch

from halocast.base.files import whole_directory, whole_file
from halocast.reports.converge.figures import draw_answer
from halocast.reports.converge.markdown import markdown
from halocast.reports.converge.page import render
from halocast.reports.converge.records import as_json, error_records, point_records, records
from halocast.reports.curves import Converged
from halocast.reports.page.place import require_report_place
from halocast.reports.table import csv_table

FILES = (
    "report.md",
    "results.csv",
    "curves.csv (every evaluation)",
    "answer.json",
    "errors.csv where stale rows were compared with fresh ones",
    "figures (PNG)",
)
OURS = r"report\.html|(score(-\d+)?|crossovers|errors)\.png|errors\.csv"  # that a later report may not have


def write_report(directory: Path, converged: Converged) -> None:
    """Write a page with nothing but the answer, and all files: a new directory whole or not at all.

    In one that has an earlier report, our files are replaced one by one, and what others put there stays.
    """
    require_report_place(directory)
    page = {"report.html": render(converged, FILES)}
    if directory.exists() and any(directory.iterdir()):
        write_files(directory, converged, page)
        return
    with whole_directory(directory) as place:
        write_files(place, converged, page)


def write_files(directory: Path, converged: Converged, more: Mapping[str, str] | None = None) -> None:
    """Write Markdown, tables and figures, each file whole; figures of an earlier report that has others go."""
    directory.mkdir(parents=True, exist_ok=True)
    figures = draw_answer(directory, converged)
    texts = _texts(converged, figures) | dict(more or {})
    for name, text in texts.items():
        with whole_file(directory / name) as path:
            path.write_text(text, encoding="utf-8")
            path.chmod(0o644)
    kept = {*texts, *(name for _, name in figures)}
    for path in sorted(directory.iterdir()):
        if fullmatch(OURS, path.name) and path.name not in kept:
            path.unlink()


def _texts(converged: Converged, figures: list[tuple[str, str]]) -> dict[str, str]:
    errors = error_records(converged)
    return {
        "results.csv": csv_table(records(converged)),
        "curves.csv": csv_table(point_records(converged)),
        "answer.json": json.dumps(as_json(converged), indent=1),
        "scenario.toml": converged.scenario,
        "report.md": markdown(converged, figures),
        **({"errors.csv": csv_table(errors)} if errors else {}),
    }
