"""Boundary sampling on real processes: vanilla at rate 1, isolated parts at 0, in between as on the drawn matrices."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from dense import Dense, renormalised, train_dense, with_edges, with_rows, without_cut
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
    with_channels,
)

from halocast.exec.launch.job import Job, Settings
from halocast.exec.run.draws import halo_ids
from halocast.exec.run.handlers import handle
from halocast.exec.run.interpret import Progress
from halocast.exec.run.state import RankState
from halocast.exec.transport.comm import Endpoint
from halocast.graph import Assignment, Graph, Part, build_parts
from halocast.graph.sampling import (
    Draw,
    draw_boundary,
    drop,
    drop_probabilities,
    dropped_by_boundary,
    inner_edges,
    joined,
    self_loops,
)
from halocast.methods.bns import Mean, What
from halocast.models.spec import ModelKind
from halocast.reports.summary import drawn_traffic
from halocast.schedule.check import staleness
from halocast.schedule.ir import Rows

GRAPH = small_graph()
ASSIGNED = metis_parts(GRAPH, 3)
PARTS = build_parts(GRAPH, ASSIGNED)
RATE = 0.3


def bns(directory: Path, *, rate: float = RATE, what: What = What.NODES, seed: int = 0, **changes: Any) -> Trained:
    options: dict[str, Any] = {"rate": rate, "what": what, "seed": seed}
    options |= {key: changes.pop(key) for key in ("draw", "mean") if key in changes}
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
        (What.NODES, {"kind": ModelKind.GCNII, "layers": 4}),
    ],
)
def test_at_rate_1_it_is_training_on_one_device(tmp_path: Path, what: What, model: dict[str, Any]) -> None:
    trained = bns(tmp_path, rate=1.0, what=what, **model)
    assert_equal_training(trained, reference_for(GRAPH, spec_for(GRAPH, **model)), logits=1e-10, grads=1e-10)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"draw": Draw.BERNOULLI}, ModelKind.SAGE),
        ({"draw": Draw.FLOOR}, ModelKind.GCN),
        ({"draw": Draw.BERNOULLI, "mean": Mean.RENORMALISED}, ModelKind.GCN),
        ({"mean": Mean.RENORMALISED}, ModelKind.SAGE),
    ],
)
def test_at_rate_1_every_rule_is_training_on_one_device(
    tmp_path: Path, options: dict[str, Any], kind: ModelKind
) -> None:
    trained = bns(tmp_path, rate=1.0, kind=kind, **options)
    assert_equal_training(trained, reference_for(GRAPH, spec_for(GRAPH, kind=kind)), logits=1e-10, grads=1e-10)


@pytest.mark.parametrize("precompute", [False, True])
def test_at_rate_0_parts_are_isolated_but_for_a_precomputed_layer_0(tmp_path: Path, precompute: bool) -> None:
    """Cut edges are missing, degrees are whole; `train_dense` sums a precomputed layer over the whole graph."""
    trained = bns(tmp_path, rate=0.0, precompute=precompute)
    matrix = without_cut(GRAPH, PARTS)
    assert_dense(trained, GRAPH, lambda epoch: matrix, precompute=precompute)
    sent = sum(s.num_bytes for s in trained.run.trace.spans if s.op.startswith("exchange"))
    assert sent == 0
    assert trained.run.ages == {}


def scale_of(draw: Draw) -> Callable[[int, int], float]:
    """The factor of a row: the realised one only where a pair surely has one."""

    def scale(listed: int, sent: int) -> float:
        return 1 / RATE if draw is Draw.BERNOULLI or RATE * listed < 1 else listed / sent

    return scale


def drawn_rows(parts: tuple[Part, ...], graph: Graph, seed: int, epoch: int, draw: Draw = Draw.ROUNDED) -> Dense:
    sent = [draw_boundary(part.send_offsets, RATE, draw, seed=seed, rank=part.rank, epoch=epoch) for part in parts]
    return with_rows(graph, parts, sent, scale_of(draw))


@pytest.mark.parametrize("draw", list(Draw))
@pytest.mark.parametrize("model", [{"kind": ModelKind.GCN}, {"precompute": True}])
def test_every_epoch_is_trained_on_the_rows_that_were_drawn_for_it(
    tmp_path: Path, model: dict[str, Any], draw: Draw
) -> None:
    trained = bns(tmp_path, seed=4, draw=draw, **model)
    assert_dense(trained, GRAPH, lambda epoch: drawn_rows(PARTS, GRAPH, 4, epoch, draw), **model)


@pytest.mark.parametrize("what", [What.NODES, What.EDGES])
def test_a_renormalised_mean_is_over_the_neighbours_that_are_there(tmp_path: Path, what: What) -> None:
    def matrix(epoch: int) -> Dense:
        if what is What.NODES:
            return renormalised(GRAPH, drawn_rows(PARTS, GRAPH, 0, epoch))
        left = [dropped_edges(part, what, epoch) for part in PARTS]
        return renormalised(GRAPH, with_edges(GRAPH, PARTS, left))

    assert_dense(bns(tmp_path, mean=Mean.RENORMALISED, what=what), GRAPH, matrix)


def dropped_edges(part: Part, what: What, epoch: int) -> Dense:
    """Weights of a part's edges, 0 for those that were dropped."""
    candidates = ~inner_edges(part) if what is What.EDGES else ~self_loops(part)
    number = dropped_by_boundary(part, RATE)
    kept = drop(candidates, number, seed=0, rank=part.rank, epoch=epoch)
    return np.where(kept, 1 / drop_probabilities(candidates, number), 0.0)


@pytest.mark.parametrize("what", [What.EDGES, What.DROPEDGE])
def test_the_baselines_are_trained_on_the_edges_that_were_drawn(tmp_path: Path, what: What) -> None:
    def matrix(epoch: int) -> Dense:
        return with_edges(GRAPH, PARTS, [dropped_edges(part, what, epoch) for part in PARTS])

    assert_dense(bns(tmp_path, what=what), GRAPH, matrix)


def ring_in_four() -> tuple[Graph, Assignment]:
    """A ring in four pieces: opposite ones have no row in common, neighbours one each way."""
    n = 40
    ring = np.arange(n)
    graph = graph_of(np.concatenate([ring, (ring + 1) % n]), np.concatenate([(ring + 1) % n, ring]), n)
    return graph, (ring // 10).astype(np.int32)


@pytest.mark.parametrize("options", [{"draw": draw} for draw in Draw] + [{"what": What.EDGES}])
def test_parts_that_do_not_touch_and_draws_of_nothing_work(tmp_path: Path, options: dict[str, Any]) -> None:
    graph, pieces = ring_in_four()
    options = {"rate": RATE, **options}
    trained = train(graph, pieces, spec_for(graph), tmp_path, method="bns", options=options, epochs=6)
    assert np.diff(trained.parts[0].send_offsets).tolist() == [0, 1, 0, 1]
    sent: Counter[int] = Counter()
    for span in trained.run.trace.spans:
        sent[span.epoch] += span.num_bytes // (12 * 8) if span.op == "exchange.0" else 0
    if "draw" in options:
        draw = options["draw"]
        drawn = [drawn_of(trained.parts, draw, epoch) for epoch in range(6)]
        assert [sent[epoch] for epoch in range(6)] == drawn
        assert (max(drawn) == 0) is (draw is Draw.FLOOR)
        spec = spec_for(graph)
        losses, _ = train_dense(graph, spec, lambda e: drawn_rows(trained.parts, graph, 0, e, draw), num_epochs=6)
        assert np.allclose(trained.run.losses, losses, rtol=1e-10, atol=0)
    assert len(set(trained.run.losses)) == 6


def drawn_of(parts: tuple[Part, ...], draw: Draw, epoch: int) -> int:
    """Rows that all parts send in an epoch."""
    return sum(
        len(draw_boundary(part.send_offsets, RATE, draw, seed=0, rank=part.rank, epoch=epoch).ids) for part in parts
    )


@pytest.mark.parametrize("draw", list(Draw))
def test_bytes_are_the_drawn_rows_in_both_directions_and_their_ids(tmp_path: Path, draw: Draw) -> None:
    """Before ids whose number differs between epochs comes that number, one for every pair that touches."""
    trained = bns(tmp_path, draw=draw)
    rows = sum(drawn_of(PARTS, draw, epoch) for epoch in range(EPOCHS))
    moved: Counter[str] = Counter()
    for span in trained.run.trace.spans:
        moved[span.op] += span.num_bytes
    widths, itemsize = (12, 16, 16), 8
    for layer in range(3):
        assert moved[f"exchange.{layer}"] == rows * widths[layer] * itemsize
    for layer in (1, 2):
        assert moved[f"exchange_grad.{layer}"] == rows * widths[layer] * itemsize
    pairs = sum(int(np.count_nonzero(np.diff(part.send_offsets))) for part in PARTS)
    assert moved["exchange_ids"] == 8 * (rows + (0 if draw is Draw.FLOOR else EPOCHS * pairs))


@pytest.mark.parametrize("draw", [Draw.ROUNDED, Draw.BERNOULLI])
def test_executed_bytes_are_the_expected_ones_on_average(tmp_path: Path, draw: Draw) -> None:
    """The band that a prediction gives is that of the mean over epochs, once it is divided by their root."""
    trained = bns(tmp_path, draw=draw, epochs=100, layers=2, dtype="float32")
    per_epoch = [0.0] * 100
    for span in trained.run.trace.spans:
        per_epoch[span.epoch] += span.num_bytes if span.op.startswith("exchange") else 0
    told = drawn_traffic(trained.schedule)
    assert told is not None
    rounding = 6 * (8 + 4 * (12 + 2 * 16)) / 2  # six pairs, whose means are told as whole rows
    assert abs(mean(per_epoch) - told.drawn_bytes) <= 3 * told.drawn_bytes_std / 10 + rounding
    assert float(np.std(per_epoch)) == pytest.approx(told.drawn_bytes_std, rel=0.25)


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


def states(graph: Graph, parts: tuple[Part, ...], **options: Any) -> list[RankState]:
    """All ranks in one process, without anybody to talk to."""
    spec = spec_for(graph, kind=options.pop("kind", ModelKind.SAGE))
    schedule = schedule_for(parts, spec, "float64", "bns", rate=RATE, **options)
    job = Job(schedule=schedule, spec=spec, settings=Settings(epochs=1, dtype="float64"))
    found = []
    for part in parts:
        state = RankState(job, part, Endpoint(rank=part.rank, timeout_s=1, backend="gloo", device=torch.device("cpu")))
        state.progress = Progress(schedule, part.rank, 1.0)
        found.append(state)
    return found


SPARSE = small_graph(nodes=400, degree=4, features=2)
AVERAGES = [
    *((LEARNT, 2, {"draw": draw}) for draw in Draw),
    *((LEARNT, 2, {"what": what}) for what in (What.EDGES, What.DROPEDGE)),
    *((SPARSE, 24, {"draw": draw}) for draw in (Draw.ROUNDED, Draw.BERNOULLI)),
]


@pytest.mark.parametrize(("graph", "num_parts", "options"), AVERAGES)
def test_the_sum_of_neighbours_is_right_on_average(graph: Graph, num_parts: int, options: dict[str, Any]) -> None:
    """The mean over draws of the halo's share in all sums; its error is small enough to show a bias of some per cent,
    which is what is lost where most pairs have fewer than 1/rate rows and those are silent."""
    parts = build_parts(graph, random_parts(graph, num_parts))
    if num_parts > 2:
        assert float(np.median(np.concatenate([np.diff(part.send_offsets) for part in parts]))) < 1 / RATE
    ranks, sums = states(graph, parts, **options), []
    rows = torch.arange(graph.num_nodes, dtype=torch.float64).reshape(-1, 1) % 7 + 1
    local = [rows[torch.from_numpy(np.concatenate((part.inner, part.halo)))] for part in parts]
    full = float(sum(state.block.aggregate(own).sum() for state, own in zip(ranks, local, strict=True)))
    alone = float(torch.from_numpy(without_cut(graph, parts)).matmul(rows).sum())
    draw = options.get("draw", Draw.ROUNDED)
    for epoch in range(150):
        sums.append(sum(drawn_sum(ranks, state, epoch, own, draw) for state, own in zip(ranks, local, strict=True)))
    error = float(np.std(sums)) / len(sums) ** 0.5
    assert abs(float(np.mean(sums)) - full) <= 3 * error
    assert 3 * error <= 0.03 * (full - alone)


def drawn_sum(ranks: list[RankState], state: RankState, epoch: int, own: torch.Tensor, draw: Draw) -> float:
    """What a rank's ops make of an epoch's draw, the exchange of ids apart."""
    ops = {op.name.partition(".")[0]: op for op in state.schedule.by_rank[state.rank]}
    if "sample_rows" in ops:
        sent = [draw_boundary(r.part.send_offsets, RATE, draw, seed=0, rank=r.rank, epoch=epoch) for r in ranks]
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
    (state, *_) = states(GRAPH, PARTS, kind=ModelKind.GAT)
    ops = {op.name: op for op in state.schedule.by_rank[0]}
    sent = [draw_boundary(part.send_offsets, RATE, seed=0, rank=part.rank, epoch=0) for part in PARTS]
    state.values["needs"][0] = halo_ids(state, joined([one.of(0) for one in sent]))
    handle(state, ops["rebuild"], 0)
    graph = state.read(ops["forward.1"], Rows.GRAPH, 0)
    assert graph.scale is not None
    state.values["h.1"][0] = torch.ones(state.part.num_inner, 16, dtype=torch.float64)
    halo = torch.full((len(graph.halo), 16), 2.0, dtype=torch.float64)
    with_channels(state)["exchange.1"].ring[0] = halo
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
