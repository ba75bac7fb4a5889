"""How likely each edge is sampled (all alike, or by what its source's row matters), and which halo rows then travel:
probabilities, expected sizes, caches.

A node's own row is no neighbour: its self-loop is there in every epoch and takes nothing of the budget. Of its n
neighbours a node samples eps·n on average, but `least` at the least: a budget of half a neighbour would mean an empty
sum every other epoch and weights above n in between.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from halocast.base.errors import unknown
from halocast.base.records import require
from halocast.graph.card import TrainGraph, degree_quantiles
from halocast.graph.graph import Ints, Mask, Reals
from halocast.graph.parts import Part
from halocast.graph.sampling import (
    Draw,
    Use,
    drawn_counts,
    inner_edges,
    rounded_up,
    self_loops,
    stream,
    travel_share,
)

INNER_COST, HALO_COST = 1.1, 1.0  # a_j of the objective, as in the PSC-GCN paper: an inner neighbour costs no message
FLOOR = 1e-3  # the smallest probability, in units of that of an even row

# The share of a needed node's edges that lead to the part that needs it, under METIS: medians over cora, pubmed,
# squirrel, amazon-computers, coauthor-cs and -physics (pymetis 2025.2, seed 0, volume objective), fitted at eps = 0.1.
METIS_REACH = {2: 0.17, 4: 0.17, 8: 0.18, 16: 0.16, 32: 0.14}


def optimal_probabilities(indptr: Ints, importance: Reals, budget: Reals) -> Reals:
    """Rows i of the p that minimise Σ_j s_ij²/p_ij with Σ_j p_ij = budget_i and p_ij ≤ 1, where s is `importance`.

    p_ij = min(1, s_ij/λ_i). The sorted closed form finds how many entries stay below 1; here entries above 1 are set
    to 1 and the rest of the budget is divided again until none is above, which ends at the same p without sorting:
    cutting an entry above 1 lowers λ, so what was cut stays cut. Where all importance is zero, p is even.

    Hardly any importance would give p near 0, and no weight 1/p could mend it if the estimate was wrong: a row with an
    entry below FLOOR of its even p (budget over entries) is mixed with FLOOR of that, which keeps its sum and leaves
    Σ s²/p within 1/(1 − FLOOR) of the minimum. All other rows are optimal.
    """
    s, lengths = np.asarray(importance, np.float64), np.diff(indptr)
    require(bool((s >= 0).all()) and bool(np.isfinite(s).all()), "sampling: an importance is finite and 0 or more")
    some = lengths > 0
    lengths, wanted = lengths[some], np.asarray(budget, np.float64)[some]
    fits = (wanted > 0) & (wanted <= lengths)
    require(bool(fits.all()), "sampling: the budget of a row is above 0 and at most the number of its entries")
    if bool((wanted == lengths).all()):
        return np.ones(len(s))
    p = _divided(s, lengths, wanted)
    _raise(p, lengths, wanted / lengths)
    return p


def _divided(s: Reals, lengths: Ints, wanted: Reals) -> Reals:
    """Probabilities: 1 from a row's least cut entry on, else budget·s/total of the others; zeros left share evenly."""
    total, budget, left = np.zeros(len(lengths)), wanted.copy(), lengths.copy()
    least = np.full(len(lengths), np.inf)
    rows, rest, sizes = np.arange(len(lengths)), s, lengths
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # a total of zero
        while len(rows):  # a round holds only rows in which something was cut, and of them what was not
            starts = np.cumsum(sizes) - sizes
            total[rows] = np.add.reduceat(rest, starts)
            over = rest / np.repeat(total[rows], sizes) * np.repeat(budget[rows], sizes) > 1
            num_over = np.add.reduceat(over, starts, dtype=np.int64)
            cut = num_over > 0
            ends = np.cumsum(num_over[cut])
            least[rows[cut]] = np.minimum.reduceat(rest[over], ends - num_over[cut])  # λ falls: below earlier ones
            again = cut & (num_over < sizes)
            rest = rest[np.repeat(again, sizes) & ~over]
            rows, sizes, num_over = rows[again], (sizes - num_over)[again], num_over[again]
            budget[rows] = np.maximum(budget[rows] - num_over, 0)
            left[rows] = sizes
        p = s / np.repeat(total, lengths)
        p *= np.repeat(budget, lengths)
    even = np.isnan(p)
    if even.any():
        p[even] = np.repeat(budget / left, lengths)[even]
    p[s >= np.repeat(least, lengths)] = 1
    return np.minimum(p, 1, out=p)


def _raise(p: Reals, lengths: Ints, even: Reals) -> None:
    """Mix rows that have an entry below FLOOR of their even p with that, in place."""
    if not len(lengths):
        return
    low = np.minimum.reduceat(p, np.cumsum(lengths) - lengths) < FLOOR * even
    if low.any():
        mixed = np.repeat(low, lengths)
        p[mixed] = (1 - FLOOR) * p[mixed] + np.repeat(FLOOR * even, lengths)[mixed]


def halo_inclusion(part: Part, p: Reals) -> Reals:
    """The probability that a halo row is needed: 1 − Π_i (1 − p_ij) over its local edges."""
    edges = ~inner_edges(part)
    with np.errstate(divide="ignore"):  # p = 1 gives −∞, and the row is certain
        missed = np.log1p(-p[edges])
    return -np.expm1(np.bincount(part.indices[edges] - part.num_inner, weights=missed, minlength=part.num_halo))


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Mean and variance over epochs of numbers of rows."""

    mean: Reals
    variance: Reals


def expected_rows(part: Part, inclusion: Reals, sent: Reals | float = 1.0) -> Expected:
    """Distinct rows per owner and epoch. Rows have no edge in common, so they are needed independently; `sent` is the
    share of a row's needs that travel."""
    ends = np.repeat(np.arange(part.num_parts), np.diff(part.halo_offsets))
    mean = np.bincount(ends, inclusion * sent, part.num_parts)
    variance = np.bincount(ends, inclusion * (1 - inclusion) * sent**2, part.num_parts)
    return Expected(mean.astype(np.float64), variance.astype(np.float64))  # bincount of nothing is of int


def expected_boundary(matrix: Ints, rate: float, draw: Draw) -> Expected:
    """Rows per pair and epoch that owners draw of their lists, whose lengths are the halo matrix."""
    up = rounded_up(matrix, rate)
    variance = {
        Draw.ROUNDED: up * (1 - up),
        Draw.BERNOULLI: rate * (1 - rate) * matrix,
        Draw.FLOOR: np.zeros(matrix.shape),
    }
    return Expected(np.asarray(travel_share(matrix, rate, draw) * matrix), np.asarray(variance[draw]))


class CachePolicy(StrEnum):
    """The rule by which the halo rows that stay on the device are chosen."""

    INCLUSION = "inclusion"
    DEGREE = "degree"
    RANDOM = "random"


def choose_cache(
    policy: CachePolicy, fraction: float, part: Part, inclusion: Reals, *, seed: int, epoch: int = 0
) -> Mask:
    """Which halo rows are cached: ⌊fraction·num_halo⌋ of them, the first where scores are equal."""
    size = int(drawn_counts(np.array([part.num_halo]), fraction)[0])
    score = _SCORES[policy](part, inclusion, stream(Use.CACHE, seed, part.rank, epoch))
    cached = np.zeros(part.num_halo, np.bool_)
    cached[np.argsort(-score, kind="stable")[:size]] = True
    return cached


_SCORES: dict[CachePolicy, Callable[[Part, Reals, np.random.Generator], Reals]] = {
    CachePolicy.INCLUSION: lambda _part, inclusion, _rng: inclusion,
    CachePolicy.DEGREE: lambda part, _inclusion, _rng: part.out_degree[part.num_inner :].astype(np.float64),
    CachePolicy.RANDOM: lambda part, _inclusion, rng: rng.random(part.num_halo),
}


def hit_rate(inclusion: Reals, cached: Mask) -> float:
    """The expected share of needed rows that are cached."""
    total = float(inclusion.sum())
    return float(inclusion[cached].sum()) / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeLaw:
    """How many local edges a halo row has: Binomial(degree, reach) given that there is one.

    A node of some degree is needed with probability 1 − (1 − reach)^degree, as if each of its edges led to the part
    with probability `reach`. With reach 1 the degrees are the numbers of local edges themselves.
    """

    degrees: Reals
    weights: Reals
    reach: float

    def miss(self, p: Reals | float) -> float:
        """The mean over halo rows of (1 − p)^(number of local edges); p may differ from degree to degree."""
        absent = (1 - self.reach) ** self.degrees
        some = float(self.weights @ (1 - absent))
        return float(self.weights @ ((1 - self.reach * p) ** self.degrees - absent)) / some if some else 0.0

    @property
    def mean_edges(self) -> float:
        """Local edges per halo row."""
        some = float(self.weights @ (1 - (1 - self.reach) ** self.degrees))
        return self.reach * float(self.weights @ self.degrees) / some if some else 0.0

    def expected(self, matrix: Ints, p: Reals | float) -> Expected:
        """Distinct rows per pair when edges are sampled with probability p (by degree); `matrix` is the halo matrix."""
        missed, twice = self.miss(p), self.miss(1 - (1 - p) ** 2)
        return Expected(np.asarray(matrix * (1 - missed)), np.asarray(matrix * (missed - twice)))


def law_of_parts(parts: Sequence[Part]) -> EdgeLaw:
    """The numbers of local edges as they are, over all parts."""
    counted = [np.bincount(part.indices[~inner_edges(part)]) for part in parts]
    edges, rows = np.unique(np.concatenate([some[some > 0] for some in counted]), return_counts=True)
    return EdgeLaw(degrees=edges.astype(np.float64), weights=rows.astype(np.float64), reach=1.0)


def law_of_card(graph: TrainGraph, num_parts: int, partitioner: str = "metis") -> EdgeLaw:
    """The law for a partition that is not at hand, over the card's lognormal degrees.

    Random: an edge leads to a given part with probability 1/num_parts, which is exact. METIS cuts fewer nodes, but
    those it cuts have more edges into the part that needs them: METIS_REACH, straight in (log k, log reach), constant
    below the first point and down to 1/nodes at k = nodes. On the six graphs expected rows come within 18 % from
    eps = 0.1 on (2 parts: 23 %). It is too high, at eps = 0.1 up to threefold, for graphs whose parts are
    planted communities joined by edges spread at random.
    """
    require(1 <= num_parts <= graph.nodes, f"{num_parts} parts; legal: 1 to the number of nodes, {graph.nodes}")
    if partitioner not in _REACHES:
        raise unknown("partitioner", partitioner, _REACHES)
    degrees = degree_quantiles(graph)
    reach = _REACHES[partitioner](num_parts, graph.nodes)
    return EdgeLaw(degrees=degrees, weights=np.ones(len(degrees)), reach=reach)


def _metis_reach(num_parts: int, nodes: int) -> float:
    points = METIS_REACH | ({nodes: 1 / nodes} if nodes > max(METIS_REACH) else {})
    return float(np.exp(np.interp(np.log(num_parts), np.log(list(points)), np.log(list(points.values())))))


_REACHES: dict[str, Callable[[int, int], float]] = {
    "metis": _metis_reach,
    "random": lambda num_parts, _nodes: 1 / num_parts,
}


class Odds(Protocol):
    """Odds that a sampling rule gives the edges of a part, or of a law where there is no part."""

    def of(self, part: Part) -> Reals:
        """The probability of every local entry before anything is known of the rows."""

    def of_law(self, law: EdgeLaw, inner_share: float) -> Reals:
        """The probability of an edge from a halo row by the law's degrees; `inner_share` of all edges stay inside."""

    def kept(self, neighbours: Reals) -> Reals:
        """How many neighbours are sampled on average by nodes that have so many."""


@dataclass(frozen=True, slots=True)
class Even:
    """Odds that are alike for every edge."""

    keep: float

    def of(self, part: Part) -> Reals:
        return np.full(part.num_edges, self.keep)

    def of_law(self, law: EdgeLaw, inner_share: float) -> Reals:
        return np.full(len(law.degrees), self.keep)

    def kept(self, neighbours: Reals) -> Reals:
        return self.keep * neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class Important:
    """The probabilities with the least variance for their budget, given the lengths of the rows."""

    eps: float
    least: int = 1
    symmetric: bool = False  # the model divides a neighbour's row by the root of its degree

    def __post_init__(self) -> None:
        require(0 < self.eps <= 1, f"sampling: eps = {self.eps}; legal: above 0 and at most 1")
        require(self.least >= 0, f"sampling: least = {self.least}; legal: 0 or more")

    def of(self, part: Part) -> Reals:
        """The probabilities as if all rows were equally long: then the graph alone decides."""
        return self.given(part, np.ones(part.num_inner + part.num_halo))

    def given(self, part: Part, lengths: Reals) -> Reals:
        """The probabilities from the length of every column's row, as it is after a layer's matrix."""
        scaled = lengths / np.sqrt(part.out_degree) if self.symmetric else lengths
        return edge_probabilities(part, scaled[part.indices], self)

    def of_law(self, law: EdgeLaw, inner_share: float) -> Reals:
        """Probabilities as for a mean node. Sources of edges have a degree the more often, the higher it is."""
        weights = law.weights * law.degrees
        total = float(weights.sum()) or 1.0
        p = float(law.weights @ self.kept(law.degrees)) / total
        p /= (INNER_COST / HALO_COST) ** 0.5 * inner_share + 1 - inner_share
        by_degree = law.degrees**-0.5 if self.symmetric else np.ones(len(law.degrees))
        return np.asarray(np.minimum(1, p * by_degree * total / (float(weights @ by_degree) or 1.0)))

    def kept(self, neighbours: Reals) -> Reals:
        return np.asarray(np.minimum(neighbours, np.maximum(self.least, self.eps * neighbours)))


def edge_probabilities(part: Part, norms: Reals, odds: Important) -> Reals:
    """Optimal probabilities of a part's entries; `norms` holds ‖y_ij‖ per entry, up to a factor per row."""
    others = ~self_loops(part)
    starts: Ints = np.concatenate(([0], np.cumsum(others)))[part.indptr]
    costs = np.where(inner_edges(part), INNER_COST**0.5, HALO_COST**0.5)
    p = np.ones(part.num_edges)
    p[others] = optimal_probabilities(starts, (costs * norms)[others], odds.kept(np.diff(starts).astype(np.float64)))
    return p
