"""Training learns: the public split of cora where it is present, and a synthetic twin of the same size everywhere."""

import json
from pathlib import Path

import pytest

from halocast.cli import run

CORA = Path(__file__).parents[2] / "shared" / "data" / "cora.npz"
MODEL = ["model.kind=gcn", "model.layers=2", "model.hidden=64", "model.dropout=0.7"]
RUN = ["run.epochs=100", "run.lr=0.01", "run.weight_decay=0.0005"]


def final_test_accuracy(capsys: pytest.CaptureFixture[str], *settings: str) -> float:
    overrides = [part for setting in (*MODEL, *RUN, *settings) for part in ("--set", setting)]
    assert run(["run", "--ranks", "2", "--json", *overrides]) == 0
    return float(json.loads(capsys.readouterr().out)["final_accuracy"]["test"])


@pytest.mark.skipif(not CORA.exists(), reason="cora.npz is not beside the project")
def test_a_two_layer_gcn_on_cora_reaches_its_known_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    assert final_test_accuracy(capsys, f"graph.dataset={CORA}") >= 0.79


@pytest.mark.skipif(not CORA.exists(), reason="squirrel.npz is not beside the project")
def test_a_dense_real_graph_trains_in_float32(capsys: pytest.CaptureFixture[str]) -> None:
    """Squirrel: 76 neighbours per node and 2,089 features, the shape that crashed dgl's blocked kernel."""
    dataset = CORA.with_name("squirrel.npz")
    assert final_test_accuracy(capsys, f"graph.dataset={dataset}", "model.kind=sage", "run.epochs=5") > 0.2


def test_a_two_layer_gcn_learns_a_synthetic_graph_of_coras_size(capsys: pytest.CaptureFixture[str]) -> None:
    # random parts: without the halo rows half of every neighbourhood would be missing
    twin = ["graph.nodes=2708", "graph.degree=4", "graph.classes=7", "graph.features=64", "graph.mixing=0.1"]
    twin.append("graph.partitioner=random")
    assert final_test_accuracy(capsys, *twin) >= 0.79
