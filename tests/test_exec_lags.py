"""The executor honours lag and cadence: values of the right instance, however far lanes run apart."""

from dataclasses import replace
from pathlib import Path

import pytest
from training import metis_parts, reference_for, small_graph, spec_for, train

from halocast.schedule.check import staleness
from halocast.schedule.ir import Kind, Op, Schedule

LAYERS = 3


def lagged(schedule: Schedule, lag: int) -> Schedule:
    """The same ops, but computations use what the exchanges brought `lag` epochs ago."""

    def later(op: Op) -> Op:
        after = tuple((name, lag if name.startswith("exchange") else old) for name, old in op.after)
        return replace(op, after=after) if op.kind is Kind.COMPUTE else op

    return replace(schedule, ops=tuple(later(op) for op in schedule.ops))


def every_second(schedule: Schedule) -> Schedule:
    ops = tuple(replace(op, every=2) if op.kind is Kind.EXCHANGE else op for op in schedule.ops)
    return replace(schedule, ops=ops)


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_with_frozen_weights_lagged_gradients_become_exact(tmp_path: Path, lag: int) -> None:
    """Rows are exact after one lag per exchanged layer, gradients after one more per layer they come back through."""
    graph = small_graph()
    spec = spec_for(graph, layers=LAYERS)
    num_epochs = lag * (LAYERS + LAYERS - 1) + 1
    expected = reference_for(graph, spec, lr=0.0)
    found = {}
    for epochs in (num_epochs - 1, num_epochs):
        trained = train(
            graph,
            metis_parts(graph, 3),
            spec,
            tmp_path / str(epochs),
            change=lambda s: lagged(s, lag),
            epochs=epochs,
            lr=0.0,
        )
        found[epochs] = float((trained.grads[0] - expected.grads).abs().max())
    assert found[num_epochs] <= 1e-12
    assert found[num_epochs - 1] > 1e-6


@pytest.mark.parametrize("lag", [1, 2])
def test_lagged_training_is_the_same_every_time(tmp_path: Path, lag: int) -> None:
    graph = small_graph()
    runs = [
        train(
            graph,
            metis_parts(graph, 3),
            spec_for(graph),
            tmp_path / str(k),
            change=lambda s: lagged(s, lag),
            epochs=12,
            lr=0.05,
        )
        for k in range(4)
    ]
    assert len({run.run.losses for run in runs}) == 1
    assert len({run.run.weight_hashes[0] for run in runs}) == 1


def test_an_exchange_every_second_epoch_serves_both(tmp_path: Path) -> None:
    graph = small_graph()
    spec = spec_for(graph)
    trained = train(graph, metis_parts(graph, 3), spec, tmp_path, change=every_second, epochs=13, lr=0.0)
    assert {age for read in staleness(trained.schedule) for age in read.ages} == {0, 1}
    exchanged = [span.epoch for span in trained.run.trace.of_rank(1) if span.op == "exchange.1"]
    assert exchanged == [0, 2, 4, 6, 8, 10, 12]
    assert float((trained.grads[0] - reference_for(graph, spec, lr=0.0).grads).abs().max()) <= 1e-12


def test_a_computation_may_read_its_own_ranks_past(tmp_path: Path) -> None:
    """exchange.1 sends the rows of the epoch before: zeros in epoch 0, then one epoch old."""
    graph = small_graph()
    spec = spec_for(graph)

    def one_late(schedule: Schedule) -> Schedule:
        late = {"exchange.1": (("forward.0", 1), ("step", 1))}
        return replace(schedule, ops=tuple(replace(op, after=late.get(op.name, op.after)) for op in schedule.ops))

    trained = train(graph, metis_parts(graph, 3), spec, tmp_path, change=one_late, epochs=3, lr=0.0)
    assert {read.ages for read in staleness(trained.schedule) if read.buffer == "halo.1"} == {(1,)}
    assert float((trained.grads[0] - reference_for(graph, spec, lr=0.0).grads).abs().max()) <= 1e-12


def test_evaluations_on_the_way_keep_the_clocks_together(tmp_path: Path) -> None:
    """All ranks leave an all-reduce at nearly the same moment; clocks that drift by each pause would show it."""
    graph = small_graph()
    trained = train(graph, metis_parts(graph, 3), spec_for(graph), tmp_path, epochs=60, eval_every=1)
    ends = {(s.rank, s.epoch): s.end_s for s in trained.run.trace.spans if s.op == "allreduce"}
    pauses = [ends[1, epoch] - ends[0, epoch] for epoch in range(60)]
    early, late = sorted(pauses[:20])[10], sorted(pauses[40:])[10]
    epoch_s = (ends[0, 59] - ends[0, 0]) / 59
    assert abs(late - early) < epoch_s
