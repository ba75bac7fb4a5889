"""Train, validation and test nodes: from index lists, or drawn by seed where a dataset has no split."""

import numpy as np

from halocast.base.errors import InputError
from halocast.graph.graph import Ints, Labels, Mask

TRAIN, VAL = 0.6, 0.2
SPLIT_STREAM = 2  # apart from the streams of partition.py and of a synthetic graph with the same seed


def stratified_masks(labels: Labels, seed: int = 0) -> tuple[Mask, Mask, Mask]:
    """60/20/20 inside every class; unlabelled nodes are in no mask; several labels per node: 60/20/20 overall."""
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


def mask_of(ids: Ints, num_nodes: int, where: str) -> Mask:
    """The mask of an index list; `where` is the file an error names."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"{where}: expected a list of node ids, got {ids.dtype}{ids.shape}")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
        bad = ids.min() if int(ids.min()) < 0 else ids.max()
        raise InputError(f"{where}: node {bad} is outside [0, {num_nodes})")
    mask = np.zeros(num_nodes, np.bool_)
    mask[ids] = True
    return mask
