"""The sizes of a partition that methods and the simulator need, without the graph itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.graph.card import Card, TrainGraph, card_volume
from halocast.graph.graph import Graph, Ints
from halocast.graph.parts import Assignment, Part, borders, halo_matrix
from halocast.graph.spread import Reals, bounded_shares, divide, shares, whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halo:
    """Counts per part and the halo matrix H[i, j] = number of nodes of part i that part j needs."""

    num_inner: Ints
    num_edges: Ints  # local entries, self-loops included
    num_train: Ints
    matrix: Ints
    num_features: int
    num_classes: int
    source: str  # "partition" or "from card"
    num_halo: Ints = field(init=False)  # halo nodes of every part: the column sums

    def __post_init__(self) -> None:
        k = len(self.num_inner)
        for name in ("num_edges", "num_train"):
            require(getattr(self, name).shape == (k,), f"halo: {name} must have {k} entries, one per part")
        if self.matrix.shape != (k, k):
            raise InputError(f"halo: the matrix has shape {self.matrix.shape}; expected [{k}, {k}]")
        require(not np.diagonal(self.matrix).any(), "halo: a part cannot need its own nodes; zero the diagonal")
        fits = (self.matrix >= 0) & (self.matrix <= self.num_inner[:, None])
        require(bool(fits.all()), "halo: H[i, j] must be between 0 and the number of nodes of part i")
        object.__setattr__(self, "num_halo", self.matrix.sum(axis=0))

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.num_inner)

    @property
    def volume(self) -> int:
        """Vol, the sum of the matrix."""
        return int(self.matrix.sum())


def from_parts(parts: Sequence[Part]) -> Halo:
    """The sizes of parts that are at hand, in rank order."""
    return Halo(
        num_inner=np.array([part.num_inner for part in parts], np.int64),
        num_edges=np.array([part.num_edges for part in parts], np.int64),
        num_train=np.array([part.num_train for part in parts], np.int64),
        matrix=halo_matrix(parts),
        num_features=int(parts[0].features.shape[1]),
        num_classes=parts[0].num_classes,
        source="partition",
    )


def from_assignment(graph: Graph, assignment: Assignment) -> Halo:
    """The sizes of a partition without building its parts."""
    border = borders(graph, assignment)
    k = len(border.inner)
    return Halo(
        num_inner=np.bincount(assignment, minlength=k).astype(np.int64),
        num_edges=np.bincount(assignment, weights=graph.in_degree, minlength=k).astype(np.int64),
        num_train=np.bincount(assignment[graph.train_mask], minlength=k).astype(np.int64),
        matrix=border.matrix,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        source="partition",
    )


def from_card(card: Card, num_parts: int, partitioner: str = "metis", seed: int = 0, inductive: bool = False) -> Halo:
    """Sizes synthesised from a card, for any number of parts.

    Vol is card_volume, exactly. Nodes and train nodes divide evenly. METIS: halo sizes and edges per part follow
    the card's spread law (spread.shares), in one order shuffled by `seed`: on the six real graphs the part with
    more edges has the larger halo (correlation 0.6–0.97 from 16 parts on). A column of H divides by the owners'
    own halo sizes, since who needs much is needed much (correlation 0.7–0.99), and never exceeds an owner's nodes.
    Random: everything even. What it cannot show: pairs of METIS parts that do not touch.
    """
    graph = card.training_graph(inductive=inductive)
    vol = card_volume(graph, num_parts, partitioner)
    inner = _even(graph.nodes, num_parts)
    halo_shares, edge_shares = _uneven(graph, num_parts, partitioner, seed)
    # an edge is a self-loop or has one of the other nodes as its source
    most = np.minimum(inner * (graph.nodes - 1), np.iinfo(np.int64).max // num_parts)
    edges = inner + divide(graph.edges - graph.nodes, edge_shares, most)
    halo = divide(vol, halo_shares, np.minimum(graph.nodes - inner, edges - inner))
    return Halo(
        num_inner=inner,
        num_edges=edges,
        num_train=_even(graph.train_nodes, num_parts),
        matrix=_gravity(inner, halo),
        num_features=card.features,
        num_classes=card.classes,
        source="from card",
    )


def _even(total: int, num_parts: int) -> Ints:
    return total // num_parts + (np.arange(num_parts) < total % num_parts).astype(np.int64)


def _uneven(graph: TrainGraph, num_parts: int, partitioner: str, seed: int) -> tuple[Reals, Reals]:
    if partitioner == "random":
        return np.ones(num_parts), np.ones(num_parts)
    order = np.random.default_rng(seed).permutation(num_parts)
    halo = shares(num_parts, graph.halo_spread, graph.halo_bend)
    return halo[order], shares(num_parts, graph.edge_spread, graph.edge_bend)[order]


def _gravity(inner: Ints, halo: Ints) -> Ints:
    """A halo matrix with the given column sums: H[i, j] ∝ halo[i], at most inner[i], zero on the diagonal."""
    k = len(inner)
    elsewhere = ~np.eye(k, dtype=np.bool_)
    bounds = np.where(elsewhere, inner[:, None], 0)
    # an owner whose own halo is empty may still be needed
    weights = np.where(elsewhere, np.maximum(halo, 1)[:, None], 0).astype(float)
    return whole(bounded_shares(halo.astype(float), weights, bounds.astype(float)), halo, bounds)
