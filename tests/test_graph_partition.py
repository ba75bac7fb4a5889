"""Assignments: METIS and random, their balance, their objective and their place on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halocast.base.errors import InputError
from halocast.graph import Graph, assign, from_assignment, from_edges, load, synthetic, volume
from halocast.graph import partition as module
from halocast.graph.graph import adjacency
from halocast.graph.partition import _symmetric, fill_empty, metis

DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HALOCAST_CACHE", str(tmp_path))
    return tmp_path / "partitions"


def communities(**changes: Any) -> Graph:
    given: dict[str, Any] = {"nodes": 1500, "degree": 10, "skew": 1.0, "classes": 6, "features": 2, "mixing": 0.1}
    return synthetic(**{**given, "seed": 0, **changes})


@pytest.mark.parametrize("balance", ["node", "edge"])
@pytest.mark.parametrize("num_parts", [2, 3, 8, 20])
def test_the_volume_objective_equals_vol_exactly(num_parts: int, balance: str) -> None:
    graph = communities()
    objective, assignment = metis(graph, num_parts, "vol", balance, seed=1)
    assert objective == volume(graph, assignment) == from_assignment(graph, assignment).volume


def test_the_cut_objective_counts_cut_edges() -> None:
    graph = communities()
    objective, assignment = metis(graph, 4, "cut", "node", seed=1)
    target = np.repeat(assignment, graph.in_degree)
    assert objective == np.count_nonzero(target != assignment[graph.indices]) / 2


def test_metis_has_far_less_volume_than_random() -> None:
    graph = communities()
    assert volume(graph, assign(graph, 6)) < 0.5 * volume(graph, assign(graph, 6, partitioner="random"))


def test_nodes_or_edges_are_balanced_as_asked() -> None:
    graph = communities()
    by_node = from_assignment(graph, assign(graph, 6, balance="node"))
    by_edge = from_assignment(graph, assign(graph, 6, balance="edge"))
    assert by_node.num_inner.max() <= 1.05 * by_node.num_inner.mean()
    assert by_edge.num_edges.max() <= 1.06 * by_edge.num_edges.mean()
    assert by_node.num_edges.max() > 1.06 * by_node.num_edges.mean()


def test_random_parts_differ_by_one_node_at_most_and_follow_the_seed() -> None:
    graph = communities(nodes=1003)
    first, again, other = (assign(graph, 8, partitioner="random", seed=s) for s in (3, 3, 4))
    assert np.bincount(first).tolist() == [126, 126, 126, 125, 125, 125, 125, 125]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_directed_graph_is_partitioned_too() -> None:
    graph = communities(directed=True)
    assignment = assign(graph, 4)
    assert np.bincount(assignment).min() > 0
    assert from_assignment(graph, assignment).volume == volume(graph, assignment)


def test_metis_is_given_both_directions_and_no_self_loops() -> None:
    graph = communities(nodes=200, directed=True)
    given = _symmetric(graph).toarray()
    plain = adjacency(graph).toarray().astype(bool)
    expected = (plain | plain.T) & ~np.eye(200, dtype=bool)
    assert np.array_equal(given.astype(bool), expected)


@pytest.mark.parametrize("num_parts", [1, 2, 7, 40, 60])
def test_no_part_is_empty_even_with_a_node_each(num_parts: int) -> None:
    graph = communities(nodes=60, degree=4, classes=3)
    sizes = np.bincount(assign(graph, num_parts), minlength=num_parts)
    assert len(sizes) == num_parts
    assert sizes.min() >= 1


def test_a_graph_without_edges_is_partitioned() -> None:
    on = np.ones(10, bool)
    graph = from_edges(
        [], [], 10, features=np.zeros((10, 1)), labels=np.zeros(10, int), train_mask=on, val_mask=~on, test_mask=~on
    )
    assert len(np.unique(assign(graph, 4))) == 4


def test_an_empty_part_gets_the_last_node_of_the_largest() -> None:
    assert fill_empty(np.array([0, 0, 0, 2, 2], np.int32), 4).tolist() == [0, 3, 1, 2, 2]


def test_a_partition_is_computed_once_and_a_broken_file_is_replaced(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = communities()
    calls: list[int] = []

    def counted(*args: Any) -> Any:
        calls.append(1)
        return metis(*args)

    monkeypatch.setattr(module, "metis", counted)
    first = assign(graph, 4)
    assert np.array_equal(assign(graph, 4), first)
    assert len(calls) == 1
    (stored,) = own_cache.iterdir()
    stored.write_bytes(stored.read_bytes()[:50])
    assert np.array_equal(assign(graph, 4), first)
    assert len(calls) == 2
    np.savez(stored, assignment=np.zeros(graph.num_nodes, np.int32))  # readable, but not four parts
    assert np.array_equal(assign(graph, 4), first)
    assert len(calls) == 3
    assign(graph, 4)
    assert len(calls) == 3


def test_every_choice_has_its_own_cache_file(own_cache: Path) -> None:
    graph = communities()
    choices: list[dict[str, Any]] = [{}, {"seed": 1}, {"objective": "cut"}, {"balance": "edge"}]
    for choice in choices:
        assign(graph, 4, **choice)
    assign(graph, 5)
    assign(communities(seed=1), 4)
    assert len(list(own_cache.iterdir())) == 6


def test_without_cache_nothing_is_written(own_cache: Path) -> None:
    assign(communities(), 4, cache=False)
    assert not own_cache.exists()


def test_a_cache_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("HALOCAST_CACHE", str(tmp_path / "file"))
    assert len(np.unique(assign(communities(), 4))) == 4


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"num_parts": 0}, "0 parts; legal: 1 to the number of nodes, 1500"),
        ({"num_parts": 1501}, "1501 parts; legal"),
        ({"partitioner": "mettis"}, "unknown partitioner 'mettis'; did you mean 'metis'"),
        ({"objective": "volume"}, "unknown objective 'volume'"),
        ({"seed": -1}, "seed = -1; legal: 0 or more"),
        ({"balance": "nodes"}, "unknown balance 'nodes'; did you mean 'node'"),
    ],
)
def test_bad_choices_are_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        assign(communities(), **{"num_parts": 2, **choice})


@pytest.mark.parametrize(("name", "volumes"), [("cora", (245, 429, 738)), ("squirrel", (3027, 6198, 10968))])
def test_real_graphs_have_the_recorded_volumes(name: str, volumes: tuple[int, ...]) -> None:
    if not DATA.is_dir():
        pytest.skip(f"real graphs are not at {DATA}")
    graph = load(DATA / f"{name}.npz")
    for num_parts, recorded in zip((2, 4, 8), volumes, strict=True):
        # METIS differs by a few per cent between seeds and versions
        assert volume(graph, assign(graph, num_parts)) == pytest.approx(recorded, rel=0.15)
