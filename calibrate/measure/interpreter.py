"""What the interpreter itself costs: a schedule of ops that do nothing, on one lane and from lane to lane."""

import time
from collections.abc import Iterator
from itertools import pairwise

from halocast.calibrate.measure.bench import Bench, Measured, point
from halocast.calibrate.measure.stopwatch import Timing, summary
from halocast.exec.run.interpret import Interpreter
from halocast.schedule.ir import Lane, Op, Schedule

NUM_OPS, EPOCHS = 40, 60


def interpreter(bench: Bench) -> Iterator[Measured]:
    """Seconds per op on the compute lane, and of an op that another lane does, with the ways there and back."""
    alone, between = (_epoch_timing(bench, schedule) for schedule in (_chain(), _relay()))
    op_s = alone.seconds / NUM_OPS
    switch_s = max(op_s, 2 * between.seconds / NUM_OPS - op_s)
    for kind, seconds, timing in (("op", op_s, alone), ("communication_op", switch_s, between)):
        per_op = Timing(seconds=seconds, spread=timing.spread, repeats=timing.repeats * NUM_OPS)
        yield point("interpreter", kind, (NUM_OPS,), per_op)


def _epoch_timing(bench: Bench, schedule: Schedule) -> Timing:
    running = Interpreter(
        schedule=schedule,
        rank=0,
        handle=lambda op, epoch: 0,
        timeout_s=bench.link.timeout_s,
        enter_lane=bench.device.enter,
    )
    ends: list[float] = []
    running.run(range(EPOCHS), lambda epoch: ends.append(time.perf_counter()))
    bench.device.enter(Lane.COMPUTE)
    return summary([end - start for start, end in pairwise(ends)][EPOCHS // 4 :])


def _chain() -> Schedule:
    ops = tuple(_op(k, Lane.COMPUTE, ()) for k in range(NUM_OPS))
    return Schedule(num_ranks=1, matrices=(), buffers=(), ops=ops, meta=())


def _relay() -> Schedule:
    """Every op waits for the one before, which is another lane's."""
    lanes = [Lane.HALO if k % 2 else Lane.COMPUTE for k in range(NUM_OPS)]
    waits = [((f"op.{k - 1}", 0),) if k else ((f"op.{NUM_OPS - 1}", 1),) for k in range(NUM_OPS)]
    ops = tuple(_op(k, lane, after) for k, (lane, after) in enumerate(zip(lanes, waits, strict=True)))
    return Schedule(num_ranks=1, matrices=(), buffers=(), ops=ops, meta=())


def _op(number: int, lane: Lane, after: tuple[tuple[str, int], ...]) -> Op:
    return Op(name=f"op.{number}", rank=0, lane=lane, after=after)
