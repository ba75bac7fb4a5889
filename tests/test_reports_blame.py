"""Where the compute lane's time goes, by op: literal timelines; parts that add up to the epoch on random schedules."""

import pytest
from hypothesis import assume, given
from schedules import legal_schedules, op, two_rank_exchange

from halocast.cluster.catalogue import load_cluster
from halocast.reports.blame import Blame, TimeUse, account, by_verb, join, mean_account, op_seconds
from halocast.reports.metrics import measure
from halocast.schedule.ir import Lane, Schedule
from halocast.schedule.trace import Trace, span_of
from halocast.sim.engine import simulate

CLUSTER = load_cluster("cpu-local", gpus=4)


def trace_of(schedule: Schedule, *times: tuple[int, str, int, float, float]) -> Trace:
    """Spans given as (rank, op, epoch, start, end)."""
    spans = []
    for rank, name, epoch, start, end in times:
        found = schedule.find(rank, name)
        assert found is not None
        spans.append(span_of(found, epoch, start, end, 0))
    return Trace(source="t", num_ranks=schedule.num_ranks, num_epochs=1 + max(t[2] for t in times), spans=tuple(spans))


def late_rank() -> tuple[Trace, Schedule]:
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
    return trace, schedule


def test_an_epoch_by_hand_is_divided_into_running_waiting_moving_and_overhead() -> None:
    trace, schedule = late_rank()
    assert account(trace, schedule, 0) == {
        ("make", TimeUse.RUNS): (2 + 5) / 2,
        ("use", TimeUse.RUNS): (3 + 1.5) / 2,
        ("swap", TimeUse.WAITS): 3 / 2,  # rank 0 from 2 to 5
        ("swap", TimeUse.MOVES): (1 + 1) / 2,
        ("use", TimeUse.OVERHEAD): 0.5 / 2,  # rank 1 from 6 to 6.5
    }


def test_an_op_takes_its_overhead_too_and_a_communication_begins_when_all_have_come() -> None:
    trace, schedule = late_rank()
    assert op_seconds(trace, schedule, 0, 0) == {"make": [2], "swap": [1], "use": [3]}
    assert op_seconds(trace, schedule, 1, 0) == {"make": [5], "swap": [1], "use": [0.5 + 1.5]}
    assert op_seconds(trace, schedule, 0, 1) == {}


def test_an_awaited_computation_of_another_lane_runs_beside() -> None:
    schedule = Schedule(
        num_ranks=1,
        ops=(op("draw", lane=Lane.SAMPLE), op("first"), op("use", after=(("draw", 0),))),
    )
    trace = trace_of(schedule, (0, "draw", 0, 1, 4), (0, "first", 0, 0, 2), (0, "use", 0, 5, 6))
    assert account(trace, schedule, 0) == {
        ("first", TimeUse.RUNS): 2,
        ("draw", TimeUse.BESIDE): 2,
        ("use", TimeUse.OVERHEAD): 1,
        ("use", TimeUse.RUNS): 1,
    }


def test_time_before_the_window_does_not_count() -> None:
    schedule = Schedule(num_ranks=1, ops=(op("work"),))
    trace = trace_of(schedule, (0, "work", 0, 0, 3), (0, "work", 1, 3, 4), (0, "work", 2, 4, 5))
    assert account(trace, schedule, 1) == {("work", TimeUse.RUNS): 1}


@given(legal_schedules())
def test_the_parts_add_up_to_the_mean_epoch(schedule: Schedule) -> None:
    assume(all(schedule.lanes(rank).get(Lane.COMPUTE) for rank in range(schedule.num_ranks)))
    trace = simulate(schedule, CLUSTER, 6)
    assert sum(account(trace, schedule, 0).values()) == pytest.approx(measure(trace, schedule, 0).mean("epoch_s"))


def test_two_accounts_are_joined_by_op_with_the_largest_miss_first() -> None:
    predicted = {("forward.0", TimeUse.RUNS): 1.0, ("swap", TimeUse.MOVES): 2.0}
    measured = {("forward.0", TimeUse.RUNS): 4.0, ("swap", TimeUse.MOVES): 1.5, ("forward.0", TimeUse.OVERHEAD): 0.25}
    joined = join(predicted, measured)
    assert joined == (
        Blame(op="forward.0", part=TimeUse.RUNS, predicted_s=1.0, measured_s=4.0),
        Blame(op="swap", part=TimeUse.MOVES, predicted_s=2.0, measured_s=1.5),
        Blame(op="forward.0", part=TimeUse.OVERHEAD, predicted_s=0.0, measured_s=0.25),
    )
    assert sum(one.miss_s for one in joined) == sum(predicted.values()) - sum(measured.values())


def test_ops_of_one_verb_are_summed_and_runs_are_averaged() -> None:
    found = {("forward.0", TimeUse.RUNS): 1.0, ("forward.1", TimeUse.RUNS): 2.0, ("step", TimeUse.RUNS): 4.0}
    assert by_verb(found) == {("forward", TimeUse.RUNS): 3.0, ("step", TimeUse.RUNS): 4.0}
    assert mean_account([found, {}]) == {key: seconds / 2 for key, seconds in found.items()}
