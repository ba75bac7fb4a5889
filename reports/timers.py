"""What stopwatches around every wait of the compute lane would show: how published code takes its times.

A gap before an op counts for the communication that the op waited for last, wherever bytes moved meanwhile: the wait
for a slower rank is part of it. `halocast.reports.metrics` has our own definitions, which tell the two apart.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from halocast.schedule.ir import Kind, Lane, Schedule
from halocast.schedule.trace import Span, Trace

IMBALANCE, BUBBLE = "imbalance", "bubble"
Key = tuple[int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Seconds per steady epoch of one rank; a wait is keyed by the kind waited for, or is imbalance or bubble."""

    epoch_s: float
    compute_s: float
    by_verb: Mapping[str, float]  # of what is computed
    waits: Mapping[str, float]


def timers(trace: Trace, schedule: Schedule, warmup_epochs: int) -> tuple[Timers, ...]:
    """The stopwatches of every rank. A receiver in a pipeline, or who meets others after each slot, waits for work
    until the sender starts: that is bubble, and imbalance if it has had work in that slot."""
    by_key = {(span.rank, span.op, span.epoch): span for span in trace.spans}
    lanes: dict[int, list[Span]] = defaultdict(list)
    for span in trace.spans:
        if span.lane == Lane.COMPUTE:
            lanes[span.rank].append(span)
    steady = trace.num_epochs - warmup_epochs
    return tuple(_rank(lanes[rank], schedule, by_key, warmup_epochs, steady) for rank in range(trace.num_ranks))


def _rank(
    spans: Sequence[Span], schedule: Schedule, by_key: Mapping[Key, Span], warmup_epochs: int, num_epochs: int
) -> Timers:
    spans = sorted(spans, key=lambda span: (span.start_s, span.end_s))
    verbs: dict[str, float] = defaultdict(float)
    waits: dict[str, float] = defaultdict(float)
    begins = ended = max((span.end_s for span in spans if span.epoch < warmup_epochs), default=0.0)
    meets, worked = any(span.kind is Kind.BARRIER for span in spans), False
    for span in spans:
        if span.epoch < warmup_epochs:
            continue
        idle = IMBALANCE if meets and worked else BUBBLE
        for kind, seconds in _gap(span, ended, schedule, by_key, idle):
            waits[kind] += seconds / num_epochs
        if span.kind is Kind.BARRIER:
            waits[idle] += (span.end_s - span.start_s) / num_epochs
        else:
            verbs[span.op.partition(".")[0]] += (span.end_s - span.start_s) / num_epochs
        ended, worked = max(ended, span.end_s), span.kind is not Kind.BARRIER
    return Timers(
        epoch_s=(ended - begins) / num_epochs, compute_s=sum(verbs.values()), by_verb=dict(verbs), waits=dict(waits)
    )


def _gap(
    span: Span, ended: float, schedule: Schedule, by_key: Mapping[Key, Span], idle: str
) -> list[tuple[str, float]]:
    """The time since `ended` by what the op waited for last; a pipeline's transfer is split where it began to move."""
    gap = span.start_s - ended
    if gap <= 0:
        return []
    last = _last_awaited(span, schedule, by_key)
    if last is None:
        return [(idle, gap)]
    if last.kind is not Kind.RECV:
        return [(last.kind, gap)]
    op = schedule.find(last.rank, last.op)
    assert op is not None
    sender = by_key.get((schedule.senders(op)[0], last.op, last.epoch), last)
    waited = min(max(sender.start_s - ended, 0.0), gap)
    return [(idle, waited), (last.kind, gap - waited)]


def _last_awaited(span: Span, schedule: Schedule, by_key: Mapping[Key, Span]) -> Span | None:
    op = schedule.find(span.rank, span.op)
    assert op is not None
    awaited = (by_key.get((source.rank, source.name, epoch)) for source, epoch in schedule.awaits(op, span.epoch))
    others = [waited for waited in awaited if waited is not None and waited.lane != Lane.COMPUTE]
    return max(others, key=lambda waited: waited.end_s, default=None)
