"""The pace of this machine, from a small kernel on all its cores at once: others who use them make it slower.

Measurements begin when the machine is calm, and are made again if it was not calm at their end; how far the pace
wandered nevertheless is reported.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from time import perf_counter, sleep
from typing import TypeVar

import numpy as np

T = TypeVar("T")
NUMEL, REPEATS = 250_000, 100  # some 20 ms: longer than a turn that the scheduler gives to others
BUSY = 1.15  # times the best pace seen, from which on others use the cores
PAUSE_S, PATIENCE_S = 0.5, 4.0
ATTEMPTS = 2  # of one measurement


def reference_seconds() -> float:
    """Seconds that a small kernel takes now on the slowest core, run on every core at once."""
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        return max(pool.map(lambda _: _work(), range(cores)))


def _work() -> float:
    values, out = np.ones(NUMEL, dtype=np.float32), np.empty(NUMEL, dtype=np.float32)
    start = perf_counter()
    for _ in range(REPEATS):
        np.sqrt(values, out=out)
    return (perf_counter() - start) / REPEATS


@dataclass(slots=True)
class Machine:
    """A machine that knows the best pace it has seen."""

    reference: Callable[[], float] = reference_seconds
    pause: Callable[[float], None] = sleep
    best_s: float = inf

    def now(self) -> float:
        pace_s = self.reference()
        self.best_s = min(self.best_s, pace_s)
        return pace_s

    def wait_until_calm(self) -> float:
        """Wait until others' work, or patience, has ended; returns the pace then."""
        waited_s = 0.0
        while (pace_s := self.now()) > BUSY * self.best_s and waited_s < PATIENCE_S:
            self.pause(PAUSE_S)
            waited_s += PAUSE_S
        return pace_s

    def measure(self, action: Callable[[], T]) -> tuple[T, float]:
        """Run an action; returns its result, and the slower of the paces before and after it."""
        for _ in range(ATTEMPTS):
            before_s = self.wait_until_calm()
            result = action()
            pace_s = max(before_s, self.now())
            if pace_s <= BUSY * self.best_s:
                break
        return result, pace_s
