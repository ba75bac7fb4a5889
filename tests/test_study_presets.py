"""Presets of methods: defaults by one word, which whatever a scenario says wins over, and the pages that list them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from halocast.base.errors import InputError
from halocast.methods import METHODS
from halocast.study.presets import expand_preset
from halocast.study.scenario import Scenario, build_scenario, load_scenario, tables_of
from halocast.study.sweep import combine, sweep

PAGES = Path(__file__).parents[1] / "docs" / "methods"
HAVE_PRESETS = [name for name, method in METHODS.items() if method.presets]


def digest(**more: Any) -> Scenario:
    return build_scenario({"method": {"name": "digest", "preset": "paper"}, **more}, "s")


def test_a_preset_sets_options_and_keys_of_other_sections() -> None:
    scenario = digest()
    assert (scenario.method.options.average, scenario.method.options.interval) == ("plain", 10)
    assert scenario.model.norm == "l2"
    assert tables_of(scenario)["method"] == {"name": "digest", "interval": 10, "average": "plain"}


def test_what_the_scenario_says_itself_wins() -> None:
    method = {"name": "digest", "preset": "paper", "interval": 3}
    scenario = build_scenario({"method": method, "model": {"norm": "none"}}, "s")
    assert (scenario.method.options.interval, scenario.method.options.average) == (3, "plain")
    assert scenario.model.norm == "none"


def test_after_expansion_a_scenario_is_plain_options() -> None:
    scenario = load_scenario(None, ["method.name=gnnpipe", "method.preset=code"])
    assert (scenario.method.options.lockstep, scenario.method.options.cross_factor) == (True, 2.0)
    assert build_scenario(tables_of(scenario), "again") == scenario


@pytest.mark.parametrize(
    ("method", "word", "said"),
    [
        ("pipegcn", "papr", "s [method]: unknown preset 'papr'; did you mean 'paper'? (known: code, paper)"),
        ("digest", "code", "s [method]: unknown preset 'code' (known: paper)"),
        ("vanilla", "paper", "s [method]: unknown preset 'paper' (known: none)"),
        ("pipegcn", 3, "s [method]: unknown preset '3' (known: code, paper)"),
    ],
)
def test_an_unknown_preset_is_refused_with_the_legal_ones(method: str, word: Any, said: str) -> None:
    with pytest.raises(InputError) as refused:
        build_scenario({"method": {"name": method, "preset": word}}, "s")
    assert str(refused.value) == said


@pytest.mark.parametrize("name", HAVE_PRESETS)
def test_every_preset_is_legal_and_says_what_it_sets(name: str) -> None:
    for word, values in METHODS[name].presets.items():
        tables = {"method": {"name": name, "preset": word}}
        whole = tables_of(build_scenario(tables, "s"))
        for section, table in expand_preset(tables, "s").items():
            assert table.items() <= whole[section].items()
        assert len(values) == sum(map(len, expand_preset(tables, "s").values())) - 1  # the name


def test_a_sweep_may_vary_the_preset_of_a_scenario_from_memory() -> None:
    scenario = Scenario.load("demo", "graph.nodes=300", "graph.degree=6", "method.name=pipegcn", "method.gamma=0.5")
    rows = sweep(scenario, {"method.preset": ["paper", "code"]}, jobs=1).rows
    assert [row.scenario["method"]["lanes"] for row in rows] == ["stream", "layer"]
    assert [row.scenario["method"]["gamma"] for row in rows] == [0.5, 0.5]
    assert all(row.figures for row in rows)


def test_a_sweep_may_vary_method_and_preset_together() -> None:
    vary = {"method.preset": ["paper", "code"], "method.name": ["gnnpipe", "digest"]}
    reasons = [query.reason for _, query in combine({}, vary)]
    assert reasons == ["", "", "", "[method]: unknown preset 'code' (known: paper)"]


def written(values: Mapping[str, Any]) -> str:
    plain = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}
    return ", ".join(f"`{key} = {value}`" for key, value in plain.items())


@pytest.mark.parametrize("family", sorted({name.partition("-")[0] for name in HAVE_PRESETS}))
def test_the_page_of_a_method_lists_what_its_presets_set(family: str) -> None:
    """Variants that have the same presets share rows; else each row names its method."""
    presets = {name: METHODS[name].presets for name in sorted(HAVE_PRESETS) if name.partition("-")[0] == family}
    shared = all(each == presets[family] for each in presets.values())
    rows = [
        ([] if shared else [f"`{name}`"]) + [f"`{word}`", written(values)]
        for name, each in presets.items()
        for word, values in each.items()
        if not shared or name == family
    ]
    text = (PAGES / f"{family}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\|.* `(?:paper|code)` \| .*$", text, re.MULTILINE)
    assert listed == [f"| {' | '.join(cells)} |" for cells in rows]
