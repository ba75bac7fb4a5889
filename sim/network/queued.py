"""Links as queues, for clusters too large to share every link exactly: first come, first served, in bulk.

Each link works off the bytes given to it in the order of their start; a message has arrived when the slowest link of
its route has worked off everything up to it. Nothing is simulated per flow, so a thousand ranks cost as much as their
messages, not their changes of rate. When many messages start together, a link is done with all of them exactly when it
would be under fair sharing; in between, early starters are served too soon and late ones too late.
"""

from collections.abc import Mapping
from enum import StrEnum

import numpy as np
import simpy

from halocast.cluster.catalogue import Cluster
from halocast.sim.network.fairshare import NO_LINK, Floats, Ints
from halocast.sim.network.flows import Done
from halocast.sim.network.links import ALL_WELL, Arrived, SharedLinks, after

SHARED_RANKS = 16


class QueuedLinks(SharedLinks):
    """The same topology, transports and stages as SharedLinks, with another rule for who gets a link.

    Compute slows its rank's transfers only at the moment they are queued.
    """

    @property
    def kind(self) -> str:
        return "queued"

    def __init__(
        self,
        env: simpy.Environment,
        cluster: Cluster,
        *,
        slack: float = 0.0,  # nothing is ended early here
        factors: Mapping[str, float] = ALL_WELL,
        record: bool = False,
    ) -> None:
        super().__init__(env, cluster, factors=factors)
        self._num_real = len(self.topology.names)
        self._free_s = np.zeros(len(self.flows.capacity) + 1)
        self._records = record

    @property
    def _capacity(self) -> Floats:
        return np.append(self.flows.capacity, np.inf)  # NO_LINK, the last, takes no time

    def send(self, source: int, targets: Ints, num_bytes: Ints, done: Arrived) -> None:
        """Queue messages for all stages at once: when each arrives is known as soon as it is queued."""
        whole = num_bytes.astype(np.float64)
        ready = passed = np.full(len(targets), self._env.now)
        for stage in range(self.stages.num):
            routes, latency_s = self.stages.table(stage, source)
            sizes = whole * (self.stages.overhead if stage == self.stages.wire else 1.0)
            begin = ready + latency_s[targets]
            # copies up into different devices share nothing; messages come to them in another order than they leave
            through = self._pass(routes[targets], sizes, begin, stage > self.stages.wire)
            if self.stages.chunk_bytes is None:
                ready = passed = through
            else:  # the next stage begins with the first piece, and ends no sooner than one piece after this one
                piece_s = np.minimum(sizes, self.stages.chunk_bytes) / self._capacity[routes[targets]].min(axis=1)
                ready, passed = begin + piece_s, np.maximum(through, passed + piece_s)
        self.moving.begin(source)
        after(self._env, float(passed.max()) - self._env.now, lambda: self.moving.end(source))
        done(targets, passed)

    def _pass(self, routes: Ints, sizes: Floats, ready: Floats, alone: bool) -> Floats:
        """The times at which messages, ready at given times, have passed the links of their routes."""
        capacity = self._capacity
        caps = np.where(routes >= self._num_real, capacity[routes], np.inf).min(axis=1)
        if alone:
            self.flows.carried.carry(routes, sizes)
            return np.asarray(ready + sizes / np.minimum(capacity[routes].min(axis=1), caps))
        loads, begins = np.zeros(len(capacity)), np.full(len(capacity), np.inf)
        np.add.at(loads, routes, sizes[:, None])
        np.minimum.at(begins, routes, ready[:, None])
        self.flows.carried.carry(routes, sizes)
        used = loads > 0
        begins[used] = np.maximum(self._free_s[used], begins[used])
        self._free_s[used] = begins[used] + loads[used] / capacity[used]
        if self._records:
            self._note(np.flatnonzero(used[: self._num_real]), begins)
        real = (routes != NO_LINK) & (routes < self._num_real)
        return np.asarray(np.maximum(np.where(real, self._free_s[routes], 0.0).max(axis=1), ready + sizes / caps))

    def _note(self, links: Ints, begins: Floats) -> None:
        """Note links as busy at full rate from now until free, as far as that is later than what was noted before."""
        carried = self.flows.carried
        carried.change(links, begins[links], self.flows.capacity[links])
        carried.change(links, self._free_s[links], np.zeros(len(links)))

    def _start(self, delay_s: float, routes: Ints, sizes: Floats, names: Ints, done: Done) -> None:
        """Queue one stage of the few messages of collectives and the store, which go stage by stage."""
        when = self._pass(routes, sizes, np.full(len(names), self._env.now + delay_s), alone=False)
        after(self._env, float(when.max()) - self._env.now, lambda: done(names))


class Sharing(StrEnum):
    """How links are divided among what they carry."""

    AUTO = "auto"  # shared where that takes seconds, queued beyond
    SHARED = "shared"  # max-min fair at every moment
    QUEUED = "queued"  # first come, first served


def links_for(num_ranks: int, sharing: Sharing = Sharing.AUTO) -> type[SharedLinks]:
    if sharing is Sharing.AUTO:
        sharing = Sharing.SHARED if num_ranks <= SHARED_RANKS else Sharing.QUEUED
    return {Sharing.SHARED: SharedLinks, Sharing.QUEUED: QueuedLinks}[sharing]
