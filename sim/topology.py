"""The links of a cluster as a directed graph, and the routes through it.

Nodes: gpu R, host H (its memory and root complex), copy R (a CPU rank's own copying), nvswitch H, network. Every edge
is a link with a capacity and a latency of its own, so both directions exist separately. A route is the path that would
carry a megabyte soonest.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from halocast.base.errors import InputError
from halocast.sim.cluster import Cluster, Link

PROBE_BYTES = 1e6
Route = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Topology:
    """Links numbered in the order they were added, and cached routes between nodes."""

    name: str
    graph: nx.DiGraph = field(default_factory=nx.DiGraph)
    names: list[str] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    _routes: dict[tuple[str, str], Route] = field(default_factory=dict)

    def join(self, a: str, b: str, link: Link) -> None:
        """Links in both directions."""
        for source, target in ((a, b), (b, a)):
            seconds = link.seconds(PROBE_BYTES)
            self.graph.add_edge(source, target, index=len(self.names), seconds=seconds)
            self.names.append(f"{source} > {target}")
            self.capacity.append(link.bytes_per_s)
            self.latency_s.append(link.latency_s)

    def add_shared(self, name: str, bytes_per_s: float) -> int:
        """A capacity that is no edge of the graph (what a host's CPU can move); routes add it by number."""
        self.names.append(name)
        self.capacity.append(bytes_per_s)
        self.latency_s.append(0.0)
        return len(self.names) - 1

    def route(self, a: str, b: str) -> Route:
        key = a, b
        if key not in self._routes:
            try:
                nodes = nx.dijkstra_path(self.graph, a, b, weight="seconds")
            except (nx.NetworkXNoPath, nx.NodeNotFound):
                raise InputError(f"cluster {self.name}: there is no way from {a} to {b}") from None
            self._routes[key] = tuple(self.graph.edges[edge]["index"] for edge in pairwise(nodes))
        return self._routes[key]

    def latency(self, route: Route) -> float:
        return sum(self.latency_s[link] for link in route)

    def capacities(self) -> NDArray[np.float64]:
        return np.array(self.capacity)


def build_topology(cluster: Cluster) -> Topology:
    """The links of the hosts that have ranks in use."""
    topology = Topology(cluster.name)
    hosts = sorted({cluster.host(rank) for rank in range(cluster.num_ranks)})
    for host in hosts:
        topology.graph.add_node(f"host {host}")
        if cluster.nic is not None:
            topology.join(f"host {host}", "network", _half_way(cluster.nic))
    for rank in range(cluster.num_ranks):
        if cluster.pcie is not None:
            topology.join(f"gpu {rank}", f"host {cluster.host(rank)}", cluster.pcie)
        else:  # a CPU process that copies reads and writes every byte
            device = cluster.device(rank)
            rate = device.memory_bytes_per_s * device.efficiency.stream / 2
            topology.join(f"copy {rank}", f"host {cluster.host(rank)}", Link(bytes_per_s=rate, latency_s=0.0))
        if cluster.nvlink is not None:
            topology.join(f"gpu {rank}", f"nvswitch {cluster.host(rank)}", _half_way(cluster.nvlink))
    return topology


def _half_way(link: Link) -> Link:
    """Half of a way through a switch, for latencies that are stated from end to end."""
    return Link(bytes_per_s=link.bytes_per_s, latency_s=link.latency_s / 2)
