"""Stages on real processes compute what one process does: exactly with one chunk, else what the snapshots say."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelines import Oracle, pipeline
from training import EPOCHS, Trained, reference_for, small_graph, spec_for

from halocast.exec.chunks.stage import drawn_order
from halocast.graph import assign
from halocast.graph.chunks import needed_rows, ways_of_graph
from halocast.graph.halo import from_assignment
from halocast.graph.parts import Assignment
from halocast.methods.gnnpipe import Options, gnnpipe
from halocast.methods.gnnpipe.options import Grouping, Split, split_layers
from halocast.methods.gnnpipe.slots import Order
from halocast.models.spec import ModelKind, Norm
from halocast.schedule.ir import Kind, Numbers, Recv

GRAPH = small_graph()
GCNII: dict[str, Any] = {"kind": ModelKind.GCNII, "layers": 5, "norm": Norm.NONE}
GCN: dict[str, Any] = {"kind": ModelKind.GCN, "layers": 4, "norm": Norm.LAYER}
ONE = np.zeros(GRAPH.num_nodes, np.int32)


def chunks(num_chunks: int) -> Assignment:
    return assign(GRAPH, num_chunks, balance="cost", seed=1, cache=False)


def drawn(num_chunks: int) -> Any:
    return lambda epoch: drawn_order(num_chunks, 5, epoch)


def assert_as_oracle(trained: Trained, oracle: Oracle, num_stages: int) -> None:
    """Losses of all epochs, and the last gradients of every stage."""
    assert trained.run.losses == pytest.approx(oracle.losses, rel=1e-10)
    bounds = split_layers(oracle.spec, num_stages, Split.EVEN)
    for grads, (start, stop) in zip(trained.grads, pairwise(bounds), strict=True):
        assert (grads - oracle.stage_grads(range(start, stop))).abs().max() <= 1e-11


@pytest.mark.parametrize(("model", "stages"), [(GCN, 2), (GCNII, 4)])
def test_one_chunk_is_exact_for_any_number_of_stages(model: dict[str, Any], stages: int, tmp_path: Path) -> None:
    spec = spec_for(GRAPH, **model)
    trained = pipeline(GRAPH, ONE, spec, tmp_path, stages=stages)
    expected = reference_for(GRAPH, spec)
    assert trained.run.losses == pytest.approx(expected.losses, rel=1e-10)
    assert (trained.logits - expected.logits).abs().max() <= 1e-9
    assert sum(grads.numel() for grads in trained.grads) == spec.num_weights


@pytest.mark.parametrize(("model", "stages"), [(GCN, 4), (GCNII, 2), (GCNII, 4)])
def test_chunks_train_as_plain_autograd_with_snapshots_as_constants(
    model: dict[str, Any], stages: int, tmp_path: Path
) -> None:
    spec, assignment = spec_for(GRAPH, **model), chunks(5)
    trained = pipeline(GRAPH, assignment, spec, tmp_path, stages=stages, freeze=2)
    oracle = Oracle(GRAPH, assignment, spec, drawn(5), freeze=2).train(EPOCHS)
    assert_as_oracle(trained, oracle, stages)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"cross_factor": 1.0, "freeze": 1}, {"factor": 1.0}),
        ({"cross_factor": 0.5, "freeze": 2}, {"factor": 0.5, "freeze": 2}),
        ({"late_gradients": True, "freeze": 1}, {"late": True, "factor": 1.0}),
        ({"order": Order.ONE, "freeze": 2}, {"factor": 0.0, "freeze": 2}),
        ({"shuffle": False, "freeze": 3}, {"order": lambda epoch: (0, 1, 2, 3), "freeze": 3, "factor": 1.0}),
    ],
)
def test_every_trick_is_a_switch(options: dict[str, Any], changes: dict[str, Any], tmp_path: Path) -> None:
    spec, assignment = spec_for(GRAPH, **GCN), chunks(4)
    trained = pipeline(GRAPH, assignment, spec, tmp_path, stages=2, **options)
    oracle = Oracle(**{"graph": GRAPH, "assignment": assignment, "spec": spec, "order": drawn(4), **changes})
    assert_as_oracle(trained, oracle.train(EPOCHS), 2)


def test_with_dropout_losses_do_not_depend_on_the_stages_or_on_lockstep(tmp_path: Path) -> None:
    spec = spec_for(GRAPH, **{**GCNII, "dropout": 0.5})
    runs = [
        pipeline(GRAPH, chunks(3), spec, tmp_path / str(k), stages=stages, lockstep=lockstep).run
        for k, (stages, lockstep) in enumerate([(2, False), (4, True)])
    ]
    assert runs[0].losses == runs[1].losses
    assert runs[0].evaluated == runs[1].evaluated


def test_frozen_weights_become_exact_after_as_many_refreshes_as_layers(tmp_path: Path) -> None:
    spec = spec_for(GRAPH, **GCN)
    trained = pipeline(GRAPH, chunks(4), spec, tmp_path, {"epochs": 5, "lr": 0.0}, stages=2, freeze=1)
    exact = reference_for(GRAPH, spec, lr=0.0).losses[0]
    assert abs(trained.run.losses[0] - exact) > 1e-4
    assert trained.run.losses[3:] == pytest.approx([exact, exact], rel=1e-12)


def test_a_snapshot_is_of_the_last_epoch_before_it_serves_and_zeros_serve_first(tmp_path: Path) -> None:
    """With weights that stay, an epoch's loss tells which snapshot it read: it changes where the snapshot does."""
    spec, settings = spec_for(GRAPH, **GCN), {"epochs": 11, "lr": 0.0}
    trained = pipeline(GRAPH, chunks(4), spec, tmp_path, settings, stages=2, freeze=3, shuffle=False)
    losses = trained.run.losses
    assert [after != before for before, after in pairwise(losses)] == [n in (3, 6, 9) for n in range(1, 11)]
    assert losses[9:] == pytest.approx([reference_for(GRAPH, spec, lr=0.0).losses[0]] * 2, rel=1e-12)
    zeros = Oracle(GRAPH, chunks(4), spec, lambda epoch: (0, 1, 2, 3), freeze=99, lr=0.0).train(1)
    assert losses[:3] == pytest.approx(zeros.losses * 3, rel=1e-12)


def test_a_deep_model_runs_with_precomputed_and_recomputed_layers(tmp_path: Path) -> None:
    spec = spec_for(GRAPH, kind=ModelKind.RESGCN, layers=32, precompute=True, recompute=True)
    trained = pipeline(GRAPH, ONE, spec, tmp_path, {"epochs": 2}, stages=2)
    assert trained.run.losses == pytest.approx(reference_for(GRAPH, spec).losses[:2], rel=1e-9)


def test_bytes_and_order_of_a_run_are_those_of_the_schedule(tmp_path: Path) -> None:
    spec = spec_for(GRAPH, **GCNII)
    trained = pipeline(GRAPH, chunks(4), spec, tmp_path, stages=3)
    sent = [sum(span.num_bytes for span in trained.run.trace.spans if span.epoch == epoch) for epoch in range(EPOCHS)]
    assert sent == [2 * 2 * 300 * 2 * 16 * 8] * EPOCHS
    assert sum(trained.schedule.num_bytes(op) for op in trained.schedule.ops) == sent[0]
    starts = {(s.rank, s.op): s.start_s for s in trained.run.trace.spans if s.epoch == 1}
    ends = {(s.rank, s.op): s.end_s for s in trained.run.trace.spans if s.epoch == 1}
    for op in trained.schedule.ops:
        if isinstance(op.work, Recv):
            assert starts[op.work.peer, op.name] <= ends[op.rank, op.name]


def test_a_chunk_without_train_nodes_is_trained_on_all_the_same(tmp_path: Path) -> None:
    assignment = np.where(GRAPH.train_mask, 1, 0).astype(np.int32)
    spec = spec_for(GRAPH, **GCN)
    trained = pipeline(GRAPH, assignment, spec, tmp_path, stages=2, freeze=1)
    assert_as_oracle(trained, Oracle(GRAPH, assignment, spec, drawn(2)).train(EPOCHS), 2)


@pytest.mark.parametrize(("model", "grouping"), [(GCN, Grouping.NEAR), (GCNII, Grouping.FAR)])
def test_two_ways_of_two_stages_train_as_one_way_with_their_chunks_merged(
    model: dict[str, Any], grouping: Grouping, tmp_path: Path
) -> None:
    """Way g of slot k has chunk g K + k, so chunks k and K + k together are chunk k of a single way."""
    spec, assignment = spec_for(GRAPH, **model), chunks(6)
    trained = pipeline(GRAPH, assignment, spec, tmp_path, stages=2, ways=2, grouping=grouping, freeze=2)
    merged = Oracle(GRAPH, assignment % 3, spec, drawn(3), freeze=2).train(EPOCHS)
    assert trained.run.losses == pytest.approx(merged.losses, rel=1e-10)
    bounds = [*pairwise(split_layers(spec, 2, Split.EVEN))]
    stages = [0, 0, 1, 1] if grouping is Grouping.NEAR else [0, 1, 0, 1]
    for stage, grads in zip(stages, trained.grads, strict=True):
        assert (grads - merged.stage_grads(range(*bounds[stage]))).abs().max() <= 1e-11


def test_ways_send_what_the_schedule_of_exact_sizes_says(tmp_path: Path) -> None:
    spec, assignment = spec_for(GRAPH, **GCN), chunks(4)
    trained = pipeline(GRAPH, assignment, spec, tmp_path, stages=1, ways=2)
    shared = np.array([[len(rows) for rows in ways] for ways in needed_rows(trained.parts, 2)])
    halo = ways_of_graph(GRAPH, assignment, 2)
    assert np.array_equal(halo.shared, shared)
    exact = gnnpipe(halo, spec, Options(stages=1, ways=2), Numbers.FLOAT64)
    expected = sum(exact.num_bytes(op) for op in exact.ops if op.kind is Kind.EXCHANGE)
    assert expected == 2 * 3 * int(shared.sum()) * 16 * 8  # three layers, forth and back
    assert int(shared.sum()) == int(from_assignment(GRAPH, assignment // 2).matrix.sum())  # as if ways were parts
    for epoch in range(EPOCHS):
        spans = [s for s in trained.run.trace.spans if s.epoch == epoch and s.kind is Kind.EXCHANGE]
        assert sum(span.num_bytes for span in spans) == expected
