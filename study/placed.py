"""Cases on machines: what a study of accuracy over predicted time trains, and on which cluster it is timed."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.study.cases import Case
from halocast.study.results import Tables
from halocast.study.scenario import set_key
from halocast.study.sweep import key_place

MACHINE = ("cluster", "world")  # sections whose keys change the machine; those of others change the case
SINGLE = Case(label="one device", method="vanilla", overrides={})  # the whole graph on one device
Setting = Mapping[str, Any]  # values of varied keys of the machine, by section.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A case on a machine: the scenario that is timed, and the setting that its group has in common."""

    case: Case
    setting: Setting
    tables: Tables

    @property
    def is_single(self) -> bool:
        """Whether this is the whole graph on one device, with which all others are compared."""
        return self.case is SINGLE


def divided(vary: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Sequence[Any]], dict[str, Sequence[Any]]]:
    """What is varied, divided into keys of cases and keys of machines."""
    machine = {key: values for key, values in vary.items() if key_place(key)[0] in MACHINE}
    return {key: values for key, values in vary.items() if key not in machine}, machine


def settings(vary: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """All combinations of the values of a machine's keys."""
    for key, values in vary.items():
        require(len(values) > 0, f"vary {key}: no values")
    return [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]


def placed(tables: Tables, cases: Sequence[Case], vary: Mapping[str, Sequence[Any]]) -> list[Placed]:
    """Every case in every setting, and in each the whole graph on one device."""
    return [case for setting in settings(vary) for case in _group(tables, cases, setting)]


def _group(tables: Tables, cases: Sequence[Case], setting: Setting) -> Iterator[Placed]:
    changed = deepcopy(tables)
    for key, value in setting.items():
        set_key(changed, *key_place(key), value)
    for case in cases:
        yield Placed(case=case, setting=setting, tables=case.tables(changed))
    yield Placed(case=SINGLE, setting=setting, tables=_on_one_device(changed))


def _on_one_device(tables: Tables) -> Tables:
    """The scenario on the first device of its cluster, in a perfect world: stragglers are a matter of several."""
    alone = SINGLE.tables(tables)
    alone["cluster"] = {key: value for key, value in tables.get("cluster", {}).items() if key not in ("gpus", "hosts")}
    alone["cluster"]["gpus"] = 1
    alone["graph"] = {key: value for key, value in tables.get("graph", {}).items() if key != "parts"}
    alone.pop("world", None)
    return alone


def require_some_placed(reasons: Sequence[str]) -> None:
    """Refuse a study in which no case can be timed: the first reason is the user's mistake."""
    if reasons and all(reasons):
        raise InputError(f"none of {len(reasons)} cases can be predicted; the first: {reasons[0]}")
