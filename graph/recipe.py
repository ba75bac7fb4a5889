"""The recipe of a stand-in: the figures it is to have, the knobs that give it those, and the making."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from halocast.graph.graph import Floats, Graph, Ints, Labels, Mask, Reals, from_edges
from halocast.graph.sizes import log_spread
from halocast.graph.task import class_sizes, flipped, make_features, several_labels, split
from halocast.graph.wiring import Bridges, Places, wire

STREAM = 3  # apart from the streams of other draws with the same seed
HUB = 20  # no degree above the nodes over this: a hub larger than its community would be tied to everything
LABEL_NOISE = 0.1  # of nodes with several labels, for which homophily says little
HALVINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The figures a stand-in is to have; where the card does not tell one, a usual one."""

    name: str
    nodes: int
    degree: float
    degree_sigma: float
    features: int
    classes: int
    class_shares: tuple[float, ...]  # none: not known
    multilabel: bool
    train_share: float
    homophily: float
    parts: int
    halo_ratio: float
    cut_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """What is turned until the figures are those wanted."""

    communities: int
    stubs: float  # see Bridges
    partners: float
    near: float
    signal: float = 1.0  # how far apart classes are in features, over their noise


class Skeleton(NamedTuple):
    """A stand-in without its features."""

    keys: Ints
    labels: Ints


def skeleton(wanted: Recipe, knobs: Knobs, seed: int) -> Skeleton:
    """Edges and classes. Nodes lie on a line, of which communities and classes are stretches, each in its own way."""
    rng = np.random.default_rng((seed, STREAM))
    position = rng.permutation(wanted.nodes)
    sizes = class_sizes(wanted.nodes, wanted.classes, wanted.class_shares)
    line = np.repeat(np.arange(wanted.classes), sizes)
    middles = (2 * np.arange(knobs.communities) + 1) * wanted.nodes // (2 * knobs.communities)
    places = Places(community=position * knobs.communities // wanted.nodes, group=line[position], block=line[middles])
    bridges = Bridges(stubs=knobs.stubs, partners=knobs.partners, near=knobs.near)
    keys = wire(degree_sequence(wanted, rng), places, bridges, rng)
    return Skeleton(keys, flipped(places.group, _label_noise(wanted, keys, places.group), rng))


def degree_sequence(wanted: Recipe, rng: np.random.Generator) -> Ints:
    """Degrees by a lognormal law, in random order and with an even sum; at least 1.

    The law's sigma is chosen so that the rounded and bounded degrees have the one that is wanted.
    """
    low, high = 0.5 * wanted.degree_sigma, 1.25 * wanted.degree_sigma  # more would not help where bounds are in the way
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if log_spread(np.round(_law(wanted, middle))) < wanted.degree_sigma:
            low = middle
        else:
            high = middle
    law = _law(wanted, low)
    degrees = np.maximum(np.floor(law + rng.random(wanted.nodes)), 1).astype(np.int64)
    degrees[-1] += degrees.sum() % 2
    return rng.permutation(degrees)


def _law(wanted: Recipe, sigma: float) -> Reals:
    """The law's quantiles from 1 to the largest degree, with the mean that is wanted."""
    quantiles: Reals = np.exp(sigma * ndtri((np.arange(wanted.nodes) + 0.5) / wanted.nodes))
    most = min(wanted.nodes - 1, max(wanted.nodes / HUB, 4 * wanted.degree))
    law, scale = quantiles, 1.0
    for _ in range(HALVINGS):
        law = np.clip(quantiles * scale, 1, most)
        scale *= wanted.degree / law.mean()
    return law


def _label_noise(wanted: Recipe, keys: Ints, group: Ints) -> float:
    """The share of nodes that exchange labels so that as many edges as wanted join nodes of one label."""
    if wanted.multilabel:
        return LABEL_NOISE
    before = float((group[keys // wanted.nodes] == group[keys % wanted.nodes]).mean())
    by_chance = float(np.square(np.bincount(group) / len(group)).sum())
    left = (wanted.homophily - by_chance) / max(before - by_chance, 1e-9)
    return float(1 - np.sqrt(np.clip(left, 0, 1)))


class Lesson(NamedTuple):
    """What is to be learnt from."""

    features: Floats
    labels: Labels
    train: Mask
    val: Mask
    test: Mask


def make_task(wanted: Recipe, classes: Ints, signal: float, seed: int) -> Lesson:
    """Features, labels and masks of nodes of these classes."""
    rng = np.random.default_rng((seed, STREAM, 1))
    masks = split(classes, wanted.train_share, rng)
    labels = several_labels(classes, wanted.classes, rng) if wanted.multilabel else classes
    return Lesson(make_features(classes, wanted.features, signal, rng), labels, *masks)


def make_graph(wanted: Recipe, knobs: Knobs, seed: int) -> Graph:
    """The whole graph."""
    keys, classes = skeleton(wanted, knobs, seed)
    lesson = make_task(wanted, classes, knobs.signal, seed)
    low, high = keys // wanted.nodes, keys % wanted.nodes
    return from_edges(
        np.concatenate((low, high)),
        np.concatenate((high, low)),
        wanted.nodes,
        features=lesson.features,
        labels=lesson.labels,
        train_mask=lesson.train,
        val_mask=lesson.val,
        test_mask=lesson.test,
        num_classes=wanted.classes,
        name=wanted.name,
    )
