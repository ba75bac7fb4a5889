"""The end of a run: every rank does its epochs, and ranks that run freely go on until the slowest has done its own.

If they did not, the slowest would train alone at the end, on its part only. Beyond its own epochs a rank begins one
when it has finished the one before, and decides then, once for all its lanes; whoever waits for other ranks waits at
most for the last epoch that all do for certain.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from halocast.schedule.ir import Op, Schedule

MOST_LAPS = 100  # times its epochs that a rank does at most, so that one that needs no time at all ends, too


@dataclass(slots=True, kw_only=True)
class Ending:
    """Says which epochs one rank of a run does; its lanes, which may be threads, ask and tell.

    `slowest` gives the number of epochs that every other rank has finished; `finished` is told of each epoch that all
    lanes of this rank have ended, in order.
    """

    schedule: Schedule
    rank: int
    num_epochs: int
    slowest: Callable[[], int] = lambda: 0
    finished: Callable[[int], None] = lambda epoch: None
    _goes_on: dict[int, bool] = field(default_factory=dict)  # by epoch: as the first lane that asked was told
    _ended: Counter[int] = field(default_factory=Counter)  # lanes, by epoch
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _num_lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self._num_lanes = len(self.schedule.lanes(self.rank))

    def before(self, epoch: int) -> list[tuple[Op, int]]:
        """The instances of its own rank that have to end before a lane may ask whether the rank does this epoch."""
        if epoch < self.num_epochs or not self.schedule.free:
            return []
        instances = ((op, op.latest(epoch - 1)) for op in self.schedule.by_rank[self.rank])
        return [(op, instance) for op, instance in instances if instance >= 0]

    def goes_on(self, epoch: int) -> bool:
        """Whether the rank does this epoch; the instances of `before` have ended."""
        if epoch < self.num_epochs:
            return True
        if not self.schedule.free or epoch >= MOST_LAPS * self.num_epochs:
            return False
        with self._lock:
            if epoch not in self._goes_on:
                self._goes_on[epoch] = self.slowest() < self.num_epochs
            return self._goes_on[epoch]

    def lane_ended(self, epoch: int) -> None:
        """Take note that a lane has done all it has to do in an epoch."""
        with self._lock:
            self._ended[epoch] += 1
            if self._ended[epoch] == self._num_lanes:
                del self._ended[epoch]
                self.finished(epoch)

    def awaits(self, op: Op, epoch: int) -> list[tuple[Op, int]]:
        """The instances that an op waits for; of other ranks', none that they may not come to.

        A rank that is told too late that all are done begins an epoch more, and must not wait there for those who know.
        """
        waits, last = self.schedule.awaits(op, epoch), self.num_epochs - 1
        if epoch <= last:
            return waits
        return [(s, instance if s.rank == op.rank else s.latest(min(instance, last))) for s, instance in waits]
