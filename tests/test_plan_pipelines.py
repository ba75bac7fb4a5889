"""Stages, ways and chunks are chosen by prediction: the shortest epoch that fits, or a reason why none does."""

import json

import pytest

from halocast.base.errors import InputError
from halocast.cli import run
from halocast.study.pipelines import choose_pipeline, settled, try_pipelines
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario

DEEP = ["method.name=gnnpipe", "graph.dataset=flickr", "model.kind=gcnii", "model.layers=4", "model.hidden=64"]
PLACE = ["cluster.name=a5000-2x4-pcie4-ib200", "cluster.gpus=2"]


def test_the_shortest_epoch_of_all_combinations_is_chosen() -> None:
    scenario = load_scenario("demo", [*DEEP, *PLACE])
    tried = try_pipelines(scenario)
    options = [one.scenario.method.options for one in tried]
    assert [(o.stages, o.ways, o.chunks) for o in options] == [(s, 2 // s, k) for s in (1, 2) for k in (2, 4, 8, 16)]
    chosen = choose_pipeline(scenario)
    assert chosen == min(tried, key=lambda one: one.epoch_s).scenario
    worst = max(one.epoch_s for one in tried)
    assert predict(chosen).summary.epoch_s < 0.9 * worst


def test_what_the_options_say_stays_and_other_scenarios_are_left_alone() -> None:
    scenario = load_scenario("demo", [*DEEP, *PLACE, "method.stages=2", "method.choose=true"])
    options = settled(scenario).method.options
    assert (options.stages, options.ways, options.choose) == (2, 1, False)
    assert settled(load_scenario("demo")) == load_scenario("demo")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["method.name=vanilla"], "method vanilla has no stages and chunks to choose"),
        ([*DEEP, *PLACE, "method.stages=3"], "make up 2 ranks"),
        ([*DEEP, *PLACE, "graph.dataset=reddit", "model.hidden=4096", "method.chunks=4"], "none of 2 .*needs .* GiB"),
    ],
)
def test_where_nothing_can_be_chosen_it_is_said(changes: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        choose_pipeline(load_scenario("demo", changes))


def test_the_command_line_chooses_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for text in (*DEEP, *PLACE, "method.choose=true", "method.stages=2") for word in ("--set", text)]
    assert run(["show", "scenario", "demo", *sets]) == 0
    shown = capsys.readouterr().out
    assert "choose = false" in shown
    assert "chunks = " in shown
    assert run(["simulate", "demo", *sets, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "gnnpipe"
