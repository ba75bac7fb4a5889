"""Stragglers made for real: ops of a slow rank sleep as much longer as it is slower, and some sleep at each start."""

import time
from collections.abc import Callable

from halocast.base.delays import delay_s
from halocast.exec.launch.job import Settings
from halocast.schedule.ir import Kind, Lane, Op

Handle = Callable[[Op, int], int]


def straggling(handle: Handle, rank: int, settings: Settings) -> Handle:
    """The handler of a rank with its speed and its delays; a perfect rank's is left alone."""
    slower = 1 / settings.speed.get(str(rank), 1.0) - 1
    if slower <= 0 and not any(delay.rank == rank for delay in settings.delays):
        return handle
    begun = -1

    def run(op: Op, epoch: int) -> int:
        nonlocal begun
        if op.lane is Lane.COMPUTE and epoch > begun:
            begun = epoch
            time.sleep(delay_s(settings.delays, settings.delay_seed, rank, epoch))
        start = time.perf_counter()
        num_bytes = handle(op, epoch)
        if op.kind in (Kind.COMPUTE, Kind.SAMPLE):
            time.sleep((time.perf_counter() - start) * max(0.0, slower))
        return num_bytes

    return run
