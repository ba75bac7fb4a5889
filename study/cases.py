"""Cases of a study: a method with keys of the scenario overridden, written in a line or combined from values."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from halocast.base.errors import unknown
from halocast.base.records import require
from halocast.methods import METHODS
from halocast.study.presets import PRESET
from halocast.study.scenario import parse_override, set_key
from halocast.study.sweep import key_place

# words of a case: spaces within {tables} and [lists] are parts of their values
WORD = re.compile(r"(?:[^\s{\[]|\{[^}]*\}|\[[^\]]*\])+")
NOT_THE_BASES = ("method", "world")  # sections in which a case may differ from the one it is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A method and what else is overridden of a scenario, by section.key."""

    label: str
    method: str
    overrides: Mapping[str, Any]

    def tables(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The tables of a scenario with this case's keys; options of its own method stay with that method only."""
        tables = deepcopy(dict(base))
        own = tables.get("method", {})
        tables["method"] = {**(own if own.get("name", "vanilla") == self.method else {}), "name": self.method}
        for place, value in self.overrides.items():
            set_key(tables, *key_place(place), value)
        return tables

    @property
    def setting(self) -> dict[str, Any]:
        """What is overridden, by a preset too, that a case to compare with must have as well."""
        preset = METHODS[self.method].presets.get(str(self.overrides.get(f"method.{PRESET}")), {})
        said = {**{key: value for key, value in preset.items() if "." in key}, **self.overrides}
        return {key: value for key, value in said.items() if key.partition(".")[0] not in NOT_THE_BASES}


def parse_case(text: str) -> Case:
    """Parse `bns rate=0.1 model.layers=2`: a method, then keys, of [method] where no section is said.

    `NAME: bns rate=0.1` gives the case another name than its text.
    """
    label, colon, rest = text.partition(": ")
    spec = rest if colon else text
    words = WORD.findall(spec)
    require(bool(words), f"--case {text!r}: expected a method and keys, for example 'bns rate=0.1'")
    method, *keys = words
    if method not in METHODS:
        raise unknown("method", method, METHODS, f"--case {text!r}")
    overrides: dict[str, Any] = {}
    for word in keys:
        place, equals, value = word.partition("=")
        require(bool(equals and value), f"--case {text!r}: {word!r} is no key=value")
        place = place if "." in place else f"method.{place}"
        require(place != "method.name", f"--case {text!r}: the method is the first word, not name=")
        key_place(place, "case")
        overrides[place] = parse_override(f"{place}={value}")[2]
    return Case(label=(label if colon else " ".join(words)).strip(), method=method, overrides=overrides)


def combined_cases(methods: Sequence[str], vary: Mapping[str, Sequence[Any]]) -> list[Case]:
    """All combinations of methods and values; an option that a method does not have is not varied for it."""
    for key, values in vary.items():
        key_place(key)
        require(len(values) > 0, f"vary {key}: no values")
        has = any(has_option(method, key) for method in methods)
        require(has, f"vary {key}: none of {', '.join(methods)} has this option")
    return [case for method in methods for case in _combined(method, vary)]


def _combined(method: str, vary: Mapping[str, Sequence[Any]]) -> Iterator[Case]:
    own = {key: values for key, values in vary.items() if has_option(method, key)}
    for values in product(*own.values()):
        overrides = dict(zip(own, values, strict=True))
        words = [f"{key.removeprefix('method.')}={_written(value)}" for key, value in overrides.items()]
        yield Case(label=" ".join([method, *words]), method=method, overrides=overrides)


def has_option(method: str, key: str) -> bool:
    """Whether a method takes a key; those of other sections than its own all do."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    section, name = key_place(key)
    if section != "method":
        return True
    if name == PRESET:
        return bool(METHODS[method].presets)
    return any(option.name == name for option in fields(METHODS[method].options))


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def base_of(case: Case, cases: Sequence[Case], named: str | None = None) -> Case:
    """The case that another is compared with: the one named, else vanilla in the same setting, else the first."""
    if named is not None:
        by_label = {other.label: other for other in cases}
        if named not in by_label:
            raise unknown("case", named, by_label, "baseline")
        return by_label[named]
    same = (other for other in cases if other.method == "vanilla" and other.setting == case.setting)
    return next(same, cases[0])


def require_own_options_used(tables: Mapping[str, Any], cases: Sequence[Case]) -> None:
    """Refuse options of the scenario's own method where no case has that method: nobody would see them."""
    own = tables.get("method", {})
    name, options = own.get("name", "vanilla"), [key for key in own if key != "name"]
    used = not options or any(case.method == name for case in cases)
    which = ", ".join(f"method.{key}" for key in options)
    require(used, f"{which}: said of {name}, the scenario's method, which is no case; say it in a case: 'bns rate=0.1'")


def require_distinct(cases: Sequence[Case]) -> None:
    """Refuse cases of which two have one name."""
    labels = [case.label for case in cases]
    for label in labels:
        require(labels.count(label) == 1, f"case {label!r}: given twice; 'NAME: {label}' gives one another name")
