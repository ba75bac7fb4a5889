"""A tight form of small graphs: each edge once as a step from the one before, features of 0 and 1 as bits.

edge_counts[v]   how many neighbours with a larger number node v has
edge_steps       their numbers, ascending per node: the first less v, each other less the one before it
x_bits, x_shape  features, eight nodes to a byte
"""

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_LZMA, ZipFile

import numpy as np

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.base.records import require
from halocast.graph.formats.arrays import Array, entry
from halocast.graph.graph import MASKS, Floats, Graph, Ints

SUFFIX = ".npy"


def save_packed(graph: Graph, path: Path) -> None:
    """Write a graph as an .npz file; it has to be symmetric, with features of 0 and 1 and one label per node."""
    arrays = pack(graph)
    with whole_file(path) as temporary, ZipFile(temporary, "w", ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(name + SUFFIX, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def pack(graph: Graph) -> dict[str, Array]:
    """The arrays of a packed graph."""
    name = graph.name
    require(graph.is_symmetric(), f"{name}: only a graph with both directions of every edge can be packed")
    require(bool(np.isin(graph.features, (0, 1)).all()), f"{name}: only features of 0 and 1 can be packed")
    require(not graph.multilabel, f"{name}: only a graph with one label per node can be packed")
    source = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    up = graph.indices > source
    source, target = source[up], graph.indices[up].astype(np.int64)
    first = np.ones(len(source), np.bool_)
    first[1:] = source[1:] != source[:-1]
    before = np.where(first, source, np.concatenate(([0], target[:-1])))
    return {
        "edge_counts": _small(np.bincount(source, minlength=graph.num_nodes)),
        "edge_steps": _small(target - before),
        "x_bits": np.packbits(graph.features.astype(np.bool_), axis=0),
        "x_shape": np.array(graph.features.shape, np.int64),
        "y": graph.labels.astype(np.int16),
        "num_classes": np.array(graph.num_classes),
        **{key: getattr(graph, key) for key in MASKS},
    }


def _small(numbers: Ints) -> Array:
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def unpack_edges(arrays: Mapping[str, Array], path: Path) -> Ints:
    """Both directions of every edge of a packed graph, [2, edges]."""
    counts = entry(arrays, "edge_counts", path).astype(np.int64)
    steps = entry(arrays, "edge_steps", path).astype(np.int64)
    if counts.ndim != 1 or steps.ndim != 1 or counts.sum() != len(steps):
        raise InputError(f"{path}: edge_counts and edge_steps do not fit together")
    source = np.repeat(np.arange(len(counts)), counts)
    total = np.concatenate(([0], np.cumsum(steps)))
    begin = np.repeat((np.cumsum(counts) - counts), counts)
    target = source + total[1:] - total[begin]
    return np.stack([np.concatenate((source, target)), np.concatenate((target, source))])


def unpack_bits(arrays: Mapping[str, Array], path: Path) -> Floats:
    """The features of a packed graph."""
    bits, shape = arrays["x_bits"], tuple(int(side) for side in entry(arrays, "x_shape", path))
    if len(shape) != 2 or bits.dtype != np.uint8 or bits.shape != (-(-shape[0] // 8), shape[1]):
        raise InputError(f"{path}: x_bits and x_shape do not fit together")
    return np.unpackbits(bits, axis=0, count=shape[0]).astype(np.float32)
