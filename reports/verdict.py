"""The verdict of a comparison in three lines: the best exact method, the best approximate one, and one GPU alone.

Exact methods learn the same in every epoch, so the shortest epoch is the best one. What an epoch of an approximate
method is worth only training tells: without it none of them is called better than an exact one.
"""

from collections.abc import Sequence
from typing import Any

from halocast.reports.comparison import Comparison, MethodResult, NotCompared, exact_first
from halocast.reports.converge.answer import answer, answer_lines
from halocast.reports.converge.contests import contests
from halocast.reports.metrics import PARTS
from halocast.reports.summary import Summary
from halocast.reports.table import ages, seconds, used_of
from halocast.schedule.approximation import Approximation

LABELS = {
    "compute_s": "compute",
    "exposed_comm_s": "exposed communication",
    "reduce_s": "reduce",
    "wait_s": "wait",
    "bubble_s": "bubble",
}
LIMITS = {
    "compute_s": "computing",
    "exposed_comm_s": "communication it cannot hide",
    "reduce_s": "the all-reduce of weight gradients",
    "wait_s": "waiting for slower ranks",
    "bubble_s": "bubbles: ranks with nothing to do",
}


def verdict(comparison: Comparison) -> tuple[str, ...]:
    """The verdict in three lines, or more where methods were trained; names of methods stand between double asterisks,
    as in Markdown."""
    if comparison.converged is not None:
        return tuple(answer_lines(comparison.converged))
    return _exact(comparison), _approximate(comparison), _one_gpu(comparison)


def verdict_dict(comparison: Comparison) -> dict[str, Any]:
    """The verdict as a JSON object: its lines, and the figures of the methods they name."""
    if comparison.converged is not None:
        every = contests(comparison.converged)
        figures = answer(comparison.converged, every[0]).as_dict() if every else {}
    else:
        exact, approximate = best_exact(comparison), best_approximate(comparison)
        alone = comparison.alone if isinstance(comparison.alone, Summary) else None
        best = {"exact": exact and exact.summary, "approximate": approximate and approximate.summary, "one_gpu": alone}
        figures = {name: _figures(summary) for name, summary in best.items() if summary}
    return {**figures, "lines": [line.replace("**", "") for line in verdict(comparison)]}


def _figures(summary: Summary) -> dict[str, Any]:
    keys = ("method", "approximation", "ranks", "epoch_s", "price_per_epoch", "currency", "fits")
    return {key: value for key, value in summary.plain_figures().items() if key in keys}


def best_exact(comparison: Comparison) -> MethodResult | None:
    """The exact method of the shortest epoch of those that fit."""
    return next((r for r in _fitting(comparison) if r.is_exact), None)


def best_approximate(comparison: Comparison) -> MethodResult | None:
    """The approximate method of the shortest epoch of those that fit, which says nothing about its accuracy."""
    return next((r for r in _fitting(comparison) if not r.is_exact), None)


def _fitting(comparison: Comparison) -> list[MethodResult]:
    return [result for result in exact_first(comparison.predicted) if result.summary.fits]


def _exact(comparison: Comparison) -> str:
    some = [result for result in comparison.predicted if result.is_exact]
    best = best_exact(comparison)
    if best is None:
        return f"Best exact method: {_none(some)}."
    of = f", of {len(some)}" if len(some) > 1 else ""
    where = f"on {best.summary.cluster} with {ranks(best.summary.ranks)}"
    rivals = [r for r in _fitting(comparison) if r.is_exact and r is not best]
    return (
        f"Best exact method{of}: **{best.method}** {where}, {_epoch(best.summary)}, limited by {limit(best.summary)}; "
        f"{_room(best.summary)}{_certainty(best.summary, rivals)}."
    )


def _approximate(comparison: Comparison) -> str:
    some = [result for result in comparison.predicted if not result.is_exact]
    best = best_approximate(comparison)
    if best is None:
        return f"Best approximate method: {_none(some)}."
    of = f" of {len(some)}" if len(some) > 1 else ""
    return (
        f"Best approximate method: accuracy not known: run `{comparison.converge}`. The shortest epoch{of}, which says "
        f"nothing about accuracy: **{best.method}**, {_epoch(best.summary)}; it {_shortcut(best.summary)}."
    )


def _none(some: Sequence[MethodResult]) -> str:
    """Why none of some methods is the best one."""
    used = [(result.summary.memory, result.method) for result in some]
    known = [(memory, method) for memory, method in used if memory is not None]
    if not known:
        return "none could be predicted" if some else "none was compared"
    memory, method = min(known, key=lambda item: item[0].memory_bytes)
    return (
        f"none fits in the memory of the devices; **{method}** comes nearest, with {used_of(memory)} on rank "
        f"{memory.memory_rank}"
    )


def _one_gpu(comparison: Comparison) -> str:
    alone, best = comparison.alone, best_exact(comparison)
    if best is not None and best.summary.ranks == 1:
        return "One GPU is enough: it is all that was asked for."
    if alone is None:
        return "One GPU: not predicted."
    if isinstance(alone, NotCompared):
        return f"One GPU: not predicted: {alone.reason}."
    used = f" ({used_of(alone.memory)})" if alone.memory else ""
    if not alone.fits:
        return f"One GPU is not enough: the whole graph does not fit{used}."
    against = _against(alone, best.summary) if best else ""
    return f"One GPU is enough: the whole graph fits{used}, {_epoch(alone)}{against}."


def _against(alone: Summary, best: Summary) -> str:
    """What one GPU takes beside the best exact method."""
    if not best.epoch_s or not alone.epoch_s:
        return ""
    ratio = f"{alone.epoch_s / best.epoch_s:.3g} times that of the best exact method"
    if alone.epoch_s < best.epoch_s:
        ratio = f"{best.epoch_s / alone.epoch_s:.3g} times as fast as the best exact method on {ranks(best.ranks)}"
    if alone.price is None or best.price is None or not best.price.price_per_epoch:
        return f", {ratio}"
    return f", {ratio} at {alone.price.price_per_epoch / best.price.price_per_epoch:.3g} times its price"


def _epoch(summary: Summary) -> str:
    price = summary.price
    paid = f" and {price.price_per_epoch:.3g} {price.currency}" if price else ""
    return f"{seconds(summary.epoch_s)}{paid} per epoch"


def limit(summary: Summary) -> str:
    """What limits a method: the largest part of the mean rank's epoch."""
    part = max(PARTS, key=lambda name: summary.seconds_of(name))
    share = summary.seconds_of(part) / summary.epoch_s_mean if summary.epoch_s_mean else 0.0
    return f"{LIMITS[part]} ({share:.0%} of it)"


def _room(summary: Summary) -> str:
    return f"it uses {used_of(summary.memory)} on its fullest device; " if summary.memory else ""


def _shortcut(summary: Summary) -> str:
    """What an approximate method does to the numbers: both, where rows are left out and old."""
    left_out = "leaves some rows out" if summary.approximation is Approximation.SAMPLED else ""
    old = summary.ages and summary.ages[-1] > 0
    reads = f"reads rows {ages(summary.staleness)} {'epoch' if summary.ages == [1] else 'epochs'} old" if old else ""
    return " and ".join(filter(None, (left_out, reads))) or "steps from weights that others have changed since"


def _certainty(best: Summary, rivals: Sequence[MethodResult]) -> str:
    calibrated = best.basis is not None and best.basis.calibrated
    basis = "calibrated constants" if calibrated else "constants not calibrated on the machine"
    band = best.known_band
    if not band:
        return f"its error is not known ({basis})"
    sure = f"such predictions put its epoch between {seconds(band.low_s)} and {seconds(band.high_s)} ({band.basis})"
    near = [r.method for r in rivals if _low(r.summary) < band.high_s]
    if not near:
        return f"{sure}, clear of every other exact method" if rivals else sure
    also = f"**{near[0]}**" if len(near) == 1 else f"{len(near)} others, **{near[0]}** among them,"
    return f"{sure}, so {also} may be as fast"


def _low(summary: Summary) -> float:
    band = summary.known_band
    return band.low_s if band else summary.epoch_s


def ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
