"""Every constant that predictions rest on: its value and the comment beside it where it stands, where it comes from,
and on how many measured figures it was chosen.

Values and their provenance have one home, the TOML file that the prediction reads. `constants.toml` says of each, by
patterns of their names, how it was found and which published rows chose it: a run that chose one is in sample.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from halocast.base.records import read_toml, record
from halocast.study.published_rows import Row, own_figures, read_rows

PLACES = (("machine", "halocast.cluster.machines"), ("code", "halocast.codes"))  # packages of TOML files
DEVICES = "devices"  # the catalogue: its efficiencies hold for all devices
NO_CONSTANTS = ("num_hosts", "devices_per_host", "shared_cores", "price")  # what there is, and what it costs
HEADER = re.compile(r"\[+([\w.\-]+)\]+\s*(?:#\s*(.*))?$")
KEY = re.compile(r"([\w-]+)\s*=")
SENTENCE = re.compile(r"(?<=[.;])\s")
SHEETS = "the device's source says which sheet"
MOST_WORDS = 110  # letters of a provenance in a table


class Origin(StrEnum):
    FITTED = "fitted"  # chosen so that predictions of measured figures agree
    MEASURED = "measured"  # by others or by us, with nothing predicted
    READ = "read"  # in a program, its logs or a paper
    SHEET = "data sheet"
    ASSUMED = "assumed"
    UNSAID = "not said"  # constants.toml does not know it


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How the constants of some names were found; `rows` are columns and values of the published rows that chose them,
    `num` figures of other tables that did."""

    names: tuple[str, ...]
    origin: Origin
    data: str = ""
    num: int = 0
    rows: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFile:
    constants: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A constant, or equal ones of several files."""

    name: str
    values: tuple[str, ...]
    places: tuple[str, ...]
    origin: Origin
    num_fitted: int  # measured figures that it was chosen from
    data: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "values": list(self.values),
            "places": list(self.places),
            "origin": str(self.origin),
            "fitted_on": self.num_fitted,
            "data": self.data,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """A constant where it stands."""

    name: str
    value: str
    place: str
    why: str


def list_constants() -> list[Constant]:
    """All constants by name, with equal names of several files together."""
    rows = [row for path in own_figures() for row in read_rows(path)]
    by_name: dict[str, list[Found]] = {}
    for constant in found_constants():
        by_name.setdefault(constant.name, []).append(constant)
    return [_constant(name, same, rows) for name, same in by_name.items()]


def _constant(name: str, same: Sequence[Found], rows: Iterable[Row]) -> Constant:
    entry = entry_of(name)
    return Constant(
        name=name,
        values=tuple(dict.fromkeys(constant.value for constant in same)),
        places=tuple(constant.place for constant in same),
        origin=entry.origin,
        num_fitted=entry.num + sum(_matches(row, entry.rows) for row in rows),
        data=entry.data,
        why=SHEETS if name.startswith("device.") else next((constant.why for constant in same if constant.why), ""),
    )


def entry_of(name: str) -> Entry:
    """The first entry that has a pattern for the name."""
    for entry in entries():
        if any(fnmatchcase(name, pattern) for pattern in entry.names):
            return entry
    return Entry(names=(name,), origin=Origin.UNSAID)


@cache
def entries() -> tuple[Entry, ...]:
    path = Path(str(files("halocast.study"))) / "constants.toml"
    return record(EntryFile, read_toml(path), str(path)).constants


def is_in_sample(row: Row) -> bool:
    """Whether a constant was chosen from figures of the row's run: rows of one run differ in what was measured only."""
    return any(
        _matches(row, [{key: value for key, value in chosen.items() if key != "metric"} for chosen in entry.rows])
        for entry in entries()
    )


def _matches(row: Row, chosen: Iterable[Mapping[str, str]]) -> bool:
    """Whether one of the descriptions fits the row: every column that it names has such a value."""
    return any(all(fnmatchcase(row[key], value) for key, value in columns.items()) for columns in chosen)


def found_constants() -> Iterator[Found]:
    """Every number of the machines' and the codes' files, with the comment that stands beside it."""
    for what, package in PLACES:
        for path in _toml_files(package):
            text = path.read_text(encoding="utf-8")
            comments = _comments(text)
            for keys, value in _numbers(tomllib.loads(text)):
                if keys[0] not in NO_CONSTANTS:
                    place = f"{path.name} [{'.'.join(keys[:-1])}]"
                    yield Found(_name(what, path.stem, keys), _shown(value), place, comments.get(keys, ""))


def _name(what: str, stem: str, keys: tuple[str, ...]) -> str:
    """Codes have names of their own; of machines and devices, a table's key means the same for all."""
    if keys[0] == DEVICES:
        return f"device.{keys[-1]}"
    return ".".join((stem, *keys) if what == "code" else keys)


def _toml_files(package: str) -> list[Path]:
    try:
        import_module(package)
    except ModuleNotFoundError:
        return []
    return sorted(Path(str(files(package))).glob("*.toml"))


def _numbers(table: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _numbers(value, (*keys, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*keys, key), value


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def _comments(text: str) -> dict[tuple[str, ...], str]:
    """The comment behind each key, or the block above it, which several keys may share."""
    gathered: dict[tuple[str, ...], str] = {}
    table: tuple[str, ...] = ()
    block: list[str] = []
    begun = False  # whether the next comment goes on with the block
    for said in map(str.strip, text.splitlines()):
        if said.startswith("#"):
            block = [*(block if begun else ()), said.lstrip("# ")]
            begun = True
            continue
        begun = False
        if header := HEADER.match(said):
            table, block = tuple(header[1].split(".")), [header[2]] if header[2] else block
        elif key := KEY.match(said):
            gathered[*table, key[1]] = said.partition("  # ")[2] or " ".join(block)
        else:
            block = []
    return gathered


def first_sentence(text: str) -> str:
    """The start of a provenance, for a table."""
    start = SENTENCE.split(text, maxsplit=1)[0].strip()
    return start if len(start) <= MOST_WORDS else start[: MOST_WORDS - 1].rstrip() + "…"
