"""Where a method makes no approximation it is training on one device: every method with every kind of model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelines import pipeline
from training import assert_equal_training, metis_parts, reference_for, small_graph, spec_for, train

from halocast.exec.launch.job import Optimizer
from halocast.exec.run.reference import Reference
from halocast.models.spec import ModelKind, ModelSpec

GRAPH = small_graph(nodes=150)
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"kind": ModelKind.SAGE},
    "gcn": {"kind": ModelKind.GCN},
    "gat": {"kind": ModelKind.GAT, "heads": 2},
    "gcnii": {"kind": ModelKind.GCNII, "layers": 4},
}
EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "vanilla": ("vanilla", {}),
    "no lag": ("pipegcn", {"lag": 0}),
    "all rows": ("bns", {"rate": 1.0}),
    "no lag, all edges": ("psc", {"tau": 0, "eps": 1.0}),
}
FROZEN_EPOCHS = 9  # more than the forward and backward of four layers take to become exact, a layer each epoch


@pytest.fixture(scope="module", params=MODELS)
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    return spec_for(GRAPH, **MODELS[request.param])


@pytest.fixture(scope="module")
def expected(spec: ModelSpec) -> Reference:
    return reference_for(GRAPH, spec)


@pytest.mark.parametrize("case", EXACT)
def test_without_approximation_it_is_training_on_one_device(
    case: str, spec: ModelSpec, expected: Reference, tmp_path: Path
) -> None:
    method, options = EXACT[case]
    trained = train(GRAPH, metis_parts(GRAPH, 2), spec, tmp_path, method=method, options=options)
    assert_equal_training(trained, expected, logits=1e-10, grads=1e-10)


def test_one_chunk_is_training_on_one_device(spec: ModelSpec, expected: Reference, tmp_path: Path) -> None:
    trained = pipeline(GRAPH, np.zeros(GRAPH.num_nodes, np.int32), spec, tmp_path, stages=2)
    assert np.allclose(trained.run.losses, expected.losses, rtol=1e-10, atol=0)
    assert (trained.logits - expected.logits).abs().max() <= 1e-10


@pytest.mark.parametrize(("method", "options"), [("pipegcn", {}), ("psc", {"eps": 1.0})])
def test_with_frozen_weights_stale_rows_become_exact(
    method: str, options: dict[str, Any], spec: ModelSpec, tmp_path: Path
) -> None:
    frozen = reference_for(GRAPH, spec, lr=0.0)
    trained = train(
        GRAPH,
        metis_parts(GRAPH, 2),
        spec,
        tmp_path,
        method=method,
        options=options,
        epochs=FROZEN_EPOCHS,
        lr=0.0,
    )
    assert abs(trained.run.losses[0] - frozen.losses[0]) > 1e-6
    assert abs(trained.run.losses[-1] - frozen.losses[0]) <= 1e-10
    assert all((grads - frozen.grads).abs().max() <= 1e-10 for grads in trained.grads)


def test_with_frozen_weights_stored_rows_become_exact(spec: ModelSpec, tmp_path: Path) -> None:
    """Forward only: DIGEST sends no gradients of rows, so what it steps with stays another gradient."""
    frozen = reference_for(GRAPH, spec, lr=0.0)
    trained = train(
        GRAPH,
        metis_parts(GRAPH, 2),
        spec,
        tmp_path,
        method="digest",
        options={"interval": 1},
        epochs=FROZEN_EPOCHS,
        optimizer=Optimizer.SGD,
        lr=0.0,
    )
    assert abs(trained.run.losses[0] - frozen.losses[0]) > 1e-6
    assert abs(trained.run.losses[-1] - frozen.losses[0]) <= 1e-10
