"""With what probability every edge of a part is sampled: all alike, or by what its source's row matters.

A node's own row is no neighbour: its self-loop is there in every epoch and takes nothing of the budget. Of its n
neighbours a node samples eps·n on average, but `least` at the least: a budget of half a neighbour would mean an empty
sum every other epoch and weights above n in between.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from halocast.base.records import require
from halocast.graph.graph import Ints
from halocast.graph.inclusion import EdgeLaw, optimal_probabilities
from halocast.graph.parts import Part
from halocast.graph.sampling import inner_edges, self_loops
from halocast.graph.spread import Reals

INNER_COST, HALO_COST = 1.1, 1.0  # a_j of the objective, as in the PSC-GCN paper: an inner neighbour costs no message


class Odds(Protocol):
    """What a sampling rule makes of a part, or of a law where there is none."""

    def of(self, part: Part) -> Reals:
        """The probability of every local entry before anything is known of the rows."""

    def of_law(self, law: EdgeLaw, inner_share: float) -> Reals:
        """The probability of an edge from a halo row by the law's degrees; `inner_share` of all edges stay inside."""

    def kept(self, neighbours: Reals) -> Reals:
        """How many neighbours are sampled on average by nodes that have so many."""


@dataclass(frozen=True, slots=True)
class Even:
    """Every edge alike."""

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
        """As if all rows were equally long: then the graph alone decides."""
        return self.given(part, np.ones(part.num_inner + part.num_halo))

    def given(self, part: Part, lengths: Reals) -> Reals:
        """From the length of every column's row, as it is after a layer's matrix."""
        scaled = lengths / np.sqrt(part.out_degree) if self.symmetric else lengths
        return edge_probabilities(part, scaled[part.indices], self)

    def of_law(self, law: EdgeLaw, inner_share: float) -> Reals:
        """Budgets and shares of a mean node. Sources of edges have a degree the more often, the higher it is."""
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
