"""Flows that share links, inside SimPy: rates change only when flows start or end, and in between nothing happens.

All flows that start at one instant are filled in together. `slack` lets flows that lack at most this fraction of their
time end with the next one that ends; what was forgiven is counted, so that the error can be stated.

`LinkRecord` keeps what a trace tells about links: their bytes always, every change of their load when asked to.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simpy

from halocast.schedule.trace import LinkUse
from halocast.sim.network.bundles import Bundles, widened
from halocast.sim.network.fairshare import (
    NEAR,
    NO_LINK,
    PLAIN_VISITS,
    Floats,
    Ints,
    advance,
    choose,
    compiled,
    connect,
    is_loaded,
    raise_rates,
    retire,
    soonest,
    start_floor,
)

BATCH = 32  # bits of an id that number a flow within its batch
LATE = 2  # SimPy runs events of one instant by priority: after every start of that instant
SAME_LOAD = 1e-12  # of a link's capacity: loads closer than this differ by rounding
Done = Callable[[Ints], None]


class LinkRecord:
    """A record of what links carried; other numbers in a route (caps, NO_LINK) are not links and do not count."""

    def __init__(self, capacity: Floats) -> None:
        self.capacity = capacity
        self.num_bytes = np.zeros(len(capacity))
        self._load = np.zeros(len(capacity))
        self._changes: list[tuple[Ints, Floats, Floats]] = []

    def carry(self, routes: Ints, num_bytes: Floats) -> None:
        self.num_bytes += self._sums(routes, num_bytes)

    def change(self, links: Ints, times_s: Floats, rates: Floats) -> None:
        """Note that from these times on these links carry so many bytes per second; each link's times come in order."""
        self._changes.append((links, times_s, rates))

    def share(self, now: float, routes: Ints, rates: Floats) -> None:
        """Note the flows from now on; only links whose load changed by more than rounding are noted."""
        load = np.minimum(self._sums(routes, rates), self.capacity)
        differs = np.abs(load - self._load) > SAME_LOAD * self.capacity
        links = np.flatnonzero(differs | ((load == 0) & (self._load > 0)))
        self._load[links] = load[links]
        if len(links):
            self.change(links, np.full(len(links), now), load[links])

    def _sums(self, routes: Ints, values: Floats) -> Floats:
        """The sum for every link over the flows that use it."""
        weights = np.repeat(values, routes.shape[1])
        num = len(self.capacity)
        sums = np.bincount(routes.ravel() - NO_LINK, weights, minlength=num + 1)
        return np.asarray(sums[1 : num + 1], dtype=np.float64)

    def use(self, names: Sequence[str]) -> tuple[LinkUse, ...]:
        """Every link that carried something, in the order of the names."""
        parts = zip(*self._changes, strict=True) if self._changes else (np.zeros((1, 0)),) * 3
        links, times_s, rates = (np.concatenate(part) for part in parts)
        order = np.argsort(links, kind="stable")
        bounds = np.searchsorted(links[order], np.arange(len(names) + 1))
        return tuple(
            LinkUse(
                name=name,
                bytes_per_s=float(self.capacity[k]),
                num_bytes=float(self.num_bytes[k]),
                **_points(times_s[order[bounds[k] : bounds[k + 1]]], rates[order[bounds[k] : bounds[k + 1]]]),
            )
            for k, name in enumerate(names)
            if self.num_bytes[k] > 0
        )


def _points(times_s: Floats, rates: Floats) -> dict[str, tuple[float, ...]]:
    """Points of a load over time: of changes at one instant the last counts, of equal rates in a row the first."""
    last = np.append(times_s[1:] > times_s[:-1], np.ones(min(1, len(times_s)), dtype=np.bool_))
    times_s, rates = times_s[last], rates[last]
    new = np.diff(rates, prepend=0.0) != 0
    return {"times_s": tuple(times_s[new].tolist()), "rates": tuple(rates[new].tolist())}


class Flows:
    """The active flows over links of given capacities; the last `caps` of them are caps of single flows."""

    def __init__(
        self,
        env: simpy.Environment,
        capacity: Floats,
        caps: Floats | None = None,
        slack: float = 0.0,
        *,
        record: bool = False,
    ) -> None:
        self._env = env
        self._num_real = len(capacity)
        self.carried = LinkRecord(np.asarray(capacity, dtype=np.float64))
        self._records_load = record
        self.capacity = np.concatenate([capacity, np.zeros(0) if caps is None else caps]).astype(np.float64)
        self._first_capacity = self.capacity.copy()
        self._scales: list[tuple[Ints, float]] = []
        self.slack = slack
        self.num_ended = 0
        self.num_bytes = 0.0
        self.forgiven_bytes = 0.0
        self._shortened = 0.0
        self._active = Bundles()
        self._touched = np.zeros(len(self.capacity), dtype=np.bool_)  # components to fill again,
        self._floor = np.inf  # from this rate on
        self._component: Ints = np.zeros(len(self.capacity), dtype=np.int64)
        self._batches: dict[int, tuple[Ints, Done, int]] = {}  # names, whom to tell, how many are under way
        self._num_batches = 0
        self._new: list[tuple[Ints, Floats, Ints]] = []
        self._num_visits = PLAIN_VISITS + 1 if is_loaded() else 0
        self._updated_s = 0.0
        self._version = 0
        self._watched: dict[int, Callable[[float], None]] = {}

    def start(self, routes: Ints, num_bytes: Floats, names: Ints, done: Done) -> None:
        """Begin flows now; `done` is called with the names of those that end together. Routes are rows of link numbers,
        filled up with -1; a flow without bytes ends at once."""
        batch = self._num_batches
        self._num_batches += 1
        self._batches[batch] = names, done, len(names)
        self._settle_later()
        self._new.append((routes, num_bytes, (batch << BATCH) + np.arange(len(names), dtype=np.int64)))

    def scale(self, links: Ints, factor: float) -> None:
        """Give links and caps this fraction of their first capacity from now on."""
        self._settle_later()
        self._scales.append((links, factor))

    def watch(self, link: int, tell: Callable[[float], None]) -> None:
        """Tell how many bytes per second a link carries, whenever that may have changed."""
        self._watched[link] = tell

    def _settle_later(self) -> None:
        if not self._is_pending():
            self._at(0.0, self._settle)

    def _is_pending(self) -> bool:
        return bool(self._new or self._scales)

    def link_bytes(self) -> Floats:
        """Bytes given to every link so far."""
        return self.carried.num_bytes.copy()

    def error_bound(self) -> float:
        """The largest fraction of its own duration by which slack ended any flow early, at most `slack`; 0 without.

        That is the error slack makes at each flow itself, had all others stayed as they are. What a flow gains or loses
        because others left early is not in it; `forgiven_bytes` of `num_bytes` says what was left out in all."""
        return self._shortened

    def use(self, names: Sequence[str]) -> tuple[LinkUse, ...]:
        """The use of the links of these names; their load over time only if it was to be recorded."""
        return self.carried.use(names)

    def _at(self, delay: float, action: Callable[[], None]) -> None:
        event = self._env.event()
        event._ok, event._value = True, None
        assert event.callbacks is not None
        event.callbacks.append(lambda _: action())
        self._env.schedule(event, priority=LATE, delay=delay)  # type: ignore[arg-type]

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        self._num_visits += self._active.num
        return (compiled(function) if self._num_visits > PLAIN_VISITS else function)(self._active.num, *args)

    def _advance(self) -> None:
        active = self._active
        if active.num and self._env.now > self._updated_s:
            self._call(advance, active.remaining, active.rates, self._env.now - self._updated_s)
        self._updated_s = self._env.now

    def _settle(self) -> None:
        """Take in what has started or changed at this instant, and fill once for that and for what has ended."""
        self._advance()
        self._floor = min(self._floor, self._rescale(), self._take_in())
        self._fill()
        self._end()

    def _take_in(self) -> float:
        """Take in the flows that have started; returns the rate below which they change nothing."""
        if not self._new:
            return np.inf
        new, self._new = self._new, []
        width = max(routes.shape[1] for routes, _, _ in new)
        parts = zip(*((widened(routes, width), *rest) for routes, *rest in new), strict=True)
        routes, num_bytes, ids = (np.concatenate(part) if len(part) > 1 else part[0] for part in parts)
        self.num_bytes += float(num_bytes.sum())
        self.carried.carry(routes, num_bytes)
        active, first = self._active, self._active.num
        if first == 0:
            self._component = np.arange(len(self.capacity))
        active.add(routes, num_bytes, ids, self._env.now)
        self._call(connect, active.routes, first, self._component)
        self._touched[self._component[routes[:, 0]]] = True  # as is what these flows connect to touched parts
        floor: float = self._call(start_floor, active.routes, active.weights, first, self.capacity, self._num_real)
        return floor

    def _rescale(self) -> float:
        """Take in the links that have changed; returns the rate below which they change nothing."""
        if not self._scales:
            return np.inf
        for links, factor in self._scales:
            self.capacity[links] = self._first_capacity[links] * factor
        self._scales = []
        self._touched[:] = True
        return 0.0

    def _fill(self) -> None:
        """Set new rates for the flows in touched components that are not slower than the floor."""
        active = self._active
        again, left = np.empty(active.num, dtype=np.bool_), self.capacity.copy()
        users = np.zeros(len(left), dtype=np.int64)
        common = active.routes, active.weights, active.rates, self.capacity, self._num_real
        todo = self._call(choose, *common, self._component, self._touched, self._floor * NEAR, again, left, users)
        self._call(raise_rates, *common, again, left, users, todo)
        self._touched[:] = False
        self._floor = np.inf

    def _plan(self) -> None:
        active = self._active
        if self._records_load:
            self.carried.share(self._env.now, *active.loads())
        if self._watched:
            routes, rates = active.loads()
            for link, tell in self._watched.items():
                tell(float(((routes == link).sum(axis=1) * rates).sum()))
        self._version += 1
        if active.num:
            version = self._version
            self._at(self._call(soonest, active.remaining, active.rates), lambda: self._wake(version))

    def _wake(self, version: int) -> None:
        if version == self._version:
            self._advance()
            self._end()

    def _end(self) -> None:
        """End what is done; the others share what that frees, together with what starts in answer to it."""
        ended = self._retire()
        self._tell(ended)
        if not self._is_pending():
            if len(ended) and self._active.num:
                self._fill()
            self._plan()

    def _retire(self) -> Ints:
        active = self._active
        out = np.empty(len(active.ids), dtype=np.int64)
        active.num, count, floor, forgiven, shortened = self._call(
            retire,
            active.routes,
            active.weights,
            active.heads,
            active.remaining,
            active.rates,
            active.began,
            active.sizes,
            active.ids,
            self._env.now,
            self.slack,
            self._component,
            self._touched,
            out,
        )
        self._floor = min(self._floor, floor)
        self.num_ended += count
        self.forgiven_bytes += forgiven
        self._shortened = max(self._shortened, shortened)
        return out[:count]

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
