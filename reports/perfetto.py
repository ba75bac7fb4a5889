"""Traces as Chrome trace-event JSON, which Perfetto opens: a process per rank, a thread per lane, a slice per span."""

import json
from pathlib import Path
from typing import Any

from halocast.base.files import whole_file
from halocast.schedule.ir import Kind, Lane
from halocast.schedule.trace import Span, Trace

MICRO = 1e6
HOW = {"simulated": "predicted", "executed": "measured"}


def write_perfetto(trace: Trace, path: Path) -> None:
    document = {
        "traceEvents": [*_names(trace), *(_slice(span, trace.source) for span in trace.spans)],
        "displayTimeUnit": "ms",
        "otherData": trace.meta,
    }
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(document), encoding="utf-8")


def _names(trace: Trace) -> list[dict[str, Any]]:
    """Ranks in order, and within a rank its lanes in their fixed order."""
    events: list[dict[str, Any]] = []
    for rank in range(trace.num_ranks):
        label = {"name": f"rank {rank} ({HOW.get(trace.source, trace.source)})"}
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": label})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    for rank, lane in sorted({(span.rank, _tid(span.lane)) for span in trace.spans}):
        name = {"name": str(list(Lane)[lane])}
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": name})
    return events


def _tid(lane: Lane) -> int:
    return list(Lane).index(lane)


def _slice(span: Span, source: str) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.op,
        "cat": "kernel" if span.kind in (Kind.COMPUTE, Kind.SAMPLE) else "communication",
        "pid": span.rank,
        "tid": _tid(span.lane),
        "ts": span.start_s * MICRO,
        "dur": (span.end_s - span.start_s) * MICRO,
        "args": {"epoch": span.epoch, "bytes": span.num_bytes, "kind": str(span.kind), "is": HOW.get(source, source)},
    }
