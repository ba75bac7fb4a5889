"""The graph record: what is made of edges, and which inputs are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.graph import Graph, content_hash, from_edges, induced

Edges = list[tuple[int, int]]


def make(edges: Edges, n: int, **changes: Any) -> Graph:
    src, dst = [a for a, _ in edges], [b for _, b in edges]
    first = np.arange(n) == 0
    given_ = {
        "features": np.arange(2 * n, dtype=np.float32).reshape(n, 2),
        "labels": np.arange(n) % 2,
        "train_mask": first,
        "val_mask": np.zeros(n, bool),
        "test_mask": ~first,
        "num_classes": 2,
    }
    return from_edges(src, dst, n, **{**given_, **changes})


def rows(graph: Graph) -> list[list[int]]:
    return [graph.indices[a:b].tolist() for a, b in zip(graph.indptr[:-1], graph.indptr[1:], strict=True)]


def test_rows_are_destinations_sorted_unique_with_one_self_loop() -> None:
    graph = make([(2, 0), (1, 0), (1, 0), (0, 0), (2, 2), (0, 1)], 4)
    assert rows(graph) == [[0, 1, 2], [0, 1], [2], [3]]
    assert graph.indptr.dtype == np.int64
    assert graph.indices.dtype == np.int32
    assert graph.num_edges == 7
    assert graph.in_degree.tolist() == [3, 2, 1, 1]
    assert graph.out_degree.tolist() == [2, 2, 2, 1]
    assert not graph.is_symmetric()


edge_lists = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40))
)


@given(edge_lists)
@settings(max_examples=100, deadline=None)
def test_any_edge_list_gives_the_rows_of_the_obvious_sets(case: tuple[int, Edges]) -> None:
    n, edges = case
    graph = make(edges, n)
    expected = [{v} | {a for a, b in edges if b == v} for v in range(n)]
    assert rows(graph) == [sorted(row) for row in expected]
    distinct = {(a, b) for a, b in edges if a != b}
    assert graph.is_symmetric() == all((b, a) in distinct for a, b in distinct)


@given(edge_lists, st.integers(1, 2**9 - 1))
@settings(max_examples=100, deadline=None)
def test_an_induced_graph_keeps_exactly_the_edges_inside(case: tuple[int, Edges], bits: int) -> None:
    n, edges = case
    keep = [v for v in range(n) if bits >> v & 1] or [0]
    mask = np.isin(np.arange(n), keep)
    whole = make(edges, n)
    sub = induced(whole, mask)
    new = {old: k for k, old in enumerate(keep)}
    expected = [sorted({new[v]} | {new[a] for a, b in edges if b == v and a in new}) for v in keep]
    assert rows(sub) == expected
    assert sub.features.tolist() == whole.features[keep].tolist()
    assert sub.labels.tolist() == whole.labels[keep].tolist()
    assert sub.train_mask.tolist() == whole.train_mask[keep].tolist()


def test_the_hash_sees_the_structure_and_nothing_else() -> None:
    graph = make([(0, 1), (1, 2)], 3)
    assert content_hash(graph) == content_hash(make([(1, 2), (0, 1)], 3, features=np.ones((3, 9))))
    assert content_hash(graph) != content_hash(make([(1, 0), (1, 2)], 3))
    assert content_hash(graph) != content_hash(make([(0, 1), (1, 2)], 4))


def test_labels_of_two_dimensions_mean_several_labels_per_node() -> None:
    graph = make([(0, 1)], 3, labels=[[1, 0], [1, 1], [0, 0]])
    assert graph.multilabel
    assert graph.labels.dtype == np.float32
    assert not make([(0, 1)], 3).multilabel


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"features": np.zeros((2, 2))}, r"features have shape \(2, 2\); expected \[3, width\]"),
    ({"features": np.zeros(3)}, "features have shape"),
    ({"features": np.array([[0.0], [np.nan], [1.0]])}, "NaN or infinite"),
    ({"features": np.array([[0.0], [np.inf], [1.0]])}, "NaN or infinite"),
    ({"features": [["a"], ["b"], ["c"]]}, "features must be numbers, got <U1"),
    ({"labels": ["x", "y", "z"]}, "labels must be numbers"),
    ({"labels": [0, 1]}, "2 labels for 3 nodes"),
    ({"labels": [0, 1, 2]}, r"label 2 is outside \[-1, 2\)"),
    ({"labels": [0, 1, -2]}, r"label -2 is outside"),
    ({"labels": [0.0, 0.5, 1.0]}, "whole numbers"),
    ({"labels": [-1, 0, 1]}, "1 train nodes have no label"),
    ({"labels": [[1, 0, 0]] * 3}, "3 columns for 2 classes"),
    ({"labels": [[1, 0], [2, 0], [0, 0]]}, "0 or 1"),
    ({"train_mask": [True, False]}, r"train_mask has shape \(2,\)"),
    ({"train_mask": [2, 0, 0]}, "train_mask must hold only true and false"),
    ({"train_mask": np.zeros(3, bool)}, "no train nodes"),
    ({"val_mask": [True, False, False]}, "train and val masks share 1 nodes"),
    ({"val_mask": [False, True, False]}, "val and test masks share 1 nodes"),
    ({"num_classes": 0}, "0 classes"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make([(0, 1)], 3, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([0, 3], [1, 1], r"edge source 3 is outside \[0, 3\)"),
        ([0, 1], [1, -1], r"edge destination -1 is outside"),
        ([0, 1], [1], "2 edge sources but 1 edge destinations"),
        ([0.5], [1], "whole numbers"),
    ],
)
def test_bad_edges_are_refused(src: list[int], dst: list[int], message: str) -> None:
    mask = np.ones(3, bool)
    with pytest.raises(InputError, match=message):
        from_edges(
            src, dst, 3, features=np.zeros((3, 1)), labels=[0, 0, 0], train_mask=mask, val_mask=~mask, test_mask=~mask
        )


def test_importing_the_package_loads_no_heavy_library() -> None:
    import subprocess
    import sys

    code = "import sys, halocast.graph; print([m for m in ('torch', 'dgl', 'pymetis', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.home())
    assert done.stdout.strip() == "[]"
