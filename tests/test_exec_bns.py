"""Boundary sampling on real processes: vanilla at rate 1, isolated parts at 0, in between as on the drawn matrices."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from dense import Dense, train_dense, with_edges, with_rows, without_cut
from training import (
    EPOCHS,
    Trained,
    assert_equal_training,
    graph_of,
    metis_parts,
    random_parts,
    reference_for,
    schedule_for,
    small_graph,
    spec_for,
    train,
)

from halocast.exec.launch.job import Job, Settings
from halocast.exec.run.draws import halo_ids
from halocast.exec.run.handlers import handle
from halocast.exec.run.interpret import Progress
from halocast.exec.run.state import RankState
from halocast.exec.transport.comm import Endpoint
from halocast.graph import Assignment, Graph, Part, build_parts
from halocast.graph.sampling import (
    draw_boundary,
    drawn_counts,
    drop,
    drop_probabilities,
    dropped_by_boundary,
    inner_edges,
    joined,
    self_loops,
)
from halocast.methods.bns import What
from halocast.models.spec import ModelKind
from halocast.schedule.check import staleness
from halocast.schedule.ir import Rows

GRAPH = small_graph()
ASSIGNED = metis_parts(GRAPH, 3)
PARTS = build_parts(GRAPH, ASSIGNED)
RATE = 0.3


def bns(directory: Path, *, rate: float = RATE, what: What = What.NODES, seed: int = 0, **changes: Any) -> Trained:
    options = {"rate": rate, "what": what, "seed": seed}
    model = {key: changes.pop(key) for key in ("kind", "heads", "precompute", "layers") if key in changes}
    return train(GRAPH, ASSIGNED, spec_for(GRAPH, **model), directory, method="bns", options=options, **changes)


def assert_dense(trained: Trained, graph: Graph, matrix_of: Callable[[int], Dense], **model: Any) -> None:
    losses, weights = train_dense(graph, spec_for(graph, **model), matrix_of, num_epochs=EPOCHS)
    assert np.allclose(trained.run.losses, losses, rtol=1e-10, atol=0)
    for found in trained.weights:
        assert (found - weights).abs().max() <= 1e-10


@pytest.mark.parametrize(
    ("what", "model"),
    [
        (What.NODES, {"precompute": True}),
        (What.NODES, {"kind": ModelKind.GAT, "heads": 2}),
        (What.EDGES, {"kind": ModelKind.GCN}),
        (What.DROPEDGE, {}),
    ],
)
def test_at_rate_1_it_is_training_on_one_device(tmp_path: Path, what: What, model: dict[str, Any]) -> None:
    trained = bns(tmp_path, rate=1.0, what=what, **model)
    assert_equal_training(trained, reference_for(GRAPH, spec_for(GRAPH, **model)), logits=1e-10, grads=1e-10)


@pytest.mark.parametrize("precompute", [False, True])
def test_at_rate_0_parts_are_isolated_but_for_a_precomputed_layer_0(tmp_path: Path, precompute: bool) -> None:
    """Cut edges are missing, degrees are whole; `train_dense` sums a precomputed layer over the whole graph."""
    trained = bns(tmp_path, rate=0.0, precompute=precompute)
    matrix = without_cut(GRAPH, PARTS)
    assert_dense(trained, GRAPH, lambda epoch: matrix, precompute=precompute)
    sent = sum(s.num_bytes for s in trained.run.trace.spans if s.op.startswith("exchange"))
    assert sent == 0
    assert trained.run.ages == {}


def drawn_rows(parts: tuple[Part, ...], graph: Graph, seed: int, epoch: int) -> Dense:
    sent = [draw_boundary(part.send_offsets, RATE, seed=seed, rank=part.rank, epoch=epoch) for part in parts]
    return with_rows(graph, parts, sent)


@pytest.mark.parametrize("model", [{"kind": ModelKind.GCN}, {"precompute": True}])
def test_every_epoch_is_trained_on_the_rows_that_were_drawn_for_it(tmp_path: Path, model: dict[str, Any]) -> None:
    trained = bns(tmp_path, seed=4, **model)
    assert_dense(trained, GRAPH, lambda epoch: drawn_rows(PARTS, GRAPH, 4, epoch), **model)


@pytest.mark.parametrize("what", [What.EDGES, What.DROPEDGE])
def test_the_baselines_are_trained_on_the_edges_that_were_drawn(tmp_path: Path, what: What) -> None:
    def weights(part: Part, epoch: int) -> Dense:
        candidates = ~inner_edges(part) if what is What.EDGES else ~self_loops(part)
        number = dropped_by_boundary(part, RATE)
        kept = drop(candidates, number, seed=0, rank=part.rank, epoch=epoch)
        return np.where(kept, 1 / drop_probabilities(candidates, number), 0.0)

    trained = bns(tmp_path, what=what)
    assert_dense(trained, GRAPH, lambda epoch: with_edges(GRAPH, PARTS, [weights(part, epoch) for part in PARTS]))


@pytest.mark.parametrize("what", [What.NODES, What.EDGES])
def test_parts_that_do_not_touch_and_draws_of_nothing_work(tmp_path: Path, what: What) -> None:
    """A ring in four pieces: opposite ones have no row in common, neighbours one each way, of which 0.3 is none."""
    n = 40
    ring = np.arange(n)
    graph = graph_of(np.concatenate([ring, (ring + 1) % n]), np.concatenate([(ring + 1) % n, ring]), n)
    options = {"rate": RATE, "what": what}
    trained = train(graph, (ring // 10).astype(np.int32), spec_for(graph), tmp_path, method="bns", options=options)
    assert np.diff(trained.parts[0].send_offsets).tolist() == [0, 1, 0, 1]
    if what is What.NODES:
        matrix = without_cut(graph, trained.parts)
        assert_dense(trained, graph, lambda epoch: matrix)
    assert len(set(trained.run.losses)) == EPOCHS


def test_bytes_are_the_drawn_rows_of_every_pair_in_both_directions_and_their_ids(tmp_path: Path) -> None:
    trained = bns(tmp_path)
    rows = sum(int(drawn_counts(np.diff(part.halo_offsets), RATE).sum()) for part in PARTS)
    moved: Counter[str] = Counter()
    for span in trained.run.trace.spans:
        moved[span.op] += span.num_bytes
    widths, itemsize = (12, 16, 16), 8
    for layer in range(3):
        assert moved[f"exchange.{layer}"] == EPOCHS * rows * widths[layer] * itemsize
    for layer in (1, 2):
        assert moved[f"exchange_grad.{layer}"] == EPOCHS * rows * widths[layer] * itemsize
    assert moved["exchange_ids"] == EPOCHS * rows * 8


@pytest.mark.parametrize("what", [What.NODES, What.EDGES])
def test_drawn_rows_report_their_age(tmp_path: Path, what: What) -> None:
    trained = bns(tmp_path, what=what)
    sent = sum(s.num_bytes for s in trained.run.trace.spans if s.op == "exchange.1") // (16 * 8)
    assert trained.run.ages["forward.1", "halo.1"] == {0: sent}
    assert trained.run.ages["backward.0", "gsent.1"] == {0: sent}
    predicted = {(read.op, read.buffer): set(read.ages) for read in staleness(trained.schedule)}
    assert all(predicted[key] == {0} for key in trained.run.ages)


def test_a_seed_repeats_its_draws_and_another_makes_others(tmp_path: Path) -> None:
    runs = [bns(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert runs[0].run.weight_hashes == runs[1].run.weight_hashes
    assert runs[0].run.losses[0] != runs[2].run.losses[0]


LEARNT = small_graph(nodes=3000, degree=10, classes=6, features=32)


def states(graph: Graph, parts: tuple[Part, ...], what: What, **model: Any) -> list[RankState]:
    """All ranks in one process, without anybody to talk to."""
    spec = spec_for(graph, **model)
    schedule = schedule_for(parts, spec, "float64", "bns", rate=RATE, what=what)
    job = Job(schedule=schedule, spec=spec, settings=Settings(epochs=1, dtype="float64"))
    found = []
    for part in parts:
        state = RankState(job, part, Endpoint(rank=part.rank, timeout_s=1, backend="gloo", device=torch.device("cpu")))
        state.progress = Progress(schedule, part.rank, 1.0)
        found.append(state)
    return found


@pytest.mark.parametrize("what", list(What))
def test_the_sum_of_neighbours_is_right_on_average(what: What) -> None:
    """The mean over draws of the halo's share in all sums; its error is small enough to show a bias of 1 %."""
    parts = build_parts(LEARNT, random_parts(LEARNT, 2))
    ranks, sums = states(LEARNT, parts, what), []
    rows = torch.arange(LEARNT.num_nodes, dtype=torch.float64).reshape(-1, 1) % 7 + 1
    local = [rows[torch.from_numpy(np.concatenate((part.inner, part.halo)))] for part in parts]
    full = float(sum(state.block.aggregate(own).sum() for state, own in zip(ranks, local, strict=True)))
    alone = float(torch.from_numpy(without_cut(LEARNT, parts)).matmul(rows).sum())
    for epoch in range(150):
        sums.append(sum(drawn_sum(ranks, state, epoch, own) for state, own in zip(ranks, local, strict=True)))
    error = float(np.std(sums)) / len(sums) ** 0.5
    assert abs(float(np.mean(sums)) - full) <= 3 * error
    assert 3 * error <= 0.011 * (full - alone)


def drawn_sum(ranks: list[RankState], state: RankState, epoch: int, own: torch.Tensor) -> float:
    """What a rank's ops make of an epoch's draw, the exchange of ids apart."""
    ops = {op.name.partition(".")[0]: op for op in state.schedule.by_rank[state.rank]}
    if "sample_rows" in ops:
        sent = [draw_boundary(r.part.send_offsets, RATE, seed=0, rank=r.rank, epoch=epoch) for r in ranks]
        state.values["needs"][epoch] = halo_ids(state, joined([one.of(state.rank) for one in sent]))
    else:
        handle(state, ops["sample_drop"], epoch)
    handle(state, ops["rebuild"], epoch)
    graph = state.values["graph"][epoch]
    halo = own[state.part.num_inner :][graph.halo]
    halo = halo if graph.scale is None else halo * graph.scale
    state.values.clear()
    return float(graph.block.aggregate(torch.cat([own[: state.part.num_inner], halo])).sum())


def test_attention_is_not_rescaled() -> None:
    (state, *_) = states(GRAPH, PARTS, What.NODES, kind=ModelKind.GAT)
    ops = {op.name: op for op in state.schedule.by_rank[0]}
    sent = [draw_boundary(part.send_offsets, RATE, seed=0, rank=part.rank, epoch=0) for part in PARTS]
    state.values["needs"][0] = halo_ids(state, joined([one.of(0) for one in sent]))
    handle(state, ops["rebuild"], 0)
    graph = state.read(ops["forward.1"], Rows.GRAPH, 0)
    assert graph.scale is not None
    state.values["h.1"][0] = torch.ones(state.part.num_inner, 16, dtype=torch.float64)
    halo = torch.full((len(graph.halo), 16), 2.0, dtype=torch.float64)
    state.channels["exchange.1"].ring[0].copy_(halo)
    handle(state, ops["forward.1"], 0)
    assert torch.equal(state.saved[1][0][state.part.num_inner :].detach(), halo)


def points(directory: Path, graph: Graph, assigned: Assignment, method: str, **options: Any) -> float:
    """Test accuracy in per cent, the mean of the last evaluations."""
    trained = train(
        graph,
        assigned,
        spec_for(graph, hidden=32, dropout=0.5),
        directory,
        method=method,
        options=options,
        dtype="float32",
        epochs=80,
        eval_every=10,
        threads=1,
    )
    return 100 * mean(scores["test"] for scores in list(trained.run.evaluated.values())[-3:])


def test_it_learns_as_well_as_vanilla(tmp_path: Path) -> None:
    assigned = metis_parts(LEARNT, 2)
    vanilla = points(tmp_path / "vanilla", LEARNT, assigned, "vanilla")
    for rate in (0.1, 0.01):
        assert points(tmp_path / str(rate), LEARNT, assigned, "bns", rate=rate) >= vanilla - 1.5


def test_without_any_halo_rows_it_learns_worse_on_random_parts(tmp_path: Path) -> None:
    hard = small_graph(nodes=3000, degree=6, classes=10, features=32, mixing=0.4)
    assigned = random_parts(hard, 4)
    vanilla = points(tmp_path / "vanilla", hard, assigned, "vanilla")
    assert points(tmp_path / "none", hard, assigned, "bns", rate=0.0) <= vanilla - 3
