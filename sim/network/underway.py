"""What is on the way: ranks with bytes that move, whose kernels are slower meanwhile, and sockets that are not free."""

from collections import Counter, defaultdict
from collections.abc import Callable

from halocast.cluster.routes import Ints


class Moving:
    """How many transfers of each rank are under way, and whom to tell when there begin or end to be any."""

    def __init__(self, num_ranks: int) -> None:
        self._num = [0] * num_ranks
        self._tell: dict[int, Callable[[bool], None]] = {}

    def watch(self, rank: int, tell: Callable[[bool], None]) -> None:
        self._tell[rank] = tell

    def begin(self, rank: int) -> None:
        self._num[rank] += 1
        if self._num[rank] == 1 and rank in self._tell:
            self._tell[rank](True)

    def end(self, rank: int) -> None:
        self._num[rank] -= 1
        if self._num[rank] == 0 and rank in self._tell:
            self._tell[rank](False)


class Sockets:
    """How many messages are on their way from one rank to another, and who waits until there are none: gloo has one
    socket per pair of ranks, on which an all-reduce queues behind the messages of that pair.

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
        """Run an action when all that is on the way between two ranks now has arrived; at once if that is nothing."""
        if self._num[ends] == 0:
            action()
        else:
            self._waiting[ends].append(action)
