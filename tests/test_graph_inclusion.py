"""Probabilities against a solver and the sorted closed form; what travels against draws and real partitions."""

from math import prod, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize

from halocast.base.errors import InputError
from halocast.graph import Graph, Part, TrainGraph, assign, build_parts, halo_matrix, load, synthetic
from halocast.graph.graph import Ints, Reals
from halocast.graph.inclusion import (
    FLOOR,
    CachePolicy,
    Important,
    choose_cache,
    edge_probabilities,
    expected_rows,
    halo_inclusion,
    hit_rate,
    law_of_card,
    law_of_parts,
    optimal_probabilities,
)
from halocast.graph.sampling import draw_edges, dropped_by_boundary, inner_edges, needed_halo, picked

DATA = Path(__file__).parents[2] / "shared" / "data"
SEED = 7


def offsets(lengths: list[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def optimal(lengths: list[int], importance: Reals, eps: float) -> Reals:
    """With the budget in proportion to the number of entries."""
    return optimal_probabilities(offsets(lengths), importance, eps * np.array(lengths, np.float64))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic(nodes=3000, degree=12, skew=1, classes=6, features=2, mixing=0.2, seed=1)


@pytest.fixture(scope="module")
def parts(graph: Graph) -> tuple[Part, ...]:
    return build_parts(graph, assign(graph, 4, cache=False))


@pytest.fixture(scope="module")
def part(parts: tuple[Part, ...]) -> Part:
    return parts[1]


@pytest.fixture(scope="module")
def p(part: Part) -> Reals:
    return edge_probabilities(part, np.random.default_rng(2).lognormal(0, 1, part.num_edges), Important(eps=0.3))


def by_bisection(s: Reals, budget: float) -> Reals:
    """p = min(1, s/λ) with the multiplier found by halving; needs positive s."""
    low, high = 0.0, float(s.sum() / budget)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, s / max(middle, 1e-300)).sum() > budget else (low, middle)
    return np.minimum(1, s / high)


def by_sorting(s: Reals, budget: float) -> Reals:
    """The closed form as the paper has it: the largest k with B + k − n ≤ Σ_{j≤k} s_j / s_k."""
    order, n = np.argsort(s, kind="stable"), len(s)
    x = s[order]
    k = max(k for k in range(1, n + 1) if budget + k - n <= x[:k].sum() / x[k - 1])
    p = np.ones(n)
    p[order[:k]] = (budget + k - n) * x[:k] / x[:k].sum()
    return p


positive = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(0.05, 20))
wild = hnp.arrays(np.float64, st.integers(0, 12), elements=st.one_of(st.just(0.0), st.floats(0, 1e30)))


@given(st.lists(positive, min_size=1, max_size=5), st.floats(0.02, 1))
def test_probabilities_equal_the_multiplier_and_the_sorted_closed_form(rows: list[Reals], eps: float) -> None:
    found = optimal([len(s) for s in rows], np.concatenate(rows), eps)
    for s, p in zip(rows, np.split(found, offsets([len(s) for s in rows])[1:-1]), strict=True):
        best = by_bisection(s, eps * len(s))
        assert p == pytest.approx(best, rel=1e-8)
        assert p == pytest.approx(by_sorting(s, eps * len(s)), rel=1e-8)
        assert s**2 @ (1 / p - 1) == pytest.approx(s**2 @ (1 / best - 1), rel=1e-6, abs=1e-6)
        assert abs(p.sum() - eps * len(s)) < 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_a_numerical_solver_finds_nothing_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    s, eps = rng.lognormal(0, 1, 6), float(rng.uniform(0.15, 0.9))
    found = optimal([6], s, eps)
    solved = minimize(
        lambda p: s**2 @ (1 / p - 1),
        np.full(6, eps),
        jac=lambda p: -(s**2) / p**2,
        bounds=[(1e-4, 1)] * 6,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 6 * eps, "jac": lambda p: np.ones(6)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert s**2 @ (1 / found - 1) == pytest.approx(solved.fun, rel=1e-6)


@given(st.lists(wild, min_size=1, max_size=5), st.floats(1e-3, 1))
def test_any_importance_gives_probabilities_above_the_floor_that_use_the_whole_budget(
    rows: list[Reals], eps: float
) -> None:
    found = optimal([len(s) for s in rows], np.concatenate(rows), eps)
    assert len(found) == sum(len(s) for s in rows)
    for s, p in zip(rows, np.split(found, offsets([len(s) for s in rows])[1:-1]), strict=True):
        assert abs(p.sum() - eps * len(s)) < 1e-9
        assert (p >= FLOOR * eps * (1 - 1e-12)).all()
        assert (p <= 1).all()


@given(hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(1e-9, 1e9)), st.floats(0.02, 1))
def test_the_floor_costs_no_more_than_it_says(s: Reals, eps: float) -> None:
    found = optimal([len(s)], s, eps)
    best = by_bisection(s, eps * len(s))
    assert s**2 @ (1 / found) <= s**2 @ (1 / best) / (1 - FLOOR) * (1 + 1e-9)


def test_a_rest_lost_in_rounding_leaves_the_cut_entries_whole() -> None:
    ones = [1.0000000000000007, 1.0000000000000002, 1.0000000000000002]
    s = np.array([2.1437342487109386e-16, 1.5465669874963846e-15, 7.649355677039856e-17, *ones])
    found = optimal([6], s, 0.5000000000000003)
    assert found[3:] == pytest.approx([1, 1, 1], abs=FLOOR)
    assert found.sum() == pytest.approx(3, abs=1e-9)


def row_of(part: Part, node: int) -> tuple[Ints, Ints]:
    """The entries of a node's neighbours, and that of its self-loop."""
    entries = np.arange(part.indptr[node], part.indptr[node + 1])
    own = part.indices[entries] == node
    return entries[~own], entries[own]


def test_nothing_clipped_is_plain_importance_sampling(part: Part) -> None:
    norms = np.random.default_rng(5).uniform(1, 2, part.num_edges)
    found = edge_probabilities(part, norms, Important(eps=0.3))
    row, _ = row_of(part, int(np.argmax(np.diff(part.indptr))))
    s = norms[row] * np.where(part.indices[row] < part.num_inner, sqrt(1.1), 1.0)
    assert found[row] == pytest.approx(0.3 * len(s) * s / s.sum())


@pytest.mark.parametrize("least", [0, 1, 3])
def test_neighbours_share_the_budget_and_a_nodes_own_row_is_always_there(part: Part, least: int) -> None:
    norms = np.random.default_rng(5).lognormal(0, 1, part.num_edges)
    found = edge_probabilities(part, norms, Important(eps=0.1, least=least))
    for node in range(part.num_inner):
        row, own = row_of(part, node)
        assert found[own] == [1.0]
        assert found[row].sum() == pytest.approx(min(len(row), max(least, 0.1 * len(row))))
    assert (found > 0).all()
    assert (found <= 1).all()


def test_before_rows_are_known_the_graph_alone_decides(part: Part) -> None:
    """Equally long rows: an inner neighbour counts √1.1 of a halo one; a GCN divides rows by the roots of degrees."""
    row, _ = row_of(part, int(np.argmax(np.diff(part.indptr))))
    inner = np.where(part.indices[row] < part.num_inner, sqrt(1.1), 1.0)
    for symmetric in (False, True):
        s = inner / np.sqrt(part.out_degree[part.indices[row]]) if symmetric else inner
        found = Important(eps=0.1, symmetric=symmetric).of(part)[row]
        assert found == pytest.approx(by_bisection(s, 0.1 * len(row)))


def test_special_rows_are_well_defined() -> None:
    rows: dict[str, tuple[list[float], float, list[float]]] = {
        "all norms zero": ([0, 0, 0, 0], 0.25, [0.25] * 4),
        "one neighbour": ([5], 0.1, [0.1]),
        "one neighbour of norm zero": ([0], 0.1, [0.1]),
        "a budget below one": ([1, 3], 0.2, [0.1, 0.3]),
        "one clipped": ([1, 1, 100], 0.5, [0.25, 0.25, 1]),
        "clipped one after the other": ([1, 2, 10, 1000], 0.75, [1 / 3, 2 / 3, 1, 1]),
        "everything": ([0, 1, 1e9], 1.0, [1, 1, 1]),
    }
    for name, (s, eps, expected) in rows.items():
        assert optimal([len(s)], np.array(s, float), eps) == pytest.approx(expected), name
    zeros = optimal([0, 3, 0], np.array([0.0, 1.0, 1.0]), 0.5)  # between isolated nodes
    assert zeros == pytest.approx([0.0005, 0.74975, 0.74975])
    assert optimal([0], np.empty(0), 0.5).tolist() == []


def test_impossible_rates_and_importances_are_refused() -> None:
    with pytest.raises(InputError, match=r"eps = 0\.0; legal: above 0 and at most 1"):
        Important(eps=0.0)
    for budget in (0.0, 1.5, np.nan):
        with pytest.raises(InputError, match="above 0 and at most the number of its entries"):
            optimal_probabilities(np.array([0, 1]), np.ones(1), np.array([budget]))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="an importance is finite and 0 or more"):
            optimal([1], np.array([bad]), 0.5)


def test_inclusion_is_the_chance_that_any_edge_of_a_row_is_sampled(part: Part, p: Reals) -> None:
    found = halo_inclusion(part, p)
    for row in range(0, part.num_halo, 17):
        mine = p[part.indices == part.num_inner + row]
        assert found[row] == pytest.approx(1 - prod(1 - mine))
    tiny = halo_inclusion(part, np.full(part.num_edges, 1e-18))
    edges = np.bincount(part.indices[~inner_edges(part)])[part.num_inner :]
    assert tiny == pytest.approx(edges * 1e-18, rel=1e-12, abs=0)
    assert halo_inclusion(part, np.ones(part.num_edges)).tolist() == [1.0] * part.num_halo


def test_expected_rows_and_their_variance_are_those_of_the_draws(part: Part, p: Reals) -> None:
    expected = expected_rows(part, halo_inclusion(part, p))
    draws = np.array(
        [
            picked(needed_halo(part, draw_edges(p, seed=SEED, rank=0, epoch=epoch)), part.halo_offsets).counts
            for epoch in range(1500)
        ]
    )
    assert expected.mean[part.rank] == expected.variance[part.rank] == 0
    others = np.arange(part.num_parts) != part.rank
    error = np.abs(draws.mean(axis=0) - expected.mean)[others] / np.sqrt(expected.variance[others] / len(draws))
    assert (error < 3).all()
    assert draws.var(axis=0)[others] == pytest.approx(expected.variance[others], rel=0.15)


def test_a_cache_by_inclusion_hits_most_and_a_random_one_least(parts: tuple[Part, ...]) -> None:
    for part in parts:
        norms = np.random.default_rng(part.rank).lognormal(0, 1, part.num_edges)
        inclusion = halo_inclusion(part, edge_probabilities(part, norms, Important(eps=0.1)))
        caches = {policy: choose_cache(policy, 0.2, part, inclusion, seed=SEED) for policy in CachePolicy}
        assert {int(cached.sum()) for cached in caches.values()} == {part.num_halo // 5}
        best, degree, chance = (hit_rate(inclusion, caches[policy]) for policy in CachePolicy)
        assert best > degree > chance
        assert chance == pytest.approx(0.2, abs=0.06)
        brute = np.sort(inclusion)[::-1][: part.num_halo // 5].sum() / inclusion.sum()
        assert best == pytest.approx(brute)
        assert hit_rate(inclusion, choose_cache(CachePolicy.RANDOM, 1.0, part, inclusion, seed=0)) == 1.0


def test_a_single_part_has_nothing_to_sample() -> None:
    graph = synthetic(nodes=5, degree=2, skew=0, classes=1, features=1, mixing=1, seed=0)
    (part,) = build_parts(graph, np.zeros(5, np.int32))
    inclusion = halo_inclusion(part, Important(eps=0.5).of(part))
    assert inclusion.tolist() == []
    assert expected_rows(part, inclusion).mean.tolist() == [0.0]
    assert dropped_by_boundary(part, 0.1) == 0
    assert hit_rate(inclusion, choose_cache(CachePolicy.INCLUSION, 0.5, part, inclusion, seed=0)) == 0.0
    law = law_of_parts([part])
    assert law.expected(halo_matrix([part]), 0.5).mean.tolist() == [[0.0]]
    assert law.mean_edges == 0.0


def card_of(graph: Graph) -> TrainGraph:
    degree = graph.out_degree - 1
    sigma = float(np.log(degree[degree > 0]).std())
    return TrainGraph(nodes=graph.num_nodes, edges=graph.num_edges, train_nodes=0, degree_sigma=sigma)


def test_the_law_of_parts_gives_the_inclusion_of_uniform_probabilities(parts: tuple[Part, ...]) -> None:
    expected = law_of_parts(parts).expected(halo_matrix(parts), 0.2)
    exact = [expected_rows(part, halo_inclusion(part, np.full(part.num_edges, 0.2))) for part in parts]
    assert expected.mean.sum() == pytest.approx(sum(one.mean.sum() for one in exact))
    assert expected.variance.sum() == pytest.approx(sum(one.variance.sum() for one in exact))
    edges = sum(np.count_nonzero(~inner_edges(part)) for part in parts)
    assert law_of_parts(parts).mean_edges == pytest.approx(edges / halo_matrix(parts).sum())


@pytest.mark.parametrize(("partitioner", "tolerance"), [("random", 0.03), ("metis", 0.25)])
@pytest.mark.parametrize("eps", [0.05, 0.1, 0.5])
def test_a_card_predicts_the_rows_of_a_synthetic_graph(partitioner: str, tolerance: float, eps: float) -> None:
    graph = synthetic(nodes=8000, degree=20, skew=0.5, classes=32, features=2, mixing=0.2, seed=0)
    parts = build_parts(graph, assign(graph, 8, partitioner=partitioner))
    matrix = halo_matrix(parts)
    real = law_of_parts(parts).expected(matrix, eps)
    made = law_of_card(card_of(graph), 8, partitioner).expected(matrix, eps)
    assert made.mean.sum() == pytest.approx(real.mean.sum(), rel=tolerance)
    if partitioner == "random":
        assert made.variance.sum() == pytest.approx(real.variance.sum(), rel=tolerance)


@pytest.mark.parametrize("name", ["cora", "pubmed", "squirrel", "amazon-computers"])
def test_a_card_predicts_the_rows_of_a_real_graph(name: str) -> None:
    if not DATA.is_dir():
        pytest.skip(f"real graphs are not at {DATA}")
    graph = load(DATA / f"{name}.npz")
    for num_parts in (4, 16):
        parts = build_parts(graph, assign(graph, num_parts))
        matrix = halo_matrix(parts)
        for eps in (0.1, 0.3, 0.5):
            real = law_of_parts(parts).expected(matrix, eps).mean.sum()
            made = law_of_card(card_of(graph), num_parts).expected(matrix, eps).mean.sum()
            assert made == pytest.approx(real, rel=0.19), (num_parts, eps)


def test_every_row_travels_at_eps_one_and_a_row_of_one_edge_as_often_as_its_edge() -> None:
    graph = TrainGraph(nodes=1000, edges=9000, train_nodes=0, degree_sigma=1.0)
    matrix = np.array([[0, 10], [20, 0]])
    for num_parts, partitioner in ((2, "metis"), (1000, "metis"), (4, "random")):
        law = law_of_card(graph, num_parts, partitioner)
        assert law.expected(matrix, 1.0).mean == pytest.approx(matrix)
        assert law.expected(matrix, 1.0).variance == pytest.approx(np.zeros((2, 2)))
    alone = law_of_card(graph, 1000, "metis")  # every node its own part
    assert alone.mean_edges == pytest.approx(1, abs=0.02)
    assert alone.expected(matrix, 0.1).mean == pytest.approx(matrix * 0.1, rel=0.02)
    with pytest.raises(InputError, match="unknown partitioner 'metiss'"):
        law_of_card(graph, 2, "metiss")
    with pytest.raises(InputError, match="0 parts; legal: 1 to the number of nodes, 1000"):
        law_of_card(graph, 0)
