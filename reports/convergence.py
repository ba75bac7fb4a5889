"""What a study of convergence says: an answer in one line, a table that fits a terminal, curves, and a report."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

from halocast.base.files import whole_file
from halocast.reports.figures import Panel, draw_panels
from halocast.reports.scores import CaseScores, epochs_of, mean_curve
from halocast.reports.table import aligned, csv_table, markdown_rows

WIDTH = 80  # of a terminal
LABEL_WIDTH = 30  # of a case in a terminal; longer ones are wrapped
MISSING = "-"
TITLES = MappingProxyType({"weights": "gradient of the weights"})  # of panels, where what is stale needs more words
NOTE = (
    "Test score of the evaluated epoch with the best validation score, in points: mean and standard deviation over "
    "seeds. To base: mean difference to the baseline, seed by seed, and its standard error. Epoch: the selected one, "
    "on average."
)


def answer(cases: Sequence[CaseScores], within: float) -> str:
    """One line: which cases end within some points of their baseline, which do not, and which are not known."""
    compared = [case for case in cases if not case.is_baseline and case.difference is not None]
    near = [case for case in compared if is_within(case, within)]
    far = [_named(case) for case in compared if not is_within(case, within)]
    unknown = [case.label for case in cases if case.difference is None and not case.is_baseline]
    bases = list(dict.fromkeys(case.baseline for case in cases))
    base = bases[0] if len(bases) == 1 else "their baselines"
    parts = [f"Within {within:g} points of {base}: {', '.join(case.label for case in near) or 'none'}."]
    parts += [f"Below: {', '.join(far)}."] if far else []
    parts += [f"Not known: {', '.join(unknown)}."] if unknown else []
    return " ".join(parts) if compared or unknown else _alone(cases)


def is_within(case: CaseScores, within: float) -> bool:
    """Whether a case loses no more than so many points; one that is better than its baseline loses none."""
    return case.difference is not None and 100 * case.difference.mean >= -within


def _named(case: CaseScores) -> str:
    assert case.difference is not None
    return f"{case.label} ({100 * case.difference.mean:+.1f})"


def _alone(cases: Sequence[CaseScores]) -> str:
    return f"Nothing to compare {cases[0].label} with: name another case."


def score_rows(cases: Sequence[CaseScores]) -> list[list[str]]:
    """The cells of the table, its head first; scores in points."""
    keys = list(dict.fromkeys(key for case in cases for key in case.chosen))
    head = ["case", "test", "±", "to base", "±", "epoch", *(key.partition(".")[2] for key in keys)]
    return [head, *([case.label, *_cells(case), *(_plain(case.chosen.get(key)) for key in keys)] for case in cases)]


def _cells(case: CaseScores) -> list[str]:
    test, difference, epoch = case.test, case.difference, case.best_epoch
    short = f" ({len(case.seeds)}/{case.wanted})" if test and len(case.seeds) < case.wanted else ""
    compared = difference is not None and not case.is_baseline
    return [
        _points(test.mean if test else None) + short,
        _points(test.std if test else None),
        _points(difference.mean, signed=True) if compared and difference else MISSING,
        _points(difference.error) if compared and difference else MISSING,
        MISSING if epoch is None else f"{epoch:.0f}",
    ]


def _points(share: float | None, *, signed: bool = False) -> str:
    if share is None:
        return MISSING
    points = round(100 * share, 2) + 0.0  # not -0.00
    return f"{points:+.2f}" if signed else f"{points:.2f}"


def _plain(value: Any) -> str:
    if value is None:
        return MISSING
    return f"{value:g}" if isinstance(value, float) else str(value)


def score_table(cases: Sequence[CaseScores]) -> str:
    """The table for a terminal: long names of cases go on in the next line. Below it, why trainings are missing."""
    head, *rows = score_rows(cases)
    lines = [head, *(line for row in rows for line in _wrapped(row))]
    return "\n".join([aligned(lines), *(textwrap.fill(remark, WIDTH) for remark in remarks(cases))])


def _wrapped(row: list[str]) -> Iterator[list[str]]:
    first, *more = textwrap.wrap(row[0], LABEL_WIDTH, subsequent_indent="  ") or [""]
    yield [first, *row[1:]]
    for rest in more:
        yield [rest, *[""] * (len(row) - 1)]


def remarks(cases: Sequence[CaseScores]) -> list[str]:
    """The reasons why trainings are missing, each once with the cases that it holds for."""
    labels: dict[str, list[str]] = {}
    for case in cases:
        for reason in case.reasons:
            labels.setdefault(reason, []).append(case.label)
    return [
        f"{reason}: {'all cases' if len(some) == len(cases) else ', '.join(some)}" for reason, some in labels.items()
    ]


def seed_records(cases: Sequence[CaseScores]) -> list[dict[str, Any]]:
    """Every evaluation of every training, in long form."""
    return [
        {"case": case.label, **case.chosen, "seed": run.seed, "epoch": epoch + 1, **scores}
        for case in cases
        for run in case.seeds
        for epoch, scores in sorted(run.evaluated.items())
    ]


def score_panels(cases: Sequence[CaseScores], title: str = "", *, top_points: float = 25.0) -> list[Panel]:
    """Mean test scores over epochs; the lowest ones, of the first epochs, are cut off."""
    shown = [case for case in cases if case.seeds]
    if not shown:
        return []
    epochs = epochs_of(shown)
    curves = {case.label: [100 * value for value in mean_curve(case.seeds, "test", epochs)] for case in shown}
    drawn = [value for curve in curves.values() for value in curve if isfinite(value)]
    return [
        Panel(
            title=title,
            y_label="test score, points (mean over seeds)",
            curves=curves,
            xs=[epoch + 1 for epoch in epochs],
            y_range=(max(min(drawn) - 1, max(drawn) - top_points), None),
        )
    ]


def error_panels(cases: Sequence[CaseScores]) -> list[Panel]:
    """Errors of stale rows over epochs, a panel for each thing that is stale; means over seeds."""
    kinds = dict.fromkeys(curve.what for case in cases for run in case.seeds for curve in run.errors)
    return [panel for what in kinds for panel in _error_panel(what, _mean_errors(cases, what))]


def _mean_errors(cases: Sequence[CaseScores], what: str) -> dict[str, dict[int, float]]:
    """Mean errors by epoch, by case and layer; rows that are exact after the first epoch are left out."""
    values: dict[str, dict[int, list[float]]] = {}
    for case in cases:
        for curve in (curve for run in case.seeds for curve in run.errors if curve.what == what):
            name = f"{case.label}, layer {curve.layer}" if curve.layer >= 0 else case.label
            by_epoch = values.setdefault(name, {})
            for epoch, value in curve.by_epoch.items():
                by_epoch.setdefault(epoch, []).append(value)
    means = {name: {epoch: mean(some) for epoch, some in by_epoch.items()} for name, by_epoch in values.items()}
    return {name: by_epoch for name, by_epoch in means.items() if any(by_epoch[epoch] for epoch in by_epoch if epoch)}


def _error_panel(what: str, errors: Mapping[str, Mapping[int, float]]) -> list[Panel]:
    epochs = sorted({epoch for by_epoch in errors.values() for epoch in by_epoch})
    if not epochs:
        return []
    curves = {name: [by_epoch.get(epoch, float("nan")) for epoch in epochs] for name, by_epoch in errors.items()}
    title, label = TITLES.get(what, f"stale {what}"), "‖stale − fresh‖ / ‖fresh‖"
    return [Panel(title=title, y_label=label, curves=curves, xs=[epoch + 1 for epoch in epochs])]


def report_text(cases: Sequence[CaseScores], within: float, scenario: str, figures: Sequence[str]) -> str:
    """The report in Markdown: the answer, the table, curves, what the search found, and the scenario."""
    parts = ["# Convergence", answer(cases, within), markdown_rows(score_rows(cases)), *remarks(cases)]
    parts += [NOTE]
    parts += [f"![{name.partition('.')[0]}]({name})" for name in figures]
    parts += _search(cases)
    parts += ["## Scenario", f"```toml\n{scenario.rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _search(cases: Sequence[CaseScores]) -> list[str]:
    searched = [case for case in cases if case.trials]
    if not searched:
        return []
    tried = [", ".join(_plain(value) for value in trial.values.values()) for trial in searched[0].trials]
    rows = [[case.label, *(_points(trial.val) for trial in case.trials)] for case in searched]
    keys = ", ".join(searched[0].trials[0].values)
    return [f"## Search: best validation score by {keys}", markdown_rows([["case", *tried], *rows])]


def write_report(directory: Path, cases: Sequence[CaseScores], within: float, scenario: str) -> None:
    """Write report.md, results.csv, curves.csv, curves.png and, where errors were measured, errors.png."""
    panels = {"curves.png": score_panels(cases), "errors.png": error_panels(cases)}
    drawn = {name: some for name, some in panels.items() if some}
    for name, some in drawn.items():
        draw_panels(directory / name, some)
    texts = {
        "results.csv": csv_table([case.flat() for case in cases]),
        "curves.csv": csv_table(seed_records(cases)),
        "report.md": report_text(cases, within, scenario, list(drawn)),
    }
    for name, text in texts.items():
        with whole_file(directory / name) as path:
            path.write_text(text, encoding="utf-8")
