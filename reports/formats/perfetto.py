"""Traces as Chrome trace-event JSON, which Perfetto opens, several in one file if wanted (predicted and measured).

A process per rank with a thread per lane, and one for the network with a thread per link direction. Slices: spans on
lanes, `ProfilerStep#n` from the end of a rank's epoch to the end of its next, busy periods on links. Arrows: what an op
waits for on another lane, and who sends to whom. Counters: live bytes per rank, utilisation per link. Times are whole
nanoseconds, as Perfetto keeps them: rounded there, slices that touch could overlap, and slices of a thread must nest.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from halocast.base.files import whole_file
from halocast.reports.network import busy_periods
from halocast.reports.summary import HOW
from halocast.schedule.ir import COLLECTIVE, ROLES, Kind, Lane, Op, Schedule, all_lanes
from halocast.schedule.passes import live
from halocast.schedule.trace import LinkUse, Span, Trace

Event = dict[str, Any]

NANO, MICRO = 1e9, 1e3  # per second; nanoseconds per microsecond, the unit of the file
DEVICE_WORK = frozenset({Kind.COMPUTE, Kind.SAMPLE})
STEPS_TID = len(ROLES)  # lanes with an index come after it
MOST_RANKS = 16  # arrows between more ranks would hide everything else


def write_perfetto(traces: Sequence[tuple[Trace, Schedule]], path: Path) -> None:
    groups, first_pid = [], 0
    for trace, schedule in traces:
        groups.append(_Group(trace, schedule, first_pid))
        first_pid += trace.num_ranks + 1
    ids = count(1)
    events = (event for group in groups for event in group.events(ids))
    other = {"traces": [trace.meta for trace, _ in traces]} | _left_out(traces)
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        out.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(other)}, "traceEvents": [\n')
        for k, event in enumerate(events):  # one by one: a large trace is never in memory as text
            out.write((",\n" if k else "") + json.dumps(event))
        out.write("\n]}\n")


def _left_out(traces: Sequence[tuple[Trace, Schedule]]) -> Event:
    if all(trace.num_ranks <= MOST_RANKS for trace, _ in traces):
        return {}
    return {"left out": f"arrows between ranks, where there are more than {MOST_RANKS}"}


def _ns(seconds: float) -> int:
    return round(seconds * NANO)


@dataclass(frozen=True)  # no slots: what is cached needs a place
class _Group:
    """The processes of one trace."""

    trace: Trace
    schedule: Schedule
    first_pid: int

    @cached_property
    def by_rank(self) -> dict[int, list[Span]]:
        spans: dict[int, list[Span]] = defaultdict(list)
        for span in self.trace.spans:
            spans[span.rank].append(span)
        return spans

    @cached_property
    def spans(self) -> dict[tuple[int, str, int], Span]:
        return {(span.rank, span.op, span.epoch): span for span in self.trace.spans}

    @property
    def how(self) -> str:
        return HOW.get(self.trace.source, self.trace.source)

    def events(self, ids: Iterator[int]) -> Iterator[Event]:
        """All events of the trace, slices before arrows: an arrow that ends where a slice starts is then in it."""
        yield from self.names()
        for span in self.trace.spans:
            yield self.span(span, next(ids))
        for rank in range(self.trace.num_ranks):
            yield from self.steps(rank)
            yield from self.memory(rank)
        for tid, link in enumerate(self.trace.links):
            yield from self.link(tid, link)
        for op in self.schedule.ops:
            yield from self.arrows(op, ids)

    def pid(self, rank: int) -> int:
        return self.first_pid + rank

    @cached_property
    def lanes(self) -> list[Lane]:
        return all_lanes(span.lane for span in self.trace.spans)

    def tid(self, lane: Lane) -> int:
        place = self.lanes.index(lane)
        return place + (place >= STEPS_TID)

    @property
    def network_pid(self) -> int:
        return self.pid(self.trace.num_ranks)

    def names(self) -> Iterator[Event]:
        """Names of processes and threads: ranks in order, in each its steps, then its lanes; then the network."""
        method = dict(self.schedule.meta).get("method", "")
        label = ", ".join(part for part in (method, self.how) if part)
        for rank in range(self.trace.num_ranks):
            yield from _process(self.pid(rank), f"rank {rank} ({label})")
            used = sorted({span.lane for span in self.by_rank[rank]})
            if used:
                yield from _thread(self.pid(rank), STEPS_TID, "epochs", 0)
            for lane in used:
                yield from _thread(self.pid(rank), self.tid(lane), str(lane), 1 + self.lanes.index(lane))
        if self.trace.links:
            yield from _process(self.network_pid, f"network ({label})")
            for tid, link in enumerate(self.trace.links):
                yield from _thread(self.network_pid, tid, link.name, tid)

    def span(self, span: Span, number: int) -> Event:
        args: Event = {"epoch": span.epoch, "bytes": span.num_bytes, "kind": str(span.kind), "is": self.how}
        tid = self.tid(span.lane)
        if span.kind in DEVICE_WORK:
            args |= {"device": span.rank, "stream": tid, "External id": number, "correlation": number}
        category = "kernel" if span.kind in DEVICE_WORK else "communication"
        return _slice(span.op, category, (self.pid(span.rank), tid), (span.start_s, span.end_s), args)

    def steps(self, rank: int) -> Iterator[Event]:
        """A slice per epoch of a rank, which is over when the slowest of its lanes is done with it."""
        ends: dict[int, float] = defaultdict(float)
        for span in self.by_rank[rank]:
            ends[span.epoch] = max(ends[span.epoch], span.end_s)
        start_s = min((span.start_s for span in self.by_rank[rank]), default=0.0)
        for epoch, end_s in sorted(ends.items()):
            if end_s > start_s:
                where = self.pid(rank), STEPS_TID
                yield _slice(f"ProfilerStep#{epoch}", "user_annotation", where, (start_s, end_s), {"epoch": epoch})
                start_s = end_s

    def memory(self, rank: int) -> Iterator[Event]:
        for time_s, num_bytes in live_over_time(self.by_rank[rank], live_bytes(self.schedule, rank)):
            yield _counter("memory", self.pid(rank), time_s, {"bytes": num_bytes})

    def link(self, tid: int, link: LinkUse) -> Iterator[Event]:
        for busy in busy_periods(link):
            args = {"bytes": round(busy.num_bytes), "utilisation": busy.utilisation}
            yield _slice("busy", "link", (self.network_pid, tid), (busy.start_s, busy.end_s), args)
        for time_s, rate in zip(link.times_s, link.rates, strict=True):
            share = min(1.0, rate / link.bytes_per_s)
            yield _counter(f"{link.name} utilisation", self.network_pid, time_s, {"utilisation": share})

    def arrows(self, op: Op, ids: Iterator[int]) -> Iterator[Event]:
        """Arrows into every instance of an op: from what it waits for on other lanes, and from those who send to it."""
        for epoch in filter(op.exists, range(self.trace.num_epochs)):
            target = self.spans.get((op.rank, op.name, epoch))
            if target is None:
                continue
            for source, instance in self.schedule.awaits(op, epoch):
                before = self.spans.get((source.rank, source.name, instance))
                if before is not None and (source.rank, source.lane) != (op.rank, op.lane):
                    yield from self.arrow("after", before, target, (_end(before), _ns(target.start_s)), next(ids))
            for rank in self.senders(op):
                sender = self.spans.get((rank, op.name, epoch))
                if sender is not None:
                    yield from self.arrow("sends", sender, target, (_ns(sender.start_s), _end(target)), next(ids))

    def senders(self, op: Op) -> tuple[int, ...]:
        """The ranks that arrows come from: of an all-reduce the neighbour in the ring, of a barrier none."""
        if self.trace.num_ranks > MOST_RANKS:
            return ()
        if op.kind in COLLECTIVE:
            return tuple(np.flatnonzero(self.schedule.received(op)).tolist())
        return self.schedule.senders(op)

    def arrow(self, name: str, source: Span, target: Span, ns: tuple[int, int], number: int) -> Iterator[Event]:
        if ns[0] > ns[1]:
            return  # clocks of different hosts disagree
        common = {"name": name, "cat": "dependency", "id": number}
        for phase, span, at in (("s", source, ns[0]), ("f", target, ns[1])):
            where = {"pid": self.pid(span.rank), "tid": self.tid(span.lane), "ts": at / MICRO}
            yield {"ph": phase, **common, **where} | ({"bp": "e"} if phase == "f" else {})


def _end(span: Span) -> int:
    """The last nanosecond that is still inside the slice."""
    return max(_ns(span.start_s), _ns(span.end_s) - 1)


def _slice(name: str, category: str, where: tuple[int, int], times_s: tuple[float, float], args: Event) -> Event:
    start, end = _ns(times_s[0]), _ns(times_s[1])
    times = {"ts": start / MICRO, "dur": (end - start) / MICRO}
    return {"ph": "X", "name": name, "cat": category, "pid": where[0], "tid": where[1], **times, "args": args}


def _counter(name: str, pid: int, time_s: float, args: Event) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "ts": _ns(time_s) / MICRO, "args": args}


def _process(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}


def _thread(pid: int, tid: int, name: str, place: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": place}}


def live_bytes(schedule: Schedule, rank: int) -> dict[str, int]:
    """Bytes of the rank's buffers that are alive at each of its ops: what passes.memory finds the peak of."""
    pairs = zip(schedule.by_rank[rank], live(schedule, rank), strict=True)
    return {op.name: sum(alive.values()) for op, alive in pairs}


def live_over_time(spans: Iterable[Span], alive: dict[str, int]) -> list[tuple[float, int]]:
    """Pairs (time, bytes alive from then on) for the spans of one rank: the most that any op under way needs."""
    points: list[tuple[float, int]] = []
    newest: dict[Lane, Span] = {}
    for span in sorted(spans, key=lambda span: span.start_s):
        newest[span.lane] = span
        running = [other for other in newest.values() if other is span or other.end_s > span.start_s]
        points.append((span.start_s, max(alive[other.op] for other in running)))
    return points
