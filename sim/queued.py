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
from halocast.sim.links import Finish, SharedLinks, after

SHARED_RANKS = 16


class QueuedLinks(SharedLinks):
    """The same topology, transports and stages as SharedLinks, with another rule for who gets a link."""

    kind = "queued"

    def __init__(self, env: simpy.Environment, cluster: Cluster) -> None:
        super().__init__(env, cluster)
        self._capacity = np.append(self.flows.capacity, np.inf)  # NO_LINK, the last, takes no time
        self._num_real = len(self.topology.names)
        self._free_s = np.zeros(len(self._capacity))

    def _start(self, delay_s: float, routes: Ints, sizes: Floats, names: Ints, done: Done) -> None:
        after(self._env, delay_s, lambda: self._queue(routes, sizes, names, done))

    def _queue(self, routes: Ints, sizes: Floats, names: Ints, done: Done) -> None:
        loads = np.zeros(len(self._capacity))
        np.add.at(loads, routes, sizes[:, None])
        used = loads > 0
        self._free_s[used] = np.maximum(self._free_s[used], self._env.now) + loads[used] / self._capacity[used]
        ends = np.where(routes < self._num_real, self._free_s[routes], 0.0)
        ends[routes == NO_LINK] = 0.0
        caps = np.where((routes >= self._num_real), self._capacity[routes], np.inf).min(axis=1)
        arrival = np.maximum(ends.max(axis=1), self._env.now + sizes / caps)
        for when in np.unique(arrival).tolist():
            after(self._env, when - self._env.now, _tell(done, names[arrival == when]))


def _tell(done: Done, names: Ints) -> Finish:
    return lambda: done(names)


def links_for(num_ranks: int) -> type[SharedLinks]:
    """Exact sharing where it takes seconds, queues beyond."""
    return SharedLinks if num_ranks <= SHARED_RANKS else QueuedLinks
