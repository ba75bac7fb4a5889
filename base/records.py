"""Frozen dataclasses from TOML tables: keys checked against the fields, values against their types and rules.

A field in SI units may be given in others: `latency_s: Seconds` is read from `latency_us`, too, and `bytes_per_s:
ByteRate` from `gbit_per_s`. What the type of a field says of its numbers (`Share`: above 0, at most 1) holds for every
`Checked` record, however it was made; where it came from a file, errors name the key that was written there.
"""

import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from halocast.base.errors import InputError, unknown

T = TypeVar("T")


class Rule(NamedTuple):
    """A rule that every number of a field has to keep, as a condition and in words."""

    holds: Callable[[float], bool]
    says: str


class Unit(NamedTuple):
    """A unit other than SI: the end of its keys, and its factor as a quotient (10 / 1e6 is exact, 10 * 1e-6 is not)."""

    end: str
    times: float
    over: float


class Units(NamedTuple):
    """The end of a field's name in SI units, and the units that a file may give it in, the usual one first."""

    si: str
    others: tuple[Unit, ...]


ABOVE_0 = Rule(lambda number: number > 0, "needs to be a number above 0")
AT_LEAST_0 = Rule(lambda number: number >= 0, "needs to be a number at least 0")
AT_LEAST_1 = Rule(lambda number: number >= 1, "needs to be a number at least 1")
AT_MOST_1 = Rule(lambda number: number <= 1, "a fraction of a peak needs to be at most 1")
TIME = Units("s", (Unit("us", 1, 1e6),))
BYTES = Units("bytes", (Unit("gbytes", 1e9, 1), Unit("mbytes", 1e6, 1)))
BYTE_RATE = Units("bytes_per_s", (Unit("gbytes_per_s", 1e9, 1), Unit("gbit_per_s", 1e9, 8)))
FLOP_RATE = Units("flops_per_s", (Unit("tflops", 1e12, 1),))

Positive = Annotated[float, ABOVE_0]
NotNegative = Annotated[float, AT_LEAST_0]
Factor = Annotated[float, AT_LEAST_1]
Share = Annotated[float, ABOVE_0, AT_MOST_1]
Count = Annotated[int, ABOVE_0]
Seconds = Annotated[float, AT_LEAST_0, TIME]
Bytes = Annotated[float, ABOVE_0, BYTES]
WholeBytes = Annotated[int, ABOVE_0, BYTES]
ByteRate = Annotated[float, ABOVE_0, BYTE_RATE]
FlopRate = Annotated[float, ABOVE_0, FLOP_RATE]


class FieldError(InputError):
    """The error of a number that breaks a rule of its field."""

    def __init__(self, name: str, value: float, says: str) -> None:
        super().__init__(name, value, says)  # all of them, so that it can be pickled
        self.name, self.value, self.says = name, value, says

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.says}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A record whose numbers keep the rules of their fields; a subclass with further ones calls this first."""

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, rules in _rules(cls):
            value = getattr(self, name)
            for rule in rules:
                if value is not None and not rule.holds(value):
                    raise FieldError(name, value, rule.says)


@cache
def _rules(cls: type) -> tuple[tuple[str, tuple[Rule, ...]], ...]:
    hints = get_type_hints(cls, include_extras=True)
    every = ((f.name, tuple(note for note in _notes(hints[f.name]) if isinstance(note, Rule))) for f in fields(cls))
    return tuple((name, rules) for name, rules in every if rules)


def _notes(hint: Any) -> Iterator[Any]:
    """The annotations of a type, or of an arm of a union."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    elif isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        for arm in get_args(hint):
            yield from _notes(arm)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a missing or malformed file is an InputError that names it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML ({error})") from None


def record(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Build `cls` from a table; `where` is the file and section an error names."""
    keys = _keys_by_field(cls, table, where)
    hints = get_type_hints(cls)
    values = {name: convert(hints[name], table[key], f"{where}.{key}", _unit(cls, key)) for name, key in keys.items()}
    try:
        return cls(**values)
    except FieldError as error:
        key = keys.get(error.name, error.name)
        given = error.value if key == error.name else float(table[key])
        raise InputError(f"{where}: {key} = {given}: {error.says}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _keys_by_field(cls: type, table: Mapping[str, Any], where: str) -> dict[str, str]:
    """The key of the table that each field has; unknown keys, missing ones and two of one field are refused."""
    spellings = _spellings(cls)
    keys: dict[str, str] = {}
    for key in table:
        if key not in spellings:
            raise unknown("key", key, spellings, where)
        other = keys.setdefault(spellings[key][0], key)
        require(other == key, f"{where}: {other} and {key} are one quantity in two units: give one of them")
    for field in fields(cls):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in keys:
            usual, *others = [key for key, (name, _) in spellings.items() if name == field.name]
            alternatives = f" (or {', '.join(others)})" if others else ""
            raise InputError(f"{where}: missing key {usual!r}{alternatives}")
    return keys


def _unit(cls: type, key: str) -> Unit | None:
    return _spellings(cls)[key][1]


@cache
def _spellings(cls: type) -> Mapping[str, tuple[str, Unit | None]]:
    """The legal keys: the field of each, and its unit if that is not the field's own."""
    assert is_dataclass(cls)
    hints = get_type_hints(cls, include_extras=True)
    spellings: dict[str, tuple[str, Unit | None]] = {}
    for name in (f.name for f in fields(cls)):
        for si, units in (note for note in _notes(hints[name]) if isinstance(note, Units)):
            assert name == si or name.endswith(f"_{si}"), f"{cls.__name__}.{name} is not in {si}"
            spellings |= {name.removesuffix(si) + unit.end: (name, unit) for unit in units}
        spellings[name] = (name, None)
    return types.MappingProxyType(spellings)


def convert(hint: Any, value: Any, where: str, unit: Unit | None = None) -> Any:
    """Convert `value` to the type `hint`, or raise an InputError; an int serves as a float, a list as a tuple.

    A value in another unit than the field's becomes one in SI units, rounded where the field is a whole number.
    """
    if unit is not None:
        number = _finite(convert(float, value, where) * unit.times / unit.over, where)
        return round(number) if hint is int else number
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        return _convert_union(hint, value, where)
    if get_origin(hint) is tuple:
        return _convert_tuple(hint, value, where)
    if get_origin(hint) is dict:
        return _convert_dict(hint, value, where)
    if isinstance(hint, type) and is_dataclass(hint):
        if isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: expected a table, got {value!r}")
        return record(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _convert_enum(hint, value, where)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(float(value), where)
    if hint is int and isinstance(value, int) and abs(value) >= 2**63:
        raise InputError(f"{where}: {value} is too large")
    if hint is Any or (isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)):
        return value
    raise InputError(f"{where}: expected {_NAMES.get(hint, hint)}, got {value!r}")


def _finite(value: float, where: str) -> float:
    if not isfinite(value):
        raise InputError(f"{where}: expected a finite number, got {value}")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def _convert_union(hint: Any, value: Any, where: str) -> Any:
    arms = [arm for arm in get_args(hint) if arm is not type(None)]
    for arm in arms[:-1]:
        try:
            return convert(arm, value, where)
        except InputError:
            continue
    return convert(arms[-1], value, where)


def _convert_tuple(hint: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{where}: expected a list, got {value!r}")
    item = get_args(hint)[0]
    return tuple(convert(item, one, f"{where}[{k}]") for k, one in enumerate(value))


def _convert_dict(hint: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected a table, got {value!r}")
    item = get_args(hint)[1]
    return {str(key): convert(item, one, f"{where}.{key}") for key, one in value.items()}


def _convert_enum(hint: type[Enum], value: Any, where: str) -> Enum:
    legal = {str(member.value): member for member in hint}
    if not isinstance(value, str) or value not in legal:
        raise unknown("value", str(value), legal, where)
    return legal[value]


def require(condition: bool, message: str) -> None:
    """Raise InputError(message) unless the condition holds; for `__post_init__` of records."""
    if not condition:
        raise InputError(message)


def without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table as TOML can have it, which knows no None: keys without a value are left out, in tables within, too."""
    kept = {key: value for key, value in table.items() if value is not None}
    return {key: without_none(value) if isinstance(value, Mapping) else value for key, value in kept.items()}
