"""The seam to the device a rank computes on: lanes, events, and copies between device and host memory.

A device does what it is told later, in the order of the lane that said so; the host learns that it has ended from an
event. The rule that makes this safe: an op ends with `finish` (see `ending`), in which the lane's thread waits for the
lane's work.

* A span's end is then when the work has ended, and an op that waits for another finds its values complete, whichever
  lane made them. No lane needs to tell the device to wait for another, and memory that the last reader has left is
  free: nothing queued refers to it any more.
* It costs no overlap. Every lane has a thread and a queue (a stream) of its own; a thread that waits here sleeps with
  the interpreter lock released, while the threads and queues of the other lanes go on. What is lost is the time to
  wake up and queue the next op of the same lane, tens of microseconds.

What was queued before lanes began (filling buffers) is the one thing no op ends; `enter` lets a lane's work wait for
it.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from halocast.base.errors import InputError, unknown
from halocast.schedule.ir import Lane, Op


class DeviceKind(StrEnum):
    AUTO = "auto"  # what the transport is made for: nccl CUDA, gloo the CPU
    CPU = "cpu"
    CUDA = "cuda"
    TWIN = "twin"


class Event(Protocol):
    """A point in a lane's work."""

    def synchronize(self) -> None:
        """Let the calling thread wait until the device is there."""
        ...


class Seam(Protocol):
    """Requests of the calling thread's lane to the device."""

    @property
    def where(self) -> torch.device:
        """The torch device on which tensors lie."""
        ...

    @property
    def stages(self) -> bool:
        """Whether the device's memory is not the host's, so that a transport of the host needs copies."""
        ...

    def enter(self, lane: Lane) -> None:
        """Make the calling thread the lane's; its work comes after all that the compute lane was told before."""
        ...

    def host_like(self, rows: Tensor) -> Tensor:
        """Host memory for such rows which the device reaches by itself (pinned), contents undefined."""
        ...

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy between device and host, after all that the lane was told before."""
        ...

    def record(self) -> Event:
        """The point up to which the lane has been told what to do."""
        ...

    def wait(self, event: Event) -> None:
        """Let the lane's further work come after the event; the thread does not wait."""
        ...

    def finish(self) -> None:
        """Let the thread wait until the lane's work has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Past:
    """The event of work that ends before the call that asks for it returns."""

    def synchronize(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Cpu:
    """The host itself: all is done when it is said, nothing needs staging."""

    where: torch.device = field(default_factory=lambda: torch.device("cpu"))
    stages: bool = False

    def enter(self, lane: Lane) -> None:
        return

    def host_like(self, rows: Tensor) -> Tensor:
        return torch.empty(rows.shape, dtype=rows.dtype)

    def copy(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)

    def record(self) -> Past:
        return Past()

    def wait(self, event: Event) -> None:
        event.synchronize()

    def finish(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Cuda:
    """A GPU: a stream per lane; the compute lane keeps the default stream, on which the rank's state was made."""

    where: torch.device
    stages: bool = True
    _streams: dict[Lane, torch.cuda.Stream] = field(default_factory=dict)

    def enter(self, lane: Lane) -> None:
        torch.cuda.set_device(self.where)
        main = torch.cuda.default_stream(self.where)
        if lane not in self._streams:
            own = torch.cuda.Stream(self.where)  # type: ignore[no-untyped-call]
            self._streams[lane] = main if lane == Lane.COMPUTE else own
        torch.cuda.set_stream(self._streams[lane])
        self.wait(main.record_event())

    def host_like(self, rows: Tensor) -> Tensor:
        return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)

    def copy(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # sleep: cores are for the transport
        event.record()
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        torch.cuda.current_stream().wait_event(event)

    def finish(self) -> None:
        self.record().synchronize()


@dataclass(slots=True)
class _Queue:
    """The work of one lane that is still to be done, and how much there has been and is done."""

    jobs: deque[Callable[[], object]] = field(default_factory=deque)
    num_told: int = 0
    num_done: int = 0

    def tell(self, job: Callable[[], object]) -> None:
        self.jobs.append(job)
        self.num_told += 1

    def run_to(self, mark: int) -> None:
        while self.num_done < mark:
            self.jobs.popleft()()
            self.num_done += 1


@dataclass(frozen=True, slots=True)
class Mark:
    """The event of a twin device."""

    queue: _Queue
    num_jobs: int
    lock: threading.RLock

    def synchronize(self) -> None:
        with self.lock:
            self.queue.run_to(self.num_jobs)


class Twin:
    """A device made of host memory that is as late as a device may be: copies happen only when somebody waits for them.

    Where code forgets to wait it sees old values, every time, so that what a GPU would do now and then fails in a test.
    Kernels are not put off: torch runs them at once. Host memory is filled with NaN where there is one.
    """

    def __init__(self) -> None:
        self.where = torch.device("cpu")
        self.stages = True
        self._lock = threading.RLock()  # one for all lanes: their queues run each other's work
        self._queues: dict[Lane, _Queue] = defaultdict(_Queue)
        self._thread = threading.local()

    def enter(self, lane: Lane) -> None:
        self._thread.lane = lane
        self.wait(self._mark(Lane.COMPUTE))

    def host_like(self, rows: Tensor) -> Tensor:
        return torch.full(rows.shape, float("nan") if rows.is_floating_point() else -1, dtype=rows.dtype)

    def copy(self, source: Tensor, target: Tensor) -> None:
        with self._lock:
            self._queues[self._lane()].tell(partial(target.copy_, source))

    def record(self) -> Mark:
        return self._mark(self._lane())

    def wait(self, event: Event) -> None:
        with self._lock:
            self._queues[self._lane()].tell(event.synchronize)

    def finish(self) -> None:
        self.record().synchronize()

    def _mark(self, lane: Lane) -> Mark:
        with self._lock:
            return Mark(self._queues[lane], self._queues[lane].num_told, self._lock)

    def _lane(self) -> Lane:
        return getattr(self._thread, "lane", Lane.COMPUTE)


def as_array(values: Tensor) -> np.ndarray:
    """The array of a tensor's numbers, in its own memory if that is the host's; of bfloat16 numbers the bits."""
    given = values.detach().cpu()
    return (given.view(torch.int16) if given.dtype is torch.bfloat16 else given).numpy()


def ending(device: Seam, handle: Callable[[Op, int], int]) -> Callable[[Op, int], int]:
    """The handler, ending when its work has ended."""

    def run(op: Op, epoch: int) -> int:
        num_bytes = handle(op, epoch)
        device.finish()
        return num_bytes

    return run


def usual_backend(num_ranks: int) -> str:
    """The backend: nccl where every one of so many ranks of this host can have a GPU of its own, else gloo."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return "nccl" if gpus >= num_ranks else "gloo"


def open_device(kind: str, backend: str, local_rank: int) -> Seam:
    """The device of a rank, by a word of DeviceKind; ranks that stage through host memory may share a GPU."""
    if kind not in list(DeviceKind):
        raise unknown("device", kind, map(str, DeviceKind), "run.device")
    if kind == DeviceKind.AUTO:
        kind = DeviceKind.CUDA if backend == "nccl" else DeviceKind.CPU
    if backend == "nccl" and kind != DeviceKind.CUDA:
        raise InputError(f"run.device: backend nccl needs device cuda or auto, not {kind!r} (or use transport gloo)")
    return OPEN[DeviceKind(kind)](backend, local_rank)


def _open_cuda(backend: str, local_rank: int) -> Seam:
    if not torch.cuda.is_available():
        what = "backend nccl needs CUDA devices" if backend == "nccl" else "device cuda needs one"
        raise InputError(f"{what}, and torch sees none here (use transport gloo on device cpu)")
    num_gpus = torch.cuda.device_count()
    if backend == "nccl" and local_rank >= num_gpus:
        raise InputError(f"backend nccl needs a GPU per rank, and this host has {num_gpus} for local rank {local_rank}")
    where = torch.device("cuda", local_rank % num_gpus)
    torch.cuda.set_device(where)
    return Cuda(where)


OPEN: Mapping[DeviceKind, Callable[[str, int], Seam]] = MappingProxyType(
    {
        DeviceKind.CPU: lambda backend, local_rank: Cpu(),
        DeviceKind.CUDA: _open_cuda,
        DeviceKind.TWIN: lambda backend, local_rank: Twin(),
    }
)
