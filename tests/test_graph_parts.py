"""Parts against a slow oracle of Python sets: who owns, needs, sends and receives what."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.graph import (
    Graph,
    Part,
    build_part,
    build_parts,
    check_parts,
    from_assignment,
    from_edges,
    from_parts,
    halo_matrix,
    load_part,
    save_part,
    synthetic,
)

Edges = list[tuple[int, int]]
Case = tuple[int, int, Edges, list[int]]


def make(n: int, edges: Edges) -> Graph:
    labels = np.arange(n) % 3
    return from_edges(
        [a for a, _ in edges],
        [b for _, b in edges],
        n,
        features=np.arange(n * 2).reshape(n, 2),
        labels=labels,
        train_mask=np.arange(n) % 3 == 0,
        val_mask=np.arange(n) % 3 == 1,
        test_mask=np.arange(n) % 3 == 2,
        num_classes=3,
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 12))
    k = draw(st.integers(1, n))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=50))
    if draw(st.booleans()):  # a hub every node needs
        edges += [(0, v) for v in range(n)]
    rest = draw(st.lists(st.integers(0, k - 1), min_size=n - k, max_size=n - k))
    owners = draw(st.permutations([*range(k), *rest]))
    return n, k, edges, list(owners)


def sources(edges: Edges, v: int) -> set[int]:
    return {v} | {a for a, b in edges if b == v}


@given(cases())
@settings(max_examples=150, deadline=None)
def test_every_part_equals_the_obvious_sets(case: Case) -> None:
    n, k, edges, owners = case
    graph = make(n, edges)
    parts = build_parts(graph, np.array(owners, np.int32))
    assert len(parts) == k
    need = [
        sorted({u for v in range(n) if owners[v] == j for u in sources(edges, v) if owners[u] != j}) for j in range(k)
    ]
    for j, part in enumerate(parts):
        assert part.inner.tolist() == [v for v in range(n) if owners[v] == j]
        assert part.halo.tolist() == sorted(need[j], key=lambda u: (owners[u], u))
        columns = [*part.inner.tolist(), *part.halo.tolist()]
        for row, v in enumerate(part.inner.tolist()):
            local = part.indices[part.indptr[row] : part.indptr[row + 1]].tolist()
            assert local == sorted(local)
            assert {columns[c] for c in local} == sources(edges, v)
            assert len(local) == len(sources(edges, v))
        assert part.in_degree.tolist() == [len(sources(edges, u)) for u in columns]
        assert part.out_degree.tolist() == [sum(u in sources(edges, v) for v in range(n)) for u in columns]
        for i, other in enumerate(parts):
            owned = part.halo[part.halo_offsets[i] : part.halo_offsets[i + 1]].tolist()
            assert owned == [u for u in need[j] if owners[u] == i]
            sent = other.inner[other.send_rows[other.send_offsets[j] : other.send_offsets[j + 1]]].tolist()
            assert sent == owned
    check_parts(parts)


@given(cases())
@settings(max_examples=80, deadline=None)
def test_the_halo_matrix_counts_nodes_needed(case: Case) -> None:
    n, k, edges, owners = case
    graph = make(n, edges)
    assignment = np.array(owners, np.int32)
    parts = build_parts(graph, assignment)
    expected = [
        [
            len({u for v in range(n) if owners[v] == j for u in sources(edges, v) if owners[u] == i}) if i != j else 0
            for j in range(k)
        ]
        for i in range(k)
    ]
    assert halo_matrix(parts).tolist() == expected
    whole, pieces = from_assignment(graph, assignment), from_parts(parts)
    assert whole.matrix.tolist() == expected
    for name in ("num_inner", "num_edges", "num_train", "matrix", "num_halo"):
        assert np.array_equal(getattr(whole, name), getattr(pieces, name)), name
    assert whole.num_edges.tolist() == [
        sum(len(sources(edges, v)) for v in range(n) if owners[v] == j) for j in range(k)
    ]
    assert whole.volume == sum(map(sum, expected))
    assert (whole.num_features, whole.num_classes, whole.source) == (2, 3, "partition")


def line() -> Graph:
    """0 → 1 → 2 → 3, and 4 alone."""
    return make(5, [(0, 1), (1, 2), (2, 3)])


def test_a_directed_line_in_three_parts() -> None:
    parts = build_parts(line(), np.array([0, 0, 1, 1, 2], np.int32))
    assert halo_matrix(parts).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert [part.halo.tolist() for part in parts] == [[], [1], []]
    assert parts[0].send_rows.tolist() == [1]
    assert parts[0].send_offsets.tolist() == [0, 0, 1, 1]
    assert parts[1].indices.tolist() == [0, 2, 0, 1]
    assert [part.num_train for part in parts] == [1, 1, 0]
    assert [part.num_train_total for part in parts] == [2, 2, 2]
    assert parts[2].features.tolist() == [[8.0, 9.0]]
    assert parts[2].labels.tolist() == [1]


def test_one_part_alone_equals_the_same_part_of_all() -> None:
    graph = synthetic(nodes=300, degree=6, skew=1, classes=3, features=4, mixing=0.3, seed=0, directed=True)
    assignment = (np.arange(300) % 5).astype(np.int32)
    for rank, part in enumerate(build_parts(graph, assignment)):
        assert_same(build_part(graph, assignment, rank), part)


def assert_same(a: Part, b: Part) -> None:
    for field in fields(Part):
        one, other = getattr(a, field.name), getattr(b, field.name)
        assert type(one) is type(other)
        assert np.array_equal(one, other), field.name
        assert np.asarray(one).dtype == np.asarray(other).dtype


def test_a_saved_part_is_read_back_exactly(tmp_path: Path) -> None:
    for part in build_parts(line(), np.array([0, 0, 1, 1, 2], np.int32)):
        save_part(tmp_path / "part.npz", part)
        assert_same(load_part(tmp_path / "part.npz"), part)
    assert [p.name for p in tmp_path.iterdir()] == ["part.npz"]


def test_reading_something_else_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file.*absent.npz"):
        load_part(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match=r"text.npz: not a part"):
        load_part(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(InputError, match=r"other.npz: not a part"):
        load_part(tmp_path / "other.npz")


def test_parts_out_of_order_are_refused() -> None:
    parts = build_parts(line(), np.array([0, 0, 1, 1, 2], np.int32))
    with pytest.raises(InputError, match="part 1 of 3 found at place 0"):
        check_parts((parts[1], parts[0], parts[2]))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [([0, 0, 1], "must be int"), ([0, 0, 2, 2, 2], "is empty"), ([0, -1, 1, 1, 1], "negative")],
)
def test_a_bad_assignment_is_refused(assignment: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_parts(line(), np.array(assignment, np.int32))
