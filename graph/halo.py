"""The sizes of a partition that methods and the simulator need, without the graph itself."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.graph.card import Card, TrainGraph, card_volume
from halocast.graph.graph import Graph, Ints, Reals
from halocast.graph.inclusion import (
    CachePolicy,
    EdgeLaw,
    Expected,
    Odds,
    choose_cache,
    expected_rows,
    halo_inclusion,
    law_of_card,
)
from halocast.graph.parts import Assignment, Part, borders, halo_matrix, part_of
from halocast.graph.sampling import drawn_counts, inner_edges

# METIS numbers parts by halving: on six real graphs at 4 to 32 parts, two parts of one half need 1.3 to 2 times as much
# of each other as two of different halves, and so on within a half (geometric mean 1.6).
NEARER = 1.6
FLOOR = 0.05  # the smallest share of the mean; the quadratic law may dip below zero at its end
MAX_AMPLITUDE = 0.95
GROWTH = 0.2  # measured on six real graphs: METIS halo sizes vary 0.21, 0.37, 0.44, 0.56, 0.59 at k = 2, 4, 8, 16, 32
REFERENCE_PARTS = 8


@dataclass(frozen=True, slots=True)
class Cached:
    """A cache that keeps a share of every part's halo rows, chosen by a policy."""

    fraction: float
    policy: CachePolicy


class RowEdges(Protocol):
    """How many local edges the halo rows of one part have; `column` is its column of the halo matrix."""

    def num_edges(self, column: Ints) -> Reals:
        """Edges that come from each owner."""

    def kept(self, odds: Odds) -> float:
        """Edges that are sampled on average; self-loops always stay."""

    def expected(self, column: Ints, odds: Odds, cached: Cached | None = None) -> Expected:
        """Rows from each owner that are needed, and not cached, when edges are sampled by these odds."""


@dataclass(frozen=True, slots=True, eq=False)
class PartEdges:
    """The edges as they are in a part, which is made when somebody asks: most methods do not."""

    part: Callable[[], Part]

    def num_edges(self, column: Ints) -> Reals:
        part = self.part()
        sources = part.indices[~inner_edges(part)] - part.num_inner
        owners = np.searchsorted(part.halo_offsets, sources, side="right") - 1
        return np.bincount(owners, minlength=len(column)).astype(np.float64)

    def kept(self, odds: Odds) -> float:
        part = self.part()
        return part.num_inner + float(odds.kept(np.diff(part.indptr) - 1.0).sum())

    def expected(self, column: Ints, odds: Odds, cached: Cached | None = None) -> Expected:
        part = self.part()
        inclusion = halo_inclusion(part, odds.of(part))
        return expected_rows(part, inclusion, 1.0 if cached is None else 1 - _chosen(cached, part, inclusion))


def _chosen(cached: Cached, part: Part, inclusion: Reals) -> Reals:
    """Marks of halo rows: 1 for those in the cache; where it takes any, the share of rows it takes."""
    if cached.policy is CachePolicy.RANDOM:
        size = int(drawn_counts(np.array([part.num_halo]), cached.fraction)[0])
        return np.full(part.num_halo, size / max(part.num_halo, 1))
    return choose_cache(cached.policy, cached.fraction, part, inclusion, seed=0).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LikelyEdges:
    """Local edges of halo rows by one law for the rows of all owners."""

    law: EdgeLaw
    num_inner: int
    most: int  # edges between different nodes there are in all

    def num_edges(self, column: Ints) -> Reals:
        edges = column * self.law.mean_edges
        return np.asarray(edges * min(1.0, self.most / max(float(edges.sum()), 1.0)))

    def kept(self, odds: Odds) -> float:
        law = self.law
        return self.num_inner + self.most * float(law.weights @ odds.kept(law.degrees)) / float(
            law.weights @ law.degrees
        )

    def expected(self, column: Ints, odds: Odds, cached: Cached | None = None) -> Expected:
        p = odds.of_law(self.law, 1 - float(self.num_edges(column).sum()) / max(self.most, 1))
        drawn = self.law.expected(column, p)
        left = 1.0 if cached is None else 1 - self._hits(cached, p)
        return Expected(drawn.mean * left, drawn.variance * left)

    def _hits(self, cached: Cached, p: Reals) -> float:
        """The share of needed rows that are cached: without the rows themselves, a likely one has a high degree."""
        if cached.policy is CachePolicy.RANDOM:
            return cached.fraction
        law = self.law
        rows = law.weights * (1 - (1 - law.reach) ** law.degrees)
        needed = law.weights * (1 - (1 - law.reach * p) ** law.degrees)
        score = law.degrees if cached.policy is CachePolicy.DEGREE else needed / np.maximum(rows, 1e-300)
        order = np.argsort(-score, kind="stable")
        rows, needed = rows[order], needed[order]
        if not needed.sum():
            return 0.0
        inside = np.clip(cached.fraction * rows.sum() - (np.cumsum(rows) - rows), 0, rows)
        return float((needed * inside / np.maximum(rows, 1e-300)).sum() / needed.sum())


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
    row_edges: tuple[RowEdges, ...] = ()  # of every part; only sampling needs them
    degree_sigma: float | None = None  # standard deviation of ln(degree) of the graph
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

    def cut_edges(self) -> Reals:
        """The matrix [i, j] of the edges of part j that come from nodes of part i."""
        return np.stack([law.num_edges(self.matrix[:, j]) for j, law in enumerate(self._laws())], axis=1)

    def expected_rows(self, odds: Sequence[Odds], cached: Cached | None = None) -> Expected:
        """Rows per pair that travel when the edges of part j are sampled by odds[j].

        A row travels if one of its edges is left and it is not cached. Edges stay independently of each other, so means
        and variances of rows add.
        """
        columns = [law.expected(self.matrix[:, j], odds[j], cached) for j, law in enumerate(self._laws())]
        return Expected(np.stack([c.mean for c in columns], 1), np.stack([c.variance for c in columns], 1))

    def kept_edges(self, odds: Sequence[Odds]) -> Reals:
        """Edges per part that are sampled on average."""
        return np.array([law.kept(odds[j]) for j, law in enumerate(self._laws())])

    def _laws(self) -> tuple[RowEdges, ...]:
        require(bool(self.row_edges), "halo: sampling needs to know how many edges halo rows have")
        return self.row_edges


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
        row_edges=tuple(PartEdges(partial(_itself, part)) for part in parts),
    )


def _itself(part: Part) -> Part:
    return part


def from_assignment(graph: Graph, assignment: Assignment) -> Halo:
    """The sizes of a partition without building its parts."""
    border, degrees = borders(graph, assignment), (graph.in_degree, graph.out_degree)
    k = len(border.inner)
    return Halo(
        num_inner=np.bincount(assignment, minlength=k).astype(np.int64),
        num_edges=np.bincount(assignment, weights=degrees[0], minlength=k).astype(np.int64),
        num_train=np.bincount(assignment[graph.train_mask], minlength=k).astype(np.int64),
        matrix=border.matrix,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        source="partition",
        row_edges=tuple(PartEdges(partial(part_of, graph, border, degrees, rank)) for rank in range(k)),
        degree_sigma=degree_sigma(graph),
    )


def degree_sigma(graph: Graph) -> float:
    """The standard deviation of ln(degree), of the lognormal law whose degrees vary as much as the graph's.

    By their coefficient of variation and not by their logarithms: few large degrees are what sparse products feel.
    """
    degrees = graph.out_degree
    mean = float(degrees.mean())
    return math.sqrt(math.log1p(float(degrees.var()) / mean**2)) if mean else 0.0


def from_card(card: Card, num_parts: int, partitioner: str = "metis", seed: int = 0, inductive: bool = False) -> Halo:
    """Sizes synthesised from a card, for any number of parts.

    Vol is card_volume, exactly. Nodes and train nodes divide evenly. METIS: halo sizes and edges per part follow
    the card's spread law (spread.shares), in one order shuffled by `seed`: on the six real graphs the part with
    more edges has the larger halo (correlation 0.6–0.97 from 16 parts on). A column of H divides by the owners'
    own halo sizes, since who needs much is needed much (correlation 0.7–0.99), and by how near the two parts are, and
    never exceeds an owner's nodes. Random: everything even. What it cannot show: pairs of parts that do not touch.
    """
    graph = card.training_graph(inductive=inductive)
    vol = card_volume(graph, num_parts, partitioner)
    inner = _even(graph.nodes, num_parts)
    halo_shares, edge_shares = _uneven(graph, num_parts, partitioner, seed)
    # an edge is a self-loop or has one of the other nodes as its source
    most = np.minimum(inner * (graph.nodes - 1), np.iinfo(np.int64).max // num_parts)
    edges = inner + divide(graph.edges - graph.nodes, edge_shares, most)
    halo = divide(vol, halo_shares, np.minimum(graph.nodes - inner, edges - inner))
    law = law_of_card(graph, num_parts, partitioner)
    return Halo(
        num_inner=inner,
        num_edges=edges,
        num_train=_even(graph.train_nodes, num_parts),
        matrix=_gravity(inner, halo, NEARER if partitioner == "metis" else 1.0),
        num_features=card.features,
        num_classes=card.classes,
        source="from card",
        degree_sigma=graph.degree_sigma,
        row_edges=tuple(
            LikelyEdges(law=law, num_inner=own, most=most)
            for own, most in zip(inner.tolist(), (edges - inner).tolist(), strict=True)
        ),
    )


def _even(total: int, num_parts: int) -> Ints:
    return total // num_parts + (np.arange(num_parts) < total % num_parts).astype(np.int64)


def _uneven(graph: TrainGraph, num_parts: int, partitioner: str, seed: int) -> tuple[Reals, Reals]:
    if partitioner == "random":
        return np.ones(num_parts), np.ones(num_parts)
    order = np.random.default_rng(seed).permutation(num_parts)
    halo = shares(num_parts, graph.halo_spread, graph.halo_bend)
    return halo[order], shares(num_parts, graph.edge_spread, graph.edge_bend)[order]


def _gravity(inner: Ints, halo: Ints, nearer: float) -> Ints:
    """A halo matrix with the given column sums, zero on the diagonal: H[i, j] ∝ halo[i] nearer^(halves in common), at
    most inner[i]."""
    k = len(inner)
    elsewhere = ~np.eye(k, dtype=np.bool_)
    bounds = np.where(elsewhere, inner[:, None], 0)
    # an owner whose own halo is empty may still be needed
    weights = np.where(elsewhere, np.maximum(halo, 1)[:, None] * nearer ** common_halves(k), 0.0)
    return whole(bounded_shares(halo.astype(float), weights, bounds.astype(float)), halo, bounds)


def common_halves(num_parts: int) -> Ints:
    """The matrix [i, j] of how often the numbers from 0 can be halved until i and j are apart."""
    common = np.zeros((num_parts, num_parts), np.int64)

    def halve(start: int, stop: int, depth: int) -> None:
        if stop - start < 2:
            return
        common[start:stop, start:stop] = depth
        middle = (start + stop) // 2
        halve(start, middle, depth + 1)
        halve(middle, stop, depth + 1)

    halve(0, num_parts, 0)
    return common


def shares(num_parts: int, spread: float, bend: float) -> Reals:
    """Sizes relative to their mean, ascending: the law's quantiles at the middles of num_parts equal steps.

    x(u) = 1 + A·(u + bend·(1/3 − u²)) for u in (−1, 1), A = √3·spread·(k/8)^0.2 up to 0.95. `spread` is the
    coefficient of variation at 8 parts; bend > 0 has a long lower end, bend < 0 a long upper end.
    """
    amplitude = min(MAX_AMPLITUDE, 3**0.5 * spread * (num_parts / REFERENCE_PARTS) ** GROWTH)
    u = (2 * np.arange(num_parts) + 1) / num_parts - 1
    curve = np.maximum(1 + amplitude * (u + bend * (1 / 3 - u * u)), FLOOR)
    return np.asarray(curve / curve.mean())


def bounded_shares(totals: Reals, weights: Reals, bounds: Reals) -> Reals:
    """Fill columns summing to `totals`, proportional to `weights` where `bounds` allow it (water-filling).

    `weights` and `bounds` are [rows, columns] with bound 0 where weight is 0; every total must fit its bounds.
    """
    filled = np.zeros_like(weights)
    free = weights > 0
    for _ in range(weights.shape[0] + 1):
        left = totals - np.where(free, 0.0, filled).sum(axis=0)
        scale = left / np.maximum(np.where(free, weights, 0.0).sum(axis=0), 1e-300)
        filled = np.where(free, weights * scale, filled)
        over = free & (filled > bounds)
        if not over.any():
            break
        filled = np.where(over, bounds, filled)
        free &= ~over
    return filled


def whole(columns: Reals, totals: Ints, bounds: Ints) -> Ints:
    """Round to integers with exact column totals: the largest fractions round up, ties to the lower row."""
    down = np.minimum(np.floor(columns + 1e-9).astype(np.int64), bounds)
    missing = totals - down.sum(axis=0)
    fraction = np.where(down < bounds, columns - down, -1.0)
    rank = np.argsort(np.argsort(-fraction, axis=0, kind="stable"), axis=0, kind="stable")
    up = (rank < missing) & (down < bounds)
    return np.asarray(down + up, dtype=np.int64)


def divide(total: int, weights: Reals, bounds: Ints) -> Ints:
    """Divide `total` over parts in proportion to weights, each at most its bound, the sum exact."""
    require(total <= int(bounds.sum()), f"{total} does not fit bounds that sum to {int(bounds.sum())}")
    totals = np.array([total])
    ceiling = bounds[:, None]
    real = bounded_shares(totals.astype(float), weights[:, None].astype(float), ceiling.astype(float))
    return whole(real, totals, ceiling)[:, 0]
