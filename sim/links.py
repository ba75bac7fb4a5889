"""How bytes travel: the seam between the engine, which says when, and the network, which says how long.

The engine knows a `Network` and nothing of routes, transports or rates:

* `send(source, targets, num_bytes, arrived)`: the bytes leave now; `arrived` is called with targets and the times at
  which their bytes are there, now or later, as often as needed.
* `reduce(group, payload_bytes, done)`: a ring all-reduce of a group that has just become complete.
* `store(rank, num_bytes, done)`: to or from the key-value store in the memory of host 0.

`SharedLinks` sends everything as flows that share the links of the cluster's topology (`topology.py`, `flows.py`). What
a transport does is a list of stages, one after the other for each message: gloo copies to host memory, sends, copies
up; nccl goes from device to device. A stage pays the latencies of its route first.

`python -m halocast.sim.links FILE` compares the flow model with end times of scenarios in a JSON file.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import simpy

from halocast.schedule.ir import ring_bytes
from halocast.sim.cluster import Cluster, Transport
from halocast.sim.fairshare import NO_LINK, Floats, Ints
from halocast.sim.flows import Done, Flows
from halocast.sim.topology import Route, Topology, build_topology

TOLERANCE = 1e-9
Finish = Callable[[], None]
Arrived = Callable[[Ints, Floats], None]


class Network(Protocol):
    def send(self, source: int, targets: Ints, num_bytes: Ints, done: Arrived) -> None: ...

    def reduce(self, group: Sequence[int], payload_bytes: int, done: Finish) -> None: ...

    def store(self, rank: int, num_bytes: int, done: Finish) -> None: ...


def after(env: simpy.Environment, delay_s: float, action: Finish) -> None:
    """Do something later; without delay, now."""
    if delay_s == 0:
        action()
        return
    event = env.timeout(delay_s)
    assert event.callbacks is not None
    event.callbacks.append(lambda _: action())


class UnlimitedLinks:
    """Any transfer takes no time: the limit in which the maximum cycle ratio is exact."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env

    def send(self, source: int, targets: Ints, num_bytes: Ints, done: Arrived) -> None:
        done(targets, np.full(len(targets), self._env.now))

    def reduce(self, group: Sequence[int], payload_bytes: int, done: Finish) -> None:
        done()

    def store(self, rank: int, num_bytes: int, done: Finish) -> None:
        done()


@dataclass(frozen=True, slots=True)
class Hop:
    """One stage of one message: links it occupies together, and the latency it pays before."""

    route: Route
    latency_s: float


class SharedLinks:
    """All flows of a cluster, sharing its links max-min fairly."""

    kind = "shared"

    def __init__(self, env: simpy.Environment, cluster: Cluster, slack: float = 0.0) -> None:
        self._env = env
        self.cluster = cluster
        self.topology = build_topology(cluster)
        self.stages: Stages = STAGES[cluster.transport](cluster, self.topology)
        self.flows = Flows(env, self.topology.capacities(), self.stages.caps, slack)
        self._tables: dict[tuple[int, int], tuple[Ints, Floats]] = {}

    def send(self, source: int, targets: Ints, num_bytes: Ints, done: Arrived) -> None:
        sizes = np.zeros(self.cluster.num_ranks)
        sizes[targets] = num_bytes
        self._stage(0, source, targets, sizes, lambda names: done(names, np.full(len(names), self._env.now)))

    def _stage(self, stage: int, source: int, targets: Ints, sizes: Floats, done: Done) -> None:
        """Start a stage for the messages to `targets`; each goes on to the next stage when it is through."""
        if stage == self.stages.num:
            done(targets)
            return
        routes, latency_s = self._table(stage, source)
        loads = sizes * self.stages.overhead if stage == self.stages.wire else sizes
        for delay_s in np.unique(latency_s[targets]).tolist():
            some = targets[latency_s[targets] == delay_s]
            self._start(
                delay_s,
                routes[some],
                loads[some],
                some,
                lambda names: self._stage(stage + 1, source, names, sizes, done),
            )

    def _start(self, delay_s: float, routes: Ints, sizes: Floats, names: Ints, done: Done) -> None:
        after(self._env, delay_s, lambda: self.flows.start(routes, sizes, names, done))

    def _table(self, stage: int, source: int) -> tuple[Ints, Floats]:
        """Routes and latencies of a stage from one rank to every other, made once."""
        key = stage, source
        if key not in self._tables:
            ranks = range(self.cluster.num_ranks)
            hops = [self.stages.hop(stage, source, t) if t != source else Hop((), 0.0) for t in ranks]
            self._tables[key] = route_table([hop.route for hop in hops]), np.array([hop.latency_s for hop in hops])
        return self._tables[key]

    def reduce(self, group: Sequence[int], payload_bytes: int, done: Finish) -> None:
        """Every rank sends 2(P-1)/P of the payload to the next, in 2(P-1) steps whose latencies add up; staging copies
        carry the whole payload once."""
        if len(group) < 2 or payload_bytes == 0:
            done()
            return
        left = len(group)

        def one_less(_: Ints) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for source, target in zip(group, (*group[1:], group[0]), strict=True):
            self._ring_stage(0, source, target, payload_bytes, len(group), one_less)

    def _ring_stage(self, stage: int, source: int, target: int, payload_bytes: int, num: int, done: Done) -> None:
        if stage == self.stages.num:
            done(np.array([target]))
            return
        hop = self.stages.hop(stage, source, target)
        on_wire = stage == self.stages.wire
        size = ring_bytes(payload_bytes, num) * self.stages.overhead if on_wire else payload_bytes
        delay_s = hop.latency_s * (2 * (num - 1) if on_wire else 1)
        self._start(
            delay_s,
            route_table([hop.route]),
            np.array([float(size)]),
            np.array([target]),
            lambda _: self._ring_stage(stage + 1, source, target, payload_bytes, num, done),
        )

    def store(self, rank: int, num_bytes: int, done: Finish) -> None:
        if num_bytes == 0:
            done()
            return
        hop = self.stages.to_store(rank)
        self._start(
            hop.latency_s, route_table([hop.route]), np.array([float(num_bytes)]), np.array([0]), lambda _: done()
        )


def route_table(routes: Sequence[Route]) -> Ints:
    width = max(1, *(len(route) for route in routes))
    return np.array([[*route, *[NO_LINK] * (width - len(route))] for route in routes], dtype=np.int64)


class Stages(Protocol):
    """A transport on a topology: its stages, and the caps of single flows as links numbered after the real ones."""

    num: int
    wire: int  # the stage that carries bytes between ranks, as opposed to staging copies
    overhead: float  # bytes on the wire per byte of payload
    caps: Floats

    def hop(self, stage: int, source: int, target: int) -> Hop: ...

    def to_store(self, rank: int) -> Hop: ...


class GlooStages:
    """Copy down, one TCP stream per pair through the hosts' CPUs and NICs, copy up; CPU ranks have nothing to copy."""

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        gloo = cluster.gloo
        assert gloo is not None, "load_cluster checks the transport's table"
        self._cluster, self._topology, self._latency_s = cluster, topology, gloo.latency_s
        hosts = sorted({cluster.host(rank) for rank in range(cluster.num_ranks)})
        self._cpu = {host: topology.add_shared(f"cpu of host {host}", gloo.host_bytes_per_s) for host in hosts}
        self.caps = np.array([gloo.stream_bytes_per_s])
        self.staged = cluster.pcie is not None
        self.num, self.wire = (3, 1) if self.staged else (1, 0)
        self.overhead = 1.0

    @cached_property
    def _cap(self) -> int:
        return len(self._topology.names)

    def hop(self, stage: int, source: int, target: int) -> Hop:
        if stage == self.wire:
            return self._stream(self._cluster.host(source), self._cluster.host(target))
        rank = source if stage < self.wire else target
        ends = (f"gpu {rank}", f"host {self._cluster.host(rank)}")
        route = self._topology.route(*(ends if stage < self.wire else ends[::-1]))
        return Hop(route, self._topology.latency(route))

    def _stream(self, here: int, there: int) -> Hop:
        if here == there:
            return Hop((self._cpu[here], self._cap), self._latency_s)
        route = self._topology.route(f"host {here}", f"host {there}")
        whole = (self._cpu[here], *route, self._cpu[there], self._cap)
        return Hop(whole, self._latency_s + self._topology.latency(route))

    def to_store(self, rank: int) -> Hop:
        return store_hop(self._cluster, self._topology, rank)


class NcclStages:
    """From device to device; a flow to another host may be capped, where that was measured."""

    num, wire = 1, 0

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        nccl = cluster.nccl
        assert nccl is not None, "load_cluster checks the transport's table"
        self._cluster, self._topology, self._latency_s = cluster, topology, nccl.latency_s
        self.overhead = 1 / nccl.efficiency
        remote = nccl.remote_bytes_per_s
        self.caps = np.array([] if remote is None else [remote * self.overhead])

    def hop(self, stage: int, source: int, target: int) -> Hop:
        route = self._topology.route(f"gpu {source}", f"gpu {target}")
        latency_s = self._latency_s + self._topology.latency(route)
        far = not self._cluster.same_host(source, target)
        return Hop((*route, len(self._topology.names)) if far and len(self.caps) else route, latency_s)

    def to_store(self, rank: int) -> Hop:
        return store_hop(self._cluster, self._topology, rank)


def store_hop(cluster: Cluster, topology: Topology, rank: int) -> Hop:
    """To the memory of host 0; a CPU rank on that host copies within its memory, which `copy` links stand for."""
    host = cluster.host(rank)
    start = f"gpu {rank}" if cluster.pcie is not None else f"copy {rank}"
    route = topology.route(start, f"host {host}")
    if host:
        route = (*route, *topology.route(f"host {host}", "host 0"))
    return Hop(route, topology.latency(route))


STAGES: MappingProxyType[Transport, Callable[[Cluster, Topology], Stages]] = MappingProxyType(
    {Transport.GLOO: GlooStages, Transport.NCCL: NcclStages}
)


def worst_difference(scenario: dict[str, Any]) -> float:
    """The largest relative difference between the flow model's end times and a scenario's `end_s`."""
    number = {name: k for k, name in enumerate(scenario["links_bytes_per_s"])}
    env = simpy.Environment()
    flows = Flows(env, np.array(list(scenario["links_bytes_per_s"].values()), dtype=np.float64))
    ends = np.full(len(scenario["flows"]), np.nan)

    def start(k: int, flow: dict[str, Any]) -> None:
        routes = route_table([tuple(number[name] for name in flow["route"])])
        flows.start(routes, np.array([float(flow["bytes"])]), np.array([k]), lambda names: np.put(ends, names, env.now))

    for k, flow in enumerate(scenario["flows"]):
        after(env, flow["start_s"], lambda k=k, flow=flow: start(k, flow))  # type: ignore[misc]
    env.run()
    expected = np.array([flow["end_s"] for flow in scenario["flows"]])
    return (
        float(np.nanmax(np.abs(ends - expected) / np.abs(expected), initial=0.0))
        if not np.isnan(ends).any()
        else np.inf
    )


def main() -> int:
    if len(sys.argv) != 2:
        print(
            "usage: python -m halocast.sim.links FILE (scenarios with links_bytes_per_s, flows and end_s)",
            file=sys.stderr,
        )
        return 2
    try:
        scenarios = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        found = [(scenario["name"], worst_difference(scenario)) for scenario in scenarios]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {sys.argv[1]}: not a file of scenarios ({error})", file=sys.stderr)
        return 2
    for name, difference in found:
        print(f"{name}: {difference:.2e}")
    worst = max((difference for _, difference in found), default=0.0)
    print(f"worst of {len(found)}: {worst:.2e}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
