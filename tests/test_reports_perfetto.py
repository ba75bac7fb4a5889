"""Perfetto files: slices of a thread nest, arrows start and end in slices, counters agree with the passes."""

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from schedules import legal_schedules, op, two_rank_exchange

from halocast.cluster.catalogue import load_cluster
from halocast.exec.run.null import execute_null
from halocast.reports.formats.perfetto import write_perfetto
from halocast.schedule.ir import Exchange, Lane, Matrix, Schedule
from halocast.schedule.passes import memory
from halocast.schedule.trace import LinkUse, Trace, span_of
from halocast.sim.engine import simulate

Event = dict[str, Any]
CLUSTER = load_cluster("cpu-local", gpus=4)


def written(path: Path, *traces: tuple[Trace, Schedule]) -> dict[str, Any]:
    write_perfetto(traces, path / "t.json")
    document: dict[str, Any] = json.loads((path / "t.json").read_text())
    return document


def of(events: Sequence[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def ns(microseconds: float) -> int:
    """As Perfetto reads it; the file has whole nanoseconds."""
    value = microseconds * 1000
    assert value == pytest.approx(round(value), abs=0.1)  # a clock of hours leaves hundredths
    return round(value)


def threads(events: Sequence[Event]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Slices per thread as (start, end) in nanoseconds."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in of(events, "X"):
        found[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    return found


def require_sound(events: Sequence[Event]) -> None:
    """What any file has to keep to."""
    slices = threads(events)
    for mine in slices.values():
        assert all(a[0] <= a[1] <= b[0] for a, b in pairwise(sorted(mine)))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(slices) <= named
    assert {event["pid"] for event in events} == {e["pid"] for e in events if e["name"] == "process_name"}
    require_arrows(events, slices)
    for event in of(events, "C"):
        assert event["name"] == "memory" or 0 <= event["args"]["utilisation"] <= 1


def require_arrows(events: Sequence[Event], slices: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
    starts, ends = of(events, "s"), of(events, "f")
    assert [e["id"] for e in starts] == [e["id"] for e in ends]
    assert len({e["id"] for e in starts}) == len(starts)
    assert all(e["bp"] == "e" for e in ends)
    for a, b in zip(starts, ends, strict=True):
        assert a["ts"] <= b["ts"]
        assert (a["name"], a["cat"]) == (b["name"], b["cat"])
    for event in (*starts, *ends):
        at = ns(event["ts"])
        inside = [s for s in slices[event["pid"], event["tid"]] if s[0] <= at < s[1] or at == s[0] == s[1]]
        assert inside


def two_epochs() -> tuple[Trace, Schedule]:
    """swap is awaited one epoch later; rank 1 is late for it in epoch 0."""
    schedule = two_rank_exchange(lag=1)
    times = {
        (0, "make"): [(0, 2), (6, 8)],
        (0, "swap"): [(2, 6), (8, 9)],
        (0, "use"): [(2, 3), (8, 10)],
        (1, "make"): [(0, 5), (6, 8)],
        (1, "swap"): [(5, 6), (8, 9)],
        (1, "use"): [(5, 6), (8, 9)],
    }
    spans = [
        span_of(o, epoch, start, end, schedule.num_bytes(o))
        for o in schedule.ops
        for epoch, (start, end) in enumerate(times[o.rank, o.name])
    ]
    link = LinkUse(
        name="cpu of host 0", bytes_per_s=10, num_bytes=40, times_s=(2, 3, 5, 6, 8, 9), rates=(10, 5, 0, 8, 0, 2)
    )
    trace = Trace(source="simulated", num_ranks=2, num_epochs=2, spans=tuple(spans), links=(link,), meta={"a": "b"})
    return trace, schedule


def test_a_file_by_hand(tmp_path: Path) -> None:
    document = written(tmp_path, two_epochs())
    events = document["traceEvents"]
    require_sound(events)
    assert (document["displayTimeUnit"], document["otherData"]) == ("ms", {"traces": [{"a": "b"}]})
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0 (predicted)", 1: "rank 1 (predicted)", 2: "network (predicted)"}
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ranks = {(rank, tid): name for rank in (0, 1) for tid, name in ((0, "compute"), (1, "halo"), (8, "epochs"))}
    assert lanes == ranks | {(2, 0): "cpu of host 0"}
    first = {"ph": "X", "pid": 0, "ts": 0.0}
    make, swap = (next(e for e in events if e["name"] == name) for name in ("make", "swap"))
    assert make == first | {
        "name": "make",
        "cat": "kernel",
        "tid": 0,
        "dur": 2e6,
        "args": make["args"],
    }
    assert make["args"]["correlation"] == make["args"]["External id"]
    assert (make["args"]["device"], make["args"]["stream"]) == (0, 0)
    assert swap["args"] == {"epoch": 0, "bytes": 12, "kind": "exchange", "is": "predicted"}
    assert swap["cat"] == "communication"


def test_steps_end_when_the_slowest_lane_is_done_with_the_epoch(tmp_path: Path) -> None:
    events = written(tmp_path, two_epochs())["traceEvents"]
    steps = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in of(events, "X") if e["name"].startswith("Prof")]
    assert steps == [
        (0, "ProfilerStep#0", 0, 6e6),
        (0, "ProfilerStep#1", 6e6, 4e6),
        (1, "ProfilerStep#0", 0, 6e6),
        (1, "ProfilerStep#1", 6e6, 3e6),
    ]


def test_a_link_has_a_slice_per_busy_period_and_a_counter(tmp_path: Path) -> None:
    events = [e for e in written(tmp_path, two_epochs())["traceEvents"] if e["pid"] == 2]
    busy = [(e["ts"], e["dur"], e["args"]) for e in of(events, "X")]
    assert busy == [
        (2e6, 3e6, {"bytes": 20, "utilisation": pytest.approx(2 / 3)}),
        (6e6, 2e6, {"bytes": 16, "utilisation": 0.8}),
    ]
    levels = [(e["name"], e["ts"], e["args"]["utilisation"]) for e in of(events, "C")]
    assert levels[:3] == [("cpu of host 0 utilisation", t, u) for t, u in ((2e6, 1), (3e6, 0.5), (5e6, 0))]


def test_arrows_go_to_waiters_on_other_lanes_and_from_senders_to_receivers(tmp_path: Path) -> None:
    """Within a rank make -> swap twice and swap of epoch 0 -> use of epoch 1; between ranks each swap both ways."""
    events = written(tmp_path, two_epochs())["traceEvents"]
    ends = {e["id"]: e for e in of(events, "f")}
    arrows = [(e["name"], e["pid"], e["ts"], ends[e["id"]]["pid"], ends[e["id"]]["ts"]) for e in of(events, "s")]
    last = 0.001  # a nanosecond before the end of a slice
    assert sorted(arrows) == sorted(
        [
            *[("after", 0, 2e6 - last, 0, 2e6), ("after", 0, 8e6 - last, 0, 8e6), ("after", 0, 6e6 - last, 0, 8e6)],
            *[("after", 1, 5e6 - last, 1, 5e6), ("after", 1, 8e6 - last, 1, 8e6), ("after", 1, 6e6 - last, 1, 8e6)],
            *[("sends", 1, 5e6, 0, 6e6 - last), ("sends", 1, 8e6, 0, 9e6 - last)],
            *[("sends", 0, 2e6, 1, 6e6 - last), ("sends", 0, 8e6, 1, 9e6 - last)],
        ]
    )


@given(legal_schedules())
def test_files_of_random_schedules_are_sound_and_memory_peaks_where_the_pass_says(
    tmp_path_factory: pytest.TempPathFactory, schedule: Schedule
) -> None:
    trace = simulate(schedule, CLUSTER, 6, record=True)
    events = written(tmp_path_factory.mktemp("p"), (trace, schedule))["traceEvents"]
    require_sound(events)
    levels: dict[int, list[int]] = defaultdict(list)
    for event in of(events, "C"):
        if event["name"] == "memory":
            levels[event["pid"]].append(event["args"]["bytes"])
    peaks = {rank: memory(schedule, rank).peak_bytes for rank in range(schedule.num_ranks) if schedule.by_rank[rank]}
    assert {rank: max(found) for rank, found in levels.items()} == peaks


def test_predicted_and_measured_are_two_groups_of_processes(tmp_path: Path) -> None:
    schedule = two_rank_exchange()
    predicted = simulate(schedule, load_cluster("cpu-local"), 3, record=True)
    measured = Trace(source="executed", num_ranks=2, num_epochs=3, spans=predicted.spans)
    events = written(tmp_path, (predicted, schedule), (measured, schedule))["traceEvents"]
    require_sound(events)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [names[pid] for pid in sorted(names)] == [
        *("rank 0 (predicted)", "rank 1 (predicted)", "network (predicted)"),
        *("rank 0 (measured)", "rank 1 (measured)"),
    ]
    ids = [e["args"]["External id"] for e in of(events, "X") if e["cat"] == "kernel"]
    assert len(set(ids)) == len(ids) == 24


def test_arrows_between_many_ranks_are_left_out_and_the_file_says_so(tmp_path: Path) -> None:
    ranks = 17
    work = Exchange(matrix="halo", row_bytes=4)
    ops = tuple(op("swap", rank, Lane.HALO, work=work) for rank in range(ranks))
    counts = np.ones((ranks, ranks), dtype=np.int64) - np.eye(ranks, dtype=np.int64)
    schedule = Schedule(num_ranks=ranks, ops=ops, matrices=(Matrix("halo", counts),))
    trace = Trace(source="t", num_ranks=ranks, num_epochs=1, spans=tuple(span_of(o, 0, 0.0, 1.0, 64) for o in ops))
    document = written(tmp_path, (trace, schedule))
    assert of(document["traceEvents"], "s") == []
    assert document["otherData"]["left out"] == "arrows between ranks, where there are more than 16"


def test_clocks_that_disagree_give_no_arrow_back_in_time(tmp_path: Path) -> None:
    schedule = two_rank_exchange()
    swaps = [o for o in schedule.ops if o.name == "swap"]
    spans = tuple(span_of(o, 0, 100.0 * o.rank, 100.0 * o.rank + 1, 12) for o in swaps)
    events = written(tmp_path, (Trace(source="t", num_ranks=2, num_epochs=1, spans=spans), schedule))["traceEvents"]
    require_sound(events)
    assert [(e["ph"], e["pid"]) for e in events if e["ph"] in "sf"] == [("s", 0), ("f", 1)]


def test_a_run_of_real_threads_is_sound_too(tmp_path: Path) -> None:
    schedule = two_rank_exchange(lag=1, every=2)
    events = written(tmp_path, (execute_null(schedule, 5), schedule))["traceEvents"]
    require_sound(events)
