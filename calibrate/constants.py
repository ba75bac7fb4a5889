"""From measured points to a profile: a fit per kind of kernel, the transport's constants, the executor's overhead.

Groups and kinds are those of `halocast calibrate`; a profile is made of whatever groups there are, as long as the
kernels are among them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from halocast.base.kernels import KERNEL_DIMS
from halocast.calibrate.fit import (
    FEWEST,
    Floats,
    Residual,
    error_quantiles,
    fit_points,
    prices_of,
    robust,
    split,
)
from halocast.calibrate.points import CPU, EMULATED, MeasuredPoint
from halocast.calibrate.profile import FitTable, Made, MessageCosts, Overhead, ProfileTable, fit_table
from halocast.cluster.measured import Fit, Measured, crowd_of, share_of_caches
from halocast.schedule.ir import ring_steps

BYTES = ("bytes",)
CACHES = (0.0, *(2.0**k * 2**20 for k in range(-2, 9)))  # bytes that caches may keep, as tried
MOST_ERROR = 0.5  # of an op; a worse one counts no more
PRIOR = 0.5  # of ops' relative errors, what a factor of a kind counts that is 1 off
STRANGE = 0.02  # mean error of ops that a factor 1 off is worth, where sizes of caches are compared
LARGE = 0.5  # of exchanges, those from half of the largest time on carry at full rate


@dataclass(frozen=True, slots=True)
class FitQuality:
    """How well a fit tells the points that it has not seen; `worst` is the one it is furthest from."""

    what: str
    num_points: int
    num_held_out: int
    median_error: float
    p90_error: float
    worst: Residual | None


def make_profile(origin: Made, points: Sequence[MeasuredPoint]) -> tuple[ProfileTable, list[FitQuality]]:
    fits, warm = (_kernel_fits([p for p in points if bool(p.note.get("warm")) is hot]) for hot in (False, True))
    busy = _ratios(points, "busy")
    bare = Measured(
        kernels=tuple(fit for fit, _ in fits.values()),
        warm=tuple(fit for fit, _ in warm.values()),
        busy=tuple(busy.items()),
    )
    points = [_with_crowd(point, origin.ranks) for point in points]
    cache_ranks = max((p.note.get("ranks", 1) for p in points if p.kind == "executed"), default=1)
    most_bytes = origin.last_cache_bytes / cache_ranks or inf
    overhead, context, cache_bytes, op_rows = fit_ops(bare, points, most_bytes)
    known = replace(bare, launch_s=overhead.launch_s, cache_bytes=cache_bytes, context=tuple(context.items()))
    # where ranks have devices of their own, their transports do not take cores that compute
    on_cores = origin.device == CPU
    messages, others = _messages([p for p in points if not p.group.startswith(EMULATED)], on_cores)
    between_hosts, _ = _messages([p for p in points if p.group.startswith(EMULATED)], on_cores)
    if messages is not None and on_cores:
        communication_s, extra_step_s = executed_extras(known, messages, points, overhead.communication_op_s)
        overhead = replace(overhead, communication_op_s=communication_s)
        messages, between_hosts = _with_steps(messages, extra_step_s), _with_steps(between_hosts, extra_step_s)
    table = ProfileTable(
        made=origin,
        kernels={kind: fit_table(fit, KERNEL_DIMS[kind]) for kind, (fit, _) in fits.items()},
        warm={kind: fit_table(fit, KERNEL_DIMS[kind]) for kind, (fit, _) in warm.items()},
        context=context,
        cache_bytes=cache_bytes,
        cache_ranks=cache_ranks,
        busy=busy,
        turns=turns_of(replace(known, op_s=overhead.op_s), points, cache_ranks),
        overhead=overhead,
        messages=messages,
        emulated=between_hosts,
        allreduce=_table(others, "allreduce"),
        store=_table(others, "store"),
        copies={
            name.removeprefix("copy_"): fit_table(fit, BYTES)
            for name, (fit, _) in others.items()
            if name.startswith("copy_")
        },
    )
    named = fits | {f"{kind}, warm": fit for kind, fit in warm.items()} | others
    return table, [*(_row(kind, *fit) for kind, fit in named.items()), *op_rows]


def _with_crowd(point: MeasuredPoint, measured: int) -> MeasuredPoint:
    """The point with how far cores were busy when its op ran; kernels alone were measured with none beside them."""
    return replace(point, note={**point.note, "crowd": crowd_of(point.note.get("ranks", 1), measured)})


def _kernel_fits(points: Sequence[MeasuredPoint]) -> dict[str, tuple[Fit, list[Residual]]]:
    kinds = [kind for kind in KERNEL_DIMS if any(point.kind == kind for point in points)]
    return {kind: fit_points(kind, points) for kind in kinds}


def _table(fits: dict[str, tuple[Fit, list[Residual]]], kind: str) -> FitTable | None:
    return fit_table(fits[kind][0], BYTES) if kind in fits else None


def _row(what: str, fit: Fit, residuals: list[Residual]) -> FitQuality:
    worst = max(residuals, key=lambda residual: abs(residual.error), default=None)
    return FitQuality(what, fit.num_points, fit.num_held_out, fit.median_error, fit.p90_error, worst)


def _messages(
    points: Sequence[MeasuredPoint], on_cores: bool
) -> tuple[MessageCosts | None, dict[str, tuple[Fit, list[Residual]]]]:
    """The transport's constants, and the fits of all that takes bytes; `on_cores`: it takes of the ranks' own cores."""
    kinds = ("message", "allreduce", "copy_down", "copy_up", "store")
    fits = {kind: fit_points(kind, points) for kind in kinds if any(point.kind == kind for point in points)}
    if "message" not in fits:
        return None, fits
    fit, prices = fits["message"][0], dict(fits["message"][0].prices)
    carried = max(p.dims[0] / p.seconds for p in points if p.kind == "message")  # where noise hides the price of a byte
    rate = 1 / prices["byte"] if "byte" in prices else carried
    exchanges = [point for point in points if point.kind == "exchange"]
    full = [p for p in exchanges if p.seconds >= LARGE * max(q.seconds for q in exchanges)]
    host = float(np.median([p.dims[0] / p.seconds for p in full])) if full else rate
    core = _core_prices(exchanges) if on_cores else {}
    latency_s = max(0.0, prices.get("latency", 0.0) - core.get("message", 0.0))  # what cores do is counted there
    summed = dict(fits["allreduce"][0].prices) if "allreduce" in fits else {}
    steps = [ring_steps(p.note["ranks"]) for p in points if p.kind == "allreduce" and "ranks" in p.note]
    return MessageCosts(
        latency_s=latency_s,
        stream_bytes_per_s=rate,
        host_bytes_per_s=max(host, 1.0),
        compute_slowdown=_slowdown(points, "compute_slowdown"),
        transfer_slowdown=_slowdown(points, "transfer_slowdown"),
        core_s_per_byte=core.get("byte", 0.0),
        core_s_per_message=core.get("message", 0.0),
        core_s_per_step=max(0.0, summed.get("latency", 0.0) / steps[0] - latency_s) if core and steps else 0.0,
        low_bytes=fit.low[0],
        high_bytes=fit.high[0],
        median_error=fit.median_error,
        p90_error=fit.p90_error,
    ), fits


def executed_extras(
    known: Measured, messages: MessageCosts, points: Sequence[MeasuredPoint], least_op_s: float
) -> tuple[float, float]:
    """Seconds that an exchange of a run takes beyond its kernels, messages and bytes, and a step of its all-reduces
    beyond all that is counted: lanes wake up, values are looked up, receives of the next epoch are posted."""

    def beyond(kind: str, counted: Callable[[MeasuredPoint], float]) -> float:
        extras = [point.seconds - counted(point) for point in points if point.kind == kind]
        return max(0.0, float(np.median(extras))) if extras else 0.0

    def moved_s(point: MeasuredPoint) -> float:
        return int(point.note["bytes"]) * messages.core_s_per_byte  # each way at once, half at either end

    def exchange_s(point: MeasuredPoint) -> float:
        packed_s = sum(_seconds_by_kind(known, point).values())
        return (
            packed_s + messages.latency_s + int(point.note["ends"]) / 2 * messages.core_s_per_message + moved_s(point)
        )

    op_s = max(least_op_s, beyond("executed_exchange", exchange_s))
    step_s = messages.latency_s + messages.core_s_per_step
    steps = [ring_steps(p.note["ranks"]) for p in points if p.kind == "executed_allreduce"]
    sum_s = beyond("executed_allreduce", lambda p: op_s + ring_steps(p.note["ranks"]) * step_s + moved_s(p))
    return op_s, sum_s / max([1, *steps])


def _with_steps(messages: MessageCosts | None, extra_s: float) -> MessageCosts | None:
    return messages and replace(messages, core_s_per_step=messages.core_s_per_step + extra_s)


def _core_prices(exchanges: Sequence[MeasuredPoint]) -> dict[str, float]:
    """Core-seconds that a message and a byte take, both ends together; nothing where cores were not looked at."""
    counted = [
        MeasuredPoint(
            group="cores",
            kind="cores",
            dims=(p.note["ranks"] * (p.note["ranks"] - 1), p.dims[0]),
            seconds=p.note["core_s"],
        )
        for p in exchanges
        if "core_s" in p.note
    ]
    return dict(prices_of("cores", counted)) if len(counted) >= FEWEST else {}


def _ratios(points: Sequence[MeasuredPoint], group: str) -> dict[str, float]:
    return {p.kind.removeprefix("busy_"): max(1.0, p.seconds) for p in points if p.group == group}


def _slowdown(points: Sequence[MeasuredPoint], kind: str) -> float:
    ratios = [point.seconds for point in points if point.kind == kind]
    return max(1.0, float(np.median(ratios))) if ratios else 1.0


def fit_ops(
    bare: Measured, points: Sequence[MeasuredPoint], most_bytes: float
) -> tuple[Overhead, dict[str, float], float, list[FitQuality]]:
    """The cost of handlers beyond their kernels, of kernels in ops, and how many bytes the caches keep (no more
    than there are), from two thirds of the ops that ran; the others show how true the sum is."""
    empty = {p.kind: p.seconds for p in points if p.group == "interpreter"}
    op_s, communication_s = empty.get("op", 0.0), empty.get("communication_op", 0.0)
    seen, unseen = _split_ops([point for point in points if point.kind == "executed"])
    if len(seen) < FEWEST:
        return Overhead(op_s=op_s, communication_op_s=communication_s), {}, 0.0, []
    caches = [size for size in CACHES if size <= most_bytes] if bare.warm else [0.0]
    _, cache_bytes, (handler_s, launch_s), context = min(
        (_in_context(replace(bare, cache_bytes=size), seen) for size in caches), key=lambda one: one[0]
    )
    overhead = Overhead(op_s=handler_s, communication_op_s=communication_s, launch_s=launch_s)
    known = replace(bare, launch_s=launch_s, cache_bytes=cache_bytes, context=tuple(context.items()))
    residuals = [Residual(point, handler_s + sum(_seconds_by_kind(known, point).values())) for point in unseen]
    return overhead, context, cache_bytes, _op_rows(residuals, len(seen))


def _split_ops(points: Sequence[MeasuredPoint]) -> tuple[list[MeasuredPoint], list[MeasuredPoint]]:
    """Split ops (to fit, held out), some of each kind: a kernel that only rare ops have would go without its factor."""
    by_verb: dict[str, list[MeasuredPoint]] = {}
    for point in points:
        by_verb.setdefault(str(point.note["what"]).partition(" ")[0], []).append(point)
    halves = [split(of_verb) for of_verb in by_verb.values()]
    return [p for seen, _ in halves for p in seen], [p for _, unseen in halves for p in unseen]


def _in_context(
    measured: Measured, points: Sequence[MeasuredPoint]
) -> tuple[float, float, tuple[float, float], dict[str, float]]:
    """The (misfit, bytes that caches keep, (seconds of a handler, of a kernel in it), factors of kinds) that explain
    ops best with such caches.

    A kernel in an op does not take what it takes alone: its results need new memory, autograd keeps its operands. How
    much longer is one factor per kind, which stays near 1 unless ops say otherwise.
    """
    sums = [_seconds_by_kind(measured, point) for point in points]
    kinds = sorted({kind for by_kind in sums for kind in by_kind})
    seconds = np.array([point.seconds for point in points])
    terms = np.array(
        [
            [1.0, len(point.note["kernels"]), *(by_kind.get(kind, 0.0) for kind in kinds)]
            for point, by_kind in zip(points, sums, strict=True)
        ]
    )
    weights = _weights(points)
    near_one = PRIOR * np.eye(2 + len(kinds))[2:]
    relative = np.vstack([terms * (weights / seconds)[:, None], near_one])
    prices = robust(relative, np.concatenate([weights, np.full(len(kinds), PRIOR)]))
    errors = weights * np.minimum(np.abs(terms @ prices / seconds - 1), MOST_ERROR)
    handler_s, launch_s, *factors = prices.tolist()
    strange = float(np.minimum(np.abs(prices[2:] - 1), 1.0).sum())  # several sizes of caches explain ops about as well
    return (
        float(errors.mean()) + STRANGE * strange,
        measured.cache_bytes,
        (handler_s, launch_s),
        dict(zip(kinds, factors, strict=True)),
    )


def turns_of(known: Measured, points: Sequence[MeasuredPoint], cache_ranks: int) -> float:
    """How much longer than its ops the compute of an epoch takes where ranks take turns on cores: each finds the caches
    full of the other's rows, and waits for its turn when it could go on."""
    ratios = []
    for point in points:
        if point.kind != "executed_in_turns":
            continue
        ranks, cores = point.note["ranks"], point.note["cores"]
        here = replace(known, cache_bytes=known.cache_bytes * share_of_caches(cache_ranks, ranks))
        ops = [replace(point, note={**point.note, "kernels": kernels}) for kernels in point.note["ops"]]
        of_all_ranks_s = sum(known.op_s + sum(_seconds_by_kind(here, op).values()) for op in ops)
        ratios.append(point.seconds / (of_all_ranks_s / cores))
    return max(1.0, float(np.median(ratios))) if ratios else 1.0


def _weights(points: Sequence[MeasuredPoint]) -> Floats:
    """The weights of ops, by their share of an epoch: its sum is wanted, but small ops show what handlers cost."""
    shares = np.sqrt([float(point.note.get("share", 1.0)) for point in points])
    return np.asarray(shares / shares.mean())


def _seconds_by_kind(measured: Measured, point: MeasuredPoint) -> dict[str, float]:
    here = replace(measured.touching(point.note.get("footprint", inf)), crowd=point.note.get("crowd", 0.0))
    sums: dict[str, float] = {}
    for kind, dims in point.note["kernels"]:
        if all(dims):
            sums[kind] = sums.get(kind, 0.0) + here.seconds(kind, tuple(dims), point.itemsize)
    return sums


def _op_rows(residuals: list[Residual], num_seen: int) -> list[FitQuality]:
    """Rows on real ops against the sum of their kernels: all together, and by model and verb; of those held out."""
    by_what: dict[str, list[Residual]] = {}
    for residual in sorted(residuals, key=lambda residual: str(residual.point.note["what"])):
        by_what.setdefault(f"  {residual.point.note['what']}", []).append(residual)
    parts = [_op_row(what, mine, 0) for what, mine in by_what.items()]
    return [_op_row("executed ops", residuals, num_seen), *parts]


def _op_row(what: str, residuals: list[Residual], num_seen: int) -> FitQuality:
    worst = max(residuals, key=lambda residual: abs(residual.error), default=None)
    return FitQuality(what, num_seen, len(residuals), *error_quantiles(residuals), worst)
