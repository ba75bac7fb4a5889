"""Stragglers made for real: kernels of a slow rank take as much longer as it is slower, and some sleep at each start.

The rule is the simulator's: a slow device's kernels are slow in whatever op they run, a communication's packing too;
what the host and the network do is not. An op that only computes is stretched as a whole, any other where it packs.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from halocast.base.delays import delay_s
from halocast.exec.launch.job import Settings
from halocast.schedule.ir import Kind, Lane, Op

Handle = Callable[[Op, int], int]
T = TypeVar("T")


class Stretch:
    """A slowdown of a rank's kernels; a perfect rank's are left alone."""

    def __init__(self, rank: int, settings: Settings) -> None:
        self.slower = max(0.0, 1 / settings.speed.get(str(rank), 1.0) - 1)

    def __call__(self, kernels: Callable[[], T], finish: Callable[[], None] = lambda: None) -> T:
        """Run kernels and sleep as much longer as they would have taken; `finish` waits for those of a device."""
        if self.slower == 0:
            return kernels()
        start = time.perf_counter()
        result = kernels()
        finish()
        time.sleep((time.perf_counter() - start) * self.slower)
        return result


def straggling(handle: Handle, rank: int, settings: Settings) -> Handle:
    """The handler of a rank with its speed and its delays; a perfect rank's is left alone."""
    stretch = Stretch(rank, settings)
    if stretch.slower == 0 and not any(delay.rank == rank for delay in settings.delays):
        return handle
    begun = -1

    def run(op: Op, epoch: int) -> int:
        nonlocal begun
        if op.lane == Lane.COMPUTE and epoch > begun:
            begun = epoch
            time.sleep(delay_s(settings.delays, settings.delay_seed, rank, epoch))
        if op.kind in (Kind.COMPUTE, Kind.SAMPLE):
            return stretch(lambda: handle(op, epoch))
        return handle(op, epoch)

    return run
