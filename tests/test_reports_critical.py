"""The critical path: literal timelines, and on random schedules a chain of real dependencies that fills the window."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from schedules import legal_schedules, op, two_rank_exchange

from halocast.cluster.catalogue import load_cluster
from halocast.exec.run.null import execute_null
from halocast.reports.critical import Share, Step, StepKind, critical_path, last_window, shares
from halocast.reports.metrics import COMMUNICATION, measure, pacing
from halocast.schedule.ir import Kernel, Lane, Op, Pull, Schedule
from halocast.schedule.passes import steady_epochs
from halocast.schedule.trace import Span, Trace, span_of
from halocast.sim.cost import op_seconds
from halocast.sim.engine import simulate
from halocast.sim.network.links import UnlimitedLinks

COMPUTE, TRANSFER, OVERHEAD = StepKind
CLUSTER = load_cluster("cpu-local", gpus=4)


def trace_of(schedule: Schedule, *times: tuple[int, str, int, float, float]) -> Trace:
    """Spans given as (rank, op, epoch, start, end)."""
    spans = []
    for rank, name, epoch, start, end in times:
        found = schedule.find(rank, name)
        assert found is not None
        spans.append(span_of(found, epoch, start, end, 0))
    last = max(time[2] for time in times)
    return Trace(source="t", num_ranks=schedule.num_ranks, num_epochs=last + 1, spans=tuple(spans))


def in_short(path: tuple[Step, ...]) -> list[tuple[int, str, int, StepKind, float, float]]:
    return [(s.rank, s.op, s.epoch, s.kind, s.start_s, s.end_s) for s in path]


def test_the_path_of_an_epoch_by_hand_goes_through_the_late_rank() -> None:
    """Rank 0 makes until 2 and waits for rank 1, which starts to send at 5; rank 1 wakes up late for its use."""
    schedule = two_rank_exchange()
    trace = trace_of(
        schedule,
        (0, "make", 0, 0, 2),
        (0, "swap", 0, 2, 6),
        (0, "use", 0, 6, 9),
        (1, "make", 0, 0, 5),
        (1, "swap", 0, 5, 6),
        (1, "use", 0, 6.5, 8),
    )
    path = critical_path(trace, schedule, 0)
    assert in_short(path) == [
        (1, "make", 0, COMPUTE, 0, 5),
        (0, "swap", 0, TRANSFER, 5, 6),
        (0, "use", 0, COMPUTE, 6, 9),
    ]
    assert [step.source for step in path] == [1, 1, 0]
    first = Share(rank=1, op="make", kind=COMPUTE, seconds=5, share=5 / 9)
    assert shares(path, 1) == [
        first,
        replace(first, rank=0, op="use", seconds=3, share=3 / 9),
        replace(first, rank=0, op="swap", kind=TRANSFER, seconds=1, share=1 / 9),
    ]


def test_time_that_no_dependency_explains_is_overhead() -> None:
    schedule = two_rank_exchange()
    trace = trace_of(
        schedule,
        (0, "make", 0, 1, 2),
        (0, "swap", 0, 2.5, 4),
        (0, "use", 0, 4, 4),
        (1, "make", 0, 0, 0.5),
        (1, "swap", 0, 0.5, 4),
        (1, "use", 0, 4.25, 6),
    )
    assert in_short(critical_path(trace, schedule, 0)) == [
        (0, "make", 0, OVERHEAD, 0, 1),
        (0, "make", 0, COMPUTE, 1, 2),
        (0, "swap", 0, OVERHEAD, 2, 2.5),
        (1, "swap", 0, TRANSFER, 2.5, 4),
        (1, "use", 0, OVERHEAD, 4, 4.25),
        (1, "use", 0, COMPUTE, 4.25, 6),
    ]


def test_a_lagged_exchange_that_is_slower_than_compute_is_the_path_up_to_the_last_use() -> None:
    """swap takes 4 s and follows itself on its lane; compute needs 2 s and reads the swap before."""
    schedule = two_rank_exchange(lag=1)
    times = [
        one
        for rank in (0, 1)
        for e, made_s in enumerate((0, 2, 6))
        for one in (
            (rank, "make", e, made_s, made_s + 1),
            (rank, "swap", e, 4.0 * e + 1, 4.0 * e + 5),
            (rank, "use", e, 4.0 * e + 1, 4.0 * e + 2),
        )
    ]
    path = critical_path(trace_of(schedule, *times), schedule, 1)
    assert in_short(path) == [
        (0, "swap", 0, TRANSFER, 2, 5),
        (0, "swap", 1, TRANSFER, 5, 9),
        (0, "use", 2, COMPUTE, 9, 10),
    ]
    assert shares(path, 2)[0] == Share(rank=0, op="swap", kind=TRANSFER, seconds=3.5, share=7 / 8)


def test_an_op_that_exists_every_other_epoch_is_awaited_in_its_newest_instance() -> None:
    ops = (
        op("pull", lane=Lane.STORE, work=Pull(num_bytes=4), every=2),
        op("use", after=(("pull", 0),)),
    )
    schedule = Schedule(num_ranks=1, ops=ops)
    trace = trace_of(schedule, (0, "pull", 0, 0, 3), (0, "use", 0, 3, 4), (0, "use", 1, 4, 5))
    assert in_short(critical_path(trace, schedule, 0)) == [
        (0, "pull", 0, TRANSFER, 0, 3),
        (0, "use", 0, COMPUTE, 3, 4),
        (0, "use", 1, COMPUTE, 4, 5),
    ]


def test_clocks_that_disagree_give_empty_steps_and_the_window_is_filled_all_the_same() -> None:
    """Rank 1's clock is 10 s ahead."""
    schedule = two_rank_exchange()
    trace = trace_of(
        schedule,
        *((0, "make", 0, 0, 2), (0, "swap", 0, 2, 6), (0, "use", 0, 6, 30)),
        *((1, "make", 0, 10, 15), (1, "swap", 0, 15, 16), (1, "use", 0, 16, 19)),
    )
    path = critical_path(trace, schedule, 0)
    assert (path[0].start_s, path[-1].end_s) == (0, 30)
    assert all(a.end_s == b.start_s and a.start_s <= a.end_s for a, b in pairwise(path))


def test_a_trace_without_spans_has_no_path() -> None:
    assert critical_path(Trace(source="t", num_ranks=2, num_epochs=1, spans=()), two_rank_exchange(), 0) == ()
    assert shares((), 1) == []


def instances_before(schedule: Schedule, made: dict[tuple[int, str, int], Span], key: tuple[int, str, int]) -> set[str]:
    """Everything an instance waits for before it starts, found by listing its lane's instances from epoch 0 on."""
    rank, name, epoch = key
    me = next(o for o in schedule.ops if (o.rank, o.name) == (rank, name))
    lane = [(o.name, e) for e in range(epoch + 1) for o in schedule.lanes(rank)[me.lane] if o.exists(e)]
    at = lane.index((name, epoch))
    found = {f"{rank}/{lane[at - 1][0]}/{lane[at - 1][1]}"} if at else set()
    for other, lag in me.after:
        older = [e for (r, o, e) in made if (r, o) == (rank, other) and e <= epoch - lag]
        found |= {f"{rank}/{other}/{max(older)}"} if older else set()
    return found


@given(legal_schedules())
def test_with_unlimited_links_the_path_is_a_chain_of_dependencies_that_fills_the_window(schedule: Schedule) -> None:
    warmup, epochs = steady_epochs(schedule)
    trace = simulate(schedule, CLUSTER, epochs, network=lambda env: UnlimitedLinks(env))
    path = critical_path(trace, schedule, warmup)
    window = last_window(trace, warmup)
    if window[0] == window[1]:
        assert path == ()
        return
    assert (path[0].start_s, path[-1].end_s) == window
    assert all(a.end_s == b.start_s for a, b in pairwise(path))
    assert all(step.kind is not OVERHEAD for step in path)
    assert sum(share.share for share in shares(path, 1)) == pytest.approx(1, rel=1e-9)
    made = {(span.rank, span.op, span.epoch): span for span in trace.spans}
    for earlier, later in pairwise(path):
        mine = next(o for o in schedule.ops if (o.rank, o.name) == (later.rank, later.op))
        assert later.source == later.rank or later.source in schedule.senders(mine)
        starts = (later.source, later.op, later.epoch)
        assert f"{earlier.rank}/{earlier.op}/{earlier.epoch}" in instances_before(schedule, made, starts)
        assert made[earlier.rank, earlier.op, earlier.epoch].end_s == later.start_s == made[starts].start_s


@given(legal_schedules())
def test_slowing_an_op_down_delays_the_end_by_as_much_as_it_is_on_the_path(schedule: Schedule) -> None:
    """Only ops that compute have kernels here: then the end is the longest chain of them, and no chain is longer."""
    schedule = replace(schedule, ops=tuple(_without_packing(o) for o in schedule.ops))
    epochs = steady_epochs(schedule)[1]
    path = critical_path(simulate(schedule, CLUSTER, epochs, network=lambda env: UnlimitedLinks(env)), schedule, 0)
    timed = [step for step in path if step.end_s > step.start_s]
    assume(timed)
    assert {step.kind for step in timed} == {COMPUTE}
    slowed = timed[len(timed) // 2]
    times = sum((step.rank, step.op) == (slowed.rank, slowed.op) for step in timed)
    ops = tuple(_twice(o) if (o.rank, o.name) == (slowed.rank, slowed.op) else o for o in schedule.ops)
    again = simulate(replace(schedule, ops=ops), CLUSTER, epochs, network=lambda env: UnlimitedLinks(env))
    was, now = (next(o for o in made if (o.rank, o.name) == (slowed.rank, slowed.op)) for made in (schedule.ops, ops))
    device = CLUSTER.device(slowed.rank)
    added_s = op_seconds(now, device) - op_seconds(was, device)
    assert max(span.end_s for span in again.spans) >= (path[-1].end_s + times * added_s) * (1 - 1e-9)


def _without_packing(o: Op) -> Op:
    return replace(o, work=replace(o.work, kernels=())) if o.kind in COMMUNICATION else o


def _twice(o: Op) -> Op:
    kernels = tuple(Kernel(k.kind, (2 * k.dims[0], *k.dims[1:])) for k in o.work.kernels)
    return replace(o, work=replace(o.work, kernels=kernels))


@given(legal_schedules())
def test_on_shared_links_the_path_is_as_long_as_the_reported_epochs_of_the_rank_that_ends_last(
    schedule: Schedule,
) -> None:
    warmup, epochs = steady_epochs(schedule)
    trace = simulate(schedule, CLUSTER, epochs)
    path = critical_path(trace, schedule, warmup)
    last = max(pacing(trace.spans), key=lambda span: (span.end_s, span.epoch, -span.rank))
    epoch_s = measure(trace, schedule, warmup).ranks[last.rank].epoch_s
    assert sum(share.seconds for share in shares(path, epochs - warmup)) == pytest.approx(epoch_s, rel=1e-9)


def test_a_run_of_real_threads_has_a_path_without_gaps() -> None:
    schedule = two_rank_exchange(lag=1, every=2)
    trace = execute_null(schedule, 6)
    path = critical_path(trace, schedule, 2)
    assert (path[0].start_s, path[-1].end_s) == last_window(trace, 2)
    assert all(a.end_s == b.start_s and a.start_s <= a.end_s for a, b in pairwise(path))
