"""From measured points to a profile: a fit per kind of kernel, the transport's constants, the executor's overhead.

Groups and kinds are those of `halocast calibrate`; a profile is made of whatever groups there are, as long as the
kernels are among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from scipy.optimize import nnls

from halocast.schedule.ir import KERNEL_DIMS, Kernel
from halocast.sim.fit import FEWEST, Point, Residual, error_quantiles, fit_points, split
from halocast.sim.measured import Fit, Measured
from halocast.sim.profile import FitTable, Made, Messages, Overhead, ProfileTable, fit_table

BYTES = ("bytes",)
CACHES = (0.0, *(2.0**k * 2**20 for k in range(-2, 9)))  # bytes that caches may keep, as tried
MOST_ERROR = 0.5  # of an op; a worse one counts no more
LARGE = 0.5  # of exchanges, those from half of the largest time on carry at full rate


@dataclass(frozen=True, slots=True)
class Row:
    """One line of what a calibration says of itself."""

    what: str
    num_points: int
    num_held_out: int
    median_error: float
    p90_error: float
    worst: Residual | None


def make_profile(made: Made, points: Sequence[Point]) -> tuple[ProfileTable, list[Row]]:
    fits, warm = (_kernel_fits([p for p in points if bool(p.note.get("warm")) is hot]) for hot in (False, True))
    alone = Measured(kernels=tuple(fit for fit, _ in fits.values()), warm=tuple(fit for fit, _ in warm.values()))
    overhead, cache_bytes, op_rows = fit_ops(alone, points)
    messages, others = _messages(points)
    table = ProfileTable(
        made=made,
        kernels={kind: fit_table(fit, KERNEL_DIMS[kind]) for kind, (fit, _) in fits.items()},
        warm={kind: fit_table(fit, KERNEL_DIMS[kind]) for kind, (fit, _) in warm.items()},
        cache_bytes=cache_bytes,
        busy={p.kind.removeprefix("busy_"): max(1.0, p.seconds) for p in points if p.group == "busy"},
        overhead=overhead,
        messages=messages,
        allreduce=_table(others, "allreduce"),
        copies={
            name.removeprefix("copy_"): fit_table(fit, BYTES)
            for name, (fit, _) in others.items()
            if name.startswith("copy_")
        },
    )
    named = fits | {f"{kind}, warm": fit for kind, fit in warm.items()} | others
    return table, [*(_row(kind, *fit) for kind, fit in named.items()), *op_rows]


def _kernel_fits(points: Sequence[Point]) -> dict[str, tuple[Fit, list[Residual]]]:
    kinds = [kind for kind in KERNEL_DIMS if any(point.kind == kind for point in points)]
    return {kind: fit_points(kind, points) for kind in kinds}


def _table(fits: dict[str, tuple[Fit, list[Residual]]], kind: str) -> FitTable | None:
    return fit_table(fits[kind][0], BYTES) if kind in fits else None


def _row(what: str, fit: Fit, residuals: list[Residual]) -> Row:
    worst = max(residuals, key=lambda one: abs(one.error), default=None)
    return Row(what, fit.num_points, fit.num_held_out, fit.median_error, fit.p90_error, worst)


def _messages(points: Sequence[Point]) -> tuple[Messages | None, dict[str, tuple[Fit, list[Residual]]]]:
    """The transport's constants, and the fits of all that takes bytes."""
    kinds = ("message", "allreduce", "copy_down", "copy_up")
    fits = {kind: fit_points(kind, points) for kind in kinds if any(point.kind == kind for point in points)}
    if "message" not in fits:
        return None, fits
    fit, prices = fits["message"][0], dict(fits["message"][0].prices)
    rate = 1 / prices["byte"]
    exchanges = [point for point in points if point.kind == "exchange"]
    full = [p for p in exchanges if p.seconds >= LARGE * max(one.seconds for one in exchanges)]
    host = float(np.median([p.dims[0] / p.seconds for p in full])) if full else rate
    core = [p.note["core_s"] / p.dims[0] for p in full if "core_s" in p.note]
    return Messages(
        latency_s=prices.get("latency", 0.0),
        stream_bytes_per_s=rate,
        host_bytes_per_s=max(host, 1.0),
        compute_slowdown=_slowdown(points, "compute_slowdown"),
        transfer_slowdown=_slowdown(points, "transfer_slowdown"),
        core_s_per_byte=float(np.median(core)) if core else 0.0,
        low_bytes=fit.low[0],
        high_bytes=fit.high[0],
        median_error=fit.median_error,
        p90_error=fit.p90_error,
    ), fits


def _slowdown(points: Sequence[Point], kind: str) -> float:
    found = [point.seconds for point in points if point.kind == kind]
    return max(1.0, float(np.median(found))) if found else 1.0


def fit_ops(alone: Measured, points: Sequence[Point]) -> tuple[Overhead, float, list[Row]]:
    """What handlers cost beyond their kernels, and how many bytes the caches keep, from two thirds of the ops that ran;
    the others show how true the sum is."""
    bare = {p.kind: p.seconds for p in points if p.group == "interpreter"}
    op_s, communication_s = bare.get("op", 0.0), bare.get("communication_op", 0.0)
    seen, unseen = split([point for point in points if point.kind == "executed"])
    if len(seen) < FEWEST:
        return Overhead(op_s=op_s, communication_op_s=communication_s), 0.0, []
    caches = CACHES if alone.warm else (0.0,)
    tried = [(*_handlers(replace(alone, cache_bytes=size), seen), size) for size in caches]
    _, handler_s, launch_s, cache_bytes = min(tried)
    overhead = Overhead(op_s=op_s + handler_s, communication_op_s=communication_s + handler_s, launch_s=launch_s)
    known = replace(alone, launch_s=launch_s, cache_bytes=cache_bytes)
    residuals = [Residual(point, handler_s + _kernels_s(known, point)) for point in unseen]
    return overhead, cache_bytes, _op_rows(residuals, len(seen))


def _handlers(measured: Measured, points: Sequence[Point]) -> tuple[float, float, float]:
    """(mean error, seconds of a handler, of a kernel in it) that explain ops best with such caches."""
    seconds = np.array([point.seconds for point in points])
    left = seconds - np.array([_kernels_s(measured, point) for point in points])
    terms = np.array([[1.0, len(point.note["kernels"])] for point in points])
    (handler_s, launch_s), _ = nnls(terms / seconds[:, None], left / seconds)
    errors = np.abs(terms @ [handler_s, launch_s] - left) / seconds
    return float(np.minimum(errors, MOST_ERROR).mean()), float(handler_s), float(launch_s)


def _kernels_s(measured: Measured, point: Point) -> float:
    kernels = [Kernel(kind, tuple(dims)) for kind, dims in point.note["kernels"]]
    here = measured.touching(point.note.get("footprint", inf))
    return sum(here.seconds(kernel, point.itemsize) for kernel in kernels if all(kernel.dims))


def _op_rows(residuals: list[Residual], num_seen: int) -> list[Row]:
    """Real ops against the sum of their kernels: all together, and by model and verb; of those held out."""
    by_what: dict[str, list[Residual]] = {}
    for one in sorted(residuals, key=lambda one: str(one.point.note["what"])):
        by_what.setdefault(f"  {one.point.note['what']}", []).append(one)
    parts = [_op_row(what, mine, 0) for what, mine in by_what.items()]
    return [_op_row("executed ops", residuals, num_seen), *parts]


def _op_row(what: str, residuals: list[Residual], num_seen: int) -> Row:
    worst = max(residuals, key=lambda one: abs(one.error), default=None)
    return Row(what, num_seen, len(residuals), *error_quantiles(residuals), worst)
