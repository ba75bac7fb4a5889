"""The error of a mean over neighbours when only some rows or edges are there, by the rule that drew them.

For rows h of all columns of a part, z_i = Σ_j h_j / d_i over the local entries of node i, and ẑ_i the same of a sample;
the error is E Σ_i ‖ẑ_i − z_i‖². It is a variance where the rule is right on average; where it is not, the square of
what is missing on average belongs to it. All rules drop as many edges on average.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import scipy.sparse as sp

from halocast.graph.graph import Mask, Reals
from halocast.graph.parts import Part
from halocast.graph.sampling import (
    Draw,
    Weighting,
    boundary_scale,
    draw_boundary,
    drawn_counts,
    drop,
    drop_probabilities,
    dropped_by_boundary,
    edge_weights,
    edges_of_rows,
    inner_edges,
    rounded_up,
    self_loops,
)


class Estimate(StrEnum):
    """A rule for the mean: how rows or edges are drawn, and what those that are there count."""

    ROUNDED = "rounded"  # boundary rows, by the draws of that name
    BERNOULLI = "bernoulli"
    FLOOR = "floor"
    RENORMALISED = "renormalised"  # as rounded, divided by the neighbours that are there
    EDGES = "edges"  # as many edges from halo nodes
    DROPEDGE = "dropedge"  # as many edges of any but self-loops


def expected_error(part: Part, rows: Reals, rate: float, rule: Estimate) -> float:
    """The error in closed form; there is none for a renormalised mean (`drawn_error`)."""
    return _CLOSED[rule](part, rows, rate)


def drawn_error(part: Part, rows: Reals, rate: float, rule: Estimate, *, num_draws: int, seed: int = 0) -> float:
    """The error as the mean over draws."""
    whole, total = _means(part, np.ones(part.num_edges)) @ rows, 0.0
    for epoch in range(num_draws):
        weights = _DRAWN[rule](part, rate, seed, epoch)
        total += float(np.square(_means(part, weights) @ rows - whole).sum())
    return total / num_draws


def squared_means(part: Part, rows: Reals) -> float:
    """Σ_i ‖z_i‖², which makes errors of different rows comparable."""
    return float(np.square(_means(part, np.ones(part.num_edges)) @ rows).sum())


def _means(part: Part, weights: Reals) -> sp.csr_matrix:
    """The matrix that takes rows of all columns to weighted means over the neighbours of inner nodes."""
    degrees = np.repeat(part.in_degree[: part.num_inner], np.diff(part.indptr))
    shape = (part.num_inner, part.num_inner + part.num_halo)
    return sp.csr_matrix((weights / degrees, part.indices, part.indptr), shape=shape)


def _bernoulli(part: Part, rows: Reals, rate: float) -> float:
    halo = _means(part, (~inner_edges(part)).astype(np.float64))
    if rate == 0:
        return float(np.square(halo @ rows).sum())
    return (1 - rate) / rate * _squares(halo, rows)


def _squares(means: sp.csr_matrix, rows: Reals) -> float:
    """Σ over entries of the square of what each adds to a mean."""
    return float((means.multiply(means) @ np.square(rows).sum(1)).sum())


def _pairs(draw: Draw) -> Callable[[Part, Reals, float], float]:
    """The error of draws of a set number per pair: of n rows of H without replacement, H (H − n)/n S² where S² is the
    variance among them; of a list that is silent in some epochs, that of one row in rate·H of the epochs."""

    def error(part: Part, rows: Reals, rate: float) -> float:
        lengths = np.diff(part.halo_offsets)
        least, up = drawn_counts(lengths, rate), rounded_up(lengths, rate) * (draw is Draw.ROUNDED)
        columns, silent, total = _means(part, np.ones(part.num_edges)).tocsc(), np.zeros((1, 1)), 0.0
        for start, length, n, more in zip(part.halo_offsets + part.num_inner, lengths, least, up, strict=False):
            own = rows[start : start + length]
            means = columns[:, start : start + length]
            sums, squares = means @ own, _squares(means, own)
            if n == 0 and more == 0:
                silent = silent + sums
            elif n == 0:
                total += squares / rate - float(np.square(sums).sum())
            elif n < length:
                factor = (1 - more) * length * (length - n) / n + more * length * (length - n - 1) / (n + 1)
                total += factor * (squares - float(np.square(sums).sum()) / length) / (length - 1)
        return total + float(np.square(silent).sum())

    return error


def _edges(candidates_of: Callable[[Part], Mask]) -> Callable[[Part, Reals, float], float]:
    """The error of dropping a set number of candidates: again draws of n of E without replacement."""

    def error(part: Part, rows: Reals, rate: float) -> float:
        candidates = candidates_of(part)
        num, means = int(np.count_nonzero(candidates)), _means(part, candidates.astype(np.float64))
        n = num - dropped_by_boundary(part, rate)
        sums = float(np.square(means @ rows).sum())
        if n in (0, num):
            return 0.0 if n else sums
        return num * (num - n) / n * (_squares(means, rows) - sums / num) / (num - 1)

    return error


def _cut(part: Part) -> Mask:
    return ~inner_edges(part)


def _others(part: Part) -> Mask:
    return ~self_loops(part)


_CLOSED: Mapping[Estimate, Callable[[Part, Reals, float], float]] = MappingProxyType(
    {
        Estimate.ROUNDED: _pairs(Draw.ROUNDED),
        Estimate.BERNOULLI: _bernoulli,
        Estimate.FLOOR: _pairs(Draw.FLOOR),
        Estimate.EDGES: _edges(_cut),
        Estimate.DROPEDGE: _edges(_others),
    }
)


def _boundary(draw: Draw) -> Callable[[Part, float, int, int], Reals]:
    """Weights of a part's entries; a draw from its own lists, which are as long as those of the owners."""

    def weights(part: Part, rate: float, seed: int, epoch: int) -> Reals:
        came = draw_boundary(part.halo_offsets, rate, draw, seed=seed, rank=part.rank, epoch=epoch)
        columns = np.concatenate((np.ones(part.num_inner), np.zeros(part.num_halo)))
        scale = np.repeat(boundary_scale(came, part.halo_offsets, rate, draw), came.counts)
        columns[part.num_inner + came.places(part.halo_offsets)] = scale
        return np.asarray(columns[part.indices])

    return weights


def _renormalised(part: Part, rate: float, seed: int, epoch: int) -> Reals:
    came = draw_boundary(part.halo_offsets, rate, seed=seed, rank=part.rank, epoch=epoch)
    kept = edges_of_rows(part, came.places(part.halo_offsets))
    return _spread(kept, edge_weights(Weighting.SAMPLED_DEGREE, part.indptr, np.empty(0), kept))


def _spread(kept: Mask, weights: Reals) -> Reals:
    full = np.zeros(len(kept))
    full[kept] = weights
    return full


def _dropped(candidates_of: Callable[[Part], Mask]) -> Callable[[Part, float, int, int], Reals]:
    def weights(part: Part, rate: float, seed: int, epoch: int) -> Reals:
        candidates, num = candidates_of(part), dropped_by_boundary(part, rate)
        kept = drop(candidates, num, seed=seed, rank=part.rank, epoch=epoch)
        return _spread(kept, 1 / drop_probabilities(candidates, num)[kept])

    return weights


_DRAWN: Mapping[Estimate, Callable[[Part, float, int, int], Reals]] = MappingProxyType(
    {
        Estimate.ROUNDED: _boundary(Draw.ROUNDED),
        Estimate.BERNOULLI: _boundary(Draw.BERNOULLI),
        Estimate.FLOOR: _boundary(Draw.FLOOR),
        Estimate.RENORMALISED: _renormalised,
        Estimate.EDGES: _dropped(_cut),
        Estimate.DROPEDGE: _dropped(_others),
    }
)
