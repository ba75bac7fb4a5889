"""Presets of methods: `preset = "paper"` in [method] stands for the options that a paper or its released code has.

A preset says defaults: whatever the scenario says itself wins. One may also say keys of other sections ("model.norm").
"""

from collections.abc import Mapping
from typing import Any

from halocast.base.errors import unknown
from halocast.methods import METHODS

PRESET = "preset"  # the key in [method]


def expand_preset(tables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The tables of a scenario with the preset of its method replaced by what it sets."""
    method = tables.get("method")
    if not isinstance(method, Mapping) or PRESET not in method:
        return dict(tables)
    presets = METHODS[method.get("name", "vanilla")].presets
    word = method[PRESET]
    if not isinstance(word, str) or word not in presets:
        raise unknown(PRESET, str(word), presets, where)
    expanded = {**tables, "method": {key: value for key, value in method.items() if key != PRESET}}
    for name, value in presets[word].items():
        section, key = preset_place(name)
        expanded[section] = {key: value, **expanded.get(section, {})}
    return expanded


def preset_place(name: str) -> tuple[str, str]:
    """The section and key that a preset's name means: without a dot, an option of the method."""
    section, dot, key = name.partition(".")
    return (section, key) if dot else ("method", name)
