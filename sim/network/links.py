"""How bytes travel: the seam between the engine, which says when, and the network, which says how long.

The engine knows a `Network` and nothing of routes, transports or rates:

* `send(source, targets, num_bytes, arrived)`: the bytes leave now; `arrived` is called with targets and the times at
  which their bytes are there, now or later, as often as needed.
* `collect(work, group, done)`: a collective of a group that has just become complete (`collectives.py`).
* `store(rank, num_bytes, done)`: to or from the key-value store in the memory of host 0.
* `moving`: the ranks whose own bytes are on the way, and whom to tell when that changes.
* `computing(rank, busy)`: the rank's kernels run, or do not; its transfers may be slower meanwhile.
* `watch_cores(part, take)`: whom to tell how many of these cores, which ranks share, are busy with bytes.

`SharedLinks` sends everything as flows that share the links of the cluster's topology (`topology.py`, `flows.py`)
through the stages of the transport (`transports.py`). A stage pays the latencies of its route first.

"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
import simpy

from halocast.cluster.catalogue import Cluster, Summing
from halocast.cluster.topology import build_topology, burst_links
from halocast.schedule.ir import Payload
from halocast.schedule.trace import LinkUse
from halocast.sim.network.buckets import BucketFlows
from halocast.sim.network.collectives import Hop, ring, tree
from halocast.sim.network.fairshare import NO_LINK, Floats, Ints
from halocast.sim.network.flows import Done, Flows
from halocast.sim.network.transports import MOST_CHUNKS, STAGES, Part, Stages, route_table, settings_of
from halocast.sim.network.underway import Moving, Sockets
from halocast.sim.world import degrade

Finish = Callable[[], None]
Arrived = Callable[[Ints, Floats], None]
ALL_WELL: Mapping[str, float] = MappingProxyType({})


def after(env: simpy.Environment, delay_s: float, action: Finish) -> None:
    """Do something later; without delay, now."""
    if delay_s == 0:
        action()
        return
    event = env.timeout(delay_s)
    assert event.callbacks is not None
    event.callbacks.append(lambda _: action())


class Network(Protocol):
    moving: Moving

    @property
    def kind(self) -> str:
        """The words in which an answer says how links were divided."""
        ...

    def send(self, source: int, targets: Ints, num_bytes: Ints, done: Arrived) -> None: ...

    def collect(self, work: Payload, group: Sequence[int], done: Finish) -> None: ...

    def store(self, rank: int, num_bytes: int, done: Finish) -> None: ...

    def computing(self, rank: int, busy: bool) -> None: ...

    def watch_cores(self, part: Part, take: Callable[[float], None]) -> None: ...

    def use(self) -> tuple[LinkUse, ...]: ...


class UnlimitedLinks:
    """Links on which no transfer takes time: the limit in which the maximum cycle ratio is exact."""

    kind = "unlimited"

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self.moving = Moving(0)

    def send(self, source: int, targets: Ints, num_bytes: Ints, done: Arrived) -> None:
        done(targets, np.full(len(targets), self._env.now))

    def collect(self, work: Payload, group: Sequence[int], done: Finish) -> None:
        done()

    def store(self, rank: int, num_bytes: int, done: Finish) -> None:
        done()

    def computing(self, rank: int, busy: bool) -> None: ...

    def watch_cores(self, part: Part, take: Callable[[float], None]) -> None: ...

    def use(self) -> tuple[LinkUse, ...]:
        return ()


class SharedLinks:
    """All flows of a cluster, sharing its links max-min fairly; `factors` of links that are slower than described."""

    def __init__(
        self,
        env: simpy.Environment,
        cluster: Cluster,
        *,
        slack: float = 0.0,
        factors: Mapping[str, float] = ALL_WELL,
        record: bool = False,
    ) -> None:
        self._env = env
        self.cluster = cluster
        self.topology = build_topology(cluster)
        self.stages: Stages = STAGES[cluster.transport](cluster, self.topology)
        degrade(self.topology, factors)
        self.flows = Flows(env, self.topology.capacities(), self.stages.caps, slack, record=record)
        self._starter: Flows | BucketFlows = self.flows
        bursts = burst_links(self.topology, cluster)
        if bursts:
            self._starter = BucketFlows(env, self.flows, bursts)
        self.moving = Moving(cluster.num_ranks)
        self._sockets = Sockets()
        self._slowdown = settings_of(cluster).transfer_slowdown

    @property
    def kind(self) -> str:
        if self.flows.slack == 0:
            return "shared"
        share = self.flows.forgiven_bytes / max(1.0, self.flows.num_bytes)
        return f"shared, transfers up to {self.flows.error_bound():.2g} of their time early, {share:.2g} of all bytes"

    def send(self, source: int, targets: Ints, num_bytes: Ints, done: Arrived) -> None:
        self.moving.begin(source)
        left = len(targets)

        def arrived(names: Ints) -> None:
            nonlocal left
            left -= len(names)
            if left == 0:
                self.moving.end(source)
            done(names, np.full(len(names), self._env.now))

        sizes = np.zeros(self.cluster.num_ranks)
        sizes[targets] = num_bytes
        if self.stages.chunk_bytes is not None and self.stages.num > 1:
            for target in targets.tolist():
                _Chunks(self, source, target, sizes[target], arrived)
            return
        self._stage(0, source, targets, sizes, arrived)

    def _stage(self, stage: int, source: int, targets: Ints, sizes: Floats, done: Done) -> None:
        """Start a stage for the messages to `targets`; each goes on to the next stage when it is through."""
        if stage == self.stages.num:
            done(targets)
            return
        routes, latency_s = self.stages.table(stage, source)
        loads = sizes * self.stages.overhead if stage == self.stages.wire else sizes
        for delay_s in sorted(set(latency_s[targets].tolist())):
            some = targets[latency_s[targets] == delay_s]
            if stage == self.stages.wire:
                self._sockets.enter(source, some)
            self._start(
                delay_s,
                routes[some],
                loads[some],
                some,
                lambda names: self._staged(stage, source, names, sizes, done),
            )

    def _staged(self, stage: int, source: int, targets: Ints, sizes: Floats, done: Done) -> None:
        if stage == self.stages.wire:
            self._sockets.leave(source, targets)
        self._stage(stage + 1, source, targets, sizes, done)

    def start_piece(self, stage: int, source: int, target: int, size: float, delay: bool, done: Finish) -> None:
        """Start one stage of a piece of a message; only the first piece pays the latency."""
        routes, latency_s = self.stages.table(stage, source)
        targets = np.array([target])
        self._start(
            float(latency_s[target]) if delay else 0.0, routes[targets], np.array([size]), targets, lambda _: done()
        )

    def _start(self, delay_s: float, routes: Ints, sizes: Floats, names: Ints, done: Done) -> None:
        after(self._env, delay_s, lambda: self._starter.start(routes, sizes, names, done))

    def collect(self, work: Payload, group: Sequence[int], done: Finish) -> None:
        """Move a collective's bytes by ring or tree, whichever the transport takes."""
        if len(group) < 2 or work.num_bytes == 0:
            done()
            return
        for rank in group:
            self.moving.begin(rank)
        hops = self._hops(work, group)
        left = len(hops)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                for rank in group:
                    self.moving.end(rank)
                done()

        for hop in hops:
            self._hop_stage(0, hop, one_less)

    def _hops(self, work: Payload, group: Sequence[int]) -> list[Hop]:
        around, down = ring(work, group), tree(work, group, self.cluster.host)
        choices = {Summing.RING: [around], Summing.TREE: [down], Summing.AUTO: [around, down]}
        return min(choices[self.stages.allreduce], key=self._alone_s)

    def _alone_s(self, hops: list[Hop]) -> float:
        """Seconds that flows take if nothing else moves: the busiest link, and the latencies of the longest way."""
        loads, delays = np.zeros(len(self.flows.capacity)), [0.0]
        for hop in hops:
            routes, latency_s = self.stages.table(self.stages.wire, hop.source)
            route = routes[hop.target][routes[hop.target] != NO_LINK]
            loads[route] += hop.num_bytes * self.stages.overhead
            delays.append(self._steps_s(hop, float(latency_s[hop.target])))
        return float((loads / self.flows.capacity).max()) + max(delays)

    def _steps_s(self, hop: Hop, latency_s: float) -> float:
        """Latencies of a hop's steps: the first is a message's, the others are those of a kernel that is there."""
        step_s = latency_s if self.stages.step_s is None else self.stages.step_s
        return latency_s + (hop.num_steps - 1) * step_s

    def _hop_stage(self, stage: int, hop: Hop, done: Finish) -> None:
        if stage == self.stages.num:
            done()
            return
        routes, latency_s = self.stages.table(stage, hop.source)
        on_wire, target = stage == self.stages.wire, hop.target
        copied = hop.down_bytes if stage < self.stages.wire else hop.up_bytes
        size = hop.num_bytes * self.stages.overhead if on_wire else copied
        if size == 0 and not on_wire:
            self._hop_stage(stage + 1, hop, done)
            return

        def go() -> None:
            self._start(
                self._steps_s(hop, float(latency_s[target])) if on_wire else float(latency_s[target]),
                routes[target : target + 1],
                np.array([float(size)]),
                np.array([target]),
                lambda _: self._hop_stage(stage + 1, hop, done),
            )

        if on_wire and self.stages.one_socket:
            self._sockets.when_free((hop.source, target), go)
        else:
            go()

    def store(self, rank: int, num_bytes: int, done: Finish) -> None:
        if num_bytes == 0:
            done()
            return
        self.moving.begin(rank)

        def stored(_: Ints) -> None:
            self.moving.end(rank)
            done()

        hop = self.stages.to_store(rank)
        self._start(hop.latency_s, route_table([hop.route]), np.array([float(num_bytes)]), np.array([0]), stored)

    def computing(self, rank: int, busy: bool) -> None:
        if self._slowdown > 1:
            links = self.stages.own_links(rank)
            self.flows.scale(links, 1 / self._slowdown if busy else 1.0)

    def watch_cores(self, part: Part, take: Callable[[float], None]) -> None:
        """Tell how many of a part of the cores that ranks share are busy with bytes, whenever that changes."""
        if part in self.stages.cores:
            link, core_s_per_byte = self.stages.cores[part]
            self.flows.watch(link, lambda rate: take(rate * core_s_per_byte))

    def use(self) -> tuple[LinkUse, ...]:
        """The load that every link carried."""
        return self.flows.use(self.topology.names)


class _Chunks:
    """A message that goes through the stages in pieces: each stage works on one piece at a time, in order."""

    def __init__(self, links: SharedLinks, source: int, target: int, num_bytes: float, done: Done) -> None:
        assert links.stages.chunk_bytes is not None
        self._links, self._ends, self._done = links, (source, target), done
        self._num = int(min(MOST_CHUNKS, max(1, -(-num_bytes // links.stages.chunk_bytes))))
        self._size = num_bytes / self._num
        self._through = [self._num] + [0] * links.stages.num  # pieces that have passed the stage before
        self._busy = [False] * links.stages.num
        self._go(0)

    def _go(self, stage: int) -> None:
        links = self._links
        if stage == links.stages.num:
            if self._through[-1] == self._num:
                self._done(np.array([self._ends[1]]))
            return
        if self._busy[stage] or self._through[stage + 1] == self._through[stage]:
            return
        self._busy[stage] = True
        size = self._size * (links.stages.overhead if stage == links.stages.wire else 1.0)
        links.start_piece(stage, *self._ends, size, self._through[stage + 1] == 0, lambda: self._passed(stage))

    def _passed(self, stage: int) -> None:
        self._busy[stage] = False
        self._through[stage + 1] += 1
        self._go(stage)
        self._go(stage + 1)
