"""The tight form of small graphs, and the graph that comes with the package."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.graph import Graph, from_edges, load, synthetic
from halocast.graph.formats.loaders import bundled_names, load_npz
from halocast.graph.formats.packed import pack, save_packed, unpack_bits, unpack_edges

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
FIELDS = ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask", "num_classes")


def assert_equal(one: Graph, other: Graph) -> None:
    for field in FIELDS:
        assert np.array_equal(getattr(one, field), getattr(other, field)), field


@st.composite
def small_graphs(draw: st.DrawFn) -> Graph:
    n = draw(st.integers(1, 30))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    train = np.arange(n) == 0
    return from_edges(
        np.concatenate((ends[:, 0], ends[:, 1])),
        np.concatenate((ends[:, 1], ends[:, 0])),
        n,
        features=rng.integers(0, 2, (n, draw(st.integers(1, 9)))),
        labels=np.where(train, 0, rng.integers(-1, 3, n)),
        train_mask=train,
        val_mask=~train,
        test_mask=np.zeros(n, np.bool_),
        num_classes=3,
    )


@given(small_graphs())
def test_what_is_packed_comes_out_again(graph: Graph) -> None:
    arrays = pack(graph)
    edges = unpack_edges(arrays, Path("x"))
    same = {key: getattr(graph, key) for key in FIELDS[3:]}
    again = from_edges(edges[0], edges[1], graph.num_nodes, features=unpack_bits(arrays, Path("x")), **same)
    assert_equal(again, graph)


def test_a_packed_file_is_loaded_like_any_other(tmp_path: Path) -> None:
    graph = load("amazon-computers")
    save_packed(graph, tmp_path / "again.npz")
    assert_equal(load(tmp_path / "again.npz"), graph)


def test_what_cannot_be_packed_is_refused() -> None:
    plain: dict[str, Any] = {
        "nodes": 20, "degree": 3, "skew": 0, "classes": 2, "features": 2, "mixing": 1, "seed": 0,
    }  # fmt: skip
    with pytest.raises(InputError, match="synthetic: only features of 0 and 1 can be packed"):
        pack(synthetic(**plain))
    with pytest.raises(InputError, match="only a graph with both directions"):
        pack(synthetic(**plain, directed=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_counts": np.array([9, 9])}, "edge_counts and edge_steps do not fit together"),
        ({"x_shape": np.array([300, 2])}, "x_bits and x_shape do not fit together"),
        ({"x_bits": np.zeros((1, 1))}, "x_bits and x_shape do not fit together"),
        ({"edge_steps": np.array([99, 1], np.uint8)}, "edge source 99 is outside"),
    ],
)
def test_a_broken_packed_file_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    ends = [0, 1, 2, 1], [1, 0, 1, 2]
    masks = [[True, False, False], [False, True, False], [False, False, True]]
    graph = from_edges(
        ends[0],
        ends[1],
        3,
        features=np.eye(3),
        labels=[0, 1, 0],
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )
    np.savez(tmp_path / "broken.npz", **{**pack(graph), **changes})
    with pytest.raises(InputError, match=message):
        load_npz(tmp_path / "broken.npz")


def test_a_graph_comes_with_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HALOCAST_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert bundled_names() == ("amazon-computers",)
    graph = load("amazon-computers")
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (13_752, 505_474, 767, 10)
    assert [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [8252, 2750, 2750]
    assert graph.is_symmetric()
    assert graph.name == "amazon-computers"


def test_what_a_user_has_comes_before_what_is_bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = synthetic(nodes=30, degree=3, skew=0, classes=2, features=2, mixing=1, seed=0)
    other.save(tmp_path / "amazon-computers.npz")
    monkeypatch.setenv("HALOCAST_DATA", str(tmp_path))
    assert load("amazon-computers").num_nodes == 30


def test_the_bundled_graph_is_small_shipped_and_says_where_it_is_from() -> None:
    place = ROOT / "graph" / "datasets"
    assert (place / "amazon-computers.npz").stat().st_size < 1_500_000
    assert "gnn-benchmark" in (place / "README.md").read_text(encoding="utf-8")
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert tool["package-data"]["halocast.graph.datasets"] == ["*.npz", "README.md"]
    assert "halocast.graph.datasets" in tool["packages"]


def test_the_bundled_graph_is_the_real_one() -> None:
    if not DATA.is_dir():
        pytest.skip(f"real graphs are not at {DATA}")
    assert_equal(load("amazon-computers"), load(DATA / "amazon-computers.npz"))
