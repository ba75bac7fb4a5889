"""Runs that measure errors: how far stale rows and the gradient of a step are from fresh ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pipelines import Oracle, pipeline
from torch import Tensor
from training import Trained, metis_parts, reference_for, small_graph, spec_for, train

from halocast.base.errors import InputError
from halocast.exec.chunks.stage import drawn_order
from halocast.exec.run.part_tensors import block_of
from halocast.graph import Part, assign
from halocast.models.modules import build_model, summed_loss
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.study.run import make_job, prepare_run
from halocast.study.scenario import load_scenario

GRAPH = small_graph()
DEEP: dict[str, Any] = {"kind": ModelKind.GCNII, "layers": 4, "norm": Norm.NONE}


def relative(trained: Trained, what: str, layer: int) -> list[float]:
    """The error of every epoch, relative to what is fresh."""
    found = [error for error in trained.run.errors if (error.what, error.layer) == (what, layer)]
    assert [error.epoch for error in found] == list(range(len(trained.run.losses)))
    return [float(np.sqrt(error.squared_error / error.squared_norm)) for error in found]


def measured(directory: Path, method: str, model: dict[str, Any] | None = None, **changes: Any) -> Trained:
    spec = spec_for(GRAPH, **(model or {}))
    return train(GRAPH, metis_parts(GRAPH, 3), spec, directory, method=method, errors=True, **changes)


@pytest.mark.parametrize(
    "model",
    [{"dropout": 0.5}, {"dropout": 0.5, "recompute": True}, {**DEEP, "dropout": 0.5}, {"kind": ModelKind.GAT}],
    ids=["sage", "recomputed", "gcnii", "gat"],
)
def test_the_gradient_of_vanilla_is_the_fresh_one_with_the_same_dropout(model: dict[str, Any], tmp_path: Path) -> None:
    trained = measured(tmp_path / "measured", "vanilla", model)
    assert max(relative(trained, "weights", -1)) <= 1e-12
    plain = train(GRAPH, metis_parts(GRAPH, 3), spec_for(GRAPH, **model), tmp_path / "plain")
    assert trained.run.losses == plain.run.losses  # to measure changes nothing
    assert trained.run.weight_hashes == plain.run.weight_hashes


def test_the_gradient_of_frozen_weights_is_fresh_after_twice_the_layers_but_one(tmp_path: Path) -> None:
    trained = measured(tmp_path, "pipegcn", {"precompute": True}, epochs=7, lr=0.0)
    errors = relative(trained, "weights", -1)
    assert min(errors[:4]) > 1e-6
    assert max(errors[4:]) <= 1e-12


@pytest.mark.parametrize("average", ["train", "plain"])
def test_a_gradient_that_does_not_cross_parts_is_as_far_off_as_one_process_says(average: str, tmp_path: Path) -> None:
    options = {"interval": 1, "average": average}
    trained = measured(tmp_path, "digest", options=options, epochs=6, lr=0.0)
    spec, parts = spec_for(GRAPH), trained.parts
    exact = reference_for(GRAPH, spec, lr=0.0).grads
    shares = [1.0 if average == "train" else GRAPH.num_train / part.num_train / len(parts) for part in parts]
    apart = sum(share * own for share, own in zip(shares, gradients_inside_parts(spec, parts), strict=True))
    expected = float((apart - exact).norm() / exact.norm())
    assert expected > 0.01
    assert relative(trained, "weights", -1)[3:] == pytest.approx([expected] * 3, rel=1e-9)


def gradients_inside_parts(spec: ModelSpec, parts: tuple[Part, ...]) -> list[Tensor]:
    """Every part's share of the gradient at the initial weights, with exact rows of other parts as constants."""
    model = build_model(spec, 5, torch.float64)
    blocks = [block_of(part, torch.float64, torch.device("cpu")) for part in parts]
    inner = [torch.from_numpy(part.features).double() for part in parts]
    for layer in range(spec.layers):
        table = torch.zeros(GRAPH.num_nodes, inner[0].shape[1], dtype=torch.float64)
        for part, rows in zip(parts, inner, strict=True):
            table[torch.from_numpy(part.inner)] = rows.detach()
        joined = [torch.cat([rows, table[torch.from_numpy(p.halo)]]) for p, rows in zip(parts, inner, strict=True)]
        inner = [model.layer(layer, rows, block, None, None) for rows, block in zip(joined, blocks, strict=True)]
    gradients = []
    for part, logits in zip(parts, inner, strict=True):
        mask = torch.from_numpy(part.train_mask)
        loss = summed_loss(logits[mask], torch.from_numpy(part.labels)[mask]) / GRAPH.num_train
        gradients.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return gradients


@pytest.mark.parametrize("options", [{"stages": 2}, {"stages": 1, "ways": 2}, {"stages": 2, "lockstep": True}])
def test_snapshots_are_wholly_wrong_while_zeros_and_exact_after_a_renewal_per_layer(
    options: dict[str, Any], tmp_path: Path
) -> None:
    spec = spec_for(GRAPH, kind=ModelKind.GCN, layers=4)
    chunks = assign(GRAPH, 4 * options.get("ways", 1), balance="cost", seed=1, cache=False)
    settings = {"epochs": 8, "lr": 0.0, "errors": True}
    trained = pipeline(GRAPH, chunks, spec, tmp_path, settings, freeze=2, **options)
    assert {error.layer for error in trained.run.errors if error.what == "features"} == {1, 2, 3}
    for layer in (1, 2, 3):
        errors = relative(trained, "features", layer)
        assert errors[:2] == [1.0, 1.0]
        assert all(error > 1e-6 for error in errors[: 2 * layer])
        assert errors[2 * layer :] == [0.0] * (8 - 2 * layer)


@pytest.mark.parametrize("recompute", [False, True])
def test_one_chunk_uses_no_snapshot_and_its_gradient_is_the_fresh_one(recompute: bool, tmp_path: Path) -> None:
    spec, settings = spec_for(GRAPH, **DEEP, dropout=0.5, recompute=recompute), {"errors": True, "epochs": 3}
    trained = pipeline(GRAPH, np.zeros(300, np.int32), spec, tmp_path / "measured", settings, stages=2)
    assert {error.what for error in trained.run.errors} == {"weights"}
    assert max(relative(trained, "weights", -1)) <= 1e-12
    plain = pipeline(GRAPH, np.zeros(300, np.int32), spec, tmp_path / "plain", {"epochs": 3}, stages=2)
    assert trained.run.losses == plain.run.losses


@pytest.mark.parametrize(("factor", "options"), [(2.0, {}), (1.0, {"cross_factor": 1.0})])
def test_the_gradient_of_chunks_is_as_far_off_as_one_process_says(
    factor: float, options: dict[str, Any], tmp_path: Path
) -> None:
    spec, chunks = spec_for(GRAPH, **DEEP), assign(GRAPH, 4, balance="cost", seed=1, cache=False)
    trained = pipeline(GRAPH, chunks, spec, tmp_path, {"errors": True, "epochs": 1}, stages=2, **options)
    oracle = Oracle(GRAPH, chunks, spec, lambda epoch: drawn_order(4, 5, epoch), freeze=99, factor=factor).train(1)
    exact = Oracle(GRAPH, np.zeros(300, np.int32), spec, lambda epoch: (0,)).train(1)
    used, fresh = (one.stage_grads(range(spec.layers)) for one in (oracle, exact))
    assert relative(trained, "weights", -1) == pytest.approx([float((used - fresh).norm() / fresh.norm())], rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["method.name=digest-a"], "errors = true: ranks that run freely never have rows of one epoch to compare"),
        (["method.name=gnnpipe", "method.order=1f1b"], "errors = true: chunks that go back one by one"),
    ],
)
def test_errors_are_refused_in_one_line_where_nothing_fresh_is_there(settings: list[str], says: str) -> None:
    workload = prepare_run(load_scenario("demo", [*settings, "run.errors=true"]), 2, graph=GRAPH)
    with pytest.raises(InputError, match=says):
        make_job(workload)
