"""The checker accepts legal schedules and rejects each kind of broken one with a message that names the op."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from schedules import legal_schedules, op, two_rank_exchange

from halocast.base.errors import InputError
from halocast.schedule.check import check, problems
from halocast.schedule.ir import (
    Broadcast,
    Buffer,
    Compute,
    Exchange,
    Kernel,
    Lane,
    Matrix,
    Op,
    Pull,
    Recv,
    Rows,
    Schedule,
    Send,
)

GOOD = two_rank_exchange()


def changed(which: str, at: int, **fields: object) -> Schedule:
    """The good schedule with one op changed."""
    ops = tuple(replace(o, **fields) if (o.name, o.rank) == (which, at) else o for o in GOOD.ops)  # type: ignore[arg-type]
    return replace(GOOD, ops=ops)


def without(name: str, rank: int) -> Schedule:
    return replace(GOOD, ops=tuple(o for o in GOOD.ops if (o.name, o.rank) != (name, rank)))


def swap(**work: object) -> Exchange:
    return Exchange(**{"matrix": "halo", "row_bytes": 4, **work})  # type: ignore[arg-type]


def pair(send: Op, recv: Op) -> Schedule:
    return Schedule(num_ranks=2, ops=(send, recv))


SEND = op("msg", 0, Lane.HALO, work=Send(peer=1, num_bytes=8))
RECV = op("msg", 1, Lane.HALO, work=Recv(peer=0, num_bytes=8))


@given(legal_schedules())
def test_every_legal_schedule_passes(schedule: Schedule) -> None:
    assert check(schedule) is schedule


def test_the_schedules_of_these_tests_are_legal_before_they_are_broken() -> None:
    assert problems(GOOD) == ()
    assert problems(pair(SEND, RECV)) == ()


BROKEN = {
    "a name with capitals": (changed("use", 1, name="Use"), "op 1/Use: a name is verb.index"),
    "a rank that does not exist": (replace(GOOD, ops=(*GOOD.ops, op("more", 2))), "op 2/more: rank 2 is not in 0..1"),
    "an op defined twice": (replace(GOOD, ops=(*GOOD.ops, GOOD.ops[0])), "op 0/make: defined 2 times"),
    "a buffer defined twice": (
        replace(GOOD, buffers=(*GOOD.buffers, GOOD.buffers[0])),
        "buffer 0/rows: defined 2 times",
    ),
    "an offset beyond the cadence": (changed("use", 0, every=2, offset=2), "op 0/use: cadence every 2 offset 2"),
    "a wait for an unknown op": (changed("use", 1, after=(("swop", 0),)), "op 1/use: waits for 'swop'"),
    "a negative lag": (changed("use", 1, after=(("swap", -1),)), "op 1/use: waits for 'swap' with negative lag -1"),
    "an unknown buffer": (changed("use", 0, reads=("hallo",)), "op 0/use: uses buffer 'hallo'"),
    "an unknown kernel": (
        changed("make", 0, work=Compute(kernels=(Kernel("fft", (8,)),))),
        "op 0/make: kernel fft(8,)",
    ),
    "a kernel with missing dims": (
        changed("make", 0, work=Compute(kernels=(Kernel("gemm", (8, 8)),))),
        "op 0/make: kernel gemm(8, 8)",
    ),
    "an exchange of numbers without bits": (changed("swap", 0, work=swap(bits=0)), "op 0/swap: bits = 0: a number has"),
    "a broadcast from outside": (
        Schedule(num_ranks=2, ops=(op("all", 0, work=Broadcast(num_bytes=4, root=1)),)),
        "op 0/all: root 1 is not one of its ranks (0,)",
    ),
    "a bound below none": (
        Schedule(num_ranks=1, ops=(op("pull", 0, work=Pull(num_bytes=4, bound=-2)),)),
        "op 0/pull: bound -2 needs to be at least 0",
    ),
    "a lane without a name": (changed("make", 0, lane=Lane("2")), "op 0/make: a lane is a word and an index"),
    "an unknown matrix": (changed("swap", 0, work=swap(matrix="hole")), "op 0/swap: exchanges rows of matrix 'hole'"),
    "a matrix of the wrong size": (
        replace(GOOD, matrices=(Matrix("halo", np.zeros((3, 3), dtype=np.int64)),)),
        "matrix halo: shape (3, 3)",
    ),
    "a message to oneself": (pair(replace(SEND, work=Send(peer=0, num_bytes=8)), RECV), "op 0/msg: peer 0 is not"),
    "an exchange one rank lacks": (
        replace(without("swap", 1), ops=tuple(o for o in without("swap", 1).ops if o.label != "1/use")),
        "op 0/swap: rank 1 has no 'swap' to match it",
    ),
    "an exchange of different sizes": (
        changed("swap", 1, work=swap(row_bytes=8)),
        "op 0/swap and op 1/swap: sizes differ",
    ),
    "an exchange in different directions": (
        changed("swap", 1, work=swap(transposed=True)),
        "op 0/swap and op 1/swap: sizes differ",
    ),
    "an exchange at different times": (changed("swap", 1, every=2), "op 0/swap and op 1/swap: cadences differ"),
    "a send nobody receives": (Schedule(num_ranks=2, ops=(SEND,)), "op 0/msg: rank 1 has no 'msg' to match it"),
    "a receive nobody sends": (Schedule(num_ranks=2, ops=(RECV,)), "op 1/msg: rank 0 has no 'msg' to match it"),
    "two sends that meet": (
        pair(SEND, op("msg", 1, Lane.HALO, work=Send(peer=0, num_bytes=8))),
        "op 0/msg and op 1/msg: send meets send",
    ),
    "a send larger than its receive": (
        pair(SEND, replace(RECV, work=Recv(peer=0, num_bytes=4))),
        "op 0/msg and op 1/msg: sizes differ, 8 and 4 bytes",
    ),
    "a receive of nothing nobody sends": (
        Schedule(num_ranks=2, ops=(replace(RECV, work=Recv(peer=0, num_bytes=0)),)),
        "op 1/msg: rank 0 has no 'msg' to match it",
    ),
    "a buffer name with a comma": (
        replace(GOOD, buffers=(*GOOD.buffers, Buffer(name="x,y", rank=0, num_bytes=1))),
        "'x,y': names of buffers",
    ),
    "a halo buffer that is not what is sent": (
        replace(
            changed("swap", 0, reads=("halo",), after=(("swap", 1),)),
            buffers=tuple(replace(b, rows=Rows.HALO, num_bytes=99 if b.rank == 0 else 12) for b in GOOD.buffers),
        ),
        "op 0/swap: receives 12 bytes into 'halo' of 99 bytes",
    ),
    "a wait for oneself": (changed("use", 0, after=(("swap", 0), ("use", 0))), "op 0/use: deadlock"),
    "a wait for a later op of the lane": (changed("make", 0, after=(("use", 0),)), "deadlock"),
    "a halo nobody fills": (
        replace(GOOD, ops=tuple(replace(o, writes=()) if o.name == "swap" else o for o in GOOD.ops)),
        "op 0/use: reads 'halo', which nothing writes",
    ),
    "a read that does not wait for its writer": (
        changed("use", 1, after=()),
        "op 1/use: reads 'halo' without waiting for an op that writes it",
    ),
    "a halo buffer of the wrong size": (
        replace(GOOD, buffers=tuple(replace(b, rows=Rows.HALO, num_bytes=99) for b in GOOD.buffers)),
        "op 0/swap: receives 12 bytes into 'halo' of 99 bytes",
    ),
}


@pytest.mark.parametrize(("schedule", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_schedule_is_rejected_and_the_op_named(schedule: Schedule, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check(schedule)
    assert message in str(caught.value)


def test_ranks_that_exchange_in_opposite_orders_deadlock() -> None:
    def exchange(name: str, rank: int) -> Op:
        return op(name, rank, Lane.HALO, work=swap())

    ops = (exchange("a", 0), exchange("b", 0), exchange("b", 1), exchange("a", 1))
    (message,) = problems(replace(GOOD, ops=ops, buffers=()))
    assert "deadlock" in message
    assert {"0/a", "1/b"} <= set(message.replace(",", "").split())


def test_the_same_exchanges_in_one_order_do_not() -> None:
    ops = tuple(op(name, rank, Lane.HALO, work=swap()) for rank in (0, 1) for name in "ab")
    assert problems(replace(GOOD, ops=ops, buffers=())) == ()


def test_a_lagged_wait_for_a_later_op_is_legal() -> None:
    assert problems(changed("make", 0, after=(("use", 1),))) == ()


def test_a_persistent_buffer_needs_no_writer() -> None:
    features = Buffer(name="x", rank=0, num_bytes=8, persistent=True)
    assert problems(Schedule(num_ranks=1, ops=(op("use", reads=("x",)),), buffers=(features,))) == ()
