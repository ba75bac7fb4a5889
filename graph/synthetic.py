"""Synthetic graphs with communities, a chosen mean degree and a chosen degree tail, made in seconds."""

import numpy as np

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.graph.graph import Floats, Graph, Ints, from_edges

SIGNAL = 4 / 3  # length of a class centroid under unit noise: one node alone is ambiguous, a neighbourhood is not
ROUNDS = 60  # draws repeated until duplicates are replaced; the gap shrinks geometrically


def synthetic(
    *,
    nodes: int,
    degree: float,
    skew: float,
    classes: int,
    features: int,
    mixing: float,
    seed: int,
    directed: bool = False,
) -> Graph:
    """A graph of degree-corrected communities.

    `degree` is the mean number of neighbours (in-neighbours when directed), self-loop not counted.
    Expected degrees follow w(q) = (1 − q)^(−s) over node quantiles q, with s = skew / (1 + skew): skew 0 is
    uniform, and the tail is Pareto with exponent 1/s (skew 1: exponent 2; large skew: towards 1).
    An edge's first end is drawn by weight from all nodes; its other end, by weight, from the whole graph with
    probability `mixing`, else from the first end's community. The label is the community.
    """
    _check(nodes, degree, skew, classes, features, mixing, seed)
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(nodes, dtype=np.int64) % classes)
    weights = rng.permutation((1.0 - (np.arange(nodes) + 0.5) / nodes) ** (-skew / (1.0 + skew)))
    wanted = round(nodes * degree / (1 if directed else 2))
    keys = _draw_edges(rng, weights, labels, mixing, wanted, directed)
    src, dst = (keys // nodes).astype(np.int32), (keys % nodes).astype(np.int32)
    del keys
    if not directed:
        src, dst = np.concatenate((src, dst)), np.concatenate((dst, src))
    place = (rng.permutation(nodes) + 0.5) / nodes
    return from_edges(
        src,
        dst,
        nodes,
        features=_features(rng, labels, classes, features),
        labels=labels,
        train_mask=place < 0.6,
        val_mask=(place >= 0.6) & (place < 0.8),
        test_mask=place >= 0.8,
        num_classes=classes,
        name="synthetic",
    )


def _check(nodes: int, degree: float, skew: float, classes: int, features: int, mixing: float, seed: int) -> None:
    where = "synthetic"
    require(nodes >= 2, f"{where}: nodes = {nodes}; at least 2")
    require(0 < degree < nodes, f"{where}: degree = {degree}; legal: above 0 and below nodes = {nodes}")
    require(0 <= skew < float("inf"), f"{where}: skew = {skew}; legal: 0 or more")
    require(1 <= classes <= nodes, f"{where}: classes = {classes}; legal: 1 to nodes = {nodes}")
    require(features >= 1, f"{where}: features = {features}; at least 1")
    require(0 <= mixing <= 1, f"{where}: mixing = {mixing}; legal: 0 to 1")
    require(seed >= 0, f"{where}: seed = {seed}; legal: 0 or more")
    room = degree * classes / nodes if mixing == 0 else 0.0  # without mixing an edge must fit into its community
    require(room < 1, f"{where}: degree = {degree} does not fit into {classes} unmixed communities of {nodes} nodes")


def _draw_edges(
    rng: np.random.Generator, weights: Floats, labels: Ints, mixing: float, wanted: int, directed: bool
) -> Ints:
    """Draw `wanted` distinct edges as keys (undirected: smaller end first): surplus draws replace duplicates."""
    n = len(weights)
    sampler = _WeightedEnds(weights, labels)
    keys = np.empty(0, np.int64)
    for _ in range(ROUNDS):
        missing = wanted - len(keys)
        if missing <= wanted // 500:
            break
        a, b = sampler.pairs(rng, int(missing * 1.02) + 8, mixing)
        if not directed:
            a, b = np.minimum(a, b), np.maximum(a, b)
        fresh = (a * n + b)[a != b]
        keys = np.concatenate((keys, fresh))
        keys.sort()
        keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))] if len(keys) else keys
    if len(keys) < 0.99 * wanted:
        reached = len(keys) * (1 if directed else 2) / n
        raise InputError(f"synthetic: only a degree of {reached:.3g} is reached; lower degree or skew, or raise mixing")
    if len(keys) > wanted:  # which keys go must not depend on their order, or high ids would lose edges
        keys = np.delete(keys, rng.choice(len(keys), len(keys) - wanted, replace=False))
    return keys


class _WeightedEnds:
    """Draws edge ends by weight: nodes laid out community by community on one cumulative line."""

    def __init__(self, weights: Floats, labels: Ints) -> None:
        self.order = np.argsort(labels, kind="stable")
        self.line = np.cumsum(weights[self.order])
        sizes = np.bincount(labels)
        last = np.cumsum(sizes) - 1
        self.community = labels
        self.high = self.line[last]
        self.low = np.concatenate(([0.0], self.high[:-1]))

    def pairs(self, rng: np.random.Generator, count: int, mixing: float) -> tuple[Ints, Ints]:
        """Draw `count` pairs of node ids."""
        # Sorted first ends walk the line once and keep the second ends' look-ups inside one community.
        first = self._at(np.sort(rng.random(count)) * self.line[-1])
        home = self.community[first]
        away = rng.random(count) < mixing
        low = np.where(away, 0.0, self.low[home])
        high = np.where(away, self.line[-1], self.high[home])
        return first, self._at(low + rng.random(count) * (high - low))

    def _at(self, position: Floats) -> Ints:
        place = np.searchsorted(self.line, position, side="right")
        return self.order[np.minimum(place, len(self.order) - 1)].astype(np.int64, copy=False)


def _features(rng: np.random.Generator, labels: Ints, classes: int, width: int) -> Floats:
    # the length does not depend on the width, else many features would make every node easy
    centroids = rng.standard_normal((classes, width), dtype=np.float32) * np.float32(SIGNAL / width**0.5)
    noisy = rng.standard_normal((len(labels), width), dtype=np.float32)
    noisy += centroids[labels]
    return noisy
