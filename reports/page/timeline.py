"""A trace as columns of small numbers that a page draws, and the same as a table for those who cannot see it.

A row is a lane of a rank. Times are whole nanoseconds since the first shown span began; a start is told as the distance
from the start before it. Long traces are cut to their last epochs, the steady ones, and to their first ranks: what is
left out is said.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from halocast.reports.comparison import MethodResult
from halocast.reports.metrics import pacing
from halocast.schedule.ir import Kind, Lane
from halocast.schedule.trace import Span, Trace

NANO = 1e9
MOST_RANKS = 32
MOST_OPS = 40  # in the table
CLASSES = {
    Kind.COMPUTE: "compute",
    Kind.SAMPLE: "sample",
    Kind.EXCHANGE: "exchange",
    Kind.SEND: "exchange",
    Kind.RECV: "exchange",
    Kind.ALLREDUCE: "reduce",
    Kind.ALLGATHER: "exchange",
    Kind.REDUCE_SCATTER: "reduce",
    Kind.BROADCAST: "exchange",
    Kind.BARRIER: "barrier",
    Kind.PUSH: "store",
    Kind.PULL: "store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The part of a trace that is drawn."""

    spans: tuple[Span, ...]
    first_epoch: int
    num_epochs: int
    num_ranks: int
    left_out: str

    @property
    def start_s(self) -> float:
        return min((span.start_s for span in self.spans), default=0.0)


def shown(trace: Trace, most_spans: int) -> Shown:
    """Cut a trace to as many of its last epochs as there is room for, at least one; then to as many of its ranks."""
    ranks = min(trace.num_ranks, MOST_RANKS)
    kept = [span for span in trace.spans if span.rank < ranks]
    sizes = _sizes(kept, trace.num_epochs)
    first, total = trace.num_epochs - 1, sizes[-1] if sizes else 0
    while first > 0 and total + sizes[first - 1] <= most_spans:
        first -= 1
        total += sizes[first]
    while ranks > 1 and total > most_spans:
        ranks -= 1
        total = sum(span.rank < ranks and span.epoch >= first for span in kept)
    spans = tuple(span for span in kept if span.epoch >= first and span.rank < ranks)
    return Shown(
        spans=spans,
        first_epoch=first,
        num_epochs=trace.num_epochs - first,
        num_ranks=ranks,
        left_out=_left_out(trace, first, ranks),
    )


def _sizes(spans: list[Span], num_epochs: int) -> list[int]:
    sizes = [0] * num_epochs
    for span in spans:
        sizes[span.epoch] += 1
    return sizes


def _left_out(trace: Trace, first: int, ranks: int) -> str:
    epochs = f"epochs 0 to {first - 1}" if first > 1 else "epoch 0"
    said = [epochs] * (first > 0) + [f"ranks {ranks} to {trace.num_ranks - 1}"] * (ranks < trace.num_ranks)
    return f"Not shown here: {' and '.join(said)}; the trace files have all." if said else ""


def timeline(result: MethodResult, most_spans: int) -> dict[str, Any]:
    """The timeline of a trace as the page's script draws it."""
    part = shown(result.trace, most_spans)
    lanes: dict[tuple[int, Lane], list[Span]] = defaultdict(list)
    for span in part.spans:
        lanes[span.rank, span.lane].append(span)
    ops = list(dict.fromkeys((span.op, span.kind) for span in part.spans))
    return {
        "ops": [op for op, _ in ops],
        "classes": [CLASSES[kind] for _, kind in ops],
        "kinds": [str(kind) for _, kind in ops],
        "rows": [
            {"rank": rank, "lane": str(lane), **_columns(spans, ops, part.start_s)}
            for (rank, lane), spans in sorted(lanes.items())
        ],
        "ends": _epoch_ends(part),
        "end": _ns(max((span.end_s for span in part.spans), default=0.0) - part.start_s),
        "count": len(part.spans),
    }


def _columns(spans: list[Span], ops: list[tuple[str, Kind]], start_s: float) -> dict[str, list[int]]:
    places = {op: place for place, op in enumerate(ops)}
    ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
    starts = [_ns(span.start_s - start_s) for span in ordered]
    return {
        "start": [now - before for now, before in zip(starts, [0, *starts], strict=False)],
        "length": [_ns(span.end_s - span.start_s) for span in ordered],
        "op": [places[span.op, span.kind] for span in ordered],
        "epoch": [span.epoch for span in ordered],
        "bytes": [span.num_bytes for span in ordered],
    }


def _epoch_ends(part: Shown) -> list[list[int]]:
    """Pairs [epoch, when the first rank's compute lane is done with it]."""
    ends: dict[int, float] = {}
    for span in pacing([span for span in part.spans if span.rank == 0]):
        ends[span.epoch] = max(ends.get(span.epoch, 0.0), span.end_s)
    return [[epoch, _ns(end_s - part.start_s)] for epoch, end_s in sorted(ends.items())]


def _ns(seconds: float) -> int:
    return round(seconds * NANO)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTotal:
    """All instances of an op in the steady epochs, over all ranks; seconds and bytes of one instance on average."""

    op: str
    lane: str
    kind: str
    count: int
    mean_s: float
    longest_s: float
    mean_bytes: float


def op_totals(trace: Trace, warmup_epochs: int) -> list[OpTotal]:
    """The totals of ops in the order in which they first run; of very many ops, those of one verb together."""
    steady = [span for span in trace.spans if span.epoch >= warmup_epochs]
    many = len({span.op for span in steady}) > MOST_OPS
    groups: dict[tuple[str, Lane, Kind], list[Span]] = defaultdict(list)
    for span in steady:
        groups[f"{span.op.partition('.')[0]}.*" if many else span.op, span.lane, span.kind].append(span)
    return [_total(op, lane, kind, spans) for (op, lane, kind), spans in groups.items()]


def _total(op: str, lane: Lane, kind: Kind, spans: list[Span]) -> OpTotal:
    lengths = [span.end_s - span.start_s for span in spans]
    return OpTotal(
        op=op,
        lane=str(lane),
        kind=str(kind),
        count=len(spans),
        mean_s=sum(lengths) / len(spans),
        longest_s=max(lengths),
        mean_bytes=sum(span.num_bytes for span in spans) / len(spans),
    )
