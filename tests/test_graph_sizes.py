"""The sizes of graphs and of cards, side by side."""

from pathlib import Path

import numpy as np
import pytest

from halocast.graph import assign, from_edges, load, load_card, sizes_of_card, sizes_of_graph
from halocast.graph.sizes import GraphSizes, homophily

DATA = Path(__file__).parents[2] / "shared" / "data"
RING = from_edges(
    np.array([0, 1, 2, 3, 1, 2, 3, 0]),
    np.array([1, 2, 3, 0, 0, 1, 2, 3]),
    4,
    features=np.zeros((4, 3), np.float32),
    labels=np.array([0, 0, 1, 1]),
    train_mask=[True, False, False, False],
    val_mask=[False] * 4,
    test_mask=[False] * 4,
    name="ring",
)


def test_the_sizes_of_a_ring_in_two_parts() -> None:
    assert sizes_of_graph(RING, np.array([0, 0, 0, 1], np.int32)) == GraphSizes(
        name="ring", nodes=4, degree=2.0, degree_sigma=0.0, features=3, classes=2, parts=2, cut_share=0.5,
        halo_ratio=0.75, train_share=0.25,
    )  # fmt: skip
    assert sizes_of_graph(RING, np.zeros(4, np.int32)).cut_share == 0.0
    assert homophily(RING) == 0.5


def test_the_sizes_of_a_card() -> None:
    sizes = sizes_of_card(load_card("reddit"), 8)
    assert (sizes.nodes, sizes.parts, sizes.features, sizes.classes) == (232_965, 8, 602, 41)
    assert sizes.halo_ratio == 607_000 / 232_965
    assert sizes.degree == pytest.approx(492.0, abs=0.1)
    assert sizes.cut_share is None  # nobody has published it
    assert sizes_of_card(load_card("reddit"), 1).cut_share == 0.0
    assert sizes_of_card(load_card("reddit"), 4, "random").cut_share == 0.75
    assert sizes_of_card(load_card("reddit"), 8, inductive=True).halo_ratio == 460_000 / 153_431


@pytest.mark.parametrize("name", ["amazon-computers", "coauthor-cs", "cora", "pubmed"])
def test_measured_cards_are_what_the_data_says(name: str) -> None:
    if name == "amazon-computers":
        graph = load(name)
    elif DATA.is_dir():
        graph = load(DATA / f"{name}.npz")
    else:
        pytest.skip(f"real graphs are not at {DATA}")
    card = load_card(name)
    real, told = sizes_of_graph(graph, assign(graph, 8)), sizes_of_card(card, 8)
    assert (told.nodes, told.features, told.classes) == (real.nodes, real.features, real.classes)
    assert told.degree == pytest.approx(real.degree)
    assert told.degree_sigma == pytest.approx(real.degree_sigma, abs=1e-3)
    assert told.train_share == real.train_share
    assert told.halo_ratio == pytest.approx(real.halo_ratio, rel=0.05)  # another METIS, another partition
    assert told.cut_share == pytest.approx(real.cut_share, rel=0.1)
    assert card.homophily == pytest.approx(homophily(graph), abs=1e-3)
    assert card.class_shares == pytest.approx(np.bincount(graph.labels) / graph.num_nodes, abs=1e-4)
