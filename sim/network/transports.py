"""What a transport does with a message: stages, one after the other, each over links of the topology.

gloo copies to host memory, sends on one TCP stream per pair, and copies up; nccl goes from device to device. Caps of
single flows are links of their own, numbered after the real ones. All routes are looked up in tables: a row per rank
for copies, per pair of hosts for streams, per pair of devices for peer to peer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Protocol

import numpy as np

from halocast.cluster.catalogue import Cluster, Gloo, Nccl, Summing, Transport
from halocast.cluster.machine import Streams
from halocast.cluster.topology import Route, Topology
from halocast.sim.network.fairshare import NO_LINK, Floats, Ints

Part = tuple[int, ...]  # cores that a rank keeps to
MOST_CHUNKS = 64  # of one message; more would only cost events
MOST_PAIRED = 16  # ranks that have a link for the stream of every pair


@dataclass(frozen=True, slots=True)
class Way:
    """One stage of one message: links it occupies together, and the latency it pays before."""

    route: Route
    latency_s: float


class Stages(Protocol):
    num: int
    wire: int  # the stage that carries bytes between ranks, as opposed to staging copies
    overhead: float  # bytes on the wire per byte of payload
    caps: Floats
    chunk_bytes: float | None  # a message goes through the stages in pieces of this size; none: as a whole
    allreduce: Summing
    step_s: float | None  # of a collective's steps after the first; none: as that
    one_socket: bool  # an all-reduce queues behind the messages of a pair
    cores: Mapping[Part, tuple[int, float]]  # of shared ones: the link that stands for them, core seconds per byte

    def table(self, stage: int, source: int) -> tuple[Ints, Floats]:
        """Routes and latencies of a stage from one rank to every rank."""
        ...

    def to_store(self, rank: int) -> Way: ...

    def own_links(self, rank: int) -> Ints:
        """The links and caps that are slower while the rank computes."""
        ...


def settings_of(cluster: Cluster) -> Gloo | Nccl:
    """The table of the transport in use. Where bytes and kernels share cores, that is how they slow each other."""
    settings = cluster.gloo if cluster.transport is Transport.GLOO else cluster.nccl
    assert settings is not None, "load_cluster checks the transport's table"
    if cluster.shared_cores is not None and isinstance(settings, Gloo) and settings.core_s_per_byte is not None:
        return replace(settings, compute_slowdown=1.0, transfer_slowdown=1.0)
    return settings


def route_table(routes: Sequence[Route]) -> Ints:
    width = max(1, *(len(route) for route in routes))
    return np.array([[*route, *[NO_LINK] * (width - len(route))] for route in routes], dtype=np.int64)


def latencies(topology: Topology, routes: Ints) -> Floats:
    return np.asarray(np.append(topology.latency_s, 0.0)[routes].sum(axis=1))  # NO_LINK means the last


def with_last(routes: Ints, link: int | Ints) -> Ints:
    """A table of routes with another link, such as a cap, after the last of each."""
    lengths = (routes != NO_LINK).sum(axis=1)
    longer = np.pad(routes, ((0, 0), (0, 1)), constant_values=NO_LINK)
    longer[np.arange(len(routes)), lengths] = link
    return longer


class GlooStages:
    """Copy down, one TCP stream per pair through the hosts' CPUs and NICs, copy up; CPU ranks have nothing to copy."""

    overhead = 1.0
    allreduce = Summing.RING
    step_s: float | None = None

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        gloo = settings_of(cluster)
        assert isinstance(gloo, Gloo)
        self._cluster, self._topology, self._latency_s = cluster, topology, gloo.latency_s
        self._hosts: Ints = np.array([cluster.host(rank) for rank in range(cluster.num_ranks)])
        self._cpu = self._add_hosts(gloo)
        self.cores: Mapping[Part, tuple[int, float]] = self._add_cores(gloo)
        # large clusters do without a link per pair: there a stream only caps each of its messages
        self._paired = gloo.streams is Streams.PAIR and cluster.num_ranks <= MOST_PAIRED
        self.one_socket = gloo.streams is Streams.PAIR
        self._threads = self._add_threads(gloo)
        self._slowed = gloo.transfer_slowdown > 1  # then each rank has a cap of its own, else all share one value
        self.caps = np.full(cluster.num_ranks if self._slowed else 1, gloo.stream_bytes_per_s)
        self._first_stream = len(topology.names)
        for a, b in product(range(cluster.num_ranks), repeat=2) if self._paired else ():
            topology.add_shared(f"stream {a} > {b}", gloo.stream_bytes_per_s)
        self.chunk_bytes = gloo.chunk_bytes
        self.num, self.wire = (3, 1) if cluster.staged else (1, 0)
        self._streams: dict[int, tuple[Ints, Floats]] = {}
        self._copies: dict[bool, tuple[Ints, Floats]] = {}
        self._wires: dict[int, tuple[Ints, Floats]] = {}

    def _add_hosts(self, gloo: Gloo) -> dict[int, int]:
        """Add links for what the processors of each host can move: one for all hosts of one machine."""
        used, add = sorted(set(self._hosts.tolist())), self._topology.add_shared
        if self._cluster.shared_cores is None:
            return {host: add(f"cpu of host {host}", gloo.host_bytes_per_s) for host in used}
        cores, cost_s = self._cluster.shared_cores, gloo.core_s_per_byte
        return dict.fromkeys(used, add("cpu of all hosts", cores / cost_s if cost_s else gloo.host_bytes_per_s))

    def _add_cores(self, gloo: Gloo) -> dict[Part, tuple[int, float]]:
        """Add links for ranks' cores; each end of a message takes half of what a byte costs, of its rank's cores."""
        if self._cluster.shared_cores is None or gloo.core_s_per_byte is None:
            return {}
        end_s = gloo.core_s_per_byte / 2
        return {
            part: (self._topology.add_shared(f"cores {', '.join(map(str, part))}", len(part) / end_s), end_s)
            for part in dict.fromkeys(self._cluster.core_parts)
        }

    def _add_threads(self, gloo: Gloo) -> list[int]:
        """Add for each rank the link that all its bytes pass, both ways: its cores, or the thread of its sockets."""
        if self.cores:
            return [self.cores[part][0] for part in self._cluster.core_parts]
        if gloo.rank_bytes_per_s is None:
            return []
        add, ranks = self._topology.add_shared, range(self._cluster.num_ranks)
        return [add(f"gloo thread of rank {rank}", gloo.rank_bytes_per_s) for rank in ranks]

    def table(self, stage: int, source: int) -> tuple[Ints, Floats]:
        if stage == self.wire:
            return self._wire(source)
        routes, latency_s = self._all_copies(stage > self.wire)
        if stage > self.wire:
            return routes, latency_s
        num = self._cluster.num_ranks
        return np.broadcast_to(routes[source], (num, routes.shape[1])), np.broadcast_to(latency_s[source], num)

    def _wire(self, source: int) -> tuple[Ints, Floats]:
        """Streams to every rank; those of a host's ranks are the same unless they have links or caps of their own."""
        own = self._paired or self._slowed or self._threads
        key = source if own else -1 - int(self._hosts[source])
        if key not in self._wires:
            routes, latency_s = self._from_host(int(self._hosts[source]))
            routes = routes[self._hosts]
            for link in (self._threads[source], np.array(self._threads)) if self._threads else ():
                routes = with_last(routes, link)
            self._wires[key] = with_last(routes, self._ends(source)), latency_s[self._hosts]
        return self._wires[key]

    def _ends(self, source: int) -> Ints:
        """The last link to every rank: the pair's stream, or the cap of one message."""
        num = self._cluster.num_ranks
        if self._paired:
            return self._first_stream + source * num + np.arange(num)
        return np.full(num, len(self._topology.names) + (source if self._slowed else 0))

    def _from_host(self, here: int) -> tuple[Ints, Floats]:
        """Streams from a host to every host, without their cap."""
        if here not in self._streams:
            hosts = range(int(self._hosts.max()) + 1)
            ways = self._topology.routes_from(f"host {here}", [f"host {there}" for there in hosts])
            far = np.array([self._cpu[there] if self._cpu[there] != self._cpu[here] else NO_LINK for there in hosts])
            near = np.full((len(hosts), 1), self._cpu[here])
            self._streams[here] = (
                np.hstack([near, with_last(ways, far)]),
                self._latency_s + latencies(self._topology, ways),
            )
        return self._streams[here]

    def _all_copies(self, up: bool) -> tuple[Ints, Floats]:
        if up not in self._copies:
            routes = route_table([self._copy(rank, up) for rank in range(self._cluster.num_ranks)])
            self._copies[up] = routes, latencies(self._topology, routes)
        return self._copies[up]

    def _copy(self, rank: int, up: bool) -> Route:
        ends = (f"gpu {rank}", f"host {self._cluster.host(rank)}")
        return self._topology.route(*(ends[::-1] if up else ends))

    def to_store(self, rank: int) -> Way:
        return store_hop(self._cluster, self._topology, rank)

    def own_links(self, rank: int) -> Ints:
        copies = [*self._copy(rank, True)[-1:], *self._copy(rank, False)[:1]] if self.num > 1 else []
        return np.array([*np.unique(self._ends(rank)), *copies])


class NcclStages:
    """One stage, from device to device; a flow to another host may be capped, where that was measured."""

    num, wire = 1, 0
    chunk_bytes: float | None = None  # peer to peer has no stages to pipeline
    one_socket = False
    cores: Mapping[Part, tuple[int, float]] = MappingProxyType({})

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        nccl = settings_of(cluster)
        assert isinstance(nccl, Nccl)
        self._cluster, self._topology, self._latency_s = cluster, topology, nccl.latency_s
        self._hosts: Ints = np.array([cluster.host(rank) for rank in range(cluster.num_ranks)])
        self.overhead = 1 / nccl.efficiency
        self.allreduce, self.step_s = nccl.allreduce, nccl.step_s
        remote = nccl.remote_bytes_per_s
        self.caps = np.array([] if remote is None else [remote * self.overhead])
        self._tables: dict[int, tuple[Ints, Floats]] = {}

    def table(self, stage: int, source: int) -> tuple[Ints, Floats]:
        if source not in self._tables:
            targets = [f"gpu {rank}" for rank in range(self._cluster.num_ranks)]
            routes = self._topology.routes_from(f"gpu {source}", targets)
            latency_s = self._latency_s + latencies(self._topology, routes)
            if len(self.caps):
                far = self._hosts != self._hosts[source]
                routes = with_last(routes, np.where(far, len(self._topology.names), NO_LINK))
            self._tables[source] = routes, latency_s
        return self._tables[source]

    def to_store(self, rank: int) -> Way:
        return store_hop(self._cluster, self._topology, rank)

    def own_links(self, rank: int) -> Ints:
        graph, node = self._topology.graph, f"gpu {rank}"
        edges = [*graph.in_edges(node, data="index"), *graph.out_edges(node, data="index")]
        return np.array([index for _, _, index in edges], dtype=np.int64)


def store_hop(cluster: Cluster, topology: Topology, rank: int) -> Way:
    """The way to the memory of host 0; a CPU rank on that host copies within its memory, which `copy` links stand for.

    Hosts that are emulated on one machine all have its memory, so none is far from the store.
    """
    host = 0 if cluster.shared_cores is None else cluster.host(rank)
    route = topology.route(f"gpu {rank}" if cluster.staged else f"copy {rank}", f"host {host}")
    return Way(route, topology.latency(route))


STAGES: MappingProxyType[Transport, Callable[[Cluster, Topology], Stages]] = MappingProxyType(
    {Transport.GLOO: GlooStages, Transport.NCCL: NcclStages}
)
