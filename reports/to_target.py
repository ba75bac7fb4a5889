"""What trainings say of a comparison's methods: time and price to the target, and test scores, beside their epochs."""

from typing import Any

from halocast.reports.comparison import Comparison
from halocast.reports.converge.contests import contests
from halocast.reports.converge.targets import Reached
from halocast.reports.converge.words import dollars, duration, plus_minus, points
from halocast.reports.curves import Converged
from halocast.reports.summary import Summary
from halocast.reports.table import Extra, Line


def reached_by_method(converged: Converged) -> dict[str, Reached]:
    """The target and the methods that were compared: those on all GPUs, not one of them alone."""
    return {reach.curve.method: reach for contest in contests(converged)[:1] for reach in contest.rivals}


def target_columns(converged: Converged | None) -> Extra:
    """Columns of a table, with cells by method; none where nothing was trained."""
    if converged is None:
        return ()
    known = reached_by_method(converged)
    return (
        (f"to {points(converged.target)}", {method: _time(reach) for method, reach in known.items()}),
        ("cost", {method: dollars(reach.price) for method, reach in known.items()}),
        ("test", {method: _test(reach) for method, reach in known.items()}),
    )


def _time(reach: Reached) -> str:
    """The time to the target, or why it is not met."""
    return reach.text if reach.seconds is None else duration(reach.seconds)


def _test(reach: Reached) -> str:
    return plus_minus(reach.test.mean, reach.test.std) if reach.test else "-"


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The lines of a comparison as JSON objects, in SI units; scores are shares."""
    known = reached_by_method(comparison.converged) if comparison.converged else {}
    figures = {method: _figures(reach) for method, reach in known.items()}
    return [
        {**line.as_dict(), **(figures.get(line.method, {}) if _is_predicted(line) else {})} for line in comparison.lines
    ]


def _is_predicted(line: Line) -> bool:
    """Whether a line is of the machine that trainings are timed on."""
    return isinstance(line, Summary) and not line.is_run and line.predicts is None


def _figures(reach: Reached) -> dict[str, Any]:
    return {
        "target_epochs": reach.epochs,
        "target_s": reach.seconds,
        "target_price": reach.price,
        "target_test": reach.test and reach.test.mean,
        "target_test_std": reach.test and reach.test.std,
        "missed": reach.text,
    }
