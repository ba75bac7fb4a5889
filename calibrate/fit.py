"""Prices of terms from measured points: least squares of relative errors, none negative, outliers counting less.

Every third point is held out, spread over the range so that its ends are always fitted; errors are those of the points
held out. Other tenants disturb a point now and then: one that is far off loses its say instead of bending the line.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halocast.base.errors import InputError
from halocast.calibrate.points import MeasuredPoint
from halocast.cluster.measured import Fit, terms_of

Floats = NDArray[np.float64]
FAR = 0.1  # relative error from which a point counts less
TOLERATED_S = 1e-5  # added to a point's seconds where errors are compared: microseconds of a tiny kernel do not matter
ROUNDS = 25
HELD_OUT = 3  # one point in so many
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Residual:
    """A point that was held out, and what the fit says of it."""

    point: MeasuredPoint
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.point.seconds - 1


def fit_points(kind: str, points: Sequence[MeasuredPoint]) -> tuple[Fit, list[Residual]]:
    """Prices from two thirds of the points, and the rest with what these prices say of them."""
    of_kind = [point for point in points if point.kind == kind]
    if len(of_kind) < FEWEST:
        raise InputError(f"{len(of_kind)} points of {kind}: a fit needs at least {FEWEST}")
    seen, unseen = split(of_kind)
    prices = prices_of(kind, seen)
    dims = np.array([point.dims for point in of_kind])
    bare = Fit(
        kind=kind,
        prices=prices,
        low=tuple(dims.min(axis=0).tolist()),
        high=tuple(dims.max(axis=0).tolist()),
        num_points=len(seen),
        num_held_out=len(unseen),
        median_error=0.0,
        p90_error=0.0,
    )
    residuals = [Residual(point, bare.seconds(point.dims, point.itemsize)) for point in unseen]
    return _with_errors(bare, residuals), residuals


def _with_errors(fit: Fit, residuals: Sequence[Residual]) -> Fit:
    median, p90 = error_quantiles(residuals)
    named = {name: getattr(fit, name) for name in ("kind", "prices", "low", "high", "num_points", "num_held_out")}
    return Fit(**named, median_error=median, p90_error=p90)


def error_quantiles(residuals: Sequence[Residual]) -> tuple[float, float]:
    """Median and 90th percentile of absolute relative errors."""
    errors = [abs(residual.error) for residual in residuals]
    return (float(np.quantile(errors, 0.5)), float(np.quantile(errors, 0.9))) if errors else (0.0, 0.0)


def split(points: Sequence[MeasuredPoint]) -> tuple[list[MeasuredPoint], list[MeasuredPoint]]:
    """Split points (to fit, held out); every third by size is held out, never the smallest or the largest."""
    ordered = sorted(points, key=lambda point: (point.seconds, point.dims))
    held = {k for k in range(len(ordered)) if k % HELD_OUT == 1 and k < len(ordered) - 1}
    return [p for k, p in enumerate(ordered) if k not in held], [ordered[k] for k in sorted(held)]


def prices_of(kind: str, points: Sequence[MeasuredPoint]) -> tuple[tuple[str, float], ...]:
    """The price of each term that explains some of the points' seconds."""
    rows = [terms_of(kind)(point.dims, point.itemsize) for point in points]
    names = list(rows[0])
    seconds: Floats = np.array([point.seconds for point in points])
    scale = seconds + TOLERATED_S
    relative: Floats = np.array([[row[name] for name in names] for row in rows]) / scale[:, None]
    solved = robust(relative, seconds / scale)
    return tuple((name, float(price)) for name, price in zip(names, solved, strict=True) if price > 0)


def robust(relative: Floats, wanted: Floats) -> Floats:
    """Non-negative prices with relative @ prices near what is wanted; the weight of a point falls with its distance."""
    from scipy.optimize import nnls  # a second that only fitting needs

    scale: Floats = np.maximum(relative.max(axis=0), 1e-300)  # terms differ by ten orders of magnitude
    weights = np.ones(len(relative))
    for _ in range(ROUNDS):
        prices, _ = nnls((relative / scale) * weights[:, None], wanted * weights, maxiter=1000)
        errors = np.abs((relative / scale) @ prices - wanted)
        weights = np.minimum(1.0, FAR / np.maximum(errors, 1e-12))
    return np.asarray(prices / scale)
