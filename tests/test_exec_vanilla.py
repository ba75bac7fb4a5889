"""Vanilla on real processes equals the single-process reference: checks 1, 4 and 5 of the design."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training import (
    EPOCHS,
    assert_equal_training,
    graph_of,
    hub_graph,
    metis_parts,
    random_parts,
    reference_for,
    small_graph,
    spec_for,
    train,
)

from halocast.cluster.catalogue import load_cluster
from halocast.models.spec import ModelKind
from halocast.schedule.ir import Kind
from halocast.sim.engine import simulate


@pytest.mark.parametrize("kind", [ModelKind.SAGE, ModelKind.GCN])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_vanilla_equals_the_reference_in_float64(tmp_path: Path, ranks: int, kind: ModelKind) -> None:
    graph = small_graph()
    spec = spec_for(graph, kind=kind)
    trained = train(graph, metis_parts(graph, ranks), spec, tmp_path)
    assert_equal_training(trained, reference_for(graph, spec), logits=1e-10, grads=1e-10)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_vanilla_equals_the_reference_in_float32_on_random_parts(tmp_path: Path, ranks: int) -> None:
    graph = small_graph()
    spec = spec_for(graph)
    trained = train(graph, random_parts(graph, ranks), spec, tmp_path, dtype="float32")
    expected = reference_for(graph, spec, "float32")
    assert_equal_training(trained, expected, logits=1e-6 * float(expected.logits.abs().max()), grads=1e-5)


@pytest.mark.parametrize("kind", [ModelKind.SAGE, ModelKind.GCN])
def test_precomputing_layer_0_changes_no_number(tmp_path: Path, kind: ModelKind) -> None:
    graph = small_graph()
    spec = spec_for(graph, kind=kind)
    trained = train(graph, metis_parts(graph, 3), replace(spec, precompute=True), tmp_path)
    assert_equal_training(trained, reference_for(graph, spec), logits=1e-10, grads=1e-10)
    assert not any(span.op == "exchange.0" for span in trained.run.trace.spans)


def test_linear_layers_are_not_exchanged(tmp_path: Path) -> None:
    graph = small_graph()
    spec = spec_for(graph, layers=4, num_linear=2)
    trained = train(graph, metis_parts(graph, 2), spec, tmp_path)
    assert_equal_training(trained, reference_for(graph, spec), logits=1e-10, grads=1e-10)
    exchanged = {span.op for span in trained.run.trace.spans if span.kind is Kind.EXCHANGE}
    assert exchanged == {"exchange.0", "exchange.1", "exchange_grad.1"}


def test_a_directed_graph(tmp_path: Path) -> None:
    graph = small_graph(directed=True)
    assert not graph.is_symmetric()
    for kind in (ModelKind.SAGE, ModelKind.GCN):
        spec = spec_for(graph, kind=kind)
        trained = train(graph, random_parts(graph, 3), spec, tmp_path / kind)
        assert_equal_training(trained, reference_for(graph, spec), logits=1e-10, grads=1e-10)


def test_a_part_without_train_nodes(tmp_path: Path) -> None:
    graph = small_graph()
    assignment = metis_parts(graph, 3)
    mask = graph.train_mask & (assignment != 1)
    graph = replace(graph, train_mask=mask)
    trained = train(graph, assignment, spec_for(graph), tmp_path)
    assert trained.parts[1].num_train == 0
    assert_equal_training(trained, reference_for(graph, spec_for(graph)), logits=1e-10, grads=1e-10)


def test_parts_that_share_nothing(tmp_path: Path) -> None:
    """A ring cut into four arcs: opposite arcs exchange no rows, H[0, 2] is empty."""
    ring = np.arange(80)
    graph = graph_of(np.concatenate([ring, (ring + 1) % 80]), np.concatenate([(ring + 1) % 80, ring]), 80)
    trained = train(graph, (ring // 20).astype(np.int32), spec_for(graph), tmp_path)
    assert trained.schedule.matrices[0].counts.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]
    assert_equal_training(trained, reference_for(graph, spec_for(graph)), logits=1e-10, grads=1e-10)


def test_a_hub_node_that_everybody_needs(tmp_path: Path) -> None:
    graph = hub_graph()
    trained = train(graph, random_parts(graph, 4), spec_for(graph), tmp_path)
    assert_equal_training(trained, reference_for(graph, spec_for(graph)), logits=1e-10, grads=1e-10)


@pytest.mark.parametrize("precompute", [False, True])
def test_bytes_of_simulator_executor_and_formula_are_equal_op_by_op(tmp_path: Path, precompute: bool) -> None:
    graph = small_graph()
    spec = spec_for(graph, precompute=precompute)
    trained = train(graph, metis_parts(graph, 4), spec, tmp_path, dtype="float32")
    simulated = simulate(trained.schedule, load_cluster("cpu-local", gpus=4), EPOCHS)
    counted = [{(s.rank, s.op, s.epoch): s.num_bytes for s in trace.spans} for trace in (trained.run.trace, simulated)]
    assert counted[0] == counted[1]
    volume, weights = int(trained.schedule.matrices[0].counts.sum()), spec.num_weights
    layers = spec.exchanged_layers
    formula = {f"exchange.{layer}": volume * spec.widths[layer] * 4 for layer in layers}
    formula |= {f"exchange_grad.{layer}": volume * spec.widths[layer] * 4 for layer in layers if layer > 0}
    formula["allreduce"] = 4 * (2 * 3 * weights * 4 // 4)
    for epoch in range(EPOCHS):
        by_op = {name: sum(b for (_, o, e), b in counted[0].items() if (o, e) == (name, epoch)) for name in formula}
        assert by_op == formula
    assert sum(counted[0].values()) == EPOCHS * sum(formula.values())


def test_the_weights_torch_holds_are_the_weights_the_spec_counts(tmp_path: Path) -> None:
    graph = small_graph()
    for kind in (ModelKind.SAGE, ModelKind.GCN):
        spec = spec_for(graph, kind=kind, layers=4, num_linear=1)
        assert len(reference_for(graph, spec).weights) == spec.num_weights


def test_a_graph_with_several_labels_per_node(tmp_path: Path) -> None:
    base = small_graph()
    labels = (np.random.default_rng(0).random((base.num_nodes, 5)) < 0.3).astype(np.float32)
    graph = replace(base, labels=labels, num_classes=5)
    spec = spec_for(graph)
    trained = train(graph, metis_parts(graph, 3), spec, tmp_path)
    expected = reference_for(graph, spec)
    assert_equal_training(trained, expected, logits=1e-10, grads=1e-10)
    predicted, actual = expected.logits.numpy() > 0, labels > 0.5
    test = graph.test_mask
    both = (predicted & actual)[test].sum()
    micro_f1 = 2 * both / (predicted[test].sum() + actual[test].sum())
    assert trained.run.evaluated[EPOCHS - 1]["test"] == pytest.approx(micro_f1)
