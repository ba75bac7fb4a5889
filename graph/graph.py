"""The graph of a training job: in-neighbour lists, features, labels and masks, checked once when it is built."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.base.records import require

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]
Columns = NDArray[np.int32]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Labels = NDArray[np.int64] | NDArray[np.float32]

MASKS = ("train_mask", "val_mask", "test_mask")
TRAIN, VAL = 0.6, 0.2  # shares of nodes where a dataset has no split
SPLIT_STREAM = 2  # apart from the streams of partition.py and of a synthetic graph with the same seed
MAX_NODES = 2**31 - 1  # columns are int32: half the memory traffic of an SpMM's index array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Graph:
    """A graph as CSR by destination: row v holds the sources v aggregates, ascending, unique, itself exactly once."""

    name: str
    indptr: Ints
    indices: Columns
    features: Floats
    labels: Labels  # int64[n] with −1 = unlabelled, or float32[n, c] when a node has several labels
    train_mask: Mask
    val_mask: Mask
    test_mask: Mask
    num_classes: int

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of stored entries: directed edges and one self-loop per node."""
        return len(self.indices)

    @property
    def num_features(self) -> int:
        """Width of the feature matrix."""
        return int(self.features.shape[1])

    @property
    def num_train(self) -> int:
        """Number of train nodes."""
        return int(np.count_nonzero(self.train_mask))

    @property
    def in_degree(self) -> Ints:
        """In-degree of every node (row lengths), self-loop included."""
        return np.diff(self.indptr)

    @property
    def out_degree(self) -> Ints:
        """Out-degree of every node (column counts), self-loop included."""
        return np.bincount(self.indices, minlength=self.num_nodes).astype(np.int64, copy=False)

    @property
    def multilabel(self) -> bool:
        """Whether a node may have several labels."""
        return self.labels.ndim == 2

    @staticmethod
    def from_edges(
        src: ArrayLike,
        dst: ArrayLike,
        num_nodes: int,
        *,
        features: ArrayLike,
        labels: ArrayLike,
        train_mask: ArrayLike,
        val_mask: ArrayLike,
        test_mask: ArrayLike,
        num_classes: int | None = None,
        name: str = "graph",
    ) -> "Graph":
        """Build a checked graph from edges src→dst in any order; duplicates and self-loops are allowed."""
        _check_numbers(name, features=features, labels=labels)
        indptr, indices = canonical_csr(src, dst, num_nodes, name)
        tidy = _tidy_labels(labels, name)
        graph = Graph(
            name=name,
            indptr=indptr,
            indices=indices,
            features=np.ascontiguousarray(features, dtype=np.float32),
            labels=tidy,
            train_mask=_tidy_mask(train_mask, name, "train_mask"),
            val_mask=_tidy_mask(val_mask, name, "val_mask"),
            test_mask=_tidy_mask(test_mask, name, "test_mask"),
            num_classes=_infer_classes(tidy) if num_classes is None else num_classes,
        )
        return validate(graph)

    @staticmethod
    def from_pyg(data: Any, *, name: str = "graph", num_classes: int | None = None, seed: int = 0) -> "Graph":
        """Build a graph from a PyTorch Geometric `Data`: x, edge_index, y and the three masks.

        Anything with these attributes will do. Without masks, nodes are split 60/20/20 by `seed`; of masks with a
        column per split, the first column counts.
        """
        keys = ("x", "edge_index", "y", *MASKS)
        arrays = {key: _array(value) for key in keys if (value := getattr(data, key, None)) is not None}
        for key in keys[:3]:
            require(key in arrays, f"{name}: the data has no {key}; needed: x, edge_index and y")
        edges = arrays["edge_index"]
        require(edges.ndim == 2 and len(edges) == 2, f"{name}: edge_index has shape {edges.shape}; expected [2, edges]")
        return _from_arrays(edges, arrays["x"], arrays["y"], arrays, name=name, num_classes=num_classes, seed=seed)

    @staticmethod
    def from_dgl(
        graph: Any,
        *,
        features: str = "feat",
        labels: str = "label",
        name: str = "graph",
        num_classes: int | None = None,
        seed: int = 0,
    ) -> "Graph":
        """Build a graph from a homogeneous DGL graph; `features` and `labels` name entries of its `ndata`.

        Masks are its train_mask, val_mask and test_mask; where it has none, as in `from_pyg`.
        """
        require(bool(graph.is_homogeneous), f"{name}: several kinds of nodes or edges; a homogeneous graph is needed")
        for key in (features, labels):
            require(key in graph.ndata, f"{name}: ndata has no {key!r} (there are: {', '.join(graph.ndata)})")
        arrays = {key: _array(value) for key, value in graph.ndata.items() if key in (features, labels, *MASKS)}
        edges = np.stack([_array(end) for end in graph.edges()])
        return _from_arrays(
            edges, arrays[features], arrays[labels], arrays, name=name, num_classes=num_classes, seed=seed
        )

    def __repr__(self) -> str:
        sizes = f"{self.num_nodes:,} nodes, {self.num_edges:,} edges, {self.num_features} features"
        return f"Graph({self.name!r}: {sizes}, {self.num_classes} classes)"

    def save(self, path: str | Path) -> None:
        """Write an .npz file that `graph.dataset` may name, so that other processes can load the graph."""
        place = Path(path)
        require(place.suffix == ".npz", f"{place}: a graph is saved as an .npz file")
        with whole_file(place) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                edge_index=np.stack([self.indices, np.repeat(np.arange(self.num_nodes), self.in_degree)]),
                x=self.features,
                y=self.labels,
                num_classes=self.num_classes,
                **{key: getattr(self, key) for key in MASKS},
            )

    def is_symmetric(self) -> bool:
        """Whether every edge has its reverse."""
        flipped = adjacency(self).tocsc()
        return bool(np.array_equal(flipped.indptr, self.indptr) and np.array_equal(flipped.indices, self.indices))


from_edges = Graph.from_edges


def _array(value: Any) -> NDArray[Any]:
    """The array behind a library's tensor, on whichever device it lies."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _from_arrays(
    edges: NDArray[Any],
    features: NDArray[Any],
    labels: NDArray[Any],
    masks: Mapping[str, NDArray[Any]],
    *,
    name: str,
    num_classes: int | None,
    seed: int,
) -> Graph:
    tidy = _tidy_labels(labels, name)
    there = [key for key in MASKS if key in masks]
    require(len(there) in (0, 3), f"{name}: of the masks only {', '.join(there)}; give all three or none")
    split = [_first_split(masks[key]) for key in there] or stratified_masks(tidy, seed)
    return Graph.from_edges(
        edges[0],
        edges[1],
        len(tidy),
        features=features,
        labels=tidy,
        train_mask=split[0],
        val_mask=split[1],
        test_mask=split[2],
        num_classes=num_classes,
        name=name,
    )


def _first_split(mask: NDArray[Any]) -> NDArray[Any]:
    """The first split of a mask; some datasets come with ten, one per column."""
    return mask[:, 0] if mask.ndim == 2 else mask


def stratified_masks(labels: Labels, seed: int = 0) -> tuple[Mask, Mask, Mask]:
    """Masks of 60/20/20 % inside every class, overall if nodes have several labels; unlabelled nodes are in none."""
    strata = np.zeros(len(labels), np.int64) if labels.ndim == 2 else labels
    order = np.lexsort((np.random.default_rng((seed, SPLIT_STREAM)).random(len(labels)), strata))
    sizes = np.bincount(strata + 1)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.empty(len(labels))
    place[order] = (np.arange(len(labels)) - first + 0.5) / np.repeat(sizes, sizes)
    labelled = strata >= 0
    train = labelled & (place < TRAIN)
    val = labelled & ~train & (place < TRAIN + VAL)
    return train, val, labelled & ~train & ~val


def adjacency(graph: Graph) -> sp.csr_matrix:
    """The structure as a scipy matrix of ones (int8: the values carry nothing)."""
    shape = (graph.num_nodes, graph.num_nodes)
    return sp.csr_matrix((np.ones(graph.num_edges, np.int8), graph.indices, graph.indptr), shape=shape)


def canonical_csr(src: ArrayLike, dst: ArrayLike, num_nodes: int, name: str = "graph") -> tuple[Ints, Columns]:
    """The CSR `indptr, indices` by destination: sorted, unique, every self-loop replaced by exactly one per node."""
    require(0 < num_nodes <= MAX_NODES, f"{name}: {num_nodes} nodes; legal: 1 to {MAX_NODES}")
    source = _tidy_ends(src, num_nodes, name, "source")
    target = _tidy_ends(dst, num_nodes, name, "destination")
    if len(source) != len(target):
        raise InputError(f"{name}: {len(source)} edge sources but {len(target)} edge destinations")
    # One int64 key per edge: a single in-place sort replaces a two-column one at a third of its memory.
    keys = np.empty(len(source) + num_nodes, np.int64)
    np.multiply(target, num_nodes, out=keys[: len(source)], dtype=np.int64)
    keys[: len(source)] += source
    keys[len(source) :] = np.arange(num_nodes, dtype=np.int64) * (num_nodes + 1)
    keys.sort()
    keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
    starts = np.arange(num_nodes + 1, dtype=np.int64) * num_nodes
    indptr = np.searchsorted(keys, starts).astype(np.int64, copy=False)
    return indptr, (keys % num_nodes).astype(np.int32)


def _check_numbers(name: str, **arrays: ArrayLike) -> None:
    for what, array in arrays.items():
        kind = np.asarray(array).dtype
        require(kind.kind in "biuf", f"{name}: {what} must be numbers, got {kind}")


def _tidy_ends(ends: ArrayLike, num_nodes: int, name: str, what: str) -> Ints | Columns:
    array = np.asarray(ends)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{name}: edge {what}s must be a list of whole numbers, got {array.dtype}{array.shape}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= num_nodes:
        bad = low if low < 0 else high
        raise InputError(f"{name}: edge {what} {bad} is outside [0, {num_nodes})")
    return array if array.dtype == np.int32 else array.astype(np.int64, copy=False)


def _tidy_labels(labels: ArrayLike, name: str) -> Labels:
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2:
        return np.ascontiguousarray(array, dtype=np.float32)
    if array.ndim != 1:
        raise InputError(f"{name}: labels have shape {array.shape}; legal: [nodes] or [nodes, classes]")
    if array.dtype.kind == "f":  # OGB writes integer labels as floats, NaN for "unlabelled"
        array = np.where(np.isnan(array), -1, array)
        if not np.array_equal(array, np.trunc(array)):
            raise InputError(f"{name}: labels must be whole numbers")
    return array.astype(np.int64)


def _tidy_mask(mask: ArrayLike, name: str, what: str) -> Mask:
    array = np.asarray(mask)
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise InputError(f"{name}: {what} must hold only true and false")
    return array.astype(np.bool_)


def _infer_classes(labels: Labels) -> int:
    if labels.ndim == 2:
        return int(labels.shape[1])
    return int(labels.max(initial=-1)) + 1


def validate(graph: Graph) -> Graph:
    """The graph itself, or an InputError naming the first thing that does not fit together."""
    n, name = graph.num_nodes, graph.name
    masks = {"train_mask": graph.train_mask, "val_mask": graph.val_mask, "test_mask": graph.test_mask}
    if graph.features.ndim != 2 or len(graph.features) != n:
        raise InputError(f"{name}: features have shape {graph.features.shape}; expected [{n}, width]")
    if len(graph.labels) != n:
        raise InputError(f"{name}: {len(graph.labels)} labels for {n} nodes")
    for what, mask in masks.items():
        require(mask.shape == (n,), f"{name}: {what} has shape {mask.shape}; expected [{n}]")
    _check_values(graph)
    _check_split(graph)
    return graph


def _check_values(graph: Graph) -> None:
    name, c = graph.name, graph.num_classes
    require(c >= 1, f"{name}: {c} classes; at least 1 is needed")
    # min and max carry NaN through, and need no second array of the features' size
    if graph.features.size and not np.isfinite([graph.features.min(), graph.features.max()]).all():
        raise InputError(f"{name}: features hold NaN or infinite values")
    if graph.multilabel:
        if graph.labels.shape[1] != c:
            raise InputError(f"{name}: labels have {graph.labels.shape[1]} columns for {c} classes")
        require(bool(np.isin(graph.labels, (0, 1)).all()), f"{name}: multi-label entries must be 0 or 1")
        return
    low, high = int(graph.labels.min()), int(graph.labels.max())
    if low < -1 or high >= c:
        raise InputError(f"{name}: label {low if low < -1 else high} is outside [-1, {c})")


def _check_split(graph: Graph) -> None:
    name = graph.name
    split = {"train": graph.train_mask, "val": graph.val_mask, "test": graph.test_mask}
    for (i, a), (j, b) in combinations(split.items(), 2):
        shared = int(np.count_nonzero(a & b))
        require(shared == 0, f"{name}: {i} and {j} masks share {shared} nodes")
    require(graph.num_train > 0, f"{name}: no train nodes")
    if not graph.multilabel:
        bare = int(np.count_nonzero(graph.train_mask & (graph.labels < 0)))
        require(bare == 0, f"{name}: {bare} train nodes have no label")


def induced(graph: Graph, mask: Mask) -> Graph:
    """The subgraph on the nodes of `mask`, renumbered in order (inductive training: `graph.train_mask`)."""
    if mask.shape != (graph.num_nodes,) or mask.dtype != np.bool_:
        raise InputError(f"{graph.name}: a node mask must be bool[{graph.num_nodes}], got {mask.dtype}{mask.shape}")
    require(bool(mask.any()), f"{graph.name}: the induced subgraph has no nodes")
    rows = np.repeat(mask, graph.in_degree)
    keep = rows & mask[graph.indices]
    counts = np.add.reduceat(keep, graph.indptr[:-1], dtype=np.int64)[mask]
    renumber = (np.cumsum(mask) - 1).astype(np.int32)
    return Graph(
        name=graph.name,
        indptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        indices=renumber[graph.indices[keep]],
        features=graph.features[mask],
        labels=graph.labels[mask],
        train_mask=graph.train_mask[mask],
        val_mask=graph.val_mask[mask],
        test_mask=graph.test_mask[mask],
        num_classes=graph.num_classes,
    )


def content_hash(graph: Graph) -> str:
    """A hash of the structure alone: what a partition depends on."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.ascontiguousarray(graph.indptr, dtype="<i8").data)
    digest.update(np.ascontiguousarray(graph.indices, dtype="<i4").data)
    return digest.hexdigest()
