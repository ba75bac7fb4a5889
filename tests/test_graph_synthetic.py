"""Synthetic graphs: the degree, the tail, the communities and the labels are what was asked for."""

from typing import Any

import numpy as np
import pytest

from halocast.base.errors import InputError
from halocast.graph import Graph, content_hash, synthetic
from halocast.graph.graph import adjacency

BASE: dict[str, Any] = {
    "nodes": 2000, "degree": 12.0, "skew": 0.5, "classes": 5, "features": 16, "mixing": 0.2, "seed": 0,
}  # fmt: skip


def mean_degree(graph: Graph) -> float:
    return graph.num_edges / graph.num_nodes - 1


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("skew", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("degree", [0.5, 3.0, 60.0])
def test_the_mean_degree_is_hit_within_one_per_cent(degree: float, skew: float, directed: bool) -> None:
    graph = synthetic(**{**BASE, "degree": degree, "skew": skew, "directed": directed})
    assert mean_degree(graph) == pytest.approx(degree, rel=0.01)
    assert graph.is_symmetric() != directed


def test_a_nearly_complete_graph_is_reached() -> None:
    graph = synthetic(nodes=12, degree=10, skew=0, classes=2, features=2, mixing=1.0, seed=1)
    assert mean_degree(graph) == 10.0


def test_more_skew_means_a_heavier_tail() -> None:
    peaks = [int(synthetic(**{**BASE, "nodes": 20_000, "skew": s}).in_degree.max()) for s in (0.0, 0.5, 1.0, 3.0)]
    assert peaks == sorted(peaks)
    assert peaks[0] < 40
    assert peaks[2] > 500


def test_mixing_is_the_share_of_edges_drawn_from_the_whole_graph() -> None:
    for mixing, outside in ((0.0, 0.0), (0.5, 0.5 * 4 / 5), (1.0, 4 / 5)):
        graph = synthetic(**{**BASE, "mixing": mixing, "skew": 0.0})
        target = np.repeat(graph.labels, graph.in_degree)
        crossing = np.count_nonzero(target != graph.labels[graph.indices])
        assert crossing / (graph.num_edges - graph.num_nodes) == pytest.approx(outside, abs=0.02)


@pytest.mark.parametrize("width", [16, 256])
def test_neighbours_help_but_neither_alone_nor_together_is_it_trivial(width: int) -> None:
    graph = synthetic(**{**BASE, "nodes": 6000, "classes": 8, "mixing": 0.3, "features": width})
    smooth = (adjacency(graph).astype(np.float32) @ graph.features) / graph.in_degree[:, None]
    alone, together = _centroid_score(graph, graph.features), _centroid_score(graph, smooth)
    assert 0.3 < alone < 0.7
    assert alone + 0.15 < together < 0.99


def _centroid_score(graph: Graph, x: Any) -> float:
    train = [x[graph.train_mask & (graph.labels == c)].mean(axis=0) for c in range(graph.num_classes)]
    nearest = np.argmin([((x - centre) ** 2).sum(axis=1) for centre in train], axis=0)
    return float((nearest == graph.labels)[graph.test_mask].mean())


def test_the_seed_decides_everything() -> None:
    one, same, other = synthetic(**BASE), synthetic(**BASE), synthetic(**{**BASE, "seed": 1})
    assert content_hash(one) == content_hash(same)
    assert np.array_equal(one.features, same.features)
    assert np.array_equal(one.train_mask, same.train_mask)
    assert content_hash(one) != content_hash(other)


def test_the_split_is_60_20_20() -> None:
    graph = synthetic(**BASE)
    counts = [int(m.sum()) for m in (graph.train_mask, graph.val_mask, graph.test_mask)]
    assert counts == [1200, 400, 400]


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 1}, {"nodes": -5}, {"degree": 0}, {"degree": 2000}, {"degree": -1}, {"skew": -0.1}, {"classes": 0},
        {"classes": 2001}, {"features": 0}, {"mixing": -0.1}, {"mixing": 1.1}, {"seed": -1}, {"skew": float("nan")},
        {"mixing": 0.0, "classes": 1000},
    ],
)  # fmt: skip
def test_impossible_parameters_are_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"synthetic: ({'|'.join(change)}|degree) = "):
        synthetic(**{**BASE, **change})
