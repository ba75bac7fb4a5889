"""How long something takes on a machine that others use, too: warm-up, then samples until their spread is known.

Others only ever make a sample longer, so the lower quartile is taken: three quarters of the samples may be disturbed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ENOUGH = 0.02  # half-width of the quartile's confidence interval, relative
FEWEST, MOST = 7, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one point: a sample repeats a short thing until it lasts batch_s; samples end when known, or after most_s."""

    most_s: float
    batch_s: float = 0.001
    warmup_s: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    seconds: float  # the lower quartile
    spread: float  # from there to the median, relative
    repeats: int


def summary(samples: list[float], batch: int = 1) -> Timing:
    low, middle = np.quantile(samples, [0.25, 0.5])
    return Timing(seconds=float(low), spread=float(middle / low - 1), repeats=len(samples) * batch)


def is_known(samples: list[float]) -> bool:
    """Whether the quartile is: its interval is twice its distance to the median, over the root of their number."""
    return len(samples) >= FEWEST and 2 * summary(samples).spread / len(samples) ** 0.5 < ENOUGH


def time_it(
    run: Callable[[], object],
    limits: Limits,
    finish: Callable[[], None] = lambda: None,
    before: Callable[[], object] | None = None,
) -> Timing:
    """Seconds of one `run`; `finish` waits for a device that does its work later.

    `before` is done before every sample and not timed; a sample is then one run.
    """
    once_s = _warm_up(run, limits, finish)
    batch = max(1, round(limits.batch_s / once_s)) if before is None else 1
    samples: list[float] = []
    end = time.perf_counter() + limits.most_s
    while len(samples) < MOST and not is_known(samples):
        if time.perf_counter() > end and len(samples) >= FEWEST:
            break
        if before is not None:
            before()
            finish()
        samples.append(_seconds(run, batch, finish))
    return summary(samples, batch)


def _warm_up(run: Callable[[], object], limits: Limits, finish: Callable[[], None]) -> float:
    """Run at least twice, and for a while; returns the last time."""
    begun, once_s = time.perf_counter(), _seconds(run, 1, finish)
    while True:
        once_s = min(once_s, _seconds(run, 1, finish))
        if time.perf_counter() - begun > limits.warmup_s:
            return max(once_s, 1e-9)


def _seconds(run: Callable[[], object], times: int, finish: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    finish()
    return (time.perf_counter() - start) / times
