"""Sampling methods on the command line: mistakes are told in one line, what is drawn as a band."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from halocast.cli import run
from halocast.methods import bns, psc
from halocast.study.scenario import load_scenario

SMALL = ("graph.nodes=400", "graph.degree=8", "model.hidden=16", "run.epochs=4", "cluster.name=cpu-local")


def call(capsys: pytest.CaptureFixture[str], command: str, *settings: str, options: tuple[str, ...] = ()) -> Any:
    """Exit code, stdout, stderr."""
    code = run([command, *options, *(word for s in (*SMALL, *settings) for word in ("--set", s))])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("command", ["simulate", "run"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("method.name=bns", "method.rate=1.5"), "rate = 1.5: needs 0 <= rate <= 1"),
        (("method.name=bns", "method.rate=-0.1"), "rate = -0.1: needs 0 <= rate <= 1"),
        (("method.name=bns", "method.rate=nan"), "rate: expected a finite number, got nan"),
        (("method.name=bns", "method.what=rows"), "what: unknown value 'rows' (known: dropedge, edges, nodes)"),
        (("method.name=bns", "method.draw=all"), "draw: unknown value 'all' (known: bernoulli, floor, rounded)"),
        (("method.name=bns", "method.mean=none"), "mean: unknown value 'none' (known: full, renormalised)"),
        (("method.name=psc", "method.draws=two"), "draws: unknown value 'two' (known: each, one)"),
        (("method.name=psc", "method.eps=1.01"), "eps = 1.01: needs 0 < eps <= 1"),
        (("method.name=psc", "method.eps=0"), "eps = 0.0: needs 0 < eps <= 1"),
        (("method.name=psc", "method.tau=-1"), "tau = -1: needs to be at least 0"),
        (("method.name=psc", "method.cache=-0.5"), "cache = -0.5: needs 0 <= cache <= 1"),
        (("method.name=psc", "method.weighting=none"), "weighting: unknown value 'none'"),
    ],
)
def test_impossible_options_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], command: str, settings: tuple[str, ...], message: str
) -> None:
    code, out, err = call(capsys, command, *settings)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("command", ["simulate", "run"])
def test_a_cache_that_saves_nothing_is_warned_of(capsys: pytest.CaptureFixture[str], command: str) -> None:
    useless = ("method.name=psc", "method.cache=0.2", "model.precompute=true")
    code, out, _ = call(capsys, command, *useless)
    assert code == 0
    assert "warning: psc: cache = 0.2 is of no use with precompute" in out
    _, out, _ = call(capsys, command, *useless, options=("--json",))
    assert len(json.loads(out)["warnings"]) == 1
    _, out, _ = call(capsys, command, *useless[:2])
    assert "warning" not in out


def test_a_run_tells_its_cache_hits_beside_the_expected_ones(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("method.name=psc", "method.cache=0.4", "run.epochs=12")
    _, out, _ = call(capsys, "run", *settings)
    assert re.search(r"^cache hits: \d+\.\d% of [\d,]+ \(expected \d+\.\d%\)$", out, re.MULTILINE)
    _, out, _ = call(capsys, "run", *settings, options=("--json",))
    (share,) = json.loads(out)["shares"]
    assert share["what"] == "cache hits"
    assert 0.4 * share["total"] < share["count"] < share["expected"] < share["total"]
    _, out, _ = call(capsys, "run", *settings[:1])
    assert "cache hits" not in out


@pytest.mark.parametrize(("method", "presets"), [("bns", bns.PRESETS), ("psc", psc.PRESETS)])
def test_presets_are_legal_options(method: str, presets: Mapping[str, Mapping[str, Any]]) -> None:
    assert set(presets) == {"paper", "code"}
    for preset in presets.values():
        words = [f"method.{key}={value}" for key, value in preset.items()]
        chosen = load_scenario(None, (f"method.name={method}", *words)).method.options
        assert {key: str(getattr(chosen, key)) for key in preset} == {key: str(value) for key, value in preset.items()}


@pytest.mark.parametrize("dataset", ["synthetic", "reddit"])
def test_drawn_traffic_is_told_as_a_band(capsys: pytest.CaptureFixture[str], dataset: str) -> None:
    _, out, _ = call(capsys, "simulate", "method.name=psc", f"graph.dataset={dataset}", options=("--json",))
    found = json.loads(out)
    low, high = found["drawn_bytes_band"]
    assert low < found["drawn_bytes"] < high
    assert all(pair["std"] > 0 for pair in found["drawn_rows"])
    _, out, _ = call(capsys, "simulate", "method.name=psc", f"graph.dataset={dataset}")
    assert "drawn traffic, 95 % of epochs:" in out


@pytest.mark.parametrize(
    "settings", [("method.name=bns", "method.rate=0.001"), ("method.name=psc", "method.eps=0.001")]
)
def test_draws_of_nothing_run(capsys: pytest.CaptureFixture[str], settings: tuple[str, ...]) -> None:
    code, out, _ = call(capsys, "run", *settings, options=("--json",))
    assert code == 0
    assert json.loads(out)["bytes_per_epoch_by_op"].get("exchange.1", 0) < 5000
