"""A scenario is written as TOML that is read back as the same scenario."""

from pathlib import Path

import pytest

from halocast.study.scenario import format_scenario, load_scenario

SETTINGS = {
    "as it is": [],
    "a sampled method": ["method.name=bns", "method.rate=0.1"],
    "numbers that need their digits": ["run.lr=0.30000000000000004", "graph.degree=1e22"],
    "a name with quotes and a line end": ['run.store="a \\"b\\"\\n\\\\c\\u007f"'],
    "lists and tables": ["plan.gpus=[1, 2]", 'plan.methods=["bns", "psc"]', 'world.speed={"0" = 0.5}'],
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", ["demo", "products"])
def test_a_scenario_comes_back_as_it_was(tmp_path: Path, name: str, settings: list[str]) -> None:
    scenario = load_scenario(name, settings)
    path = tmp_path / "s.toml"
    path.write_text(format_scenario(scenario), encoding="utf-8")
    assert load_scenario(str(path)) == scenario
