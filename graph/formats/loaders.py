"""One way in for every dataset: a path, a name in $HALOCAST_DATA, one that is bundled, or a name DGL knows."""

import os
from importlib.resources import files
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from halocast.base.errors import InputError, unknown
from halocast.base.records import require
from halocast.graph.formats.arrays import Array, entry, read_npz
from halocast.graph.formats.dgl_data import DGL_DATASETS, load_dgl
from halocast.graph.formats.directories import MASKS, load_directory
from halocast.graph.formats.packed import unpack_bits, unpack_edges
from halocast.graph.graph import Floats, Graph, Mask, from_edges


def load(name_or_path: str | Path, *, cache: Path | None = None) -> Graph:
    """A graph from an .npz file, a directory (OGB's layout or plain files) or a dataset name.

    A name is looked up as <name>.npz or <name>/ in $HALOCAST_DATA, then among the graphs of the package, then among
    DGL's datasets; `cache` is the directory of DGL's raw files, by default DGL's own.
    """
    path = _find(name_or_path)
    if path is not None:
        return _load_path(path)
    name = str(name_or_path)
    if name in bundled_names():
        return _load_path(_bundled() / f"{name}.npz")
    if name in DGL_DATASETS:
        return load_dgl(name, cache)
    if isinstance(name_or_path, Path) or "/" in name or name.endswith(".npz"):
        raise InputError(f"no such file or directory: {name}")
    fault = unknown("dataset", name, {*DGL_DATASETS, *bundled_names(), *_local_names()})
    raise InputError(f"{fault}; a path to an .npz file or a directory works too")


def is_here(name: str) -> bool:
    """Whether a dataset's data can be loaded without asking a network for it."""
    return _find(name) is not None or name in bundled_names()


def bundled_names() -> tuple[str, ...]:
    """The names of the graphs that come with the package."""
    return tuple(sorted(path.stem for path in _bundled().iterdir() if path.suffix == ".npz"))


def _bundled() -> Path:
    return Path(str(files("halocast.graph.datasets")))


def _find(name_or_path: str | Path) -> Path | None:
    """The existing path of a dataset, or None; a known name is no directory that happens to be called so here."""
    path, root = Path(name_or_path), os.environ.get("HALOCAST_DATA")
    # pathlib drops a leading ./, so the text decides: ./cora is a path, cora a name
    bare = isinstance(name_or_path, str) and not {"/", os.sep} & set(name_or_path) and path.suffix != ".npz"
    local = [Path(root) / f"{path}.npz", Path(root) / path] if root and bare else []
    places = local if bare and str(path) in {*DGL_DATASETS, *bundled_names()} else [path, *local]
    return next((place for place in places if place.exists()), None)


def _local_names() -> tuple[str, ...]:
    root = Path(os.environ.get("HALOCAST_DATA", ""))
    if not os.environ.get("HALOCAST_DATA") or not root.is_dir():
        return ()
    return tuple(sorted(e.name.removesuffix(".npz") for e in root.iterdir() if e.is_dir() or e.suffix == ".npz"))


def _load_path(path: Path) -> Graph:
    if path.is_dir():
        return load_directory(path)
    require(path.suffix == ".npz", f"{path}: unknown kind of file {path.suffix!r}; legal: .npz or a directory")
    return load_npz(path)


def load_npz(path: Path) -> Graph:
    """Load edge_index [2, E], features x or x_data, x_indices, x_indptr, x_shape, labels y, and masks or gen_ masks.

    Edges and features may be packed, as `packed.py` says.
    """
    arrays = read_npz(path)
    edges = unpack_edges(arrays, path) if "edge_steps" in arrays else entry(arrays, "edge_index", path)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise InputError(f"{path}: edge_index has shape {edges.shape}; expected [2, edges]")
    features = _npz_features(arrays, path)
    train, val, test = (_npz_mask(arrays, part, path) for part in MASKS)
    return from_edges(
        edges[0],
        edges[1],
        len(features),
        features=features,
        labels=entry(arrays, "y", path),
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=int(arrays["num_classes"]) if "num_classes" in arrays else None,
        name=path.stem,
    )


def _npz_features(arrays: dict[str, Array], path: Path) -> Floats:
    if "x" in arrays:
        require(arrays["x"].ndim == 2, f"{path}: x has shape {arrays['x'].shape}; expected [nodes, width]")
        return arrays["x"]
    if "x_bits" in arrays:
        return unpack_bits(arrays, path)
    data, indices, indptr = (entry(arrays, f"x_{part}", path) for part in ("data", "indices", "indptr"))
    shape = tuple(int(side) for side in entry(arrays, "x_shape", path))
    try:
        matrix = sp.csr_matrix((data.astype(np.float32), indices, indptr), shape=shape)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: x_data, x_indices, x_indptr and x_shape do not fit together ({error})") from None
    return np.asarray(matrix.toarray())


def _npz_mask(arrays: dict[str, Array], part: str, path: Path) -> Mask:
    generated = f"gen_{part}_mask"
    return arrays[generated] if generated in arrays else entry(arrays, f"{part}_mask", path)
