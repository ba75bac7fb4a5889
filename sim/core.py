"""Devices at work: kernels given in seconds alone, which take longer while bytes of their rank move, or while more of
them run than there are cores.

Ranks of one machine may share its cores. Bytes that move take their part of them first, since a thread that slept until
its socket was ready is served before one that computes. Each running kernel gets an equal part of the rest, and at most
one whole core: with R kernels on C cores a kernel goes on at C/R of its pace. Paces change in mid-kernel, whenever a
kernel begins or ends, or bytes move at another rate.
"""

from collections.abc import Callable, Generator
from math import inf
from typing import Any

import simpy

Steps = Generator[simpy.Event, Any, None]


class Cores:
    """The cores of a machine and what runs on them; without a number, every kernel has one for itself."""

    def __init__(self, env: simpy.Environment, num: float = inf) -> None:
        self._env = env
        self._num = num
        self._taken = 0.0  # cores' worth of moving bytes
        self._num_running = 0
        self.change = env.event()  # happens whenever the pace of a kernel may change

    @property
    def shared(self) -> bool:
        return self._num < inf

    @property
    def pace(self) -> float:
        """The pace of each running kernel, relative to a core of its own."""
        return min(1.0, max(0.0, self._num - self._taken) / max(1, self._num_running))

    def count(self, step: int) -> None:
        before, self._num_running = self.pace, self._num_running + step
        if self.pace != before:
            self.tell()

    def take(self, cores: float) -> None:
        """Let moving bytes take this many cores from now on."""
        before, self._taken = self.pace, cores
        if self.pace != before:
            self.tell()

    def tell(self) -> None:
        changed, self.change = self.change, self._env.event()
        changed.succeed()


class Core:
    """The kernels of one rank."""

    def __init__(self, cores: Cores, env: simpy.Environment, slowdown: float, busy: Callable[[bool], None]) -> None:
        self._cores = cores
        self._env = env
        self._slowdown = slowdown
        self._busy = busy  # told when kernels begin and end to run
        self._moving = False
        self._num_running = 0

    def moving(self, moving: bool) -> None:
        self._moving = moving
        if self._slowdown > 1:
            self._cores.tell()

    def run(self, seconds: float) -> Steps:
        self._count(1)
        try:
            if self._slowdown == 1 and not self._cores.shared:
                yield self._env.timeout(seconds)
            else:
                yield from self._run_in_pieces(seconds)
        except simpy.Interrupt:  # its host has failed
            self._count(-1)
            raise
        self._count(-1)

    def _run_in_pieces(self, left_s: float) -> Steps:
        while True:
            begun, pace = self._env.now, self._cores.pace / (self._slowdown if self._moving else 1.0)
            end = self._env.timeout(left_s / pace) if pace > 0 else self._env.event()  # which never comes
            yield end | self._cores.change
            if end.processed:
                return
            left_s = max(0.0, left_s - (self._env.now - begun) * pace)

    def _count(self, step: int) -> None:
        self._cores.count(step)
        was, self._num_running = self._num_running, self._num_running + step
        if (was == 0) != (self._num_running == 0):
            self._busy(self._num_running > 0)
