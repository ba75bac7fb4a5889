"""Samples of a part against plain Python sets, exact variances and fixed literals."""

from fractions import Fraction
from itertools import product
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.graph import Graph, Part, assign, build_parts, load, synthetic
from halocast.graph.graph import Ints, Reals
from halocast.graph.inclusion import Important, edge_probabilities
from halocast.graph.sampling import (
    Draw,
    Picked,
    Use,
    Weighting,
    boundary_scale,
    draw_boundary,
    draw_edges,
    drawn_counts,
    drop,
    drop_probabilities,
    dropped_by_boundary,
    edge_weights,
    edges_of_rows,
    inner_edges,
    joined,
    keep_edges,
    needed_halo,
    picked,
    self_loops,
    stream,
)

SEED = 7
PUBMED = Path(__file__).parents[2] / "shared" / "data" / "pubmed.npz"


def offsets(lengths: list[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


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


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
    st.floats(0, 1),
    st.integers(0, 2**40),
    st.sampled_from(Draw),
    st.integers(0, 9),
)
def test_an_owner_draws_distinct_rows_of_every_list(
    lengths: list[int], rate: float, seed: int, draw: Draw, epoch: int
) -> None:
    drawn = draw_boundary(offsets(lengths), rate, draw, seed=seed, rank=1, epoch=epoch)
    more = drawn.counts - drawn_counts(np.array(lengths), rate)
    assert draw is Draw.BERNOULLI or set(more.tolist()) <= ({0, 1} if draw is Draw.ROUNDED else {0})
    for peer, length in enumerate(lengths):
        ids = drawn.of(peer).tolist()
        assert ids == sorted(set(ids))
        assert set(ids) <= set(range(length))


@given(st.integers(0, 10**9), st.integers(0, 1000))
@example(100, 290)  # 0.29 · 100 is 28.999999999999996
def test_a_draw_takes_the_floor_of_the_decimal_product(count: int, thousandths: int) -> None:
    exact = count * Fraction(thousandths, 1000)
    assert drawn_counts(np.array([count]), thousandths / 1000).tolist() == [exact.numerator // exact.denominator]


def test_the_same_sample_comes_whatever_was_drawn_before(p: Reals) -> None:
    lists = offsets([50, 0, 70])
    places = [(rank, epoch) for rank in range(3) for epoch in range(3)]

    def draw(rank: int, epoch: int) -> tuple[bytes, bytes]:
        ids = draw_boundary(lists, 0.3, seed=SEED, rank=rank, epoch=epoch).ids
        return ids.tobytes(), draw_edges(p, seed=SEED, rank=rank, epoch=epoch).tobytes()

    forward = {place: draw(*place) for place in places}
    backward = {place: draw(*place) for place in reversed(places)}
    assert forward == backward
    assert len(set(forward.values())) == len(places)


def test_a_sample_is_what_it_has_always_been() -> None:
    ids = draw_boundary(offsets([50, 0, 70]), 0.1, seed=SEED, rank=1, epoch=2).ids
    assert ids.tolist() == [5, 16, 25, 26, 39, 0, 12, 23, 39, 41, 43, 45]
    kept = draw_edges(np.full(20, 0.3), seed=SEED, rank=1, epoch=2)
    assert np.flatnonzero(kept).tolist() == [0, 2, 3, 6, 9, 11, 12]


def test_streams_of_different_uses_seeds_ranks_epochs_and_layers_differ() -> None:
    keys = list(product(Use, (0, 1, 2**32), (0, 1), (0, 1), (0, 1, 2)))
    assert len({stream(*key).random() for key in keys}) == len(keys)


def test_ids_name_the_same_node_at_owner_and_receiver(parts: tuple[Part, ...]) -> None:
    drawn = [draw_boundary(part.send_offsets, 0.4, seed=SEED, rank=part.rank, epoch=0) for part in parts]
    for receiver in parts:
        received = joined([one.of(receiver.rank) for one in drawn])
        rows = received.places(receiver.halo_offsets)
        sent = [
            owner.inner[owner.send_rows[one.places(owner.send_offsets)[slice(*one.offsets[receiver.rank :][:2])]]]
            for owner, one in zip(parts, drawn, strict=True)
        ]
        assert np.array_equal(np.concatenate(sent), receiver.halo[rows])
        again = picked(rows, receiver.halo_offsets)
        assert np.array_equal(again.ids, received.ids)
        assert np.array_equal(again.offsets, received.offsets)


def test_the_scale_is_the_realised_ratio_only_where_there_always_are_some() -> None:
    lists = offsets([10, 0, 7, 3])
    drawn = draw_boundary(lists, 0.3, seed=SEED, rank=0, epoch=15)
    assert drawn.counts.tolist() == [3, 0, 3, 1]
    assert boundary_scale(drawn, lists, 0.3, Draw.ROUNDED).tolist() == [10 / 3, 1 / 0.3, 7 / 3, 1 / 0.3]
    assert boundary_scale(drawn, lists, 0.3, Draw.BERNOULLI).tolist() == [1 / 0.3] * 4
    fixed = draw_boundary(lists, 0.3, Draw.FLOOR, seed=SEED, rank=0, epoch=15)
    assert fixed.counts.tolist() == [3, 0, 2, 0]
    assert boundary_scale(fixed, lists, 0.3, Draw.FLOOR)[[0, 2]].tolist() == [10 / 3, 3.5]


@pytest.mark.parametrize("draw", list(Draw))
def test_boundary_draws_at_the_ends_of_the_scale(draw: Draw) -> None:
    everything = draw_boundary(offsets([3, 0, 2]), 1.0, draw, seed=SEED, rank=0, epoch=0)
    assert everything.ids.tolist() == [0, 1, 2, 0, 1]
    assert boundary_scale(everything, offsets([3, 0, 2]), 1.0, draw)[[0, 2]].tolist() == [1.0, 1.0]
    nothing = draw_boundary(offsets([3, 0, 2]), 0.0, draw, seed=SEED, rank=0, epoch=0)
    assert (nothing.ids.tolist(), nothing.offsets.tolist()) == ([], [0, 0, 0, 0])


def within_three_sigma(found: list[float], truth: float, variance: float) -> None:
    sigma = sqrt(variance / len(found))
    assert 3 * sigma < 0.01 * truth, "too few draws to see a bias of 1 %"
    assert abs(np.mean(found) - truth) < 3 * sigma


def scaled_sum(values: Reals, drawn: Picked, lists: Ints, rate: float, draw: Draw) -> float:
    return float(values[drawn.places(lists)] @ np.repeat(boundary_scale(drawn, lists, rate, draw), drawn.counts))


@pytest.mark.parametrize("draw", [Draw.ROUNDED, Draw.BERNOULLI])
def test_sums_of_lists_too_short_for_one_row_an_epoch_are_unbiased(draw: Draw) -> None:
    """300 lists of three, of which a tenth is less than one row, and some that have more."""
    lists = offsets([3] * 300 + [25] * 10)
    values = np.random.default_rng(3).lognormal(0, 0.5, int(lists[-1]))
    short, found = int(lists[300]), []
    for epoch in range(1500):
        drawn = draw_boundary(lists, 0.1, draw, seed=SEED, rank=0, epoch=epoch)
        found.append(scaled_sum(np.where(np.arange(len(values)) < short, values, 0), drawn, lists, 0.1, draw))
    x = values[:short].reshape(300, 3)
    variance = (x**2).sum() / 0.1 - ((x.sum(1) ** 2).sum() if draw is Draw.ROUNDED else (x**2).sum())
    within_three_sigma(found, float(x.sum()), float(variance))
    assert np.var(found) == pytest.approx(float(variance), rel=0.15)


def travelled(parts: tuple[Part, ...], rate: float, draw: Draw, num_epochs: int) -> Reals:
    """How often every row of every pair's list was drawn, as deviations from `rate` in units of their own."""
    seen = []
    for part in parts:
        counts = np.zeros(int(part.send_offsets[-1]))
        for epoch in range(num_epochs):
            drawn = draw_boundary(part.send_offsets, rate, draw, seed=SEED, rank=part.rank, epoch=epoch)
            counts[drawn.places(part.send_offsets)] += 1
        seen.append(counts)
    return np.asarray((np.concatenate(seen) - rate * num_epochs) / sqrt(num_epochs * rate * (1 - rate)))


@pytest.mark.parametrize("draw", [Draw.ROUNDED, Draw.BERNOULLI])
def test_every_row_travels_as_often_as_the_rate_says_whatever_its_pair(draw: Draw) -> None:
    graph = synthetic(nodes=1500, degree=6, skew=1, classes=8, features=2, mixing=0.1, seed=1)
    parts = build_parts(graph, assign(graph, 8, cache=False))
    lengths = np.concatenate([np.diff(part.send_offsets) for part in parts])
    assert np.count_nonzero((lengths > 0) & (lengths < 100)) > 40, "most pairs have less than a row per epoch"
    deviations = travelled(parts, 0.01, draw, 2000)
    assert np.abs(deviations).max() < 5.5
    assert np.var(deviations) == pytest.approx(1, rel=0.1)
    silent = travelled(parts, 0.01, Draw.FLOOR, 200)
    assert np.count_nonzero(silent == silent.min()) > 0.9 * len(silent)


@pytest.mark.skipif(not PUBMED.exists(), reason="pubmed.npz is not beside the project")
def test_no_row_of_pubmed_is_silent() -> None:
    """At 8 parts and rate 0.01, where the floor silences 38 of 56 pairs with 28 % of the rows."""
    graph = load(PUBMED)
    parts = build_parts(graph, assign(graph, 8, cache=False))
    lengths = np.concatenate([np.diff(part.send_offsets) for part in parts])
    lost = lengths[(drawn_counts(lengths, 0.01) == 0) & (lengths > 0)]
    assert 0.2 < lost.sum() / lengths.sum() < 0.4
    assert np.abs(travelled(parts, 0.01, Draw.ROUNDED, 1500)).max() < 5.5


def test_scaled_boundary_sums_are_unbiased() -> None:
    lengths = [40, 0, 25, 90]
    lists, values = offsets(lengths), np.random.default_rng(3).lognormal(0, 0.5, 155)
    found = []
    for epoch in range(2000):
        drawn = draw_boundary(lists, 0.2, seed=SEED, rank=0, epoch=epoch)
        found.append(scaled_sum(values, drawn, lists, 0.2, Draw.ROUNDED))
    counts = drawn_counts(np.array(lengths), 0.2)
    groups = [values[lists[k] : lists[k + 1]] for k in (0, 2, 3)]
    # simple random sampling without replacement: N²(1 − n/N)S²/n
    variance = sum(
        len(x) ** 2 * (1 - n / len(x)) * x.var(ddof=1) / n for x, n in zip(groups, counts[[0, 2, 3]], strict=True)
    )
    within_three_sigma(found, float(values.sum()), float(variance))


def test_every_row_of_a_list_is_drawn_equally_often() -> None:
    draws = [draw_boundary(offsets([20]), 0.25, seed=SEED, rank=0, epoch=e).ids for e in range(4000)]
    seen = np.bincount(np.concatenate(draws))
    assert np.abs(seen - 1000).max() < 4 * sqrt(4000 * 0.25 * 0.75)


def test_dropping_takes_exactly_as_many_of_the_candidates(part: Part) -> None:
    for candidates in (~self_loops(part), ~inner_edges(part)):
        kept = drop(candidates, 500, seed=SEED, rank=part.rank, epoch=3)
        assert np.count_nonzero(~kept) == 500
        assert candidates[~kept].all()
        share = drop_probabilities(candidates, 500)
        assert share[~candidates].tolist() == [1.0] * np.count_nonzero(~candidates)
        assert share.sum() == pytest.approx(np.count_nonzero(kept))
    assert np.count_nonzero(self_loops(part)) == part.num_inner
    with pytest.raises(InputError, match=r"-1 edges to drop; legal: 0 to \d+"):
        drop(candidates, -1, seed=SEED, rank=0, epoch=0)


def boundary_kept(parts: tuple[Part, ...], receiver: Part, rate: float, epoch: int) -> Ints:
    drawn = [draw_boundary(part.send_offsets, rate, seed=SEED, rank=part.rank, epoch=epoch) for part in parts]
    return joined([one.of(receiver.rank) for one in drawn]).places(receiver.halo_offsets)


def test_the_baselines_drop_as_many_edges_as_a_boundary_draw_but_need_more_rows(
    parts: tuple[Part, ...], part: Part
) -> None:
    rows = [boundary_kept(parts, part, 0.1, epoch) for epoch in range(300)]
    dropped = [np.count_nonzero(~edges_of_rows(part, some)) for some in rows]
    expected = dropped_by_boundary(part, 0.1)
    assert np.mean(dropped) == pytest.approx(expected, abs=3 * float(np.std(dropped)) / sqrt(300) + 0.5)
    at = {"seed": SEED, "rank": part.rank, "epoch": 0}
    drop_edge = len(needed_halo(part, drop(~self_loops(part), expected, **at)))
    boundary_edge = len(needed_halo(part, drop(~inner_edges(part), expected, **at)))
    assert len(rows[0]) < boundary_edge < drop_edge < part.num_halo


def test_a_boundary_draw_keeps_exactly_its_rows_and_their_edges(parts: tuple[Part, ...], part: Part) -> None:
    rows = boundary_kept(parts, part, 0.3, 0)
    local = keep_edges(part, edges_of_rows(part, rows))
    assert np.array_equal(local.halo, rows)
    assert np.array_equal(keep_edges(part, np.ones(part.num_edges, np.bool_)).indices, part.indices)
    assert len(keep_edges(part, edges_of_rows(part, rows[:0])).edges) == np.count_nonzero(inner_edges(part))


def test_the_local_graph_of_a_sample_has_the_kept_edges_between_the_same_nodes(part: Part, p: Reals) -> None:
    kept = draw_edges(p, seed=SEED, rank=part.rank, epoch=0)
    local = keep_edges(part, kept)
    nodes, needed = np.concatenate((part.inner, part.halo)), np.concatenate((part.inner, part.halo[local.halo]))
    for row in range(0, part.num_inner, 13):
        whole = slice(part.indptr[row], part.indptr[row + 1])
        mine = slice(local.indptr[row], local.indptr[row + 1])
        assert needed[local.indices[mine]].tolist() == nodes[part.indices[whole]][kept[whole]].tolist()
    assert local.edges.tolist() == [k for k, stays in enumerate(kept) if stays]
    sampled = {int(c) - part.num_inner for c in part.indices[kept]}
    assert local.halo.tolist() == sorted(k for k in sampled if k >= 0)


def test_sums_weighted_by_the_inverse_probability_are_unbiased(part: Part, p: Reals) -> None:
    values = p * np.random.default_rng(6).lognormal(0, 0.5, part.num_edges)  # what is sampled more is larger
    found, plain = [], []
    for epoch in range(600):
        kept = draw_edges(p, seed=SEED, rank=0, epoch=epoch)
        found.append(float(values[kept] @ edge_weights(Weighting.INVERSE, part.indptr, p, kept)))
        plain.append(float(values[kept] @ edge_weights(Weighting.SAMPLED_DEGREE, part.indptr, p, kept)))
    within_three_sigma(found, float(values.sum()), float(values**2 @ (1 / p - 1)))
    assert abs(np.mean(plain) - values.sum()) > 0.01 * values.sum()


def test_dropped_edges_weighted_by_the_inverse_share_are_unbiased(part: Part) -> None:
    candidates = ~inner_edges(part)
    values = np.random.default_rng(6).lognormal(0, 0.5, part.num_edges)
    num = int(np.count_nonzero(candidates)) // 2
    p = drop_probabilities(candidates, num)
    masks = [drop(candidates, num, seed=SEED, rank=0, epoch=epoch) for epoch in range(400)]
    found = [float(values[kept] @ edge_weights(Weighting.INVERSE, part.indptr, p, kept)) for kept in masks]
    within_three_sigma(found, float(values.sum()), float(values[candidates] ** 2 @ (1 / p[candidates] - 1)))


def test_the_sampled_degree_gives_the_plain_mean_of_what_was_sampled() -> None:
    indptr, kept = np.array([0, 3, 3, 5, 7]), np.array([1, 0, 1, 0, 0, 1, 1], np.bool_)
    assert edge_weights(Weighting.SAMPLED_DEGREE, indptr, np.full(7, 0.5), kept).tolist() == [1.5, 1.5, 1.0, 1.0]


def test_picked_rows_of_no_peer_are_empty() -> None:
    nothing = picked(np.empty(0, np.int64), offsets([3, 0, 2]))
    assert nothing.counts.tolist() == [0, 0, 0]
    assert nothing.places(offsets([3, 0, 2])).tolist() == []


def test_impossible_draws_are_refused() -> None:
    with pytest.raises(InputError, match=r"rate = 1\.5; legal: 0 to 1"):
        drawn_counts(np.array([3]), 1.5)
    with pytest.raises(InputError, match=r"seed, rank, epoch = 0, 0, -1; legal: 0 or more"):
        stream(Use.EDGES, 0, 0, -1)
