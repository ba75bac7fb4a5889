"""Loading: one small file set per format, and every fault named in one line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from halocast.base.errors import InputError
from halocast.graph import Graph, load, stratified_masks

DATA = Path(__file__).parents[2] / "shared" / "data"
EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])  # a directed ring of four
FEATURES = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [3.0, 4.0]], np.float32)
LABELS = np.array([0, 1, 2, -1])
SPLIT = {"train": [0, 1], "val": [2], "test": [3]}


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HALOCAST_DATA", raising=False)


def masks() -> dict[str, Any]:
    return {f"{part}_mask": np.isin(np.arange(4), ids) for part, ids in SPLIT.items()}


def is_the_ring(graph: Graph, *, both_ways: bool = False) -> None:
    rows = [graph.indices[a:b].tolist() for a, b in zip(graph.indptr[:-1], graph.indptr[1:], strict=True)]
    ring = [[0, 1, 3], [0, 1, 2], [1, 2, 3], [0, 2, 3]] if both_ways else [[0, 3], [0, 1], [1, 2], [2, 3]]
    assert rows == ring
    assert graph.features.tolist() == FEATURES.tolist()
    assert graph.labels.tolist() == LABELS.tolist()
    assert graph.num_classes == 3
    found = (graph.train_mask, graph.val_mask, graph.test_mask)
    assert [np.flatnonzero(mask).tolist() for mask in found] == list(SPLIT.values())


def write_npz(path: Path, **changes: Any) -> Path:
    x = sp.csr_matrix(FEATURES)
    arrays = {"edge_index": EDGES, "x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
    given = {**arrays, "y": LABELS, **masks(), **changes}
    np.savez(path, **{key: value for key, value in given.items() if value is not None})
    return path


def test_an_npz_with_sparse_features(tmp_path: Path) -> None:
    graph = load(write_npz(tmp_path / "ring.npz"))
    is_the_ring(graph)
    assert graph.name == "ring"


def test_an_npz_with_generated_masks(tmp_path: Path) -> None:
    renamed = {f"gen_{key}": mask for key, mask in masks().items()}
    is_the_ring(load(str(write_npz(tmp_path / "ring.npz", **dict.fromkeys(masks()), **renamed))))


def test_a_name_is_found_in_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALOCAST_DATA", str(tmp_path))
    write_npz(tmp_path / "reddit.npz")  # before DGL's dataset of that name
    is_the_ring(load("reddit"))
    write_plain(tmp_path / "mine")
    is_the_ring(load("mine"))
    with pytest.raises(InputError, match=r"unknown dataset 'mime'; did you mean 'mine'\?"):
        load("mime")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "missing array 'y'"),
        ({"val_mask": None}, "missing array 'val_mask'"),
        ({"edge_index": EDGES.T}, r"edge_index has shape \(4, 2\)"),
        ({"x_indptr": [0, 1]}, "do not fit together"),
        ({"x_indices": np.array([0, 1, 0, 9])}, "do not fit together"),
    ],
)
def test_an_npz_that_is_not_complete_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_npz(tmp_path / "ring.npz", **changes)
    with pytest.raises(InputError, match=rf"ring.npz: .*{message}"):
        load(path)


def write_ogb(path: Path, **changes: str | None) -> Path:
    tables: dict[str, str | None] = {
        "raw/edge": "0,1\n1,2\n2,3\n3,0\n",
        "raw/node-feat": "1.0,0.0\n0.0,2.0\n0,0\n3,4\n",
        "raw/node-label": "0.0\n1.0\n2.0\nnan\n",
        "raw/num-node-list": "4\n",
        "raw/num-edge-list": "4\n",
        "split/time/train": "0\n1\n",
        "split/time/valid": "2\n",
        "split/time/test": "3\n",
    }
    for name, text in {**tables, **{key.replace("__", "/"): text for key, text in changes.items()}}.items():
        file = path / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            file.write_bytes(gzip.compress(text.encode()))
    return path


def test_ogb_text_is_kept_directed(tmp_path: Path) -> None:
    is_the_ring(load(write_ogb(tmp_path / "ogbn_arxiv")))


@pytest.mark.parametrize("name", ["ogbn_products", "ogbn-products", "products"])
def test_ogb_products_gets_its_inverse_edges(tmp_path: Path, name: str) -> None:
    is_the_ring(load(write_ogb(tmp_path / name)), both_ways=True)


def test_ogb_labels_of_several_columns_are_several_labels(tmp_path: Path) -> None:
    graph = load(write_ogb(tmp_path / "ogbn_proteins", **{"raw__node-label": "0,1\n1,1\n0,0\n1,0\n"}))
    assert graph.multilabel
    assert graph.labels.tolist() == [[0, 1], [1, 1], [0, 0], [1, 0]]


def test_ogb_binary_files(tmp_path: Path) -> None:
    path = write_ogb(tmp_path / "ogbn_papers100M", **{"raw__edge": None, "raw__node-feat": None})
    np.savez(path / "raw" / "data.npz", edge_index=EDGES, node_feat=FEATURES, num_nodes_list=[4], num_edges_list=[4])
    labels = np.array([[0.0], [1.0], [2.0], [np.nan]])
    np.savez(path / "raw" / "node-label.npz", node_label=labels)
    is_the_ring(load(path))
    (path / "raw" / "node-label.npz").unlink()
    with pytest.raises(InputError, match=r"missing file node-label\.npz"):
        load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw__edge": None}, r"missing file edge\.csv\.gz"),
        ({"raw__edge": "0,1\n1,x\n"}, r"edge\.csv\.gz: malformed row"),
        ({"raw__edge": "0,1\n1,2,3\n"}, r"edge\.csv\.gz: malformed row"),
        ({"raw__edge": "0\n1\n2\n3\n"}, r"edge\.csv\.gz: expected 2 numbers per line, got 1"),
        ({"raw__edge": "0,1\n"}, r"edge\.csv\.gz: 1 edges, num-edge-list says 4"),
        ({"raw__edge": "0,1\n1,2\n2,3\n3,4\n"}, r"edge destination 4 is outside \[0, 4\)"),
        ({"raw__node-feat": "1,2\n3,4\n"}, r"features have shape \(2, 2\)"),
        ({"raw__num-node-list": "2\n2\n"}, r"num-node-list\.csv\.gz: 2 graphs"),
        ({"split/time/test": "7\n"}, r"test\.csv\.gz: node 7 is outside \[0, 4\)"),
        ({"split/time/valid": None}, r"missing file valid\.csv\.gz"),
        ({"split/other/train": "0\n"}, "expected one directory with train.*found other, time"),
    ],
)
def test_a_fault_in_ogb_files_names_the_file(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(write_ogb(tmp_path / "ogbn_arxiv", **changes))


def test_a_broken_gzip_names_the_file(tmp_path: Path) -> None:
    path = write_ogb(tmp_path / "ogbn_arxiv")
    (path / "raw" / "edge.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(InputError, match=r"edge\.csv\.gz: malformed"):
        load(path)


def write_plain(path: Path, *, split: str = "mask") -> Path:
    path.mkdir()
    np.save(path / "edges.npy", EDGES)
    np.save(path / "features.npy", FEATURES)
    np.save(path / "labels.npy", LABELS)
    for part, ids in SPLIT.items():
        if split == "mask":
            np.save(path / f"{part}_mask.npy", np.isin(np.arange(4), ids))
        if split == "ids":
            np.save(path / f"{part}.npy", np.array(ids))
    return path


@pytest.mark.parametrize("split", ["mask", "ids"])
def test_a_plain_directory(tmp_path: Path, split: str) -> None:
    graph = load(write_plain(tmp_path / "mine", split=split))
    is_the_ring(graph)
    assert graph.name == "mine"


@pytest.mark.parametrize(
    ("name", "text"), [("edges.txt", "# ring\n0 1\n1 2\n2\t3\n3 0\n"), ("edges.csv", "0,1\n1,2\n2,3\n3,0\n")]
)
def test_edges_may_be_text(tmp_path: Path, name: str, text: str) -> None:
    path = write_plain(tmp_path / "mine")
    (path / "edges.npy").unlink()
    (path / name).write_text(text)
    is_the_ring(load(path))
    (path / name).write_text(text + "5\n")
    with pytest.raises(InputError, match=rf"{name}: malformed|{name}: expected"):
        load(path)


def test_without_masks_the_split_is_drawn_inside_every_class(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "mine", split="none")
    labels = np.repeat([0, 1, -1], [50, 10, 5])
    np.save(path / "labels.npy", labels)
    np.save(path / "features.npy", np.zeros((65, 1), np.float32))
    graph, again = load(path), load(path)
    assert np.bincount(labels[graph.train_mask]).tolist() == [30, 6]
    assert np.bincount(labels[graph.val_mask]).tolist() == [10, 2]
    assert np.bincount(labels[graph.test_mask]).tolist() == [10, 2]
    assert np.array_equal(graph.train_mask, again.train_mask)
    assert not np.array_equal(stratified_masks(labels, seed=1)[0], graph.train_mask)


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def put(name: str, array: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path / name, array)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove("edges.npy"), r"mine: missing file edges\.npy"),
        (remove("features.npy"), r"mine: missing file features\.npy"),
        (remove("labels.npy"), r"mine: missing file labels\.npy"),
        (remove("test_mask.npy"), r"mine: missing file test_mask\.npy"),
        (put("features.npy", np.float32(1)), r"features\.npy: shape \(\)"),
        (put("labels.npy", np.int64(1)), r"labels\.npy: shape \(\)"),
        (put("edges.npy", EDGES.T), r"edges\.npy: edges have shape \(4, 2\)"),
        (lambda path: (path / "labels.npy").write_text("zero one"), r"labels\.npy: cannot be read"),
    ],
)
def test_a_fault_in_plain_files_names_the_file(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    path = write_plain(tmp_path / "mine")
    spoil(path)
    with pytest.raises(InputError, match=message):
        load(path)


def test_a_name_that_is_nothing_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown dataset 'redit'; did you mean 'reddit'.*cora.*a path .* works too"):
        load("redit")
    with pytest.raises(InputError, match="no such file or directory: absent/graph"):
        load("absent/graph")


def test_a_directory_called_like_a_dataset_needs_to_be_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_plain(tmp_path / "cora")
    is_the_ring(load("./cora"))
    is_the_ring(load(Path("cora")))
    write_plain(tmp_path / "mine.v2")
    is_the_ring(load("mine.v2"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text("{}")
    with pytest.raises(InputError, match=r"unknown kind of file '\.json'"):
        load(tmp_path / "graph.json")
    (tmp_path / "graph.npz").write_text("{}")
    with pytest.raises(InputError, match=r"graph\.npz: cannot be read"):
        load(tmp_path / "graph.npz")


def test_the_stored_cora_is_what_its_notes_say() -> None:
    if not DATA.is_dir():
        pytest.skip(f"real graphs are not at {DATA}")
    graph = load(DATA / "cora.npz")
    assert (graph.num_nodes, graph.num_edges - graph.num_nodes) == (2708, 10556)
    assert (graph.num_features, graph.num_classes, graph.num_train) == (1433, 7, 140)
    assert graph.is_symmetric()


def dgl_raw(cache: Path, name: str) -> Path:
    """Where dgl 1.1.3 looks for the unpacked files of a dataset."""
    import hashlib

    utils = pytest.importorskip("dgl.data.utils")
    url = utils._get_dgl_url(f"dataset/{name}.zip")
    path = cache / f"{name}_{hashlib.sha1(url.encode()).hexdigest()[:8]}"
    path.mkdir(parents=True)
    return path


def test_dgls_own_loader_reads_flickr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    raw = dgl_raw(tmp_path, "flickr")
    # DGL reads a matrix entry (u, v) as the edge u → v
    sp.save_npz(raw / "adj_full.npz", sp.csr_matrix((np.ones(4), EDGES), shape=(4, 4)))
    np.save(raw / "feats.npy", FEATURES)
    (raw / "class_map.json").write_text(json.dumps({"0": 0, "1": 1, "2": 2, "3": -1}))
    (raw / "role.json").write_text(json.dumps({"tr": [0, 1], "va": [2], "te": [3]}))
    for graph in (load("flickr", cache=tmp_path), load("flickr", cache=tmp_path)):  # raw files, then dgl's cache
        assert graph.num_classes == 7
        assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 2, 4, 6, 8], [0, 3, 0, 1, 1, 2, 2, 3])
        assert graph.features.tolist() == FEATURES.tolist()
        assert graph.labels.tolist() == LABELS.tolist()
        assert graph.train_mask.tolist() == [True, True, False, False]
    assert capfd.readouterr().out == ""


def test_dgls_own_loader_reads_yelp_with_several_labels(tmp_path: Path) -> None:
    raw = dgl_raw(tmp_path, "yelp")
    sp.save_npz(raw / "adj_full.npz", sp.csr_matrix((np.ones(4), EDGES), shape=(4, 4)))
    np.save(raw / "feats.npy", FEATURES)
    several = [[int(c in (k, k + 1)) for c in range(100)] for k in range(4)]
    (raw / "class_map.json").write_text(json.dumps({str(k): row for k, row in enumerate(several)}))
    (raw / "role.json").write_text(json.dumps({"tr": [0, 1], "va": [2], "te": [3]}))
    graph = load("yelp", cache=tmp_path)
    assert graph.multilabel
    assert graph.labels.tolist() == several


def test_a_download_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dgl")
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # nothing listens there, with or without a network
    for name in ("reddit", "cora"):
        with pytest.raises(
            InputError, match=f"dataset '{name}' is not usable from dgl's cache .* give a path"
        ) as caught:
            load(name, cache=tmp_path)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr().out == ""


def test_every_dgl_name_has_a_loader() -> None:
    data = pytest.importorskip("dgl.data")
    from halocast.graph.formats.dgl_data import DGL_DATASETS

    assert [name for name in DGL_DATASETS.values() if not hasattr(data, name)] == []
