"""Published scores beside those of our runs: the table of differences from vanilla, and what they come to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halocast.reports.scores import Difference
from halocast.reports.table import aligned

HEAD = ("source", "graph", "method", "published", "ours", "stand-in")
UNITS = "In points above vanilla: of the same table, and of our runs (± standard error)."
ERRORS = 2  # standard errors within which two differences are called equal


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """A published score minus vanilla's of its table, in points, beside the same of our runs, a share; or why it is
    refused."""

    row: dict[str, str]
    refused: str = ""
    method: str = ""  # with the options that are not our defaults
    published: float | None = None
    no_base: str = ""  # why there is no difference
    ours: Difference | None = None
    case: str = ""  # the method and options of our runs
    stand_in: str = ""  # the graph of our runs; empty where none is near
    why: str = ""  # that graph
    same_graph: bool = False

    @property
    def is_close(self) -> bool | None:
        """Whether the published difference is ours but for chance; not known where one of them or its error is not."""
        if self.published is None or self.ours is None or self.ours.error is None:
            return None
        return abs(self.published / 100 - self.ours.mean) <= ERRORS * self.ours.error

    def as_dict(self) -> dict[str, Any]:
        """The row with plain values only; differences in points."""
        ours = self.ours
        return {
            **self.row,
            "published_minus_vanilla": self.published,
            "ours_minus_vanilla": ours and 100 * ours.mean,
            "ours_minus_vanilla_se": ours and ours.error and 100 * ours.error,
            "ours_case": self.case,
            "ours_seeds": ours and ours.num_seeds,
            "stand_in": self.stand_in,
            "same_graph": self.same_graph,
            "close": self.is_close,
            "reason": self.refused or self.no_base or ("" if self.stand_in else self.why),
        }


def summarise_scores(results: Sequence[ScoreResult]) -> dict[str, Any]:
    """Counts of published scores: listed and refused, with a difference, with a run of ours, and equal to it."""
    listed = [result for result in results if not result.refused]
    compared = [result for result in listed if result.is_close is not None]
    return {
        "rows": len(results),
        "listed": len(listed),
        "differences": sum(result.published is not None for result in listed),
        "compared": len(compared),
        "close": sum(result.is_close is True for result in compared),
        "same_graph": sum(result.same_graph for result in compared),
        "no_difference": _counted(result.no_base for result in listed),
        "refused": _counted(result.refused for result in results),
    }


def _counted(reasons: Any) -> dict[str, int]:
    return dict(Counter(filter(None, reasons)).most_common())


def score_verdict(summary: Mapping[str, Any]) -> str:
    """Say how published differences and ours compare, and how many there are to compare."""
    differences, compared = summary["differences"], summary["compared"]
    stated = f"{summary['rows']} scores are published, {differences} beside vanilla's of the same table."
    if not compared:
        return f"Scores: no run of ours is beside the {differences} published differences from vanilla;\n{stated}"
    equal = f"{summary['close']} of {compared} published differences from vanilla are within {ERRORS} standard errors"
    same = f"{summary['same_graph']} of the {compared} on the same graph, the rest on another"
    return f"Scores: {equal}\nof ours ({same});\n{stated}"


def text_scores(results: Sequence[ScoreResult], summary: Mapping[str, Any]) -> str:
    """The answer, the table of differences from vanilla, which graph stands for which, and what is not compared."""
    return "\n".join(
        [
            score_verdict(summary),
            "",
            aligned(score_cells(results)),
            "",
            UNITS,
            *stand_in_lines(results),
            "Not compared:",
            *(f"{num:5} {reason}" for reason, num in not_compared(summary).items()),
        ]
    )


def not_compared(summary: Mapping[str, Any]) -> dict[str, int]:
    """Reasons why scores have no difference from vanilla or are not listed, with the number of each."""
    return {**summary["no_difference"], **summary["refused"]}


def score_cells(results: Sequence[ScoreResult]) -> list[tuple[str, ...]]:
    """The head of the table of differences, and a row for each score that is not refused."""
    return [HEAD, *(_cells(result) for result in results if not result.refused)]


def _cells(result: ScoreResult) -> tuple[str, ...]:
    row = result.row
    graph = f"{row['dataset']}×{row['gpus']}" if row["gpus"] else row["dataset"]
    published = "-" if result.published is None else _points(result.published)
    return row["source"], graph, result.method, published, _ours(result), result.stand_in or "none"


def _ours(result: ScoreResult) -> str:
    if result.ours is None:
        return "not run" if result.stand_in else "-"
    error = "?" if result.ours.error is None else f"{100 * result.ours.error:.2f}"
    return f"{_points(100 * result.ours.mean)}±{error}"


def _points(points: float) -> str:
    return f"{round(points, 2) + 0.0:+.2f}"  # so that a zero has one sign


def stand_in_lines(results: Sequence[ScoreResult]) -> list[str]:
    """Say once for each graph which of ours stands for it, that it is another, and why that one."""
    said = {result.row["dataset"]: _stands(result) for result in results if not result.refused}
    return [f"{name}: {text}." for name, text in said.items()]


def _stands(result: ScoreResult) -> str:
    if not result.stand_in or result.same_graph:
        return result.why
    return f"{result.stand_in}, another graph: {result.why}"
