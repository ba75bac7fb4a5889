"""Cards and the halos synthesised from them: published figures come out, and what comes out is possible."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.graph import (
    Card,
    Halo,
    TrainGraph,
    assign,
    card_names,
    card_volume,
    from_assignment,
    from_card,
    from_edges,
    load,
    load_card,
)
from halocast.graph.card import random_volume
from halocast.graph.halo import common_halves, divide, shares

NO_MASK = np.zeros(6, np.bool_)
NOTHING: dict[str, Any] = {
    "features": np.zeros((6, 1)),
    "labels": np.zeros(6, np.int64),
    "num_classes": 1,
    "train_mask": ~NO_MASK,
    "val_mask": NO_MASK,
    "test_mask": NO_MASK,
}
VIEWS = [(name, inductive) for name in card_names() for inductive in (False, True)]
VIEWS = [(name, inductive) for name, inductive in VIEWS if not inductive or load_card(name).inductive]
DATA = Path(__file__).parents[2] / "shared" / "data"
PARTS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 100, 192, 256, 512, 1024]


def test_every_published_dataset_has_a_card() -> None:
    published = {"coauthor-physics", "flickr", "ogbn-arxiv", "ogbn-papers100M", "ogbn-products", "reddit", "squirrel"}
    assert {*published, "yelp", "amazon", "orkut", "friendster", "ogbn-proteins"} <= {*card_names()}
    assert all(load_card(name).name == name for name in card_names())


def test_reddit_at_ten_parts_is_as_uneven_as_published() -> None:
    halo = from_card(load_card("reddit"), 10, inductive=True)
    ratio = halo.num_halo / halo.num_inner
    assert ratio.min() == pytest.approx(0.42, rel=0.10)  # BNS-GCN Table 1
    assert ratio.max() == pytest.approx(5.49, rel=0.10)
    published = np.array([6, 15, 23, 39, 46, 62, 71, 78, 86, 86]) * 1000
    assert np.abs(np.sort(halo.num_halo) - published).max() < 8000
    assert halo.volume == published.sum() == 512_000


def test_the_chunks_of_full_reddit_have_edges_as_published() -> None:
    edges = np.sort(from_card(load_card("reddit"), 8).num_edges) / 1e6
    assert edges[0] == pytest.approx(6.33, rel=0.15)  # published/chunk_compute.csv
    assert edges[-1] == pytest.approx(24.68, rel=0.10)


PUBLISHED = [
    ("reddit", True, "metis", {2: 100_221, 8: 460_000}),
    ("reddit", True, "random", {8: 1_016_000}),
    ("reddit", False, "metis", {2: 146_000, 4: 341_000, 8: 607_000, 16: 1_296_000}),
    ("ogbn-products", False, "metis", {5: 1_323_748, 10: 1_848_000}),
    ("ogbn-products", False, "random", {10: 16_797_000}),
    ("yelp", True, "metis", {3: 239_224, 10: 649_000}),
    ("yelp", True, "random", {10: 2_026_000}),
    ("flickr", False, "metis", {8: 192_000}),
    ("squirrel", False, "metis", {8: 11_500}),
    ("ogbn-arxiv", False, "metis", {8: 114_000}),
    ("coauthor-physics", False, "metis", {8: 34_000}),
]


@pytest.mark.parametrize(("name", "inductive", "partitioner", "volumes"), PUBLISHED)
def test_published_volumes_come_out_exactly(
    name: str, inductive: bool, partitioner: str, volumes: dict[int, int]
) -> None:
    for num_parts, vol in volumes.items():
        assert from_card(load_card(name), num_parts, partitioner, inductive=inductive).volume == vol


@pytest.mark.parametrize(("name", "inductive", "parts", "vol"), [
    ("reddit", True, 8, 1_016_000), ("ogbn-products", False, 10, 16_797_000), ("yelp", True, 10, 2_026_000),
    ("squirrel", False, 4, 13_990), ("coauthor-physics", False, 8, 167_381),
])  # fmt: skip
def test_the_closed_form_gives_the_published_random_volumes(name: str, inductive: bool, parts: int, vol: int) -> None:
    assert random_volume(load_card(name).training_graph(inductive=inductive), parts) == pytest.approx(vol, rel=0.02)


@pytest.mark.parametrize(("name", "inductive"), VIEWS)
@pytest.mark.parametrize("partitioner", ["metis", "random"])
def test_vol_grows_with_the_number_of_parts(name: str, inductive: bool, partitioner: str) -> None:
    graph = load_card(name).training_graph(inductive=inductive)
    volumes = [card_volume(graph, k, partitioner) for k in PARTS]
    assert volumes == sorted(set(volumes))
    assert volumes[0] == 0
    assert card_volume(graph, 7) < card_volume(graph, 7, "random")


def is_possible(halo: Halo, graph: TrainGraph) -> None:
    assert halo.num_inner.sum() == graph.nodes
    assert halo.num_edges.sum() == graph.edges
    assert halo.num_train.sum() == graph.train_nodes
    assert (halo.num_edges >= halo.num_inner).all()
    assert (halo.num_halo <= halo.num_edges - halo.num_inner).all()
    assert (halo.matrix <= halo.num_inner[:, None]).all()
    assert (halo.matrix >= 0).all()
    assert not np.diagonal(halo.matrix).any()


@pytest.mark.parametrize(("name", "inductive"), VIEWS)
@pytest.mark.parametrize("partitioner", ["metis", "random"])
def test_a_halo_from_a_card_is_possible_and_exact_in_its_totals(name: str, inductive: bool, partitioner: str) -> None:
    card = load_card(name)
    graph = card.training_graph(inductive=inductive)
    for num_parts in (1, 2, 3, 10, 192):
        halo = from_card(card, num_parts, partitioner, inductive=inductive)
        is_possible(halo, graph)
        assert halo.volume == card_volume(graph, num_parts, partitioner)
        assert (halo.num_parts, halo.source) == (num_parts, "from card")
        assert (halo.num_features, halo.num_classes) == (card.features, card.classes)


def test_sizes_know_how_unequal_the_degrees_are() -> None:
    """A card says so; a graph's degrees are taken for lognormal: of variation 1 if sigma is the root of ln 2."""
    assert from_card(load_card("yelp"), 4).degree_sigma == 1.651
    assert from_card(load_card("yelp"), 4, inductive=True).degree_sigma == 1.651
    ring = [(k, (k + 1) % 6) for k in range(6)]
    star = [(0, k) for k in range(1, 6)]  # one gives to all, itself included, the others to themselves
    for edges, degrees, sigma in (
        (ring, [2] * 6, 0.0),
        (star, [6, 1, 1, 1, 1, 1], 0.842343),
    ):  # ln(1 + 125 / 121) = sigma^2
        source, target = zip(*edges, strict=True)
        graph = from_edges(source, target, 6, **NOTHING)
        assert graph.out_degree.tolist() == degrees
        assert from_assignment(graph, np.array([0, 0, 0, 1, 1, 1])).degree_sigma == pytest.approx(sigma)


@pytest.mark.parametrize("name", ["reddit", "ogbn-papers100M", "squirrel"])
def test_a_thousand_parts_take_less_than_two_seconds(name: str) -> None:
    start = time.perf_counter()
    halo = from_card(load_card(name), 1024)
    assert time.perf_counter() - start < 2
    is_possible(halo, load_card(name).full)


def test_squirrel_is_as_uneven_as_its_real_partition() -> None:
    if not DATA.is_dir():
        pytest.skip(f"real graphs are not at {DATA}")
    graph = load(DATA / "squirrel.npz")
    real = from_assignment(graph, assign(graph, 8, cache=False))
    made = from_card(load_card("squirrel"), 8)
    for name in ("num_halo", "num_edges"):
        one, other = getattr(real, name), getattr(made, name)
        assert other.std() / other.mean() == pytest.approx(one.std() / one.mean(), rel=0.35), name
    assert made.num_edges.sum() == real.num_edges.sum()
    assert made.volume == pytest.approx(real.volume, rel=0.1)


def test_numbers_are_halved_until_they_are_apart() -> None:
    assert common_halves(5).tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1],
        [0, 0, 1, 2, 2],
        [0, 0, 1, 2, 2],
    ]


def test_near_parts_of_a_card_need_more_of_each_other_as_those_of_real_graphs_do() -> None:
    """Of eight METIS parts of six real graphs, 33 to 45 % of all halo rows belong to the other half (random: 57 %)."""
    halves = [
        float((halo.matrix[:4, 4:].sum() + halo.matrix[4:, :4].sum()) / halo.volume)
        for halo in (from_card(load_card(name), 8) for name in ("flickr", "squirrel", "ogbn-products"))
    ]
    assert all(0.33 < share < 0.47 for share in halves), halves
    even = from_card(load_card("flickr"), 8, "random").matrix
    assert (even[:4, 4:].sum() + even[4:, :4].sum()) / even.sum() == pytest.approx(4 / 7, abs=1e-3)


def test_random_parts_are_even_and_the_seed_only_shuffles() -> None:
    card = load_card("reddit")
    even = from_card(card, 10, "random")
    assert np.ptp(even.num_halo) <= 1
    one, same, other = (from_card(card, 10, seed=s) for s in (0, 0, 1))
    assert np.array_equal(one.matrix, same.matrix)
    assert not np.array_equal(one.num_halo, other.num_halo)
    assert np.array_equal(np.sort(one.num_halo), np.sort(other.num_halo))


@given(st.integers(2, 500), st.floats(1.0, 30.0), st.floats(0, 2.5), st.integers(1, 60), st.floats(0, 1), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_card_gives_a_possible_halo(
    nodes: int, degree: float, sigma: float, num_parts: int, spread: float, metis: bool
) -> None:
    edges = nodes + min(round(nodes * degree), nodes * (nodes - 1))
    graph = TrainGraph(
        nodes=nodes, edges=edges, train_nodes=nodes // 2, degree_sigma=sigma, halo_spread=spread, edge_spread=spread
    )
    card = Card(name="any", features=3, classes=2, multilabel=False, full=graph)
    num_parts = min(num_parts, nodes)
    halo = from_card(card, num_parts, "metis" if metis else "random")
    is_possible(halo, graph)
    assert halo.volume == card_volume(graph, num_parts, "metis" if metis else "random")


def test_a_card_without_published_volumes_uses_the_default_ratio() -> None:
    graph = load_card("ogbn-papers100M").full
    assert card_volume(graph, 8) == pytest.approx(0.2 * card_volume(graph, 8, "random"), rel=1e-6)


def test_partitions_for_few_cut_edges_have_volumes_of_their_own() -> None:
    products, arxiv = load_card("ogbn-products"), load_card("ogbn-arxiv")
    assert card_volume(products.cut().full, 6) == 1_471_800
    assert card_volume(products.full, 5) == 1_323_748
    assert arxiv.cut() == arxiv  # where none are known, the others stand for them


def test_shares_are_ascending_with_mean_one() -> None:
    for k in (1, 2, 7, 1024):
        x = shares(k, 0.6, -0.3)
        assert x.mean() == pytest.approx(1)
        assert (np.diff(x) >= 0).all()
        assert x.min() > 0


def test_a_total_divides_exactly_within_its_bounds() -> None:
    assert divide(10, np.array([1.0, 1.0, 1.0]), np.array([9, 9, 9])).tolist() == [4, 3, 3]
    assert divide(10, np.array([8.0, 1.0, 1.0]), np.array([4, 9, 9])).tolist() == [4, 3, 3]
    assert divide(12, np.array([1.0, 5.0]), np.array([6, 6])).tolist() == [6, 6]
    with pytest.raises(InputError, match="13 does not fit"):
        divide(13, np.array([1.0, 5.0]), np.array([6, 6]))


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown dataset card 'redit'; did you mean 'reddit'"):
        load_card("redit")
    with pytest.raises(InputError, match="'flickr' has no inductive training graph"):
        from_card(load_card("flickr"), 2, inductive=True)
    with pytest.raises(InputError, match="0 parts; legal"):
        from_card(load_card("flickr"), 0)
    with pytest.raises(InputError, match="5202 parts; legal: 1 to the number of nodes, 5201"):
        from_card(load_card("squirrel"), 5202)
    with pytest.raises(InputError, match="unknown partitioner 'metiss'"):
        from_card(load_card("flickr"), 2, "metiss")
    table = 'name = "x"\nfeatures = 1\nclasses = 2\nmultilabel = false\n[full]\nnodes = 5\nedges = 9\ntrain_nodes = 1\n'
    for line, message in (
        ("degree_sigma = 1.0\nmetis = { 2 = 4, 3 = 3 }", "must grow with parts: 4 at 2, 3 at 3"),
        ("degree_sigma = 1.0\nmetis = { two = 4 }", "keyed by a number of parts"),
        ("degree_sigma = 1.0\nrandom = { 2 = 6 }", "volume 6 at 2 parts; legal: 1 to"),
        ("degree_sigma = 1.0\nspread = 1.0", "unknown key 'spread'"),
        ("", "missing key 'degree_sigma'"),
    ):
        (tmp_path / "own.toml").write_text(table + line)
        with pytest.raises(InputError, match=message):
            load_card(tmp_path / "own.toml")
    (tmp_path / "own.toml").write_text(table + "degree_sigma = 0.5")
    assert load_card(tmp_path / "own.toml").full.mean_degree == pytest.approx(0.8)


def test_an_impossible_halo_is_refused() -> None:
    two, zero = np.array([2, 2]), np.zeros((2, 2), np.int64)
    parts: dict[str, Any] = {"num_inner": two, "num_edges": two, "num_train": two}
    for matrix, message in (
        (zero + 3, "its own nodes"),
        (np.array([[0, 3], [0, 0]]), r"H\[i, j\]"),
        (np.zeros((3, 3), np.int64), r"shape \(3, 3\)"),
    ):
        with pytest.raises(InputError, match=message):
            Halo(**parts, matrix=matrix, num_features=1, num_classes=1, source="partition")
