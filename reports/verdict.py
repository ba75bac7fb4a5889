"""The verdict of a comparison in two sentences: what is fastest and why, and how far to believe it."""

from collections.abc import Sequence

from halocast.reports.comparison import Comparison, MethodResult, fastest_first
from halocast.reports.metrics import PARTS
from halocast.reports.summary import Summary
from halocast.reports.table import ages, seconds, used_of

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


def verdict(comparison: Comparison) -> str:
    """The verdict in two sentences; method names stand between double asterisks, as in Markdown."""
    ordered = fastest_first(comparison.predicted)
    fitting = [result for result in ordered if result.summary.fits]
    if not fitting:
        return _nothing_fits(ordered)
    return f"{_fastest(fitting, comparison)} {_how_sure(fitting)}"


def _nothing_fits(ordered: Sequence[MethodResult]) -> str:
    used = [(result.summary.memory, result.method) for result in ordered]
    known = [(memory, method) for memory, method in used if memory is not None]
    if not known:
        return "No method could be predicted."
    memory, method = min(known, key=lambda item: item[0].memory_bytes)
    return (
        f"No method fits in the memory of the devices. **{method}** comes nearest, with "
        f"{used_of(memory)} on rank {memory.memory_rank}."
    )


def _fastest(fitting: Sequence[MethodResult], comparison: Comparison) -> str:
    best = fitting[0].summary
    num_methods = len(comparison.predicted)
    fastest = "the fastest" if len(fitting) == num_methods else "the fastest that fits"
    of = f"{fastest} of {num_methods} methods" if num_methods > 1 else "predicted"
    where = f"on {best.cluster} with {ranks(best.ranks)}"
    return (
        f"**{best.method}** is {of} {where}: {seconds(best.epoch_s)} per epoch{_lead(fitting, comparison)}, "
        f"limited by {limit(best)}."
    )


def _lead(fitting: Sequence[MethodResult], comparison: Comparison) -> str:
    """The lead of the fastest method: how many times as fast as the next it is, and as the first of the comparison."""
    best, first = fitting[0], comparison.predicted[0]
    others = [("the next, ", result) for result in fitting[1:2]]
    if first is not best and first not in fitting[1:2]:
        others.append(("", first))
    leads = [
        f"{result.summary.epoch_s / best.summary.epoch_s:.3g} times as fast as {aside}**{result.method}**"
        for aside, result in others
        if best.summary.epoch_s > 0
    ]
    return f", {', and '.join(leads)}" if leads else ""


def limit(summary: Summary) -> str:
    """What limits a method: the largest part of the mean rank's epoch, and the largest step of the critical path."""
    part = max(PARTS, key=lambda name: summary.seconds_of(name))
    share = summary.seconds_of(part) / summary.epoch_s_mean if summary.epoch_s_mean else 0.0
    path = summary.critical_path
    longest = f"; {path[0].op} alone is {path[0].share:.0%} of its critical path" if path else ""
    return f"{LIMITS[part]} ({share:.0%} of its epoch{longest})"


def _how_sure(fitting: Sequence[MethodResult]) -> str:
    best = fitting[0].summary
    used = f" ({used_of(best.memory)} on its fullest device)" if best.memory else ""
    return f"It fits in memory{used}, {_freshness(best)}, and {_certainty(fitting)}."


def _freshness(summary: Summary) -> str:
    if not summary.ages or summary.ages[-1] == 0:
        return "reads only fresh rows" if summary.ages else "exchanges no halo rows"
    plural = "epoch" if summary.ages == [1] else "epochs"
    return f"reads rows {ages(summary.staleness)} {plural} old, which may cost accuracy"


def _certainty(fitting: Sequence[MethodResult]) -> str:
    best = fitting[0].summary
    calibrated = best.basis is not None and best.basis.calibrated
    basis = "calibrated constants" if calibrated else "constants not calibrated on the machine"
    band = best.known_band
    if not band:
        return f"its error is not known ({basis})"
    sure = f"such predictions put its epoch between {seconds(band.low_s)} and {seconds(band.high_s)}"
    rivals = [r.method for r in fitting[1:] if _low(r.summary) < band.high_s]
    if not rivals:
        return f"{sure} ({band.basis}), clear of every other method"
    also = f"**{rivals[0]}**" if len(rivals) == 1 else f"{len(rivals)} others, **{rivals[0]}** among them,"
    return f"{sure} ({band.basis}), so {also} may be as fast"


def _low(summary: Summary) -> float:
    band = summary.known_band
    return band.low_s if band else summary.epoch_s


def ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
