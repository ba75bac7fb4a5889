"""The interpreter of one rank: every lane runs its ops in order, and an op starts when what it waits for is done.

The compute lane runs on the calling thread, every other lane on a thread of its own (their work waits in C++ with
the interpreter lock released). What an op does is a function `handle(op, epoch) -> bytes sent`: real handlers,
or none (null.py). The first exception of any lane ends all lanes and is raised to the caller.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

from halocast.base.errors import RunError
from halocast.schedule.ending import Ending
from halocast.schedule.ir import Lane, Op, Schedule
from halocast.schedule.trace import Span, span_of

Handle = Callable[[Op, int], int]
Elsewhere = Callable[[Op, int, list[tuple[Op, int]]], None]


STUCK = 2  # time limits without any progress, so that a lane that waits for another rank complains first, by name


class Stopped(Exception):  # noqa: N818  not an error: another lane failed first
    """The end of a lane because another one has failed."""


class Progress:
    """Which instance of every op of a rank is done; waiting for one is bounded in time.

    Each op has a condition of its own, on one lock: an op that ends wakes up the lanes that wait for it, no others.
    """

    def __init__(self, schedule: Schedule, rank: int, timeout_s: float) -> None:
        ops = schedule.by_rank[rank]
        self._done = {op.name: -1 for op in ops}
        self._lock = threading.Lock()
        self._changed = {op.name: threading.Condition(self._lock) for op in ops}
        self._timeout_s = timeout_s
        self._last_finish = time.monotonic()
        self.failure: BaseException | None = None

    def wait(self, op: Op, epoch: int, waits: list[tuple[Op, int]]) -> list[tuple[Op, int]]:
        """Wait until all on its own rank that an op's instance awaits is done; returns what it awaits elsewhere."""
        for source, instance in waits:
            if source.rank == op.rank:
                self.wait_for(source.name, instance, op, epoch)
        return [wait for wait in waits if wait[0].rank != op.rank]

    def wait_for(self, name: str, instance: int, op: Op, epoch: int) -> None:
        """Wait until instance `instance` of `name` is done; `op` and `epoch` say who waits, for the message."""
        if self._done[name] >= instance and self.failure is None:  # a stale read of _done only costs the lock
            return
        changed = self._changed[name]
        with changed:
            while not (self.failure or self._done[name] >= instance):
                idle_s = time.monotonic() - self._last_finish
                if idle_s >= STUCK * self._timeout_s:
                    raise RunError(
                        f"rank {op.rank}, epoch {epoch}: {op.name} waits for {name} of epoch {instance}, "
                        f"but nothing on this rank has finished for {idle_s:.0f} s"
                    )
                changed.wait(STUCK * self._timeout_s - idle_s)
        if self.failure is not None:
            raise Stopped

    def is_done(self, name: str, instance: int) -> bool:
        return self._done[name] >= instance

    def restart(self) -> None:
        """Count idle time from now: the run was paused."""
        self._last_finish = time.monotonic()

    def finish(self, op: Op, epoch: int) -> None:
        with self._changed[op.name]:
            self._done[op.name] = epoch
            self._last_finish = time.monotonic()
            self._changed[op.name].notify_all()

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.failure is None and not isinstance(error, Stopped):
                self.failure = error
            for changed in self._changed.values():
                changed.notify_all()


@dataclass(slots=True, kw_only=True)
class Interpreter:
    """Runs epochs of one rank's ops; may be called again for further epochs."""

    schedule: Schedule
    rank: int
    handle: Handle
    timeout_s: float
    clock: Callable[[], float] = time.perf_counter
    enter_lane: Callable[[Lane], None] = lambda lane: None  # e.g. choose the lane's CUDA stream, threads
    ended: Callable[[Op], None] = lambda op: None  # e.g. let go of what the op read
    elsewhere: Elsewhere = lambda op, epoch, waits: None  # returns when instances of other ranks' ops are done
    progress: Progress = field(init=False)
    spans: list[Span] = field(default_factory=list)
    _ending: Ending = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(self.schedule, self.rank, self.timeout_s)

    def ending(self, num_epochs: int, **calls: Any) -> Ending:
        """The end after so many epochs, or later where ranks run freely; `calls` are those of Ending."""
        return Ending(schedule=self.schedule, rank=self.rank, num_epochs=num_epochs, **calls)

    def run(self, ending: Ending, first: int = 0) -> None:
        """Run the epochs from `first` on that the ending allows."""
        self.progress.restart()
        self._ending = ending
        lanes = self.schedule.lanes(self.rank)
        main = lanes.pop(Lane.COMPUTE, ())
        threads = [
            threading.Thread(target=self._lane, args=(lane, ops, first), name=f"lane-{lane}", daemon=True)
            for lane, ops in lanes.items()
        ]
        for thread in threads:
            thread.start()
        self._lane(Lane.COMPUTE, main, first)
        # a lane may sit in a wait of the transport, which ends by its own time limit; do not hide the error behind it
        for thread in threads:
            while thread.is_alive() and self.progress.failure is None:
                thread.join(0.05)
        if self.progress.failure is not None:
            raise self.progress.failure

    def _lane(self, lane: Lane, ops: tuple[Op, ...], first: int) -> None:
        try:
            self.enter_lane(lane)
            for epoch in takewhile(self._goes_on, count(first)):
                for op in ops:
                    if op.exists(epoch):
                        self._run(op, epoch)
                self._ending.lane_ended(epoch)
        except BaseException as error:
            self.progress.fail(error)

    def _goes_on(self, epoch: int) -> bool:
        for op, instance in self._ending.before(epoch):
            self.progress.wait_for(op.name, instance, op, epoch)
        return self._ending.goes_on(epoch)

    def _run(self, op: Op, epoch: int) -> None:
        others = self.progress.wait(op, epoch, self._ending.awaits(op, epoch))
        if others:
            self.elsewhere(op, epoch, others)
        start = self.clock()
        num_bytes = self.handle(op, epoch)
        end = self.clock()
        self.spans.append(span_of(op, epoch, start, end, num_bytes))  # atomic; lanes share the list
        self.progress.finish(op, epoch)
        self.ended(op)
