"""Ops that explain why a run took longer or shorter than predicted: where the compute lane's time went, by op.

A rank's steady window is divided along its compute lane, without rest: an op *runs*; or the lane stands still until the
next op can start, because of the op that ended last of all that one waits for. Of this time an awaited communication
*waits* for ranks that have not joined it, then its bytes *move*; an awaited computation of another lane *runs beside*.
What no dependency explains is *overhead*: threads that wake up, an interpreter between ops, a core that others use.
The parts add up to the rank's epoch, for a predicted and for a measured trace alike, so the differences of the parts
add up to the error of the epoch. They are joined by the name of the op.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from halocast.reports.critical import Causes
from halocast.reports.intervals import Interval, clip, length
from halocast.reports.metrics import COMMUNICATION, steady_window
from halocast.schedule.ir import Lane, Schedule
from halocast.schedule.trace import Span, Trace


class TimeUse(StrEnum):
    RUNS = "runs"
    BESIDE = "runs beside"
    MOVES = "moves"
    WAITS = "waits"
    OVERHEAD = "overhead"


Account = Mapping[tuple[str, TimeUse], float]  # (op, what it does) -> seconds per epoch, mean over ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What one op, or all ops of a verb, do in a predicted and in a measured epoch."""

    op: str
    part: TimeUse
    predicted_s: float
    measured_s: float

    @property
    def miss_s(self) -> float:
        """Predicted less measured seconds: above zero where the prediction is too long."""
        return self.predicted_s - self.measured_s


def account(trace: Trace, schedule: Schedule, warmup_epochs: int) -> Account:
    """Seconds per steady epoch of every op and part; their sum is the mean epoch of the ranks."""
    causes = Causes(trace, schedule)
    sums: dict[tuple[str, TimeUse], float] = defaultdict(float)
    for rank in range(trace.num_ranks):
        spans = list(trace.of_rank(rank))
        window = steady_window(spans, warmup_epochs)
        lane = sorted((span for span in spans if span.lane == Lane.COMPUTE), key=lambda span: span.start_s)
        now = window[0]
        for span in (span for span in lane if span.end_s > window[0]):
            for key, interval in (*_before(causes, span, now), *_during(causes, span)):
                sums[key] += length(clip([interval], window))
            now = span.end_s
    scale = trace.num_ranks * (trace.num_epochs - warmup_epochs)
    return {key: seconds / scale for key, seconds in sums.items() if seconds > 0}


def op_seconds(trace: Trace, schedule: Schedule, rank: int, warmup_epochs: int) -> dict[str, list[float]]:
    """The seconds of each instance after the warm-up of every op of a rank: on the compute lane with the overhead
    before it, of a communication from when all had come."""
    causes, seconds, now = Causes(trace, schedule), defaultdict[str, list[float]](list), 0.0
    for span in sorted(trace.of_rank(rank), key=lambda span: span.start_s):
        parts = list(_during(causes, span))
        if span.lane == Lane.COMPUTE:
            parts += _before(causes, span, now)
            now = span.end_s
        own = [end - start for (op, part), (start, end) in parts if op == span.op and part is not TimeUse.WAITS]
        if span.epoch >= warmup_epochs:
            seconds[span.op].append(sum(own))
    return seconds


def _during(causes: Causes, span: Span) -> Iterable[tuple[tuple[str, TimeUse], Interval]]:
    """Parts of the time in which an op of the compute lane is under way; the op may be a communication."""
    if span.kind not in COMMUNICATION:
        return [((span.op, TimeUse.RUNS), (span.start_s, span.end_s))]
    return _communicates(causes, span, span.start_s, span.end_s)


def _before(causes: Causes, span: Span, now: float) -> Iterable[tuple[tuple[str, TimeUse], Interval]]:
    """Parts of the time in which the compute lane stood still, from `now`, when its op before ended, until the span."""
    cause = causes.last_to_end(span)
    if cause is None or cause.end_s <= now or cause.lane == Lane.COMPUTE:
        return [((span.op, TimeUse.OVERHEAD), (now, span.start_s))]
    until = min(cause.end_s, span.start_s)
    late = ((span.op, TimeUse.OVERHEAD), (until, span.start_s))
    if cause.kind in COMMUNICATION:
        return [*_communicates(causes, cause, now, until), late]
    begins = max(now, cause.start_s)
    return [((cause.op, TimeUse.WAITS), (now, begins)), ((cause.op, TimeUse.BESIDE), (begins, until)), late]


def _communicates(
    causes: Causes, span: Span, start_s: float, end_s: float
) -> Iterable[tuple[tuple[str, TimeUse], Interval]]:
    """Split a communication: it waits until the last rank it needs something from has started; then bytes move."""
    begins = min(max(start_s, causes.last_to_come(span).start_s), end_s)
    return [((span.op, TimeUse.WAITS), (start_s, begins)), ((span.op, TimeUse.MOVES), (begins, end_s))]


def verb(op: str) -> str:
    return op.partition(".")[0]


def by_verb(by_op: Account) -> Account:
    sums: dict[tuple[str, TimeUse], float] = defaultdict(float)
    for (op, part), seconds in by_op.items():
        sums[verb(op), part] += seconds
    return dict(sums)


def join(predicted: Account, measured: Account) -> tuple[Blame, ...]:
    """Join two accounts by op and part, the largest difference first; what one of them lacks took it no time."""
    keys = dict.fromkeys([*predicted, *measured])
    blames = [
        Blame(op=op, part=part, predicted_s=predicted.get((op, part), 0.0), measured_s=measured.get((op, part), 0.0))
        for op, part in keys
    ]
    return tuple(sorted(blames, key=lambda one: (-abs(one.miss_s), one.op, one.part)))


def mean_account(accounts: Sequence[Account]) -> Account:
    """The mean of the accounts of several runs."""
    sums: dict[tuple[str, TimeUse], float] = defaultdict(float)
    for by_op in accounts:
        for key, seconds in by_op.items():
            sums[key] += seconds / len(accounts)
    return dict(sums)
