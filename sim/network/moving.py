"""Which ranks have bytes on the way: their kernels are slower meanwhile."""

from collections.abc import Callable


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
