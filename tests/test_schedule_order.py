"""Moments: orders of events that are legal, whether the order matters, and the moments of a run that happened."""

import random
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from together import FREE, GRAPH, MEETING, Case, case
from training import metis_parts, schedule_for, spec_for

from halocast.base.errors import InputError
from halocast.graph import build_parts
from halocast.schedule.ir import Kind, Op, Schedule
from halocast.schedule.order import Moment, legal_order, list_order, of_trace
from halocast.schedule.races import num_store_slots, order_matters
from halocast.schedule.trace import Span, Trace, span_of

EPOCHS = 4


def schedule_of(method: str, num_ranks: int = 2, **options: Any) -> Schedule:
    parts, spec = build_parts(GRAPH, metis_parts(GRAPH, num_ranks)), spec_for(GRAPH, layers=3)
    return schedule_for(parts, spec, "float32", method, **options)


def assert_legal(schedule: Schedule, moments: list[Moment]) -> None:
    """The rules of an order, one after the other: waits, lanes, senders; every op begins and ends once."""
    place = {(m.op.rank, m.op.name, m.epoch, m.begins): k for k, m in enumerate(moments)}
    assert len(place) == len(moments)
    for moment in moments:
        op, epoch = moment.op, moment.epoch
        begin, end = place[op.rank, op.name, epoch, True], place[op.rank, op.name, epoch, False]
        assert begin < end
        for source, instance in schedule.awaits(op, epoch):
            assert place[source.rank, source.name, instance, False] < begin
        for rank in schedule.senders(op):
            assert place[rank, op.name, epoch, True] < end
    for rank in range(schedule.num_ranks):
        for lane, ops in schedule.lanes(rank).items():
            mine = [(m.op.name, m.epoch, m.begins) for m in moments if m.op.rank == rank and m.op.lane == lane]
            wanted = [(op.name, e, b) for e in range(EPOCHS) for op in ops if op.exists(e) for b in (True, False)]
            assert mine[: len(wanted)] == wanted


@pytest.mark.parametrize("chosen", MEETING, ids=str)
def test_the_list_order_of_every_method_is_legal_and_complete(chosen: Case) -> None:
    job, _ = chosen.job(4)
    assert_legal(job.schedule, list(list_order(job.schedule, EPOCHS)))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MEETING), st.randoms(use_true_random=False))
def test_whoever_goes_on_next_the_order_is_legal(chosen: Case, draw: random.Random) -> None:
    job, _ = chosen.job(2)
    assert_legal(job.schedule, list(legal_order(job.schedule, EPOCHS, draw.randrange)))


def test_an_order_without_a_number_of_epochs_has_no_end() -> None:
    schedule = schedule_of("vanilla")
    endless = list(islice(list_order(schedule), 50 * 2 * len(schedule.ops)))
    assert max(moment.epoch for moment in endless) >= 48


def test_free_ranks_end_together_in_every_order() -> None:
    """Rank 0 is chosen as often as it can be, and goes on until rank 1 has done its epochs."""
    schedule = schedule_of("digest-a", interval=2)
    moments = list(legal_order(schedule, EPOCHS, lambda number: 0))
    last = {rank: max(m.epoch for m in moments if m.op.rank == rank) for rank in (0, 1)}
    assert last[1] >= EPOCHS - 1
    assert last[0] > EPOCHS
    bounded = list(legal_order(schedule_of("digest-a", interval=2, bound=1), EPOCHS, lambda number: 0))
    ahead, done = 0, 0
    for moment in bounded:
        done = moment.epoch + 1 if (moment.op.rank, moment.op.name, moment.begins) == (1, "deliver", False) else done
        if moment.op.rank == 0 and moment.op.name == "fetch" and moment.begins and moment.epoch < EPOCHS:
            ahead = max(ahead, moment.epoch - done)
    assert ahead == 1


def test_a_schedule_that_cannot_go_on_is_refused_by_name() -> None:
    schedule = schedule_of("vanilla")
    ops = [replace(op, after=(("step", 0),)) if op.name == "forward.0" and op.rank == 0 else op for op in schedule.ops]
    with pytest.raises(InputError, match=r"no legal order: 0/\S+ of epoch 0 can never go on"):
        list(list_order(replace(schedule, ops=tuple(ops)), 2))


@pytest.mark.parametrize("chosen", MEETING, ids=str)
def test_order_does_not_matter_where_ranks_meet(chosen: Case) -> None:
    for num_ranks in (1, 4):
        assert not order_matters(chosen.job(num_ranks)[0].schedule)


@pytest.mark.parametrize("options", [{}, {"bound": 0}, {"bound": 3, "step": "share"}])
def test_order_matters_where_ranks_add_to_one_vector(options: dict[str, Any]) -> None:
    assert order_matters(schedule_of("digest-a", **options))
    alone = replace(FREE, options={**FREE.options, **options}).job(1)[0].schedule
    assert not order_matters(alone)


def without(schedule: Schedule, change: Any) -> Schedule:
    return replace(schedule, ops=tuple(change(op) for op in schedule.ops))


def test_order_matters_where_a_pull_does_not_wait_for_what_it_means() -> None:
    """Without its average in every epoch nothing ties a rank's pull to the other's push."""
    schedule = schedule_of("digest", interval=2)
    assert not order_matters(schedule)

    def untied(op: Op) -> Op:
        return replace(op, after=tuple(wait for wait in op.after if wait[0] != "average"))

    ops = [untied(op) for op in schedule.ops if op.kind is not Kind.ALLREDUCE]
    assert order_matters(replace(schedule, ops=tuple(ops)))


def test_order_matters_where_a_pull_may_come_before_the_push_that_it_means() -> None:
    """A pull that waits for its own rank's push only; whatever the other pushes later still waits for it."""
    schedule = schedule_of("digest", interval=2)

    def hasty(op: Op) -> Op:
        return replace(op, after=tuple(wait for wait in op.after if wait[0].startswith("push")))

    ops = [hasty(op) if op.kind is Kind.PULL else op for op in schedule.ops]
    assert order_matters(replace(schedule, ops=tuple(ops)))


def test_order_matters_where_the_store_has_room_for_one_epoch_and_two_are_under_way() -> None:
    schedule = schedule_of("digest", interval=1)
    assert num_store_slots(schedule, "store.1") == 2
    assert not order_matters(schedule)
    small = [replace(b, num_bytes=b.num_bytes // 2) if b.name.startswith("store") else b for b in schedule.buffers]
    assert order_matters(replace(schedule, buffers=tuple(small)))


def trace_of(schedule: Schedule, spans: list[Span]) -> Trace:
    return Trace.of(spans, source="simulated", num_ranks=schedule.num_ranks, num_epochs=EPOCHS)


def test_events_of_one_time_come_in_a_legal_order() -> None:
    """All spans begin and end at 0: only the rules are left to tell their order."""
    schedule = case("pipegcn").job(4)[0].schedule
    spans = [span_of(m.op, m.epoch, 0.0, 0.0, 0) for m in list_order(schedule, EPOCHS) if not m.begins]
    random.Random(3).shuffle(spans)
    assert_legal(schedule, list(of_trace(schedule, trace_of(schedule, spans))))


def test_a_trace_of_another_schedule_is_refused() -> None:
    schedule = schedule_of("vanilla")
    spans = [span_of(m.op, m.epoch, 0.0, 0.0, 0) for m in list_order(schedule, 1) if not m.begins]
    missing = [span for span in spans if span.op != "exchange.1"]
    with pytest.raises(InputError, match="waits for what no span has"):
        list(of_trace(schedule, trace_of(schedule, missing)))
    with pytest.raises(InputError, match="the trace has op 0/exchange_ids, which the schedule has not"):
        list(of_trace(schedule, trace_of(schedule, [replace(spans[0], rank=0, op="exchange_ids")])))
