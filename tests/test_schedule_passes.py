"""Cycle ratio, unrolling and memory on schedules small enough to do by hand."""

import pytest
from schedules import op, two_rank_exchange

from halocast.schedule.ir import Buffer, Lane, Schedule
from halocast.schedule.passes import hyperperiod, max_cycle_ratio, memory, num_copies, unroll

SECONDS = {(rank, name): s for rank in (0, 1) for name, s in {"make": 2.0, "swap": 0.0, "use": 3.0}.items()}


def test_without_lag_an_epoch_is_the_chain_of_its_ops() -> None:
    assert max_cycle_ratio(two_rank_exchange(), SECONDS) == 5.0


def test_the_slower_rank_sets_the_pace_of_both() -> None:
    assert max_cycle_ratio(two_rank_exchange(), SECONDS | {(1, "make"): 4.0}) == 7.0


def test_a_slow_exchange_is_hidden_by_lag_until_it_is_the_bottleneck() -> None:
    assert max_cycle_ratio(two_rank_exchange(lag=1), SECONDS | {(0, "swap"): 4.5}) == 5.0
    assert max_cycle_ratio(two_rank_exchange(lag=1), SECONDS | {(0, "swap"): 6.0}) == 6.0


def test_a_cycle_over_two_epochs_counts_half() -> None:
    ops = (op("a", after=(("b", 2),)), op("b", lane=Lane.HALO, after=(("a", 0),)))
    assert max_cycle_ratio(Schedule(num_ranks=1, ops=ops), {(0, "a"): 3.0, (0, "b"): 4.0}) == 4.0
    assert max_cycle_ratio(Schedule(num_ranks=1, ops=ops), {(0, "a"): 3.5, (0, "b"): 3.5}) == 3.5


def test_an_op_every_second_epoch_counts_half() -> None:
    ops = (op("a"), op("b", every=2))
    assert max_cycle_ratio(Schedule(num_ranks=1, ops=ops), {(0, "a"): 3.0, (0, "b"): 4.0}) == 5.0


def test_unrolling_turns_cadence_into_names_and_lags() -> None:
    ops = (op("a", after=(("b", 1),)), op("b", every=2, offset=1, lane=Lane.HALO))
    schedule = Schedule(num_ranks=1, ops=ops)
    assert hyperperiod(schedule) == 2
    assert [(o.name, o.after) for o in unroll(schedule, 2).ops] == [
        ("a.0", (("b.1", 1),)),
        ("a.1", (("b.1", 1),)),
        ("b.1", ()),
    ]


def test_peak_memory_counts_what_is_alive_together() -> None:
    ops = (op("a", writes=("x",)), op("b", reads=("x",), writes=("y",)), op("c", reads=("y",)))
    buffers = (
        Buffer(name="w", rank=0, num_bytes=100, persistent=True),
        Buffer(name="x", rank=0, num_bytes=10),
        Buffer(name="y", rank=0, num_bytes=7),
    )
    peak = memory(Schedule(num_ranks=1, ops=ops, buffers=buffers), 0)
    assert (peak.peak_bytes, peak.at) == (117, "b")
    assert peak.alive == (("w", 100), ("x", 10), ("y", 7))


@pytest.mark.parametrize(("lag", "copies"), [(0, 1), (1, 2), (3, 4)])
def test_a_value_read_lag_epochs_later_is_kept_that_many_times_more(lag: int, copies: int) -> None:
    schedule = two_rank_exchange(lag=lag)
    assert num_copies(schedule, 0, "halo") == copies
    # and received rows have a slot more, for what arrives ahead
    assert dict(memory(schedule, 0).alive)["halo"] == 12 * (copies + 1)


def test_copies_are_counted_in_instances_not_epochs() -> None:
    assert num_copies(two_rank_exchange(lag=4, every=5), 0, "halo") == 2
