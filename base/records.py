"""Frozen dataclasses from TOML tables: every key checked against the fields, every value against its type."""

import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from halocast.base.errors import InputError, unknown

T = TypeVar("T")


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
    assert is_dataclass(cls)
    hints = get_type_hints(cls)
    known = {f.name for f in fields(cls)}
    for key in table:
        if key not in known:
            raise unknown("key", key, known, where)
    missing = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    for name in missing:
        if name not in table:
            raise InputError(f"{where}: missing key {name!r}")
    values = {key: convert(hints[key], value, f"{where}.{key}") for key, value in table.items()}
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type `hint`, or an InputError; an int serves as a float, a list as a tuple."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        return _convert_union(hint, value, where)
    if get_origin(hint) is tuple:
        return _convert_tuple(hint, value, where)
    if get_origin(hint) is dict:
        return _convert_dict(hint, value, where)
    if isinstance(hint, type) and is_dataclass(hint):
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
