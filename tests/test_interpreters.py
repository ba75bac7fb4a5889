"""Both interpreters run every legal schedule to its end, in an order the schedule allows."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from schedules import legal_schedules, op, two_rank_exchange

from halocast.base.errors import RunError
from halocast.cluster.catalogue import load_cluster
from halocast.exec.run.null import execute_null
from halocast.reports.metrics import measure
from halocast.schedule.ir import Compute, Exchange, Kernel, Lane, Schedule
from halocast.schedule.passes import dependence_edges, hyperperiod, max_cycle_ratio, steady_epochs
from halocast.schedule.trace import Trace
from halocast.sim.cost import op_seconds
from halocast.sim.engine import simulate
from halocast.sim.network.links import UnlimitedLinks
from halocast.study.scenario import load_scenario
from halocast.study.workload import prepare

CLUSTER = load_cluster("cpu-local")
EPOCHS = 4


def seconds(schedule: Schedule) -> dict[tuple[int, str], float]:
    return {(o.rank, o.name): op_seconds(o, CLUSTER.device(o.rank)) for o in schedule.ops}


def run_unlimited(schedule: Schedule, num_epochs: int) -> Trace:
    return simulate(schedule, CLUSTER, num_epochs, network=lambda env: UnlimitedLinks(env))


def assert_complete_and_ordered(schedule: Schedule, trace: Trace) -> None:
    ends = {(s.rank, s.op, s.epoch): s.end_s for s in trace.spans}
    expected = {(o.rank, o.name, e) for o in schedule.ops for e in range(EPOCHS) if o.exists(e)}
    assert set(ends) == expected
    assert len(trace.spans) == len(expected)
    lanes = defaultdict(list)
    for span in trace.spans:
        lanes[span.rank, span.lane].append(span)
        found = schedule.find(span.rank, span.op)
        assert found is not None
        assert span.num_bytes == schedule.num_bytes(found)
        for name, lag in found.after:
            source = schedule.find(span.rank, name)
            assert source is not None
            instance = source.latest(span.epoch - lag)
            assert instance < 0 or ends[span.rank, name, instance] <= span.start_s
    for spans in lanes.values():
        ordered = sorted(spans, key=lambda s: (s.epoch, [o.name for o in schedule.by_rank[s.rank]].index(s.op)))
        assert all(a.end_s <= b.start_s for a, b in pairwise(ordered))


@given(legal_schedules())
def test_the_simulator_never_deadlocks(schedule: Schedule) -> None:
    assert_complete_and_ordered(schedule, simulate(schedule, CLUSTER, EPOCHS))


@settings(deadline=None, max_examples=60)
@given(legal_schedules())
def test_the_executors_interpreter_never_deadlocks(schedule: Schedule) -> None:
    assert_complete_and_ordered(schedule, execute_null(schedule, EPOCHS))


def test_a_schedule_that_does_deadlock_is_reported_by_name_not_by_a_hang() -> None:
    def swap(name: str, rank: int) -> object:
        return op(name, rank, Lane.HALO, work=Exchange(matrix="halo", row_bytes=4))

    crossed = (swap("a", 0), swap("b", 0), swap("b", 1), swap("a", 1))
    schedule = Schedule(num_ranks=2, ops=crossed, matrices=two_rank_exchange().matrices)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"rank \d, epoch 0: [ab] waited for ranks \[\d\]"):
        execute_null(schedule, 1, timeout_s=0.3)


@given(legal_schedules())
def test_same_schedule_same_trace_bit_for_bit(schedule: Schedule) -> None:
    assert simulate(schedule, CLUSTER, EPOCHS) == simulate(schedule, CLUSTER, EPOCHS)


@given(legal_schedules())
def test_with_unlimited_links_every_end_is_the_longest_path_to_it(schedule: Schedule) -> None:
    """An independent evaluation: relax all dependence edges, epoch by epoch, until nothing moves."""
    if hyperperiod(schedule) > 1:
        return
    weight = [seconds(schedule)[o.rank, o.name] for o in schedule.ops]
    times = [[0.0] * (2 * len(schedule.ops)) for _ in range(EPOCHS)]
    edges = dependence_edges(schedule)
    for _ in range(2 * len(schedule.ops) * EPOCHS):
        for epoch in range(EPOCHS):
            for e in edges:
                if epoch >= e.lag:
                    reached = times[epoch - e.lag][e.source] + (weight[e.carries] if e.carries >= 0 else 0.0)
                    times[epoch][e.target] = max(times[epoch][e.target], reached)
    place = {(o.rank, o.name): k for k, o in enumerate(schedule.ops)}
    for span in run_unlimited(schedule, EPOCHS).spans:
        assert span.end_s == pytest.approx(times[span.epoch][2 * place[span.rank, span.op] + 1], rel=1e-12)


@settings(deadline=None)
@given(legal_schedules())
def test_with_unlimited_links_the_pace_is_the_maximum_cycle_ratio(schedule: Schedule) -> None:
    """After n epochs the last op ends at n times the ratio, up to a transient that does not grow with n."""
    durations = seconds(schedule)
    ratio = max_cycle_ratio(schedule, durations)
    transient = 4 * hyperperiod(schedule) * sum(durations.values()) + 1e-12
    for num_epochs in (24, 96):
        end = max((span.end_s for span in run_unlimited(schedule, num_epochs).spans), default=0.0)
        assert abs(end - num_epochs * ratio) <= transient


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_vanilla_with_unlimited_links_paces_exactly_at_its_maximum_cycle_ratio(ranks: int) -> None:
    scenario = load_scenario("demo", ["graph.dataset=reddit", "graph.inductive=true"])
    schedule = prepare(scenario, ranks).schedule
    warmup, num_epochs = steady_epochs(schedule)
    metrics = measure(run_unlimited(schedule, num_epochs), schedule, warmup)
    assert metrics.epoch_s == pytest.approx(max_cycle_ratio(schedule, seconds(schedule)), rel=1e-12)


def test_a_timeline_is_exactly_what_the_rules_say() -> None:
    """Two ranks, one op each of 1 and 3 time units, an exchange without duration, then one unit each."""
    unit = op_seconds(op("x", work=Compute(kernels=(Kernel("elementwise", (10**6, 2)),))), CLUSTER.device(0))
    kernel = Kernel("elementwise", (10**6, 2))
    work = {0: Compute(kernels=(kernel,)), 1: Compute(kernels=(kernel,) * 3)}
    base = two_rank_exchange()
    ops = tuple(
        op(o.name, o.rank, o.lane, work=work[o.rank] if o.name == "make" else o.work, after=o.after) for o in base.ops
    )
    trace = run_unlimited(Schedule(num_ranks=2, ops=ops, matrices=base.matrices), 1)
    assert sorted((s.rank, s.op, round(s.start_s / unit, 9), round(s.end_s / unit, 9)) for s in trace.spans) == [
        (0, "make", 0, 1),
        (0, "swap", 1, 3),
        (0, "use", 3, 3),
        (1, "make", 0, 3),
        (1, "swap", 3, 3),
        (1, "use", 3, 3),
    ]
