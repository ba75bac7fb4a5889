"""What every measurement of `halocast calibrate` is given (a bench), how it times something, and the points it gives.

Others use the machine, too, and only ever make a sample longer. So a thing is warmed up, sampled until the spread is
known, and the lower quartile is taken: three quarters of the samples may be disturbed.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from halocast.exec.transport.comm import Endpoint
from halocast.exec.transport.device import Seam

PlainPoint = dict[str, Any]  # a measured point, as JSON has it
ENOUGH = 0.02  # half-width of the quartile's confidence interval, relative
FEWEST, MOST = 7, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one point: a sample repeats short runs until it lasts batch_s; samples end when known, or at most_s."""

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
    """Whether the quartile is known: its interval is twice its distance to the median, over the root of the number."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One rank of a calibration; `control` joins all ranks over gloo, whatever they measure."""

    rank: int
    num_ranks: int
    device: Seam
    link: Endpoint
    control: Any
    limits: Limits
    quick: bool
    flush: torch.Tensor | None = None  # what is touched before a sample, so that caches hold nothing of use
    say: Callable[[str], None] = field(default=lambda text: None)

    def rng(self, group: str) -> np.random.Generator:
        """A random generator that gives the same numbers on every rank."""
        return np.random.default_rng([len(group), *group.encode()])

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device.where)

    def kernel(self, kind: str, dims: Iterable[int], run: Callable[[], object], **note: Any) -> Iterator[PlainPoint]:
        """A kernel that finds what it works on in the caches and, where there is a `flush`, one that does not."""
        wanted = tuple(dims)
        if self.flush is not None:
            cold = time_it(run, self.limits, self.device.finish, partial(self.flush.add_, 1.0))
            yield point("kernels", kind, wanted, cold, **note)
            note |= {"warm": True}
        yield point("kernels", kind, wanted, time_it(run, self.limits, self.device.finish), **note)

    def meet(self) -> None:
        """Wait for all ranks, without using a core or a device."""
        dist.barrier(group=self.control)

    def agree(self, value: float) -> float:
        """Give every rank the value of rank 0."""
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0, group=self.control)
        return float(shared)

    def all_values(self, value: float) -> list[float]:
        """Gather the value of every rank, in rank order."""
        shared = torch.zeros(self.num_ranks, dtype=torch.float64)
        shared[self.rank] = value
        dist.all_reduce(shared, group=self.control)
        return [float(one) for one in shared]


def point(group: str, kind: str, dims: Iterable[int], timing: Timing, **note: Any) -> PlainPoint:
    return {
        "group": group,
        "kind": kind,
        "dims": [int(dim) for dim in dims],
        "seconds": timing.seconds,
        "spread": round(timing.spread, 4),
        "repeats": timing.repeats,
        "note": note,
    }
