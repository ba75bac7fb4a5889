"""The comparison report: a directory with a page, tables, figures and traces, written whole or not at all."""

import json
from pathlib import Path

from halocast.base.files import whole_directory
from halocast.reports.comparison import Comparison, MethodResult
from halocast.reports.converge.report import write_files
from halocast.reports.formats.chakra import write_chakra
from halocast.reports.formats.perfetto import write_perfetto
from halocast.reports.page.figures import draw_all
from halocast.reports.page.html import render
from halocast.reports.page.markdown import markdown
from halocast.reports.page.place import require_report_place
from halocast.reports.table import csv_table
from halocast.reports.to_target import rows
from halocast.schedule.trace import save_trace

FILES = (
    "report.md",
    "results.csv and results.json",
    "figures/ (SVG, PNG)",
    "traces/ (METHOD.json for Perfetto, one Parquet file per run)",
    "chakra/ (one .et file per rank of every prediction)",
)
ACCURACY = "accuracy/ (scores over time: report.md, tables, figures)"


def write_report(path: Path, comparison: Comparison) -> None:
    """Write the whole report or nothing; only an earlier report or an empty directory is replaced.

    Scores over time are a section of the page, and files of their own below `accuracy/`.
    """
    require_report_place(path)
    with whole_directory(path) as directory:
        (directory / "results.csv").write_text(csv_table(rows(comparison)), encoding="utf-8")
        (directory / "results.json").write_text(json.dumps(rows(comparison), indent=1), encoding="utf-8")
        (directory / "scenario.toml").write_text(comparison.scenario, encoding="utf-8")
        figures = draw_all(directory / "figures", comparison)
        left_out = _write_traces(directory, comparison)
        if comparison.converged is not None:
            write_files(directory / "accuracy", comparison.converged)
        beside = (*FILES, ACCURACY) if comparison.converged else FILES
        (directory / "report.md").write_text(markdown(comparison, figures), encoding="utf-8")
        (directory / "report.html").write_text(render(comparison, beside, left_out), encoding="utf-8")


def _write_traces(directory: Path, comparison: Comparison) -> list[str]:
    """Write the traces of all results; return what could not be written, and why."""
    (directory / "traces").mkdir()
    by_method: dict[str, list[MethodResult]] = {}
    for result in comparison.results:
        by_method.setdefault(result.method, []).append(result)
        save_trace(result.trace, directory / "traces" / f"{result.name}.parquet")
    for method, results in by_method.items():
        write_perfetto([(r.trace, r.schedule) for r in results], directory / "traces" / f"{method}.json")
    folder = directory / "chakra"
    reasons = [write_chakra(result, folder / result.method, comparison.kernel_work) for result in comparison.predicted]
    return [f"No Chakra trace of {reason}" for reason in reasons if reason]
