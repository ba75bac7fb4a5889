"""Scores of our own runs, as `make scores` leaves them in `scores.csv`: a row per graph, method and options.

Scores are shares of the test nodes, 0 to 1, chosen by validation.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halocast.base.errors import InputError
from halocast.base.records import require

PRESET = "preset"  # the option that stands for a paper's or a released code's others


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScore:
    """The test score of one case, over some seeds, and how far it is from vanilla's of the same setting."""

    graph: str
    method: str
    options: str  # key=value with spaces between; the others have their defaults
    model: str
    ranks: int
    epochs: int
    seeds: int
    test_mean: float
    test_std: float
    minus_vanilla: float | None  # none of vanilla itself
    minus_vanilla_se: float | None  # the standard error of that difference

    def __post_init__(self) -> None:
        require(0 <= self.test_mean <= 1, f"test_mean = {self.test_mean}: needs to be a share, 0 to 1")
        error = self.minus_vanilla_se
        require(error is None or error >= 0, f"minus_vanilla_se = {error}: needs to be at least 0")

    @property
    def chosen(self) -> Mapping[str, str]:
        """The options that were set, by name."""
        words = (word.partition("=") for word in self.options.split())
        return {name.removeprefix("method."): value for name, _, value in words}


COLUMNS = tuple(column.name for column in fields(OwnScore))


def shipped_scores() -> Path:
    """The scores that come with the package."""
    return Path(str(files("halocast.study"))) / "scores.csv"


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
