"""A device at work: kernels given in seconds alone, which take longer while bytes of their rank move."""

from collections.abc import Callable, Generator
from typing import Any

import simpy

Steps = Generator[simpy.Event, Any, None]


class Core:
    """The kernels of one rank. Their pace changes whenever transfers of the rank begin or end, also in mid-kernel."""

    def __init__(self, env: simpy.Environment, slowdown: float, busy: Callable[[bool], None]) -> None:
        self._env = env
        self._slowdown = slowdown
        self._busy = busy  # told when kernels begin and end to run
        self._moving = False
        self._num_running = 0
        self._change = env.event()

    def moving(self, moving: bool) -> None:
        self._moving = moving
        if self._slowdown > 1:
            changed, self._change = self._change, self._env.event()
            changed.succeed()

    def run(self, seconds: float) -> Steps:
        self._count(1)
        if self._slowdown == 1:
            yield self._env.timeout(seconds)
        else:
            yield from self._run_in_pieces(seconds)
        self._count(-1)

    def _run_in_pieces(self, left_s: float) -> Steps:
        while True:
            begun, pace = self._env.now, self._slowdown if self._moving else 1.0
            end = self._env.timeout(left_s * pace)
            yield end | self._change
            if end.processed:
                return
            left_s = max(0.0, left_s - (self._env.now - begun) / pace)

    def _count(self, step: int) -> None:
        was, self._num_running = self._num_running, self._num_running + step
        if (was == 0) != (self._num_running == 0):
            self._busy(self._num_running > 0)
