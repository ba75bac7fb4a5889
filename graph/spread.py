"""How a total divides over parts: a two-parameter law of unevenness and an exact, bounded integer allocation."""

import numpy as np
from numpy.typing import NDArray

from halocast.base.records import require
from halocast.graph.graph import Ints

Reals = NDArray[np.float64]

FLOOR = 0.05  # the smallest share of the mean; the quadratic law may dip below zero at its end
MAX_AMPLITUDE = 0.95
GROWTH = 0.2  # measured on six real graphs: METIS halo sizes vary 0.21, 0.37, 0.44, 0.56, 0.59 at k = 2, 4, 8, 16, 32
REFERENCE_PARTS = 8


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
    """Columns summing to `totals`, proportional to `weights` where `bounds` allow it (water-filling).

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
    """`total` over parts in proportion to weights, each at most its bound, the sum exact."""
    require(total <= int(bounds.sum()), f"{total} does not fit bounds that sum to {int(bounds.sum())}")
    totals = np.array([total])
    ceiling = bounds[:, None]
    real = bounded_shares(totals.astype(float), weights[:, None].astype(float), ceiling.astype(float))
    return whole(real, totals, ceiling)[:, 0]
