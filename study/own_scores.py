"""Scores of our own runs, as `make scores` leaves them in `scores.csv`: a row per graph and case of a study.

Scores are shares of the test nodes, 0 to 1, chosen by validation.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.reports.scores import CaseScores
from halocast.study.scenario import Scenario

VANILLA = "vanilla"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScore:
    """The test score of one case, over some seeds, and how far it is from vanilla's of the same setting."""

    graph: str
    method: str
    options: str  # key=value with spaces between, as cases are written; the others have their defaults
    model: str
    ranks: int
    epochs: int
    seeds: int
    test_mean: float
    test_std: float | None  # none of a single seed, which has no standard error either
    minus_vanilla: float | None  # none of vanilla itself
    minus_vanilla_se: float | None  # the standard error of that difference

    def __post_init__(self) -> None:
        require(0 <= self.test_mean <= 1, f"test_mean = {self.test_mean}: needs to be a share, 0 to 1")
        error = self.minus_vanilla_se
        require(error is None or error >= 0, f"minus_vanilla_se = {error}: needs to be at least 0")

    @property
    def chosen(self) -> Mapping[str, str]:
        """The options that were set, by name; those of other sections than the method's with their section."""
        words = (word.partition("=") for word in self.options.split())
        return {name.removeprefix("method."): value for name, _, value in words}


def own_scores(graph: str, rows: Sequence[CaseScores], scenario: Scenario) -> list[OwnScore]:
    """The scores of a study's cases that were trained; only differences from vanilla count."""
    methods = {row.label: row.settings["method.name"] for row in rows}
    return [_own(graph, row, scenario, methods[row.baseline]) for row in rows if row.seeds]


def _own(graph: str, row: CaseScores, scenario: Scenario, baseline: str) -> OwnScore:
    test, settings, ranks = row.test, dict(row.settings), scenario.cluster.gpus
    assert test is not None
    assert ranks is not None, "a study of scores says how many ranks train"
    difference = None if row.is_baseline or baseline != VANILLA else row.difference
    return OwnScore(
        graph=graph,
        method=settings.pop("method.name"),
        options=" ".join(f"{key.removeprefix('method.')}={_word(value)}" for key, value in settings.items()),
        model=str(settings.get("model.kind", scenario.model.kind)),
        ranks=ranks,
        epochs=scenario.run.epochs,
        seeds=len(row.seeds),
        test_mean=test.mean,
        test_std=test.std,
        minus_vanilla=None if difference is None else difference.mean,
        minus_vanilla_se=None if difference is None else difference.error,
    )


def _word(value: Any) -> str:
    return str(value).replace(" ", "")  # spaces are between options


COLUMNS = tuple(column.name for column in fields(OwnScore))


def shipped_scores() -> Path:
    """The scores that come with the package."""
    return Path(str(files("halocast.study"))) / "scores.csv"


def format_scores(scores: Iterable[OwnScore]) -> str:
    """The text of a file of scores."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(score) for score in scores)
    return out.getvalue()


def read_scores(path: Path) -> tuple[OwnScore, ...]:
    """The scores of a file; none if there is no file or nothing in it, for then nothing was run."""
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return tuple(_read(row, f"{path}:{number}") for number, row in enumerate(table, 2))


def _read(row: Mapping[str, Any], where: str) -> OwnScore:
    if set(row) != set(COLUMNS):
        raise InputError(f"{where}: needs the columns {', '.join(COLUMNS)}")
    try:
        return OwnScore(**{column.name: _PARSERS[column.type](row[column.name]) for column in fields(OwnScore)})
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}") from None


_PARSERS: Mapping[Any, Callable[[str], Any]] = MappingProxyType(
    {str: str, int: int, float: float, float | None: lambda text: float(text) if text else None}
)
