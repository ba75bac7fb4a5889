"""Schedules of sampling methods: legal, the same as text, with the sizes of the formulas, from parts and from cards."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from training import metis_parts, random_parts, small_graph, spec_for

from halocast.base.errors import InputError
from halocast.cluster.catalogue import load_cluster
from halocast.graph import (
    Halo,
    TrainGraph,
    assign,
    build_parts,
    from_assignment,
    from_card,
    from_parts,
    load_card,
    synthetic,
)
from halocast.graph.halo import Cached, LikelyEdges
from halocast.graph.inclusion import (
    CachePolicy,
    Even,
    Important,
    Odds,
    choose_cache,
    expected_rows,
    halo_inclusion,
    law_of_card,
)
from halocast.graph.sampling import Draw, Weighting, self_loops
from halocast.methods import METHODS
from halocast.methods.bns import Mean, What
from halocast.methods.psc import Draws
from halocast.models.spec import ModelKind, ModelSpec
from halocast.reports.summary import drawn_traffic
from halocast.schedule.check import check, problems, staleness
from halocast.schedule.ir import Kind, Matrix, Numbers, Schedule
from halocast.schedule.passes import memory, steady_epochs
from halocast.schedule.text import format_schedule, parse_schedule
from halocast.sim.engine import simulate

GRAPH = small_graph(nodes=2000, degree=12)
PARTS = build_parts(GRAPH, metis_parts(GRAPH, 4))
HALO = from_parts(PARTS)
SPEC = spec_for(GRAPH)
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("bns", {"rate": rate}) for rate in (0.0, 0.3, 1.0)),
    *(("bns", {"rate": 0.3, "what": what}) for what in What),
    *(("bns", {"rate": 0.3, "draw": draw, "mean": Mean.RENORMALISED}) for draw in Draw),
    *(("psc", {"tau": tau, "eps": 0.2}) for tau in (0, 1, 3)),
    *(("psc", {"cache": 0.3, "policy": policy}) for policy in CachePolicy),
    *(("psc", {"cache": 0.3, "draws": Draws.EACH, "tau": tau}) for tau in (0, 2)),
]


def make(method: str, spec: ModelSpec = SPEC, halo: Halo = HALO, **options: Any) -> Schedule:
    chosen = METHODS[method]
    return check(chosen.make(halo, spec, chosen.options(**options), Numbers.FLOAT32))


def sent(schedule: Schedule, name: str) -> int:
    return sum(schedule.num_bytes(op) for op in schedule.ops if op.name == name)


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize("model", [{}, {"precompute": True}, {"kind": ModelKind.GAT, "precompute": True, "heads": 2}])
def test_schedules_are_legal_and_survive_as_text(method: str, options: dict[str, Any], model: dict[str, Any]) -> None:
    schedule = make(method, spec_for(GRAPH, **model), **options)
    assert parse_schedule(format_schedule(schedule)) == schedule


@pytest.mark.parametrize(("method", "options"), CASES)
def test_the_simulator_moves_the_bytes_the_schedule_expects(method: str, options: dict[str, Any]) -> None:
    schedule = make(method, **options)
    _, epochs = steady_epochs(schedule)
    trace = simulate(schedule, load_cluster("cpu-local", gpus=4), epochs)
    for op in schedule.ops:
        if op.kind is Kind.EXCHANGE:
            spans = [s for s in trace.spans if (s.rank, s.op) == (op.rank, op.name)]
            assert {s.num_bytes for s in spans} == {schedule.num_bytes(op)}
            assert len(spans) == epochs


@pytest.mark.parametrize("method", ["bns", "psc"])
@pytest.mark.parametrize("name", ["reddit", "ogbn-products"])
def test_a_card_is_enough(method: str, name: str) -> None:
    halo = from_card(load_card(name), 8)
    spec = replace(SPEC, num_features=halo.num_features, num_classes=halo.num_classes)
    whole, some = make("vanilla", spec, halo), make(method, spec, halo)
    assert 0 < sent(some, "exchange.1") < sent(whole, "exchange.1")
    assert dict(some.meta)["sizes"] == "from card"


def test_one_part_and_layers_that_exchange_nothing_are_not_sampled() -> None:
    alone = from_parts(build_parts(GRAPH, np.zeros(GRAPH.num_nodes, np.int32)))
    shallow = spec_for(GRAPH, layers=1, precompute=True)
    for method in ("bns", "psc"):
        for schedule in (make(method, halo=alone), make(method, shallow)):
            assert not any(op.kind in (Kind.SAMPLE, Kind.EXCHANGE) for op in schedule.ops)
            assert dict(schedule.meta)["method"] == method


@pytest.mark.parametrize("draw", list(Draw))
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
def test_boundary_rows_are_those_of_the_rate_on_average(rate: float, draw: Draw) -> None:
    """To the nearest whole row per pair; where the number differs between epochs each pair says it first."""
    schedule = make("bns", rate=rate, draw=draw)
    mean = np.floor(rate * HALO.matrix + 1e-9) if draw is Draw.FLOOR else rate * HALO.matrix
    pairs = np.count_nonzero(HALO.matrix)
    rows = sent(schedule, "exchange.1") // (16 * 4)
    assert abs(rows - mean.sum()) <= pairs / 2
    differs = (draw is Draw.BERNOULLI and 0 < rate < 1) or (draw is Draw.ROUNDED and rate in (0.1, 0.5))
    assert sent(schedule, "exchange_ids") == 8 * (rows + (pairs if differs else 0))
    assert all(matrix.drawn is differs for matrix in schedule.matrices)
    assert sent(schedule, "exchange.0") == rows * 12 * 4
    for layer in (1, 2):
        assert sent(schedule, f"exchange_grad.{layer}") == rows * 16 * 4


def test_a_pair_too_small_for_one_row_an_epoch_still_travels() -> None:
    """The simulator lets such a pair meet with one row in every epoch."""
    tiny = make("bns", rate=0.001)
    assert np.array_equal(tiny.matrices[0].counts, HALO.matrix > 0)
    assert tiny.matrices[0].spread == pytest.approx(np.sqrt(0.001 * HALO.matrix * (1 - 0.001 * HALO.matrix)), abs=1e-3)
    assert not make("bns", rate=0.001, draw=Draw.FLOOR).matrices[0].counts.any()


def test_halo_memory_falls_with_the_rate_and_nothing_else_does() -> None:
    whole, some = (dict(_sizes(make("bns", rate=rate))) for rate in (1.0, 0.25))
    halo, quarter = int(HALO.num_halo[0]), int(np.rint(0.25 * HALO.matrix)[:, 0].sum())
    for name in ("halo.0", "halo.1", "halo.2", "ghalo.1", "ghalo.2"):
        assert whole[name] * quarter == some[name] * halo
    for name in ("topology", "send_rows", "h.0", "h.1", "gh.2", "weights", "moments", "labels"):
        assert whole[name] == some[name]
    peaks = [memory(make("bns", rate=rate), 0).peak_bytes for rate in (0.0, 0.25, 1.0)]
    assert peaks == sorted(set(peaks))


def _sizes(schedule: Schedule) -> list[tuple[str, int]]:
    return [(buffer.name, buffer.num_bytes) for buffer in schedule.buffers if buffer.rank == 0]


def test_the_baselines_send_more_for_as_many_dropped_edges() -> None:
    nodes, edges, dropped = (make("bns", rate=0.1, what=what) for what in What)
    kept = [[op.work.kernels[1].dims[2] for op in s.ops if op.name == "forward.1"] for s in (nodes, edges, dropped)]
    assert kept[0] == kept[1] == kept[2]
    volumes = [sent(schedule, "exchange.1") for schedule in (nodes, edges, dropped)]
    assert volumes[0] < volumes[1] < volumes[2] < sent(make("vanilla"), "exchange.1")


ODDS: list[Odds] = [Even(0.2), Important(eps=0.2), Important(eps=0.1, least=0, symmetric=True)]


@pytest.mark.parametrize("odds", ODDS)
@pytest.mark.parametrize("cached", [None, *(Cached(0.3, policy) for policy in CachePolicy)])
def test_expected_rows_are_those_of_the_parts(cached: Cached | None, odds: Odds) -> None:
    """Against the inclusion of every row, and the cache as the executor chooses it (a random one: on average)."""
    found = HALO.expected_rows([odds] * 4, cached)
    for part in PARTS:
        inclusion = halo_inclusion(part, odds.of(part))
        if cached is not None and cached.policy is CachePolicy.RANDOM:
            inclusion = inclusion * (1 - int(0.3 * part.num_halo) / part.num_halo)
        elif cached is not None:
            inclusion = inclusion * ~choose_cache(cached.policy, 0.3, part, inclusion, seed=0)
        assert found.mean[:, part.rank] == pytest.approx(expected_rows(part, inclusion).mean)
    same = from_assignment(GRAPH, metis_parts(GRAPH, 4)).expected_rows([odds] * 4, cached)
    assert np.array_equal(same.mean, found.mean)
    assert np.array_equal(same.variance, found.variance)


@pytest.mark.parametrize("odds", ODDS)
def test_kept_edges_are_self_loops_and_the_sum_of_probabilities(odds: Odds) -> None:
    for part, kept in zip(PARTS, HALO.kept_edges([odds] * 4), strict=True):
        others = ~self_loops(part)
        assert kept == pytest.approx(part.num_inner + odds.of(part)[others].sum())


@pytest.mark.parametrize("odds", ODDS)
def test_a_law_gives_nearly_the_rows_and_edges_of_random_parts(odds: Odds) -> None:
    graph = synthetic(nodes=8000, degree=20, skew=0.5, classes=32, features=2, mixing=0.2, seed=0)
    real = from_assignment(graph, assign(graph, 8, partitioner="random"))
    sigma = float(np.log(graph.out_degree[graph.out_degree > 1] - 1).std())
    card = TrainGraph(nodes=graph.num_nodes, edges=graph.num_edges, train_nodes=0, degree_sigma=sigma)
    law = law_of_card(card, 8, "random")
    edges = (real.num_edges - real.num_inner).tolist()
    rows = tuple(LikelyEdges(law=law, num_inner=1000, most=most) for most in edges)
    made = replace(real, row_edges=rows)
    expected = real.expected_rows([odds] * 8).mean.sum()
    assert made.expected_rows([odds] * 8).mean.sum() == pytest.approx(expected, rel=0.03)
    assert made.kept_edges([odds] * 8).sum() == pytest.approx(real.kept_edges([odds] * 8).sum(), rel=0.02)


def test_cut_edges_are_counted_from_parts_and_from_an_assignment_alike() -> None:
    part_of = random_parts(GRAPH, 3)
    rows = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    counted = np.zeros((3, 3))
    np.add.at(counted, (part_of[GRAPH.indices], part_of[rows]), 1)
    np.fill_diagonal(counted, 0)
    assert np.array_equal(from_assignment(GRAPH, part_of).cut_edges(), counted)
    assert np.array_equal(from_parts(build_parts(GRAPH, part_of)).cut_edges(), counted)


@pytest.mark.parametrize("policy", list(CachePolicy))
def test_a_card_expects_fewer_misses_the_larger_the_cache(policy: CachePolicy) -> None:
    halo = from_card(load_card("reddit"), 8)
    odds = [Important(eps=0.1)] * 8
    volumes = [halo.expected_rows(odds, Cached(c, policy)).mean.sum() for c in (0.0, 0.1, 0.5, 1.0)]
    assert volumes[0] == pytest.approx(halo.expected_rows(odds).mean.sum())
    assert volumes == sorted(volumes, reverse=True)
    assert volumes[-1] == pytest.approx(0, abs=1e-6)
    if policy is not CachePolicy.RANDOM:
        random = halo.expected_rows(odds, Cached(0.1, CachePolicy.RANDOM)).mean.sum()
        assert volumes[1] < random


@pytest.mark.parametrize(
    ("method", "options", "kind"),
    [
        ("psc", {}, "spmm_weighted"),
        ("psc", {"weighting": Weighting.INVERSE, "draws": Draws.EACH}, "spmm_weighted"),
        ("psc", {"eps": 1.0}, "spmm"),
        ("bns", {"what": What.EDGES}, "spmm_weighted"),
        ("bns", {}, "spmm"),
        ("bns", {"mean": Mean.RENORMALISED}, "spmm_weighted"),
    ],
)
def test_sums_over_weighted_edges_are_a_kernel_of_their_own(method: str, options: dict[str, Any], kind: str) -> None:
    """A machine that was measured does them at another rate; one that was not, at the same."""
    ops = [op for op in make(method, **options).ops if op.verb in ("forward", "backward")]
    assert {k.kind for op in ops for k in op.work.kernels if k.kind.startswith("spmm")} == {kind}


def test_the_spread_over_epochs_is_told_per_pair() -> None:
    expected = HALO.expected_rows([Important(eps=0.2)] * 4)
    drawn, asked = make("psc", eps=0.2).matrices
    assert drawn.spread == pytest.approx(np.sqrt(expected.variance), abs=1e-3)
    assert np.array_equal(drawn.spread, asked.spread)  # type: ignore[arg-type]
    assert all(matrix.spread is None for matrix in make("bns", draw=Draw.FLOOR).matrices)  # fixed sizes have none


def test_the_spread_of_boundary_draws_is_that_of_a_rounding_or_of_independent_rows() -> None:
    up = 0.1 * HALO.matrix % 1
    assert make("bns").matrices[0].spread == pytest.approx(np.sqrt(up * (1 - up)), abs=2e-3)
    assert make("bns", draw=Draw.BERNOULLI).matrices[0].spread == pytest.approx(np.sqrt(0.09 * HALO.matrix), abs=2e-3)


def test_the_band_of_an_epochs_bytes_is_that_of_independent_pairs() -> None:
    """Of the same draw: ids, rows of three layers forward and of two back, so a row more is 8 + 4 (12 + 4·16) bytes."""
    schedule = make("psc", eps=0.2)
    drawn = drawn_traffic(schedule)
    assert drawn is not None
    assert drawn.drawn_bytes == sum(sent(schedule, op.name) for op in schedule.by_rank[0] if op.kind is Kind.EXCHANGE)
    spread = schedule.matrices[0].spread
    assert spread is not None
    std = (8 + 4 * (12 + 4 * 16)) * float(np.sqrt((spread**2).sum()))
    assert drawn.drawn_bytes_std == pytest.approx(std)
    assert drawn.drawn_bytes_band == pytest.approx((drawn.drawn_bytes - 2 * std, drawn.drawn_bytes + 2 * std))
    assert len([pair for pair in drawn.drawn_rows if pair.matrix == "drawn"]) == 8
    assert drawn_traffic(make("bns", draw=Draw.FLOOR)) is None


def test_layers_that_draw_for_themselves_spread_independently() -> None:
    """Layer 0's rows go forward, with an id; those of the others come back, too."""
    one, each = make("psc", eps=0.2), make("psc", eps=0.2, draws=Draws.EACH)
    traffic = drawn_traffic(each)
    assert traffic is not None
    spread = one.matrices[0].spread
    assert spread is not None
    layers = [8 + 4 * 12, 8 + 4 * 2 * 16, 8 + 4 * 2 * 16]
    pairs = float(np.sqrt((spread**2).sum()))
    assert traffic.drawn_bytes_std == pytest.approx(pairs * np.sqrt(np.square(layers).sum()))
    ids = sent(one, "exchange_ids")
    assert [sent(each, f"exchange_ids.{layer}") for layer in range(3)] == [ids] * 3
    assert all(sent(one, f"exchange.{layer}") == sent(each, f"exchange.{layer}") for layer in range(3))


@pytest.mark.parametrize("tau", [0, 1, 3])
def test_rows_and_gradients_are_tau_epochs_old_whatever_their_ids_are(tau: int) -> None:
    ages = {(read.op, read.buffer): read.ages for read in staleness(make("psc", tau=tau, cache=0.2, refresh=2))}
    assert ages["forward.0", "rows.0"] == ages["forward.2", "halo.2"] == ages["backward.0", "gsent.1"] == (tau,)
    assert ages["backward.0", "sends"] == (2 * tau,)


def test_drawn_sizes_need_the_ids_of_both_ends() -> None:
    schedule = make("psc")
    blind = tuple(replace(op, reads=op.reads[:1]) if op.name == "exchange.1" else op for op in schedule.ops)
    assert "rows of 'drawn' are drawn, it needs the ids" in problems(replace(schedule, ops=blind))[0]


def test_a_drawn_matrix_is_another_than_one_of_exact_counts() -> None:
    counts, spread = np.array([[0, 3], [2, 0]]), np.array([[0, 1.25], [0.7, 0]])
    drawn = Matrix("m", counts, spread)
    assert drawn != Matrix("m", counts)
    assert drawn != Matrix("m", counts, 2 * spread)
    schedule = Schedule(num_ranks=2, ops=(), matrices=(drawn,))
    assert format_schedule(schedule) == "schedule ranks=2\nmatrix m 0 3 ; 2 0 ~ 0 1.25 ; 0.7 0\n"
    assert parse_schedule(format_schedule(schedule)) == schedule


def test_params_are_words() -> None:
    schedule = make("bns")
    for word in ("a,b", "a)", "", "a b"):
        odd = tuple(replace(op, work=replace(op.work, params=(("rate", word),))) for op in schedule.ops)
        assert "params are words" in problems(replace(schedule, ops=odd))[0]


def test_a_cache_without_traffic_to_save_is_warned_of() -> None:
    schedule = make("psc", spec_for(GRAPH, precompute=True), cache=0.2)
    assert "cache = 0.2 is of no use with precompute" in dict(schedule.meta)["warning"]
    assert not any(op.verb == "recall" for op in schedule.ops)
    assert "warning" not in dict(make("psc", cache=0.2).meta)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("bns", {"rate": 1.5}, r"rate = 1.5: needs 0 <= rate <= 1"),
        ("bns", {"rate": -0.1}, r"rate = -0.1"),
        ("bns", {"seed": -1}, r"seed = -1"),
        ("psc", {"eps": 0.0}, r"eps = 0.0: needs 0 < eps <= 1"),
        ("psc", {"eps": 1.1}, r"eps = 1.1"),
        ("psc", {"tau": -1}, r"tau = -1: needs to be at least 0"),
        ("psc", {"refresh": -1}, r"refresh = -1"),
        ("psc", {"least": -1}, r"least = -1: needs to be at least 0"),
        ("psc", {"cache": 2.0}, r"cache = 2.0"),
        ("psc", {"tau": 0, "wait": "barrier"}, r"wait = barrier: needs tau of at least 1"),
    ],
)
def test_impossible_options_are_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        METHODS[method].options(**options)


def test_sizes_without_edges_are_refused_with_a_reason() -> None:
    with pytest.raises(InputError, match="how many edges halo rows have"):
        make("psc", halo=replace(HALO, row_edges=()))
