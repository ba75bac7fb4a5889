"""Inductive runs train on the train nodes' graph and are scored on the whole one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training import small_graph

from halocast.exec.launch.job import MASKS, Job, Settings
from halocast.exec.launch.local import Run, execute
from halocast.exec.run.reference import Reference, train_reference, whole_graph
from halocast.exec.run.state import flatten
from halocast.graph import Graph
from halocast.graph.graph import induced
from halocast.graph.partition import extended
from halocast.methods import METHODS
from halocast.models.modules import build_model, hits
from halocast.models.spec import ModelSpec
from halocast.study.run import prepare_run, run_workload
from halocast.study.scenario import load_scenario
from halocast.study.workload import Workload, prepare

WHOLE = small_graph()
TRAINED = induced(WHOLE, WHOLE.train_mask)
DEEP: dict[str, Any] = {"kind": "gcnii", "layers": 3, "norm": "none"}
# of every method, the options by which it computes what one process does
EXACT: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "pipegcn": {"lag": 0},
    "bns": {"rate": 1.0},
    "psc": {"tau": 0, "eps": 1.0},
    "gnnpipe": {"chunks": 1, "stages": 2},
}


def workload_of(method: str, options: dict[str, Any], model: dict[str, Any], *more: str) -> Workload:
    chosen = {"kind": "sage", "layers": 3, "hidden": 16, "dropout": 0.0} | model
    settings = [f"method.{key}={str(value).lower()}" for key, value in options.items()]
    settings += [f"model.{key}={str(value).lower()}" for key, value in chosen.items()]
    settings += ["run.epochs=4", "run.seed=5", "run.dtype=float64", "graph.inductive=true", "graph.partitioner=random"]
    scenario = load_scenario("demo", [f"method.name={method}", *settings, *more])
    return prepare_run(scenario, 2, graph=WHOLE)


def train(workload: Workload, directory: Path, **changes: Any) -> tuple[Run, Tensor]:
    """The run, and the logits that were scored, in the whole graph's order."""
    settings = Settings(**{"epochs": 4, "seed": 5, "dtype": "float64", "audit": True, **changes})
    job = Job(schedule=workload.schedule, spec=workload.spec, settings=settings)
    done = execute(job, workload.parts(), scored=workload.scored(), keep=directory)
    scored = list(workload.scored())
    found = [torch.load(directory / f"audit-{rank}.pt")["logits"] for rank in range(workload.schedule.num_ranks)]
    found = found[:1] if METHODS[workload.scenario.method.name].chunks else found
    logits = torch.zeros(WHOLE.num_nodes, WHOLE.num_classes, dtype=torch.float64)
    logits[torch.from_numpy(np.concatenate([part.inner for part in scored]))] = torch.cat(found)
    return done, logits


def expected_of(spec: ModelSpec, lr: float = 0.01) -> Reference:
    return train_reference(TRAINED, spec, num_epochs=4, lr=lr, seed=5, dtype=torch.float64, scored=WHOLE)


def scores_of(logits: Tensor, graph: Graph) -> dict[str, float]:
    masks = dict(zip(MASKS, (graph.train_mask, graph.val_mask, graph.test_mask), strict=True))
    labels = torch.from_numpy(graph.labels)
    pairs = {name: hits(logits[torch.from_numpy(mask)], labels[torch.from_numpy(mask)]) for name, mask in masks.items()}
    return {name: top / bottom for name, (top, bottom) in pairs.items()}


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("model", [{}, {"kind": "gcn", "precompute": True}, DEEP], ids=["sage", "gcn", "gcnii"])
def test_scores_of_what_was_trained_on_train_nodes_are_of_the_whole_graph(
    method: str, model: dict[str, Any], tmp_path: Path
) -> None:
    workload = workload_of(method, EXACT[method], model)
    done, logits = train(workload, tmp_path)
    expected = expected_of(workload.spec)
    assert done.losses == pytest.approx(expected.losses, rel=1e-10)
    assert (logits - expected.logits).abs().max() <= 1e-10
    assert done.evaluated == {3: scores_of(expected.logits, WHOLE)}
    assert [sorted(epoch) for epoch in done.accuracy] == [["train"]] * 4  # training sees no other nodes


@pytest.mark.parametrize("method", ["pipegcn", "bns", "psc", "digest", "digest-a"])
def test_weights_of_any_method_are_scored_on_the_whole_graph(method: str, tmp_path: Path) -> None:
    workload = workload_of(method, {}, {})
    done, logits = train(workload, tmp_path)
    model = build_model(workload.spec, 5, torch.float64).eval()
    flat, _ = flatten(model)
    with torch.no_grad():
        flat.copy_(torch.load(tmp_path / "audit-0.pt")["weights"])
        expected = whole_graph(WHOLE, workload.spec, torch.float64).logits(model)
    assert (logits - expected).abs().max() <= 1e-10
    assert done.evaluated == {3: scores_of(expected, WHOLE)}


@pytest.mark.parametrize("options", [{"chunks": 4, "stages": 2}, {"chunks": 4, "stages": 1, "ways": 2}])
@pytest.mark.parametrize("precompute", [False, True])
def test_several_chunks_are_scored_on_the_whole_graph(
    options: dict[str, Any], precompute: bool, tmp_path: Path
) -> None:
    workload = workload_of("gnnpipe", options, {"precompute": precompute})
    done, logits = train(workload, tmp_path, lr=0.0)
    expected = expected_of(workload.spec, lr=0.0).logits
    assert (logits - expected).abs().max() <= 1e-10
    assert done.evaluated == {3: scores_of(expected, WHOLE)}


def test_an_inductive_run_tells_scores_of_all_three_masks_and_predictions_stay_of_the_train_nodes() -> None:
    workload = workload_of("vanilla", {}, {})
    result = run_workload(workload)
    assert list(result.accuracy) == ["train", "val", "test"]
    assert "test 0." in result.line()
    assert [sorted(row) for row in result.records()] == [["epoch", "loss", "train"]] * 4
    assert workload.halo.num_inner.sum() == WHOLE.num_train
    assert workload.schedule.ops == prepare(workload.scenario, 2, graph=WHOLE).schedule.ops


def test_a_job_in_the_place_of_an_inductive_one_scores_what_it_trains_on(tmp_path: Path) -> None:
    workload = workload_of("vanilla", {}, {})
    train(workload, tmp_path)
    job = Job(schedule=workload.schedule, spec=workload.spec, settings=Settings(epochs=1, dtype="float64"))
    assert list(execute(job, workload.parts(), keep=tmp_path).evaluated[0]) == ["train"]


def test_train_nodes_keep_their_part_and_others_go_where_their_neighbours_are() -> None:
    """Node 3 reads 0 and 1, both of part 1; node 4 reads 2 of part 0; node 5 reads nobody."""
    mask, nothing = np.arange(6) < 3, np.zeros(6, np.bool_)
    blank: dict[str, Any] = {
        "features": np.zeros((6, 1)),
        "labels": np.zeros(6, np.int64),
        "val_mask": nothing,
        "test_mask": nothing,
    }
    six = Graph.from_edges([0, 1, 2, 2], [3, 3, 3, 4], 6, train_mask=mask, **blank)
    assert extended(six, mask, np.array([1, 1, 0], np.int32)).tolist() == [1, 1, 0, 1, 0, 1]
