"""What the nodes of a stand-in are to learn: classes that neighbours mostly share, features that tell a part of it."""

import numpy as np
from numpy.typing import NDArray

from halocast.graph.graph import Floats, Ints, Labels, Mask, Reals

LATENT = 32  # directions in which features differ; real ones have few, too
OWN_NOISE = 0.3  # of every feature, beside the latent noise of length 1 per direction
MOST_ROWS = 4096  # that a linear classifier learns from: enough for a score
STEPS = 8  # halvings of the strength of the signal
EXTRA_LABELS = 0.05  # chance of a class to have another one's label beside its own, where nodes have several


def class_sizes(nodes: int, classes: int, shares: tuple[float, ...]) -> Ints:
    """Nodes per class. Where shares are not known: as 1/rank, which is how uneven real classes are.

    The largest class of amazon-computers, coauthor-cs and coauthor-physics has 0.38, 0.23 and 0.51 of all nodes; by
    1/rank it is 0.34, 0.30 and 0.44. Every class has three nodes at least: one to train, validate and test.
    """
    weights = np.array(shares or 1 / np.arange(1, classes + 1))
    wanted = 3 + weights / weights.sum() * (nodes - 3 * classes)
    sizes: Ints = np.floor(wanted).astype(np.int64)
    sizes[np.argsort(sizes - wanted, kind="stable")[: nodes - int(sizes.sum())]] += 1
    return sizes


def flipped(classes: Ints, share: float, rng: np.random.Generator) -> Ints:
    """Classes after a share of nodes exchanged theirs: what neighbours cannot tell. Sizes of classes stay."""
    drawn = np.flatnonzero(rng.random(len(classes)) < share)
    changed = classes.copy()
    changed[drawn] = classes[rng.permutation(drawn)]
    return changed


def split(labels: Ints, train_share: float, rng: np.random.Generator) -> tuple[Mask, Mask, Mask]:
    """Train, validation and test nodes: the same shares inside every class, half of the rest each for the last two.

    Every class has one of each, whatever the share.
    """
    order = np.lexsort((rng.random(len(labels)), labels))
    sizes = np.bincount(labels)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.empty(len(labels), np.int64)
    place[order] = np.arange(len(labels)) - first
    size = sizes[labels]
    num_train = np.clip(np.round(train_share * size), 1, size - 2)
    num_val = np.maximum(1, (size - num_train) // 2)
    train, held = place < num_train, place < num_train + num_val
    return train, held & ~train, ~held


def several_labels(labels: Ints, classes: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """A 0/1 matrix for graphs whose nodes have several labels: a class has its own and some of the others'."""
    profile = rng.random((classes, classes)) < EXTRA_LABELS
    np.fill_diagonal(profile, True)
    return profile[labels].astype(np.float32)


def make_features(labels: Ints, width: int, signal: float, rng: np.random.Generator) -> Floats:
    """Features around a centre per class, at `signal` times the noise, spread over all columns."""
    latent = min(LATENT, width)
    centres = rng.standard_normal((int(labels.max()) + 1, latent), dtype=np.float32) / np.float32(latent**0.5)
    spread = rng.standard_normal((latent, width), dtype=np.float32) / np.float32(latent**0.5)
    inner = rng.standard_normal((len(labels), latent), dtype=np.float32) + np.float32(signal) * centres[labels]
    noise = rng.standard_normal((len(labels), width), dtype=np.float32) * np.float32(OWN_NOISE)
    return np.asarray(inner @ spread + noise, np.float32)


def linear_score(features: Floats, labels: Labels, train: Mask, test: Mask) -> float:
    """What features alone tell: the share of test nodes that a ridge regression on train nodes gets right.

    The ridge is the mean square of a column times the number of columns over that of rows, in float64 on at most
    MOST_ROWS train nodes, the first ones: a definition, not the best classifier.
    """
    rows = np.flatnonzero(train)[:MOST_ROWS]
    given = features[rows].astype(np.float64)
    mean = given.mean(axis=0)
    given -= mean
    wanted = np.eye(int(labels.max()) + 1)[labels[rows]]
    weights = _ridge(given, wanted - wanted.mean(axis=0))
    scores = (features[test] - mean) @ weights + wanted.mean(axis=0)
    return float((scores.argmax(axis=1) == labels[test]).mean())


def _ridge(given: Reals, wanted: Reals) -> Reals:
    """Weights of a ridge regression, over rows or over columns, whichever are fewer."""
    rows, columns = given.shape
    if columns <= rows:
        gram = given.T @ given
        return np.asarray(np.linalg.solve(gram + _penalty(gram) * np.eye(columns), given.T @ wanted))
    gram = given @ given.T
    return np.asarray(given.T @ np.linalg.solve(gram + _penalty(gram) * np.eye(rows), wanted))


def _penalty(gram: Reals) -> float:
    return float(np.trace(gram)) / len(gram) + 1e-12
