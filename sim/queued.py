"""Links as queues, for clusters too large to share every link exactly: first come, first served, in bulk.

Each link works off the bytes given to it in the order of their start; a message has arrived when the slowest link of
its route has worked off everything up to it. Nothing is simulated per flow, so a thousand ranks cost as much as their
messages, not their changes of rate. When many messages start together, a link is done with all of them exactly when it
would be under fair sharing; in between, early starters are served too soon and late ones too late.
"""

import numpy as np
import simpy

from halocast.sim.cluster import Cluster
from halocast.sim.fairshare import NO_LINK, Floats, Ints
from halocast.sim.flows import Done
from halocast.sim.links import Arrived, SharedLinks, after

SHARED_RANKS = 16


class QueuedLinks(SharedLinks):
    """The same topology, transports and stages as SharedLinks, with another rule for who gets a link."""

    kind = "queued"

    def __init__(self, env: simpy.Environment, cluster: Cluster) -> None:
        super().__init__(env, cluster)
        self._capacity = np.append(self.flows.capacity, np.inf)  # NO_LINK, the last, takes no time
        self._num_real = len(self.topology.names)
        self._free_s = np.zeros(len(self._capacity))

    def send(self, source: int, targets: Ints, num_bytes: Ints, done: Arrived) -> None:
        """All stages at once: when each message arrives is known as soon as it is queued."""
        ready = np.full(len(targets), self._env.now)
        for stage in range(self.stages.num):
            routes, latency_s = self._table(stage, source)
            sizes: Floats = num_bytes.astype(np.float64) * (self.stages.overhead if stage == self.stages.wire else 1.0)
            # copies up into different devices share nothing; messages come to them in another order than they leave
            alone = stage > self.stages.wire
            ready = self._pass(routes[targets], sizes, ready + latency_s[targets], alone)
        done(targets, ready)

    def _pass(self, routes: Ints, sizes: Floats, ready: Floats, alone: bool) -> Floats:
        """When messages that are ready at these times have passed the links of their routes."""
        caps = np.where(routes >= self._num_real, self._capacity[routes], np.inf).min(axis=1)
        if alone:
            return np.asarray(ready + sizes / np.minimum(self._capacity[routes].min(axis=1), caps))
        loads, begins = np.zeros(len(self._capacity)), np.full(len(self._capacity), np.inf)
        np.add.at(loads, routes, sizes[:, None])
        np.minimum.at(begins, routes, ready[:, None])
        used = loads > 0
        self._free_s[used] = np.maximum(self._free_s[used], begins[used]) + loads[used] / self._capacity[used]
        real = (routes != NO_LINK) & (routes < self._num_real)
        return np.asarray(np.maximum(np.where(real, self._free_s[routes], 0.0).max(axis=1), ready + sizes / caps))

    def _start(self, delay_s: float, routes: Ints, sizes: Floats, names: Ints, done: Done) -> None:
        """All-reduce and store, whose few messages are queued stage by stage."""
        when = self._pass(routes, sizes, np.full(len(names), self._env.now + delay_s), alone=False)
        after(self._env, float(when.max()) - self._env.now, lambda: done(names))


def links_for(num_ranks: int) -> type[SharedLinks]:
    """Exact sharing where it takes seconds, queues beyond."""
    return SharedLinks if num_ranks <= SHARED_RANKS else QueuedLinks
