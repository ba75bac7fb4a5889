"""Sweeps: one scenario with some of its keys varied, all combinations; finished ones are kept in a file."""

import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, get_type_hints

from halocast.base.errors import InputError, unknown
from halocast.base.records import require
from halocast.methods import METHODS
from halocast.reports.summary import Summary
from halocast.study.pool import open_pool
from halocast.study.presets import PRESET
from halocast.study.queries import Progress, Query, complete, query_of
from halocast.study.results import ResultFile, State, Stored
from halocast.study.scenario import SECTIONS, Scenario, changed_tables, parse_override, set_key
from halocast.study.showable import Showable

MOST_COMBINATIONS = 1_000_000  # a slip would fill the memory
Values = dict[str, Any]  # by varied key, as section.key


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One combination: the values it varies, and its figures or why there are none."""

    values: Values
    state: State
    figures: Summary | None
    reason: str
    scenario: dict[str, Any]

    def flat(self) -> dict[str, Any]:
        """The row with plain values only: what varies, figures in SI units, the reason."""
        figures = self.figures.plain_figures() if self.figures else {}
        return {**self.values, "state": str(self.state), **figures, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(Showable):
    """All rows of a sweep, in the order of its combinations: the last key varies fastest."""

    rows: tuple[SweepRow, ...]

    @property
    def done(self) -> tuple[SweepRow, ...]:
        """The rows that have figures."""
        return tuple(row for row in self.rows if row.state is State.DONE)

    def line(self) -> str:
        return f"{len(self.rows)} combinations of {', '.join(self.rows[0].values)}, {len(self.done)} predicted"

    def records(self) -> list[dict[str, Any]]:
        return [row.flat() for row in self.rows]


def sweep(
    scenario: Scenario | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    *,
    results: str | Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    progress: Progress = lambda done, of: None,
) -> Sweep:
    """Predict a scenario with all combinations of some keys' values.

    `vary` maps keys to values: `{"cluster.gpus": [2, 4, 8], "method.name": ["vanilla", "bns"]}`. A combination that is
    not legal is a row with its reason. `results` names an SQLite file that keeps what is finished: a sweep that was
    interrupted goes on where it was, and several processes may share the file. `jobs` local processes predict [one per
    core], or the Dask cluster at the address `dask`.
    """
    tables = changed_tables(scenario) if isinstance(scenario, Scenario) else dict(scenario)
    combinations = list(combine(tables, vary))
    require_some_legal([job for _, job in combinations])
    with result_path(results) as path, ResultFile(path) as file, open_pool(jobs, dask) as pool:
        stored = complete(file, [job for _, job in combinations], pool, progress)
    return Sweep(rows=tuple(_row(values, job, stored[job.key]) for values, job in combinations))


def combine(tables: Mapping[str, Any], vary: Mapping[str, Sequence[Any]]) -> Iterator[tuple[Values, Query]]:
    """Every combination of the values, as a job."""
    places = [key_place(key) for key in vary]
    num = 1
    for key, values in vary.items():
        require(len(values) > 0, f"vary {key}: no values")
        num *= len(values)
    require(num <= MOST_COMBINATIONS, f"{num:,} combinations: more than {MOST_COMBINATIONS:,}")
    for chosen in product(*vary.values()):
        combination = deepcopy(dict(tables))
        for (section, key), value in zip(places, chosen, strict=True):
            if (section, key) == ("method", "name"):
                _change_method(combination, value, vary)
            set_key(combination, section, key, value)
        yield dict(zip(vary, chosen, strict=True)), query_of(combination)


def _change_method(tables: dict[str, Any], name: Any, vary: Mapping[str, Any]) -> None:
    """Give the tables another method: options of the scenario's own do not go with it; those that are varied must."""
    table = tables.setdefault("method", {})
    if table.get("name", "vanilla") != name:
        tables["method"] = {key: value for key, value in table.items() if f"method.{key}" in vary}


def require_some_legal(jobs: Sequence[Query]) -> None:
    """Refuse a sweep in which no combination is legal: the first reason is the user's mistake."""
    if all(job.reason for job in jobs):
        raise InputError(f"none of {len(jobs)} combinations is legal; the first: {jobs[0].reason}")


def parse_vary(text: str, option: str = "--vary") -> tuple[str, list[Any]]:
    """Parse `cluster.gpus=2,4,8` -> ("cluster.gpus", [2, 4, 8]); values that are not TOML are strings."""
    place, equals, values = text.partition("=")
    key = place.strip()
    require(bool(equals and values.strip()), f"{option} {text!r}: expected section.key=value,value,…")
    key_place(key)
    try:
        return key, list(tomllib.loads(f"values = [{values}]")["values"])
    except tomllib.TOMLDecodeError:
        return key, [parse_override(f"{key}={value}")[2] for value in values.split(",")]


def key_place(key: str, what: str = "vary") -> tuple[str, str]:
    """Split a name into section and key; one that no scenario can have is a mistake, not a row without figures.

    `what` is the option that an error names.
    """
    section, dot, name = key.partition(".")
    require(bool(dot and name), f"{what} {key!r}: expected section.key, for example cluster.gpus")
    legal_sections = [one for one in SECTIONS if one != "plan"]
    if section not in legal_sections:
        raise unknown("section", section, legal_sections, f"{what} {key!r}")
    legal = _keys(section)
    if name not in legal:
        raise unknown("key", name, legal, f"{what} {key!r}")
    return section, name


def is_whole(key: str) -> bool:
    """Whether values of a key are whole numbers."""
    section, name = key_place(key)
    hints = [get_type_hints(record) for record in _records(section)]
    return any(hint[name] in (int, int | None) for hint in hints if name in hint)


def _keys(section: str) -> set[str]:
    own = {"name", PRESET} if section == "method" else set()
    return own | {one.name for record in _records(section) for one in fields(record)}


def _records(section: str) -> list[type[Any]]:
    if section == "method":
        return [method.options for method in METHODS.values()]
    return [type(getattr(Scenario(), section))]


def _row(values: Values, job: Query, stored: Stored) -> SweepRow:
    return SweepRow(
        values=values, state=stored.state, figures=stored.summary, reason=stored.reason, scenario=job.tables
    )


@contextmanager
def result_path(path: str | Path | None) -> Iterator[Path]:
    """The path of the file of results that was named, or of one for now only."""
    if path is not None:
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="halocast-") as directory:
        yield Path(directory) / "results.sqlite"
