"""Flows that share links, inside SimPy: rates change only when flows start or end, and in between nothing happens.

All flows that start at one instant are filled in together. `slack` lets flows that lack at most this fraction of their
time end with the next one that ends; what was forgiven is counted, so that the error can be stated.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from halocast.sim.fairshare import (
    JIT_FLOWS,
    NEAR,
    NO_LINK,
    Floats,
    Ints,
    advance,
    choose,
    compiled,
    connect,
    raise_rates,
    retire,
    soonest,
    start_floor,
)

BATCH = 32  # bits of an id that number a flow within its batch
LATE = 2  # SimPy runs events of one instant by priority: after every start of that instant
Done = Callable[[Ints], None]


class Flows:
    """The active flows over links of given capacities; the last `caps` of them are caps of single flows."""

    def __init__(
        self, env: simpy.Environment, capacity: Floats, caps: Floats | None = None, slack: float = 0.0
    ) -> None:
        self._env = env
        self._num_real = len(capacity)
        self.capacity = np.concatenate([capacity, np.zeros(0) if caps is None else caps]).astype(np.float64)
        self.slack = slack
        self.num_ended = 0
        self.num_bytes = 0.0
        self.forgiven_bytes = 0.0
        self._num = 0
        self._routes: Ints = np.zeros((0, 1), dtype=np.int64)
        self._remaining: Floats = np.zeros(0)
        self._rates: Floats = np.zeros(0)
        self._began: Floats = np.zeros(0)
        self._ids: Ints = np.zeros(0, dtype=np.int64)  # batch and number in it
        self._touched = np.zeros(len(self.capacity), dtype=np.bool_)  # components to fill again
        self._component: Ints = np.zeros(len(self.capacity), dtype=np.int64)
        self._batches: dict[int, tuple[Ints, Done, int]] = {}  # names, whom to tell, how many are under way
        self._num_batches = 0
        self._new: list[tuple[Ints, Floats, Ints]] = []
        self._compiled = False
        self._updated_s = 0.0
        self._version = 0

    def start(self, routes: Ints, num_bytes: Floats, names: Ints, done: Done) -> None:
        """Begin flows now; `done` is called with the names of those that end together. Routes are rows of link numbers,
        filled up with -1; a flow without bytes ends at once."""
        batch = self._num_batches
        self._num_batches += 1
        self._batches[batch] = names, done, len(names)
        if not self._new:
            self._at(0.0, self._settle)
        self._new.append((routes, num_bytes, (batch << BATCH) + np.arange(len(names), dtype=np.int64)))

    def rates(self) -> tuple[Ints, Floats]:
        """Routes and rates of the flows under way, for tests and utilisation."""
        return self._routes[: self._num].copy(), self._rates[: self._num].copy()

    def _at(self, delay: float, action: Callable[[], None]) -> None:
        event = self._env.event()
        event._ok, event._value = True, None
        assert event.callbacks is not None
        event.callbacks.append(lambda _: action())
        self._env.schedule(event, priority=LATE, delay=delay)  # type: ignore[arg-type]

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        self._compiled |= self._num >= JIT_FLOWS  # from then on for good: compiling is paid only once
        return (compiled(function) if self._compiled else function)(self._num, *args)

    def _advance(self) -> None:
        if self._num and self._env.now > self._updated_s:
            self._call(advance, self._remaining, self._rates, self._env.now - self._updated_s)
        self._updated_s = self._env.now

    def _settle(self) -> None:
        """Take in the flows that have started at this instant."""
        self._advance()
        new, self._new = self._new, []
        width = max(self._routes.shape[1], *(routes.shape[1] for routes, _, _ in new))
        first = self._num
        if first == 0:
            self._component = np.arange(len(self.capacity))
        for routes, num_bytes, ids in new:
            self._append(_widened(routes, width), num_bytes, ids, width)
        self._call(connect, self._routes, first, self._component)
        self._touched[self._component[self._routes[first : self._num, 0]]] = True
        self._fill(self._call(start_floor, self._routes, first, self.capacity, self._num_real))
        self._end_and_plan()

    def _append(self, routes: Ints, num_bytes: Floats, ids: Ints, width: int) -> None:
        num, more = self._num, len(ids)
        if num + more > len(self._ids) or width > self._routes.shape[1]:
            room = max(num + more, 2 * len(self._ids))
            self._routes = _grown(_widened(self._routes, width), room)
            self._remaining, self._rates = _grown(self._remaining, room), _grown(self._rates, room)
            self._began, self._ids = _grown(self._began, room), _grown(self._ids, room)
        self._routes[num : num + more] = routes
        self._remaining[num : num + more] = num_bytes
        self._rates[num : num + more] = 0.0
        self._began[num : num + more] = self._env.now
        self._ids[num : num + more] = ids
        self._num += more
        self.num_bytes += float(num_bytes.sum())

    def _fill(self, floor: float) -> None:
        """New rates for the flows in touched components that are not slower than the floor."""
        again, left = np.empty(self._num, dtype=np.bool_), self.capacity.copy()
        users = np.zeros(len(left), dtype=np.int64)
        common = self._routes, self._rates, self.capacity, self._num_real
        todo = self._call(choose, *common, self._component, self._touched, floor * NEAR, again, left, users)
        self._call(raise_rates, *common, again, left, users, todo)
        self._touched[:] = False

    def _end_and_plan(self) -> None:
        """End what is done, share out what that frees, and wait for the next end."""
        ended, floor = self._retire()
        if len(ended) and self._num:
            self._fill(floor)
        self._version += 1
        if self._num:
            version = self._version
            self._at(self._call(soonest, self._remaining, self._rates), lambda: self._wake(version))
        self._tell(ended)

    def _wake(self, version: int) -> None:
        if version == self._version:
            self._advance()
            self._end_and_plan()

    def _retire(self) -> tuple[Ints, float]:
        out = np.empty(self._num, dtype=np.int64)
        count, floor, forgiven = self._call(
            retire,
            self._routes,
            self._remaining,
            self._rates,
            self._ids,
            self._began,
            self._env.now,
            self.slack,
            self._component,
            self._touched,
            out,
        )
        self._num -= count
        self.num_ended += count
        self.forgiven_bytes += forgiven
        return out[:count], floor

    def _tell(self, ended: Ints) -> None:
        """Call each batch's owner once, in order of start."""
        batches = ended >> BATCH
        for batch in dict.fromkeys(batches.tolist()):
            names, done, left = self._batches[batch]
            mine = ended[batches == batch] & (2**BATCH - 1)
            if left == len(mine):
                del self._batches[batch]
            else:
                self._batches[batch] = names, done, left - len(mine)
            done(names[mine])


def _widened(routes: Ints, width: int) -> Ints:
    short = width - routes.shape[1]
    return np.pad(routes, ((0, 0), (0, short)), constant_values=NO_LINK) if short else routes


def _grown(array: NDArray[Any], room: int) -> NDArray[Any]:
    shape = (room - len(array), *array.shape[1:])
    return np.concatenate([array, np.zeros(shape, dtype=array.dtype)])
