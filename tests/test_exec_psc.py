"""Sampled prefetching on real processes: PipeGCN or vanilla without sampling, else as on the matrices it drew."""

from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from dense import Dense, train_stale, with_edges, without_cut
from training import (
    EPOCHS,
    Trained,
    metis_parts,
    random_parts,
    schedule_for,
    small_graph,
    spec_for,
    train,
    with_channels,
)

from halocast.exec.launch.job import Job, Settings
from halocast.exec.run.drawn import all_ids
from halocast.exec.run.handlers import handle
from halocast.exec.run.interpret import Progress
from halocast.exec.run.state import RankState
from halocast.exec.transport.comm import Endpoint
from halocast.graph import Graph, build_parts
from halocast.graph.graph import Mask
from halocast.graph.inclusion import CachePolicy, Important, choose_cache, edge_probabilities, halo_inclusion
from halocast.graph.sampling import Weighting, draw_edges, edge_weights, needed_halo
from halocast.methods.psc import Draws, Lengths, Wait
from halocast.models.modules import Gnn
from halocast.models.spec import ModelKind
from halocast.schedule.check import staleness
from halocast.schedule.ir import Exchange

GRAPH = small_graph()
ASSIGNED = metis_parts(GRAPH, 3)
PARTS = build_parts(GRAPH, ASSIGNED)
EPS = 0.3


def run(directory: Path, method: str = "psc", model: dict[str, Any] | None = None, **changes: Any) -> Trained:
    options = changes.pop("options", {})
    spec = spec_for(GRAPH, **(model or {}))
    return train(GRAPH, ASSIGNED, spec, directory, method=method, options=options, **changes)


@pytest.mark.parametrize(
    ("tau", "model", "draws"),
    [
        (0, {}, Draws.ONE),
        (1, {}, Draws.EACH),
        (2, {"kind": ModelKind.GCN}, Draws.ONE),
        (1, {"kind": ModelKind.GAT, "heads": 2}, Draws.ONE),
        (1, {"kind": ModelKind.GCNII, "layers": 4}, Draws.ONE),
    ],
)
def test_with_all_edges_it_is_a_pipeline_of_that_lag(
    tmp_path: Path, tau: int, model: dict[str, Any], draws: Draws
) -> None:
    """Without lag, vanilla; bit for bit, since rows and edges keep their order."""
    expected = run(tmp_path / "pipegcn", "pipegcn", model, options={"lag": tau}, epochs=7)
    found = run(tmp_path / "psc", "psc", model, options={"tau": tau, "eps": 1.0, "draws": draws}, epochs=7)
    assert found.run.losses == expected.run.losses
    assert found.run.weight_hashes == expected.run.weight_hashes


def drawn(epoch: int, layer: int, weighting: Weighting, symmetric: bool) -> tuple[Dense, Dense]:
    """The edges inside parts and across them with their weights, from the first epoch on."""
    weights = []
    for part in PARTS:
        p = Important(eps=EPS, symmetric=symmetric).of(part)
        kept = draw_edges(p, seed=3, rank=part.rank, epoch=epoch, layer=layer)
        weights.append(np.zeros(part.num_edges))
        weights[-1][kept] = edge_weights(weighting, part.indptr, p, kept)
    matrix = with_edges(GRAPH, PARTS, weights)
    inside = matrix * (without_cut(GRAPH, PARTS) > 0)
    return inside, matrix - inside


@pytest.mark.parametrize(
    ("tau", "weighting", "kind", "draws"),
    [
        (0, Weighting.INVERSE, ModelKind.GCN, Draws.ONE),
        (1, Weighting.INVERSE, ModelKind.SAGE, Draws.ONE),
        (2, Weighting.SAMPLED_DEGREE, ModelKind.SAGE, Draws.ONE),
        (0, Weighting.SAMPLED_DEGREE, ModelKind.SAGE, Draws.EACH),
        (1, Weighting.SAMPLED_DEGREE, ModelKind.GCN, Draws.EACH),
        (2, Weighting.INVERSE, ModelKind.SAGE, Draws.EACH),
    ],
)
def test_every_epoch_is_trained_on_the_edges_that_were_drawn_for_it(
    tmp_path: Path, tau: int, weighting: Weighting, kind: ModelKind, draws: Draws
) -> None:
    """By all layers, or by each; the halo rows of the first epochs are zeros, and count as neighbours."""
    options = {"tau": tau, "eps": EPS, "refresh": 0, "seed": 3, "weighting": weighting, "draws": draws}
    found = run(tmp_path, model={"kind": kind}, options=options, epochs=7)
    spec = spec_for(GRAPH, kind=kind)

    def matrices(epoch: int, layer: int) -> tuple[Dense, Dense]:
        return drawn(epoch, layer if draws is Draws.EACH else 0, weighting, kind is ModelKind.GCN)

    losses, weights = train_stale(GRAPH, spec, matrices, lag=tau, num_epochs=7)
    assert np.allclose(found.run.losses, losses, rtol=1e-10, atol=0)
    for own in found.weights:
        assert (own - weights).abs().max() <= 1e-10


class Estimates:
    """Probabilities as they are renewed every `refresh` epochs, from rows that one process has seen."""

    def __init__(self, tau: int, refresh: int) -> None:
        self.tau, self.refresh = tau, refresh
        self.renewed = {-1: [Important(eps=EPS).of(part) for part in PARTS]}  # by epoch
        self.squares = [np.full((3, part.num_inner + part.num_halo), np.nan) for part in PARTS]

    def kept(self, rank: int, epoch: int) -> Mask:
        """The edges of an epoch, drawn `tau` epochs before with what was known when the one before that ended."""
        known = max(when for when in self.renewed if when == -1 or when < epoch - self.tau)
        return draw_edges(self.renewed[known][rank], seed=3, rank=rank, epoch=epoch)

    def matrices(self, epoch: int, layer: int) -> tuple[Dense, Dense]:
        weights = []
        for part in PARTS:
            kept = self.kept(part.rank, epoch)
            own = np.zeros(part.num_edges)
            own[kept] = edge_weights(Weighting.SAMPLED_DEGREE, part.indptr, np.empty(0), kept)
            weights.append(own)
        matrix = with_edges(GRAPH, PARTS, weights)
        inside = matrix * (without_cut(GRAPH, PARTS) > 0)
        return inside, matrix - inside

    def observe(self, epoch: int, rows: dict[tuple[int, int], torch.Tensor], model: Gnn) -> None:
        if epoch % self.refresh != self.refresh - 1:
            return
        for part, squares in zip(PARTS, self.squares, strict=True):
            needed = needed_halo(part, self.kept(part.rank, epoch))
            for layer in range(3):
                matrix = model.linears[layer].neighbours.weight.detach()  # type: ignore[union-attr,operator]
                now, then = (
                    (rows[when, layer] @ matrix.T).square().sum(1).numpy() for when in (epoch, epoch - self.tau)
                )
                squares[layer, : part.num_inner] = now[part.inner]
                squares[layer, part.num_inner + needed] = then[part.halo[needed]]
        lengths = [np.sqrt(np.where(np.isnan(s), np.nanmean(s, 1, keepdims=True), s).sum(0)) for s in self.squares]
        renewed = [Important(eps=EPS).given(part, own) for part, own in zip(PARTS, lengths, strict=True)]
        self.renewed[epoch] = [p.astype(np.float32).astype(np.float64) for p in renewed]


@pytest.mark.parametrize("tau", [1, 2])
def test_estimates_that_are_renewed_are_those_of_one_process(tmp_path: Path, tau: int) -> None:
    options = {"tau": tau, "eps": EPS, "refresh": 3, "seed": 3, "weighting": Weighting.SAMPLED_DEGREE}
    found = run(tmp_path, options=options, epochs=14)
    seen = Estimates(tau, 3)
    losses, weights = train_stale(GRAPH, spec_for(GRAPH), seen.matrices, lag=tau, num_epochs=14, observe=seen.observe)
    assert sorted(seen.renewed) == [-1, 2, 5, 8, 11]
    assert np.allclose(found.run.losses, losses, rtol=1e-10, atol=0)
    for own in found.weights:
        assert (own - weights).abs().max() <= 1e-10


@pytest.mark.parametrize(
    ("policy", "tau", "refresh", "device", "draws"),
    [
        (CachePolicy.INCLUSION, 2, 2, "cpu", Draws.ONE),
        (CachePolicy.DEGREE, 1, 3, "twin", Draws.ONE),
        (CachePolicy.RANDOM, 0, 0, "cpu", Draws.ONE),
        (CachePolicy.INCLUSION, 1, 2, "cpu", Draws.EACH),
    ],
)
def test_a_cache_changes_no_input_of_any_layer(
    tmp_path: Path, policy: CachePolicy, tau: int, refresh: int, device: str, draws: Draws
) -> None:
    """Also where copies to and from a device are as late as they may be."""
    options = {"tau": tau, "eps": EPS, "refresh": refresh, "policy": policy, "draws": draws}
    without = run(tmp_path / "without", options=options, epochs=9)
    cached = run(tmp_path / "with", options={**options, "cache": 0.4}, epochs=9, device=device)
    assert cached.run.weight_hashes == without.run.weight_hashes
    assert bytes_of(cached, "exchange.0") < bytes_of(without, "exchange.0")
    for name in ("exchange.1", "exchange.2", "exchange_grad.1", "exchange_ids", "exchange_ids.0", "exchange_ids.1"):
        assert bytes_of(cached, name) == bytes_of(without, name)


def bytes_of(trained: Trained, op: str) -> int:
    return sum(span.num_bytes for span in trained.run.trace.spans if span.op == op)


def test_a_cache_saves_exactly_the_features_of_its_hits(tmp_path: Path) -> None:
    """A chosen row travels when it is needed first, and never again."""
    options = {"tau": 1, "eps": EPS, "refresh": 0}
    without = run(tmp_path / "without", options=options)
    cached = run(tmp_path / "with", options={**options, "cache": 0.4})
    hits = 0
    for part in PARTS:
        p, here = Important(eps=EPS).of(part), set[int]()
        chosen = choose_cache(CachePolicy.INCLUSION, 0.4, part, halo_inclusion(part, p), seed=0)
        for epoch in range(1, EPOCHS + 1):
            needed = needed_halo(part, draw_edges(p, seed=0, rank=part.rank, epoch=epoch)).tolist()
            hits += len(here.intersection(needed))
            here.update(row for row in needed if chosen[row])
    assert hits > 0
    assert cached.run.tallies["cache hits"].count == hits
    assert without.run.tallies == {}
    assert bytes_of(without, "exchange.0") - bytes_of(cached, "exchange.0") == hits * GRAPH.num_features * 8


@pytest.mark.parametrize("policy", list(CachePolicy))
def test_a_filled_cache_is_hit_as_often_as_expected(tmp_path: Path, policy: CachePolicy) -> None:
    """Hits of the first epochs, when rows that belong in the cache come for the first time, are missing."""
    options = {"tau": 1, "eps": EPS, "refresh": 0, "cache": 0.4, "policy": policy}
    tally = run(tmp_path, options=options, epochs=150).run.tallies["cache hits"]
    expected = needed = 0.0
    for part in PARTS:
        inclusion = halo_inclusion(part, Important(eps=EPS).of(part))
        chosen = choose_cache(policy, 0.4, part, inclusion, seed=0)
        expected, needed = expected + inclusion[chosen].sum(), needed + inclusion.sum()
    assert tally.total == pytest.approx(150 * needed, rel=0.02)
    assert tally.expected / tally.total == pytest.approx(expected / needed, abs=0.005)
    assert tally.count / tally.total == pytest.approx(expected / needed, abs=0.03)


def test_rows_and_gradients_are_as_old_as_the_checker_says(tmp_path: Path) -> None:
    trained = run(tmp_path, options={"tau": 2, "eps": EPS, "refresh": 2, "cache": 0.3}, epochs=9)
    predicted = {(read.op, read.buffer): set(read.ages) for read in staleness(trained.schedule)}
    assert {key: set(ages) for key, ages in trained.run.ages.items()} == {
        key: predicted[key] for key in trained.run.ages
    }
    assert set(trained.run.ages["forward.2", "halo.2"]) == {2}
    assert set(trained.run.ages["recall.0", "halo.0"]) == {2}
    assert set(trained.run.ages["backward.0", "gsent.1"]) == {2}


def test_errors_of_stale_rows_can_be_measured(tmp_path: Path) -> None:
    """With frozen weights and whole inner rows, what is stale is exact from some epoch on; here nothing is drawn."""
    trained = run(tmp_path, options={"tau": 1, "eps": 1.0}, epochs=6, lr=0.0, errors=True)
    late = [e for e in trained.run.errors if e.epoch >= 3 and e.what == "features"]
    assert {e.what for e in trained.run.errors} == {"features", "weights"}
    assert max(e.squared_error for e in late) <= 1e-20
    (last,) = [e for e in trained.run.errors if e.epoch == 5 and e.what == "weights"]
    assert last.squared_error <= 1e-20


def test_a_barrier_lets_an_epoch_begin_when_all_its_rows_are_there(tmp_path: Path) -> None:
    options = {"tau": 1, "eps": EPS, "refresh": 0}
    free = run(tmp_path / "free", options=options, epochs=6)
    waits = run(tmp_path / "waits", options={**options, "wait": Wait.BARRIER}, epochs=6)
    assert waits.run.weight_hashes == free.run.weight_hashes
    ends: dict[tuple[int, int], float] = defaultdict(float)
    for span in waits.run.trace.spans:
        if span.op.startswith("exchange") and span.op != "exchange_ids":
            ends[span.rank, span.epoch] = max(ends[span.rank, span.epoch], span.end_s)
    starts = [s for s in waits.run.trace.spans if s.op == "forward.0" and s.epoch >= 1]
    assert len(starts) == 3 * 5
    assert all(s.start_s >= ends[s.rank, s.epoch - 1] for s in starts)


def first_rank(*, kind: ModelKind, tau: int, **options: Any) -> RankState:
    """Rank 0 of a two-layer model, without anybody to talk to."""
    spec = spec_for(GRAPH, kind=kind, layers=2)
    schedule = schedule_for(PARTS, spec, "float64", "psc", tau=tau, eps=EPS, refresh=1, **options)
    job = Job(schedule=schedule, spec=spec, settings=Settings(epochs=1, dtype="float64"))
    state = RankState(job, PARTS[0], Endpoint(rank=0, timeout_s=1, backend="gloo", device=torch.device("cpu")))
    state.progress = Progress(schedule, 0, 1.0)
    return state


def test_halo_rows_that_never_came_matter_as_much_as_others_do() -> None:
    """In the first epochs of a pipeline zeros stand in their place."""
    state = first_rank(kind=ModelKind.SAGE, tau=1)
    (weigh,) = (op for op in state.schedule.by_rank[0] if op.name == "weigh")
    state.values["h.1"][0] = torch.ones(PARTS[0].num_inner, 16, dtype=torch.float64)
    handle(state, weigh, 0)
    halo = PARTS[0].indices >= PARTS[0].num_inner
    assert state.values["odds"][0][halo].min() > EPS / 3


@pytest.mark.parametrize("lengths", list(Lengths))
def test_importance_is_the_length_of_rows_after_the_matrix_of_their_layer(lengths: Lengths) -> None:
    """Own rows as they are, halo rows as received; for GCN a neighbour counts less the more it has itself."""
    state = first_rank(kind=ModelKind.GCN, tau=0, lengths=lengths)
    channels, part, rng = with_channels(state), PARTS[0], np.random.default_rng(0)
    some = np.sort(rng.permutation(part.num_halo)[:20])
    state.values["needs"][0] = all_ids(torch.from_numpy(some), np.array([0, 20, 20, 20]))
    squares = np.zeros(part.num_inner + part.num_halo)
    for layer, width in ((0, 12), (1, 16)):
        inner, halo = rng.normal(size=(part.num_inner, width)), rng.normal(size=(20, width)) * 3
        if layer:
            state.values["h.1"][0] = torch.from_numpy(inner)
        else:
            inner = part.features.astype(np.float64)
        channels[f"exchange.{layer}"].ring[0] = torch.from_numpy(halo)
        matrix = state.model.linears[layer].neighbours.weight.detach().numpy().T  # type: ignore[union-attr,operator]
        matrix = np.eye(width) if lengths is Lengths.ROWS else matrix
        own, others = ((inner @ matrix) ** 2).sum(1), ((halo @ matrix) ** 2).sum(1)
        seen = np.concatenate((own, np.full(part.num_halo, np.concatenate((own, others)).mean())))
        seen[part.num_inner + some] = others
        squares += seen
    (weigh,) = (op for op in state.schedule.by_rank[0] if op.name == "weigh")
    handle(state, weigh, 0)
    length = np.sqrt(squares / part.out_degree)
    expected = edge_probabilities(part, length[part.indices], Important(eps=EPS))
    assert state.values["odds"][0] == pytest.approx(expected, rel=1e-6)
    assert np.ptp(expected) > 0.2


def test_executed_bytes_are_the_expected_ones_on_average(tmp_path: Path) -> None:
    """Two parts, so that a rank's bytes are those of a pair; with the cache filled after 20 epochs."""
    graph = small_graph(nodes=3000, degree=10, features=4)
    trained = train(
        graph,
        random_parts(graph, 2),
        spec_for(graph, layers=2, hidden=4),
        tmp_path,
        method="psc",
        options={"eps": EPS, "refresh": 0, "cache": 0.2},
        epochs=80,
        dtype="float32",
        threads=1,
    )
    sums: dict[tuple[int, str], float] = defaultdict(float)
    for span in trained.run.trace.spans:
        if span.epoch >= 20:
            sums[span.rank, span.op] += span.num_bytes / 60
    for op in trained.schedule.ops:
        if isinstance(op.work, Exchange):
            assert sums[op.rank, op.name] == pytest.approx(trained.schedule.num_bytes(op), rel=0.01), op.label
            assert int(trained.schedule.received(op).sum()) // op.work.row_bytes > 100


def points(directory: Path, graph: Graph, method: str, num_epochs: int, seed: int = 5, **options: Any) -> float:
    """Test accuracy in per cent, the mean of the last evaluations."""
    trained = train(
        graph,
        metis_parts(graph, 2),
        spec_for(graph, hidden=32, dropout=0.5),
        directory,
        method=method,
        options=options,
        dtype="float32",
        epochs=num_epochs,
        eval_every=10,
        threads=1,
        seed=seed,
    )
    return 100 * mean(scores["test"] for scores in list(trained.run.evaluated.values())[-4:])


def test_it_learns_as_well_as_vanilla_where_a_tenth_of_the_neighbours_are_some(tmp_path: Path) -> None:
    graph = small_graph(nodes=1500, degree=50, classes=6, features=32)
    vanilla = points(tmp_path / "vanilla", graph, "vanilla", 60)
    for tau in (1, 2):
        assert points(tmp_path / str(tau), graph, "psc", 60, tau=tau) >= vanilla - 1.5
