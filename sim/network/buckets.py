"""Links behind token buckets: after a pause, so many bytes pass at once before the link's rate holds.

Rate limiters let through a burst, and what was not used of the rate adds up to one. Emulated hosts have one at each end
of each cable, so a short message takes next to nothing and a longer one a burst less than its bytes need.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import simpy

from halocast.sim.network.fairshare import NO_LINK, Floats, Ints
from halocast.sim.network.flows import Done, Flows


@dataclass(slots=True)
class Bucket:
    """Tokens of one link; they fill up while nothing uses it."""

    burst_bytes: float
    bytes_per_s: float
    tokens: float
    num_flows: int = 0
    since_s: float = 0.0  # when the last flow left

    def available(self, now: float) -> float:
        refilled = 0.0 if self.num_flows else self.bytes_per_s * (now - self.since_s)
        return min(self.burst_bytes, self.tokens + refilled)

    def enter(self, now: float, taken: float) -> None:
        self.tokens = self.available(now) - taken
        self.num_flows += 1

    def leave(self, now: float) -> None:
        self.num_flows -= 1
        self.since_s = now


class BucketFlows:
    """A starter of flows; of one that meets full buckets, the burst goes first, over what else there is on its way."""

    def __init__(self, env: simpy.Environment, flows: Flows, burst_s: Mapping[int, float]) -> None:
        self._env, self._flows = env, flows
        rates = {link: float(flows.capacity[link]) for link in burst_s}
        self._buckets = {link: Bucket(rates[link] * s, rates[link], rates[link] * s) for link, s in burst_s.items()}

    def start(self, routes: Ints, sizes: Floats, names: Ints, done: Done) -> None:
        for route, size, name in zip(routes, sizes.tolist(), names, strict=True):
            self._start_one(route, size, np.array([name]), done)

    def _start_one(self, route: Ints, size: float, name: Ints, done: Done) -> None:
        passed = [self._buckets[link] for link in route.tolist() if link in self._buckets]
        taken = min((bucket.available(self._env.now) for bucket in passed), default=0.0)
        taken = min(taken, size)
        for bucket in passed:
            bucket.enter(self._env.now, taken)

        def left(names: Ints) -> None:
            for bucket in passed:
                bucket.leave(self._env.now)
            done(names)

        def rest(names: Ints) -> None:
            self._flows.start(route[None], np.array([size - taken]), names, left)

        if taken == 0:
            rest(name)
            return
        limited = np.isin(route, list(self._buckets))
        self._flows.carried.carry(np.where(limited, route, NO_LINK)[None], np.array([taken]))
        then: Callable[[Ints], None] = rest if size > taken else left
        others = route[~limited & (route != NO_LINK)]
        if len(others):
            self._flows.start(others[None], np.array([taken]), name, then)
        else:
            then(name)
