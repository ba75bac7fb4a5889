"""Stale rows cost little accuracy: every method against vanilla after as many epochs, nothing tuned per method.

Final accuracies are means of the last few evaluations, since a single one moves by half a point from epoch to epoch;
they may be better than vanilla's, not worse by more than allowed. On real graphs, which take minutes, studies of
convergence do the same with an equal search of learning rates.
"""

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from training import metis_parts, small_graph, spec_for, train

from halocast.study.converge import converge
from halocast.study.scenario import load_tables

DATA = Path(__file__).parents[2] / "shared" / "data"
REAL = ("model.layers=2", "model.hidden=64", "cluster.gpus=2", "run.epochs=150", "run.timeout_s=1200")
GRAPH = small_graph(nodes=3000, degree=10, classes=6, features=32)
SPEC = spec_for(GRAPH, hidden=32, dropout=0.5)
EPOCHS, EVERY, COUNTED = 120, 10, 4


def final_points(directory: Path, method: str, **options: Any) -> float:
    """Test accuracy in per cent: the mean of the last evaluations."""
    trained = train(
        GRAPH,
        metis_parts(GRAPH, 2),
        SPEC,
        directory,
        method=method,
        options=options,
        dtype="float32",
        epochs=EPOCHS,
        eval_every=EVERY,
        threads=1,
    )
    return 100 * mean(scores["test"] for scores in list(trained.run.evaluated.values())[-COUNTED:])


@pytest.fixture(scope="module")
def vanilla(tmp_path_factory: pytest.TempPathFactory) -> float:
    return final_points(tmp_path_factory.mktemp("vanilla"), "vanilla")


def test_vanilla_has_learnt_the_graph(vanilla: float) -> None:
    assert vanilla > 90  # of six classes


@pytest.mark.parametrize(
    ("method", "options", "allowed"),
    [
        ("pipegcn", {}, 1.0),
        ("pipegcn-f", {}, 1.0),
        ("pipegcn-g", {}, 1.0),
        ("pipegcn-gf", {}, 1.0),
        ("digest", {"interval": 1}, 2.0),
        ("digest", {"interval": 5}, 2.0),
        ("digest", {"interval": 10}, 2.0),
    ],
)
def test_a_stale_method_ends_within_its_points_of_vanilla(
    tmp_path: Path, vanilla: float, method: str, options: dict[str, Any], allowed: float
) -> None:
    assert final_points(tmp_path, method, **options) >= vanilla - allowed


def test_ranks_that_run_freely_within_a_bound_end_within_two_points_of_vanilla(tmp_path: Path, vanilla: float) -> None:
    """No two such runs are alike, not even with one seed: the mean of three is compared."""
    found = [final_points(tmp_path / str(k), "digest-a", bound=1) for k in range(3)]
    assert mean(found) >= vanilla - 2, found


def lost_points(name: str, cases: list[str]) -> dict[str, float]:
    """Points that cases lose to vanilla on a real graph, each with the best of three learning rates on validation."""
    path = DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{name}.npz is not beside the project")
    tables = load_tables(None, [f"graph.dataset={path}", *REAL])
    cases = ["vanilla", *cases]
    study = converge(tables, cases=cases, tune={"run.lr": [0.003, 0.01, 0.03]}, seeds=3, tune_seeds=2, patience=0)
    return {row.label: -100 * row.difference.mean for row in study.scores if row.difference is not None}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pubmed", "amazon-computers"])
def test_on_real_graphs_too(name: str) -> None:
    allowed = {"pipegcn": 1.0, "pipegcn-gf": 1.0, "digest interval=10": 2.0, "bns rate=0.1": 1.5}
    lost = lost_points(name, list(allowed))
    assert {case: lost[case] for case, points in allowed.items() if lost[case] > points} == {}


@pytest.mark.slow
@pytest.mark.xfail(strict=False, reason="one neighbour of few is a poor estimate: see docs/methods/psc.md")
@pytest.mark.parametrize("name", ["pubmed", "amazon-computers"])
def test_sampled_neighbours_on_real_graphs_too(name: str) -> None:
    assert max(lost_points(name, ["psc tau=1", "psc tau=2"]).values()) <= 1.5
