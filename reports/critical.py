"""The critical path: the chain of op instances that determines when the steady epochs end.

Walked back from the span that ends last. What an op does until its end is on the path from its start on; it could not
start before the last of what it waits for had ended (`after` with lags, the op before it on its lane), so the path goes
on there. A communication could not end before the last rank it needs something from had started: if that rank started
later than the op itself, the path goes on at that rank's start, and the time since then is the transfer from there.
(As in `metrics`, packing counts as transfer: a trace of spans cannot tell it apart.) Time that no dependency explains
is overhead: threads that wake up, or a rank that was held up. The steps follow each other without gaps and fill the
window exactly, so their shares say what would have to get faster for the epoch to get faster.
"""

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from halocast.reports.intervals import Interval
from halocast.reports.metrics import COMMUNICATION, pacing, steady_window
from halocast.schedule.ir import Lane, Op, Schedule
from halocast.schedule.trace import Span, Trace

Instance = tuple[int, str, int]  # rank, op, epoch


class StepKind(StrEnum):
    COMPUTE = "compute"
    TRANSFER = "transfer"
    OVERHEAD = "overhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stretch of the path, in an instance of `op` on `rank`. The rank on which the path goes on is `source`: another
    one if the op had to wait for that rank's bytes."""

    rank: int
    op: str
    epoch: int
    kind: StepKind
    source: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """All steps of one kind of one op on one rank: seconds per epoch, and their share of the epoch."""

    rank: int
    op: str
    kind: StepKind
    seconds: float
    share: float


def critical_path(trace: Trace, schedule: Schedule, warmup_epochs: int) -> tuple[Step, ...]:
    """The steps, in order of time, that fill the window of the rank that ends last."""
    start_s, now = last_window(trace, warmup_epochs)
    causes = Causes(trace, schedule)
    steps: list[Step] = []
    span = _last(trace)
    while span is not None and now > start_s:
        source = causes.last_to_come(span)
        kind = StepKind.TRANSFER if span.kind in COMMUNICATION else StepKind.COMPUTE
        steps.append(_step(span, kind, source.rank, max(start_s, source.start_s), now))
        now, span = steps[-1].start_s, causes.last_to_end(source)
        ready_s = max(start_s, span.end_s) if span is not None else start_s
        if ready_s < now:
            steps.append(_step(source, StepKind.OVERHEAD, source.rank, ready_s, now))
            now = ready_s
    return tuple(reversed(steps))


def shares(path: tuple[Step, ...], num_epochs: int) -> list[Share]:
    """Shares of the critical path by rank, op and kind, the largest first."""
    sums: dict[tuple[int, str, StepKind], float] = defaultdict(float)
    for step in path:
        sums[step.rank, step.op, step.kind] += step.end_s - step.start_s
    whole = path[-1].end_s - path[0].start_s if path else 0.0
    parts = [
        Share(rank=rank, op=op, kind=kind, seconds=seconds / num_epochs, share=seconds / whole)
        for (rank, op, kind), seconds in sums.items()
        if seconds > 0
    ]
    return sorted(parts, key=lambda item: (-item.seconds, item.rank, item.op))


def last_window(trace: Trace, warmup_epochs: int) -> Interval:
    """The steady window of the rank that ends last."""
    last = _last(trace)
    return steady_window(list(trace.of_rank(last.rank)), warmup_epochs) if last is not None else (0.0, 0.0)


def _last(trace: Trace) -> Span | None:
    return max(pacing(trace.spans), key=lambda span: (span.end_s, span.epoch, -span.rank), default=None)


def _step(span: Span, kind: StepKind, source: int, start_s: float, end_s: float) -> Step:
    """A step of the path; one that would end before it starts is empty: clocks of different hosts may disagree."""
    return Step(
        rank=span.rank,
        op=span.op,
        epoch=span.epoch,
        kind=kind,
        source=source,
        start_s=min(start_s, end_s),
        end_s=end_s,
    )


class Causes:
    """The spans that every span of a trace had to wait for."""

    def __init__(self, trace: Trace, schedule: Schedule) -> None:
        self._schedule = schedule
        self._spans = {(span.rank, span.op, span.epoch): span for span in trace.spans}
        self._before = _lane_order(trace, schedule)
        self._senders: dict[tuple[int, str], tuple[int, ...]] = {}

    def last_to_come(self, span: Span) -> Span:
        """The op of this name that started last among the span itself and those it gets something from."""
        key = span.rank, span.op
        if key not in self._senders:
            self._senders[key] = self._schedule.senders(self._op(span))
        peers = [self._spans.get((rank, span.op, span.epoch)) for rank in self._senders[key]]
        return max([span, *(peer for peer in peers if peer is not None)], key=lambda peer: peer.start_s)

    def last_to_end(self, span: Span) -> Span | None:
        """The span that ended last among those that this one waited for before it started."""
        waited = [self._before.get((span.rank, span.op, span.epoch))]
        for source, epoch in self._schedule.awaits(self._op(span), span.epoch):
            waited.append(self._spans.get((source.rank, source.name, epoch)))
        return max((one for one in waited if one is not None), key=lambda one: one.end_s, default=None)

    def _op(self, span: Span) -> Op:
        op = self._schedule.find(span.rank, span.op)
        assert op is not None, f"{span.op} of rank {span.rank} is not in the schedule"
        return op


def _lane_order(trace: Trace, schedule: Schedule) -> dict[Instance, Span]:
    """The span before every instance on its lane."""
    place = {(op.rank, op.name): k for k, op in enumerate(schedule.ops)}
    lanes: dict[tuple[int, Lane], list[Span]] = defaultdict(list)
    for span in sorted(trace.spans, key=lambda span: (span.epoch, place[span.rank, span.op])):
        lanes[span.rank, span.lane].append(span)
    return {(b.rank, b.op, b.epoch): a for spans in lanes.values() for a, b in pairwise(spans)}
