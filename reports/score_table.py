"""The table of a study of scores: every case with its test score against the baseline, for docs/scores.md."""

import textwrap
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from halocast.reports.figures import Panel
from halocast.reports.scores import CaseScores, epochs_of, mean_curve
from halocast.reports.table import aligned

WIDTH = 80  # of a terminal
LABEL_WIDTH = 30  # of a case in a terminal; longer ones are wrapped
MISSING = "-"


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
