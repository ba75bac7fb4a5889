"""What every measurement of `halocast calibrate` is given, and what it gives back."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from halocast.calibrate.measure.stopwatch import Limits, Timing, time_it
from halocast.exec.transport.comm import Link
from halocast.exec.transport.device import Device

Measured = dict[str, Any]  # a point, as JSON has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One rank of a calibration; `control` joins all ranks over gloo, whatever they measure."""

    rank: int
    num_ranks: int
    device: Device
    link: Link
    control: Any
    limits: Limits
    quick: bool
    flush: torch.Tensor | None = None  # what is touched before a sample, so that caches hold nothing of use
    say: Callable[[str], None] = field(default=lambda text: None)

    def rng(self, group: str) -> np.random.Generator:
        """The same numbers on every rank."""
        return np.random.default_rng([len(group), *group.encode()])

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device.where)

    def kernel(self, kind: str, dims: Iterable[int], run: Callable[[], object], **note: Any) -> Iterator[Measured]:
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
        """Rank 0's value."""
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0, group=self.control)
        return float(shared)

    def all_values(self, value: float) -> list[float]:
        """Every rank's value."""
        shared = torch.zeros(self.num_ranks, dtype=torch.float64)
        shared[self.rank] = value
        dist.all_reduce(shared, group=self.control)
        return [float(one) for one in shared]


def point(group: str, kind: str, dims: Iterable[int], timing: Timing, **note: Any) -> Measured:
    return {
        "group": group,
        "kind": kind,
        "dims": [int(dim) for dim in dims],
        "seconds": timing.seconds,
        "spread": round(timing.spread, 4),
        "repeats": timing.repeats,
        "note": note,
    }
