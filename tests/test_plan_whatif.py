"""What if: doubled resources ranked, break-even by bisection; and the example of the Python API."""

import json
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from halocast.base.errors import InputError
from halocast.cli import run
from halocast.study.predict import predict
from halocast.study.scenario import Scenario
from halocast.study.sweep import is_whole
from halocast.study.whatif import break_even, whatif

ROOT = Path(__file__).parents[1]
SMALL = ("graph.dataset=reddit", "model.hidden=32", "model.layers=2", "cluster.name=l4-8x1-25gbe", "cluster.gpus=2")
SETS = [part for text in SMALL for part in ("--set", text)]


def test_doubled_resources_are_ranked_and_equal_their_own_predictions() -> None:
    found = whatif(Scenario.load("demo", *SMALL, "cluster.network_gbps=1"), jobs=1)
    assert found.bottleneck.resource == "network"
    speedups = [gain.speedup for gain in found.gains if gain.speedup is not None]
    assert speedups == sorted(speedups, reverse=True)
    by_name = {gain.resource: gain for gain in found.gains}
    double = predict(Scenario.load("demo", *SMALL, "cluster.network_gbps=2"), lean=True).summary
    assert by_name["network"].figures == double
    assert by_name["device memory"].speedup == 1.0
    more = by_name["hosts, and with them GPUs"].figures
    assert more is not None
    assert more.ranks == 4
    assert "has no such links" in by_name["NVLink"].reason


def test_a_crossing_is_where_both_epochs_are_equal(tmp_path: Path) -> None:
    scenario = Scenario.load("demo", *SMALL)
    methods = ({"name": "bns", "rate": 0.5}, {"name": "pipegcn"})
    even = break_even(scenario, methods, "cluster.network_gbps", (0.5, 400.0), results=tmp_path / "r.sqlite", jobs=1)
    signs = [a < b for a, b in zip(*even.epochs_s, strict=True)]
    assert len(even.crossings) == sum(one != two for one, two in pairwise(signs))
    assert even.crossings
    for at in even.crossings:
        here = [f"cluster.network_gbps={at}"]
        one = predict(Scenario.load("demo", *SMALL, *here, "method.name=bns", "method.rate=0.5"), lean=True).summary
        two = predict(Scenario.load("demo", *SMALL, *here, "method.name=pipegcn"), lean=True).summary
        assert one.epoch_s == pytest.approx(two.epoch_s, rel=0.01)


def test_an_option_of_one_method_leaves_the_other_level() -> None:
    scenario = Scenario.load("demo", *SMALL)
    even = break_even(scenario, ({"name": "bns"}, {"name": "vanilla"}), "method.rate", (0.1, 1.0), jobs=1)
    assert len(set(even.epochs_s[1])) == 1
    assert even.epochs_s[0] == tuple(sorted(even.epochs_s[0]))


def test_whole_keys_stay_whole() -> None:
    assert [is_whole(key) for key in ("cluster.gpus", "method.interval", "method.rate", "cluster.network_gbps")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_commands_print_verdict_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["whatif", *SETS, "--jobs", "1"]) == 0
    assert "an epoch. Your bottleneck: " in capsys.readouterr().out
    figure = tmp_path / "even.svg"
    vary = ["--vary", "cluster.gpus=1:3", "--figure", str(figure)]
    assert run(["breakeven", "vanilla", "bns,rate=0.1", *vary, *SETS, "--jobs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["x"] == [1, 2, 3]
    assert "<svg" in figure.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["vanilla", "bsn", "--vary", "cluster.gpus=1:2"], "did you mean 'bns'"),
        (["vanilla", "bns", "--vary", "cluster.gpus=2"], "expected section.key=low:high"),
        (["vanilla", "bns", "--vary", "cluster.gpus=4:2"], "needs low < high"),
        (["vanilla", "bns", "--vary", "cluster.gpus=1:2", "--figure", "x.gif"], "a figure ends in .png or .svg"),
        (["vanilla", "bns,rat=1", "--vary", "cluster.gpus=1:2"], "did you mean 'rate'"),
    ],
)
def test_mistakes_are_named(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["breakeven", *args, *SETS, "--jobs", "1"]) == 2
    assert said in capsys.readouterr().err


def test_a_value_without_a_prediction_is_named() -> None:
    methods = ({"name": "vanilla"}, {"name": "bns"})
    with pytest.raises(InputError, match=r"cluster.gpus = 9: gpus = 9: cluster l4-8x1-25gbe has 1 to 8"):
        break_even(Scenario.load("demo", *SMALL), methods, "cluster.gpus", (7, 9), jobs=1)


def test_the_example_of_the_python_api_runs(capsys: pytest.CaptureFixture[str]) -> None:
    values = runpy.run_path(str(ROOT / "examples" / "plan_api.py"))
    assert len(values["frame"]) == 6
    assert [values["plan"].best_exact.candidate.method, values["plan"].best_approximate.candidate.method] == [
        "vanilla",
        "bns",
    ]
    assert "bottleneck: " in capsys.readouterr().out
