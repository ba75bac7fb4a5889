"""How old every value that is read is: 0 for vanilla's waits, the lag of a pipeline, a range for a cadence."""

from dataclasses import replace

import numpy as np
import pytest
from schedules import op, two_rank_exchange

from halocast.schedule.check import check, staleness
from halocast.schedule.ir import SHARED, Buffer, Exchange, Lane, Matrix, Pull, Push, Schedule


def ages(schedule: Schedule, name: str) -> set[int]:
    return {age for read in staleness(check(schedule)) if read.op == name for age in read.ages}


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_a_halo_read_is_as_old_as_its_lag(lag: int) -> None:
    assert ages(two_rank_exchange(lag=lag), "use") == {lag}


@pytest.mark.parametrize("every", [1, 2, 5])
def test_an_exchange_every_n_epochs_gives_ages_up_to_n_minus_1(every: int) -> None:
    assert ages(two_rank_exchange(every=every), "use") == set(range(every))


def stored(every: int) -> Schedule:
    """Each rank pulls when r mod N = 0 and pushes when (r - 1) mod N = 0, through a shared table."""
    ops, buffers = [], [Buffer(name="table", rank=SHARED, num_bytes=8, persistent=True)]
    for rank in (0, 1):
        ops += [
            op(
                "pull",
                rank,
                Lane.STORE,
                work=Pull(num_bytes=4),
                reads=("table",),
                writes=("halo",),
                after=(("push", 1),),
                every=every,
            ),
            op("forward", rank, reads=("halo",), writes=("rows",), after=(("pull", 0),)),
            op(
                "push",
                rank,
                Lane.STORE,
                work=Push(num_bytes=4),
                reads=("rows",),
                writes=("table",),
                after=(("forward", 0),),
                every=every,
                offset=1 % every,
            ),
        ]
        buffers += [Buffer(name=name, rank=rank, num_bytes=4) for name in ("halo", "rows")]
    return Schedule(num_ranks=2, ops=tuple(ops), buffers=tuple(buffers))


@pytest.mark.parametrize("every", [1, 2, 3, 10])
def test_pulled_rows_are_n_minus_1_to_2n_minus_2_epochs_old(every: int) -> None:
    expected = {1} if every == 1 else set(range(every - 1, 2 * every - 1))
    assert ages(stored(every), "forward") == expected


def test_each_reader_sees_the_writer_before_it() -> None:
    ops = (
        op("write", writes=("x",)),
        op("use", reads=("x",)),
        op("rewrite", writes=("x",), every=3),
        op("reuse", reads=("x",)),
    )
    schedule = Schedule(num_ranks=1, ops=ops, buffers=(Buffer(name="x", rank=0, num_bytes=4),))
    assert ages(schedule, "use") == {0}
    assert ages(schedule, "reuse") == {0, 1, 2}


@pytest.mark.parametrize("lag", [0, 2])
def test_what_nobody_writes_is_new_when_it_leaves(lag: int) -> None:
    good = two_rank_exchange(lag=lag)
    ops = tuple(replace(o, writes=()) if o.name == "make" else o for o in good.ops)
    buffers = tuple(replace(b, persistent=True) for b in good.buffers)
    assert ages(replace(good, ops=ops, buffers=buffers), "use") == {lag}


def test_received_rows_have_the_ages_of_all_who_send_and_of_nobody_else() -> None:
    """Rank 0 makes rows every epoch, rank 1 every second, rank 2 every fifth and is needed by nobody."""
    work = Exchange(matrix="halo", row_bytes=4)
    ops, buffers = [], []
    for rank, every in enumerate((1, 2, 5)):
        ops += [
            op("make", rank, writes=("rows",), every=every),
            op(
                "swap",
                rank,
                Lane.HALO,
                work=work,
                reads=("rows",),
                writes=("halo",),
                after=(("make", 0),),
            ),
            op("use", rank, reads=("halo",), after=(("swap", 0),)),
        ]
        buffers += [Buffer(name=name, rank=rank, num_bytes=4) for name in ("rows", "halo")]
    counts = np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]])
    schedule = Schedule(num_ranks=3, ops=tuple(ops), buffers=tuple(buffers), matrices=(Matrix("halo", counts),))
    found = {read.rank: read.ages for read in staleness(check(schedule)) if read.op == "use"}
    assert found == {0: (), 1: (0,), 2: (0, 1)}
