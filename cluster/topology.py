"""The links of a cluster as a directed graph, and the routes through it.

Nodes: gpu R, host H (its memory and root complex), pcie H.S (switch S of host H), nvswitch H, nics H (the ports of its
devices), network, or leaf L and spine; copy R is a CPU rank's own copying. Where a root complex has a rate, its ways in
and out are nodes: bytes from one device to another use both. Every edge is a link with a capacity and a latency of its
own, so both directions exist separately.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from halocast.base.errors import InputError
from halocast.cluster.machine import Cluster, Link, LinkKind, Nic, Nvlink, Pcie, Per, Transport
from halocast.cluster.routes import NO_LINK, Ints, Router

if TYPE_CHECKING:
    import networkx as nx

PROBE_BYTES = 1e6
Route = tuple[int, ...]


def _no_links() -> "nx.DiGraph":
    import networkx as nx  # a third of a second that only this needs

    return nx.DiGraph()


@dataclass(slots=True, eq=False)
class Topology:
    """Links numbered in the order they were added, and cached routes between nodes."""

    name: str
    homes: Mapping[str, str] = field(default_factory=dict)  # the host of each device
    graph: "nx.DiGraph" = field(default_factory=_no_links)
    names: list[str] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    _router: Router | None = None
    _routes: dict[tuple[str, str], Route] = field(default_factory=dict)

    def join(self, a: str, b: str, link: Link, kind: LinkKind | None = LinkKind.NETWORK) -> None:
        """Add links in both directions; without a kind they stay within memory."""
        self.add(a, b, link, kind)
        self.add(b, a, link, kind)

    def add(self, a: str, b: str, link: Link, kind: LinkKind | None) -> None:
        """Add a link in one direction."""
        if self.graph.has_edge(a, b):
            raise InputError(f"cluster {self.name}: there are two links from {a} to {b}; give one with their sum")
        self._router = None
        self._routes.clear()
        self.graph.add_edge(a, b, index=len(self.names), seconds=link.seconds(PROBE_BYTES), kind=kind)
        self.add_shared(f"{a} > {b}", link.bytes_per_s, link.latency_s)

    def share(self, a: str, b: str, link: Link) -> None:
        """Add one link that both directions pass."""
        self.add(a, b, link, LinkKind.NETWORK)
        self.graph.add_edge(b, a, **self.graph.edges[a, b])

    def add_shared(self, name: str, bytes_per_s: float, latency_s: float = 0.0) -> int:
        """Add a capacity that is no edge of the graph (what a host's CPU can move); routes add it by number."""
        self.names.append(name)
        self.capacity.append(bytes_per_s)
        self.latency_s.append(latency_s)
        return len(self.names) - 1

    def route(self, a: str, b: str) -> Route:
        if (a, b) not in self._routes:
            row = self.routes_from(a, [b])[0]
            self._routes[a, b] = tuple(row[row != NO_LINK].tolist())
        return self._routes[a, b]

    def routes_from(self, source: str, targets: Sequence[str]) -> Ints:
        """The links to each target, a row each with NO_LINK after the last one; none to the source itself."""
        for node in (source, *targets):
            if node not in self.graph:
                raise InputError(f"cluster {self.name}: there is no way from {source} to {node}: there is no {node}")
        if self._router is None:
            self._router = Router(self.graph, self.homes)
        table, reached = self._router.routes(source, targets)
        if not reached.all():
            raise InputError(f"cluster {self.name}: there is no way from {source} to {targets[int(reached.argmin())]}")
        return table

    def latency(self, route: Route) -> float:
        return sum(self.latency_s[link] for link in route)

    def capacities(self) -> NDArray[np.float64]:
        return np.array(self.capacity)


def build_topology(cluster: Cluster) -> Topology:
    """The links of the hosts that have ranks in use."""
    device = "gpu" if cluster.staged else "copy"
    ranks = [(f"{device} {rank}", f"host {cluster.host(rank)}") for rank in range(cluster.num_ranks)]
    topology = Topology(cluster.name, dict(ranks))
    for host in range(cluster.num_hosts):
        topology.graph.add_node(f"host {host}")
        mine = [node for node, home in ranks if home == f"host {host}"]
        if cluster.pcie is not None:
            _add_pcie(topology, cluster.pcie, host, mine)
        if cluster.nvlink is not None:
            _add_nvlink(topology, cluster.nvlink, host, mine)
        if cluster.nic is not None:
            _add_nic(topology, cluster, cluster.nic, host, mine)
    if not cluster.staged:
        _add_copies(topology, cluster)
    _add_leaves(topology, cluster)
    _add_wires(topology, cluster)
    _require_trees(topology)
    return topology


def _add_pcie(topology: Topology, pcie: Pcie, host: int, devices: Sequence[str]) -> None:
    """Add the way gpu - switch - root complex - memory; the latency is that of a copy and counts once."""
    up = down = memory = f"host {host}"
    if pcie.root_bytes_per_s is not None:
        up, down = f"root {host} in", f"root {host} out"
        root = Link(bytes_per_s=pcie.root_bytes_per_s, latency_s=0.0)
        topology.add(up, memory, root, LinkKind.PCIE)
        topology.add(memory, down, root, LinkKind.PCIE)
    if pcie.devices_per_switch is None or pcie.switch_bytes_per_s is None:
        for device in devices:
            topology.add(device, up, pcie, LinkKind.PCIE)
            topology.add(down, device, pcie, LinkKind.PCIE)
        return
    for first in range(0, len(devices), pcie.devices_per_switch):
        switch = f"pcie {host}.{first // pcie.devices_per_switch}"
        uplink = Link(bytes_per_s=pcie.switch_bytes_per_s, latency_s=0.0)
        topology.add(switch, up, uplink, LinkKind.PCIE)
        topology.add(down, switch, uplink, LinkKind.PCIE)
        for device in devices[first : first + pcie.devices_per_switch]:
            topology.join(device, switch, pcie, LinkKind.PCIE)


def _add_nvlink(topology: Topology, nvlink: Nvlink, host: int, devices: Sequence[str]) -> None:
    if not nvlink.groups:
        for device in devices:
            topology.join(device, f"nvswitch {host}", _half_way(nvlink), LinkKind.NVLINK)
    for group in nvlink.groups:
        for a, b in combinations([devices[k] for k in group if k < len(devices)], 2):
            topology.join(a, b, nvlink, LinkKind.NVLINK)


def _add_nic(topology: Topology, cluster: Cluster, nic: Nic, host: int, devices: Sequence[str]) -> None:
    """Add one port at host memory; or one at each device, and then host memory spreads its bytes evenly over all:
    the ports together are one link that both share. Links carry payload, so headers make them slower."""
    nic = replace(nic, bytes_per_s=nic.bytes_per_s * nic.payload)
    switch = "network" if cluster.network is None else f"leaf {host // cluster.network.hosts_per_leaf}"
    if nic.per is Per.HOST:
        (topology.share if nic.shared else topology.join)(f"host {host}", switch, _half_way(nic))
        return
    ports = Link(bytes_per_s=nic.bytes_per_s * cluster.hosts.count(host), latency_s=0.0)
    topology.join(f"nics {host}", switch, ports)
    topology.join(f"host {host}", f"nics {host}", Link(bytes_per_s=ports.bytes_per_s, latency_s=nic.latency_s / 2))
    for device in devices:
        topology.join(device, f"nics {host}", _half_way(nic))


def burst_links(topology: Topology, cluster: Cluster) -> dict[int, float]:
    """The links of hosts' NICs behind rate limiters, and the seconds of their bursts."""
    nic = cluster.nic
    if nic is None or nic.burst_s == 0:
        return {}
    edges = topology.graph.edges(data="index")
    joins = [index for a, b, index in edges if any(end.startswith(("network", "leaf")) for end in (a, b))]
    return dict.fromkeys([link for link in joins if "spine" not in topology.names[link]], nic.burst_s)


def _add_copies(topology: Topology, cluster: Cluster) -> None:
    """Add what a CPU process copies at: it reads and writes every byte."""
    for rank, device in enumerate(cluster.devices):
        rate = device.memory_bytes_per_s * device.efficiency.stream / 2
        copying = Link(bytes_per_s=rate, latency_s=0.0)
        topology.join(f"copy {rank}", f"host {cluster.host(rank)}", copying, None)


def _add_leaves(topology: Topology, cluster: Cluster) -> None:
    network, nic = cluster.network, cluster.nic
    if network is None or nic is None:
        return
    most = max(cluster.hosts.count(host) for host in dict.fromkeys(cluster.hosts)) if nic.per is Per.DEVICE else 1
    rate = network.hosts_per_leaf * most * nic.bytes_per_s / network.oversubscription
    for leaf in range(-(-cluster.num_hosts // network.hosts_per_leaf)):
        topology.join(f"leaf {leaf}", "spine", Link(bytes_per_s=rate, latency_s=network.latency_s))


def _add_wires(topology: Topology, cluster: Cluster) -> None:
    """Add the links of the file, but for those of devices and hosts that are not in use."""
    for wire in cluster.links:
        used = {"gpu": cluster.num_ranks, "host": cluster.num_hosts}
        ends = [end.partition(" ") for end in wire.ends]
        if all(kind not in used or int(number) < used[kind] for kind, _, number in ends):
            topology.add(wire.ends[0], wire.ends[1], wire, wire.kind)
            if wire.both:
                topology.add(wire.ends[1], wire.ends[0], wire, wire.kind)


def place(node: str) -> str:
    """The thing a node belongs to: a root complex is two nodes, one per direction."""
    return node.removesuffix(" in").removesuffix(" out") if node.startswith("root ") else node


def _require_trees(topology: Topology) -> None:
    import networkx as nx  # a third of a second that only this needs

    pcie = nx.Graph()
    pcie.add_edges_from(
        (place(a), place(b)) for a, b, kind in topology.graph.edges(data="kind") if kind == LinkKind.PCIE
    )
    for circle in nx.cycle_basis(pcie)[:1]:
        way = " - ".join([*circle, circle[0]])
        raise InputError(f"cluster {topology.name}: PCIe is a tree, but these links are a cycle: {way}")


def _half_way(link: Link) -> Link:
    """A link of half the latency, half of a way through a switch, for latencies that are stated from end to end."""
    return Link(bytes_per_s=link.bytes_per_s, latency_s=link.latency_s / 2)


def require_reachable(cluster: Cluster) -> None:
    """Raise InputError for the first of the ranks in use that do not reach each other the way their transport goes."""
    topology = build_topology(cluster)
    devices = [f"gpu {rank}" for rank in range(cluster.num_ranks)]
    hosts = [f"host {host}" for host in range(cluster.num_hosts)]
    if cluster.transport is Transport.NCCL:
        for device in devices:
            topology.routes_from(device, devices)
        return
    for host in hosts:
        topology.routes_from(host, hosts)
    for device, home in topology.homes.items():
        topology.route(device, home)
        topology.route(home, device)
