"""Delays of stragglers, drawn alike by the simulator and the executor."""

from dataclasses import dataclass

import numpy as np

from halocast.base.records import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Seconds a rank loses at the start of every epoch: drawn evenly between two bounds, anew each epoch."""

    rank: int
    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        legal = 0 <= self.low_s <= self.high_s
        require(legal, f"delay of rank {self.rank}: {self.low_s} to {self.high_s} s: needs 0 <= low_s <= high_s")


def delay_s(delays: tuple[Delay, ...], seed: int, rank: int, epoch: int) -> float:
    """Seconds that a rank loses in an epoch to its delays; the same whatever else is run or simulated."""
    total = 0.0
    for k, delay in enumerate(delays):
        if delay.rank == rank:
            total += float(np.random.default_rng((seed, k, epoch)).uniform(delay.low_s, delay.high_s))
    return total
