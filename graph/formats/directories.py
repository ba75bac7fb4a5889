"""Graphs from directories: OGB's node-property layout, its binary variant, and a plain one of .npy files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.graph.formats.arrays import Array, entry, read_npy, read_npz, read_table
from halocast.graph.graph import Graph, Ints, Mask, from_edges, stratified_masks

# OGB stores one direction of these and doubles it on loading (add_inverse_edge in its master.csv, which is not on
# disk beside the data), so the name of the directory decides. arxiv and papers100M are directed: kept as they are.
UNDIRECTED_OGB = ("products", "proteins")
MASKS = ("train", "val", "test")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Raw:
    """The contents of OGB's raw/ directory, in either variant."""

    edges: Ints  # [2, E]
    features: Array
    labels: Array
    num_nodes: int


def load_directory(path: Path) -> Graph:
    """A graph from a directory, by what the directory holds."""
    return load_ogb(path) if (path / "raw").is_dir() else load_plain(path)


def load_ogb(path: Path) -> Graph:
    """Load OGB's layout: raw/*.csv.gz or raw/{data,node-label}.npz, split/<scheme>/{train,valid,test}.csv.gz."""
    raw = _ogb_binary(path / "raw") if (path / "raw" / "data.npz").exists() else _ogb_text(path / "raw")
    src, dst = raw.edges
    if path.resolve().name.removeprefix("ogbn_").removeprefix("ogbn-") in UNDIRECTED_OGB:
        src, dst = np.concatenate((src, dst)), np.concatenate((dst, src))
    scheme = _ogb_scheme(path / "split")
    train, val, test = (_ogb_ids(scheme / f"{part}.csv.gz", raw.num_nodes) for part in ("train", "valid", "test"))
    return from_edges(
        src,
        dst,
        raw.num_nodes,
        features=raw.features,
        labels=raw.labels,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        name=path.resolve().name,
    )


def _ogb_text(raw: Path) -> _Raw:
    num_nodes = _single(raw / "num-node-list.csv.gz")
    edges = read_table(raw / "edge.csv.gz", np.int64, columns=2)
    stated = _single(raw / "num-edge-list.csv.gz")
    require(len(edges) == stated, f"{raw / 'edge.csv.gz'}: {len(edges)} edges, num-edge-list says {stated}")
    features = read_table(raw / "node-feat.csv.gz", np.float32)
    labels = read_table(raw / "node-label.csv.gz", np.float64)
    return _Raw(edges=edges.T, features=features, labels=labels, num_nodes=num_nodes)


def _ogb_binary(raw: Path) -> _Raw:
    path, label_path = raw / "data.npz", raw / "node-label.npz"
    data, labels = read_npz(path), read_npz(label_path)
    edges = entry(data, "edge_index", path)
    _check_edges(edges, path)
    return _Raw(
        edges=edges,
        features=entry(data, "node_feat", path),
        labels=entry(labels, "node_label", label_path),
        num_nodes=int(entry(data, "num_nodes_list", path).sum()),
    )


def _single(path: Path) -> int:
    table = read_table(path, np.int64, columns=1)
    require(len(table) == 1, f"{path}: {len(table)} graphs; exactly one is supported")
    return int(table[0, 0])


def _ogb_scheme(split: Path) -> Path:
    schemes = sorted(place for place in split.iterdir() if place.is_dir()) if split.is_dir() else []
    if len(schemes) != 1:
        names = ", ".join(scheme.name for scheme in schemes) or "none"
        raise InputError(f"{split}: expected one directory with train, valid and test.csv.gz, found {names}")
    return schemes[0]


def _ogb_ids(path: Path, num_nodes: int) -> Mask:
    return _mask_of(read_table(path, np.int64, columns=1)[:, 0], num_nodes, str(path))


def load_plain(path: Path) -> Graph:
    """Load edges.npy [2, E] or edges.txt / edges.csv with 'src dst' lines, features.npy, labels.npy, and optionally
    {train,val,test}_mask.npy or index lists {train,val,test}.npy (else a stratified 60/20/20 split, seed 0)."""
    edges = _plain_edges(path)
    features, labels = read_npy(path / "features.npy"), read_npy(path / "labels.npy")
    require(features.ndim == 2, f"{path / 'features.npy'}: shape {features.shape}; expected [nodes, width]")
    require(labels.ndim in (1, 2), f"{path / 'labels.npy'}: shape {labels.shape}; expected [nodes] or [nodes, classes]")
    train, val, test = _plain_masks(path, labels)
    return from_edges(
        edges[0],
        edges[1],
        len(features),
        features=features,
        labels=labels,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        name=path.resolve().name,
    )


def _plain_edges(path: Path) -> Ints:
    if (path / "edges.npy").exists():
        edges = read_npy(path / "edges.npy")
        _check_edges(edges, path / "edges.npy")
        return edges
    for name, separator in (("edges.txt", r"\s+"), ("edges.csv", ",")):
        if (path / name).exists():
            return read_table(path / name, np.int64, columns=2, separator=separator).T
    raise InputError(f"{path}: missing file edges.npy (or edges.txt, edges.csv; or raw/ in OGB's layout)")


def _plain_masks(path: Path, labels: Array) -> tuple[Mask, Mask, Mask]:
    n = len(labels)
    if any((path / f"{part}_mask.npy").exists() for part in MASKS):
        train, val, test = (read_npy(path / f"{part}_mask.npy") for part in MASKS)
    elif any((path / f"{part}.npy").exists() for part in MASKS):
        where = [path / f"{part}.npy" for part in MASKS]
        train, val, test = (_mask_of(read_npy(file), n, str(file)) for file in where)
    else:
        return stratified_masks(_whole_labels(labels, path))
    return train, val, test


def _whole_labels(labels: Array, path: Path) -> Array:
    if labels.ndim == 2:
        return labels
    if labels.dtype.kind not in "iu" or labels.size == 0 or int(labels.min()) < -1:
        raise InputError(f"{path / 'labels.npy'}: labels must be whole numbers ≥ -1, or a 0/1 matrix")
    return labels.astype(np.int64)


def _check_edges(edges: Array, path: Path) -> None:
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise InputError(f"{path}: edges have shape {edges.shape}; expected [2, edges]")


def _mask_of(ids: Ints, num_nodes: int, where: str) -> Mask:
    """The mask of an index list; `where` is the file an error names."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"{where}: expected a list of node ids, got {ids.dtype}{ids.shape}")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
        bad = ids.min() if int(ids.min()) < 0 else ids.max()
        raise InputError(f"{where}: node {bad} is outside [0, {num_nodes})")
    mask = np.zeros(num_nodes, np.bool_)
    mask[ids] = True
    return mask
