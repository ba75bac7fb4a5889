"""The sockets of gloo: one per pair of ranks, on which an all-reduce queues behind the messages of that pair."""

from collections import Counter, defaultdict
from collections.abc import Callable

from halocast.sim.network.fairshare import Ints


class Sockets:
    """How many messages are on their way from one rank to another, and who waits until there are none.

    Messages among themselves share their socket's rate: their bytes pass in the same time as one after the other. Those
    that come while an all-reduce waits go first, too: the released codes have queued all of an epoch before it.
    """

    def __init__(self) -> None:
        self._num: Counter[tuple[int, int]] = Counter()
        self._waiting: dict[tuple[int, int], list[Callable[[], None]]] = defaultdict(list)

    def enter(self, source: int, targets: Ints) -> None:
        self._num.update((source, target) for target in targets.tolist())

    def leave(self, source: int, targets: Ints) -> None:
        self._num.subtract((source, target) for target in targets.tolist())
        for target in targets.tolist():
            if self._num[source, target] == 0:
                for action in self._waiting.pop((source, target), ()):
                    action()

    def when_free(self, ends: tuple[int, int], action: Callable[[], None]) -> None:
        """Do it when all that is on the way now has arrived; at once if that is nothing."""
        if self._num[ends] == 0:
            action()
        else:
            self._waiting[ends].append(action)
