"""A cluster drawn: its links as a tree of text, and as a figure.

The tree has PCIe and network links; where they close a circle, PCIe comes first. All other links (NVLink, a second way
to the network) are told beside the devices they join.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

from halocast.cluster.machine import Cluster, LinkKind
from halocast.cluster.topology import Topology, build_topology, place

if TYPE_CHECKING:
    import networkx as nx

NAMES = MappingProxyType({"copy": "process", "pcie": "pcie switch"})  # what a reader calls a node
DEVICES = ("gpu", "copy")


@dataclass(frozen=True, slots=True)
class Branch:
    node: str
    note: str  # its device, its links
    children: tuple["Branch", ...]


def draw_text(cluster: Cluster) -> str:
    """The cluster as text, a line per node; equal neighbours share one, and the first one's branches are shown."""
    branches = forest(cluster, places(build_topology(cluster)))
    return "\n".join(_lines(branches, "", top=True))


def _lines(branches: Sequence[Branch], indent: str, *, top: bool = False) -> Iterator[str]:
    runs = [list(run) for _, run in groupby(branches, key=_shape)]
    for k, run in enumerate(runs):
        last = k == len(runs) - 1
        yield f"{indent}{'' if top else '└─ ' if last else '├─ '}{_title(run)}"
        yield from _lines(run[0].children, indent + ("" if top else "   " if last else "│  "))


def _title(run: Sequence[Branch]) -> str:
    first, last = run[0], run[-1]
    many = f"..{last.node.split()[-1]} x {len(run)}" if len(run) > 1 else ""
    return f"{called(first.node)}{many}{first.note}"


def _shape(branch: Branch) -> tuple[object, ...]:
    return kind_of(branch.node), branch.note, tuple(_shape(child) for child in branch.children)


def kind_of(node: str) -> str:
    """The kind of a node: gpu of gpu 3; a name without a number is a kind of its own."""
    kind, _, number = node.rpartition(" ")
    return kind if number.replace(".", "").isdecimal() and kind else node


def called(node: str) -> str:
    kind = kind_of(node)
    return NAMES.get(kind, kind) + node.removeprefix(kind)


def places(topology: Topology) -> "nx.Graph":
    """The topology with one edge per pair of places: kind, and what it carries in each direction."""
    import networkx as nx  # a third of a second that only this needs

    graph = nx.Graph()
    graph.add_nodes_from(place(node) for node in topology.graph)
    for a, b, data in topology.graph.edges(data=True):
        ends = place(a), place(b)
        rate = topology.capacity[data["index"]], topology.latency_s[data["index"]]
        if not graph.has_edge(*ends):
            graph.add_edge(*ends, kind=data["kind"], rates={})
        graph.edges[ends]["rates"][ends] = rate
    return graph


def describe_link(graph: "nx.Graph", a: str, b: str) -> str:
    """A link in words: pcie 12 GB/s, 10 us; one that differs by direction says so."""
    edge = graph.edges[a, b]
    there, back = edge["rates"].get((a, b)), edge["rates"].get((b, a))
    kind = "copies" if edge["kind"] is None else str(edge["kind"])
    if there == back:
        return f"{kind} {_rate(*there)}"
    ways = [f"{_rate(*rate)} {way}" for rate, way in ((there, "up"), (back, "down")) if rate is not None]
    return f"{kind} {' and '.join(ways)}"


def _rate(bytes_per_s: float, latency_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s" + (f", {latency_s * 1e6:.4g} us" if latency_s else "")


def forest(cluster: Cluster, graph: "nx.Graph") -> tuple[Branch, ...]:
    """The trees of the graph, from the network down to the devices."""
    tree = spanning_tree(graph)
    tops = [min(nodes, key=lambda node: _height(tree, node)) for nodes in _components(tree)]
    return tuple(_branch(cluster, graph, tree, top, None) for top in tops)


def spanning_tree(graph: "nx.Graph") -> "nx.Graph":
    """The tree of PCIe and network links: without NVLink, and without switches that have nothing else."""
    import networkx as nx  # a third of a second that only this needs

    wired = nx.Graph()
    wired.add_nodes_from(
        node
        for node in graph
        if kind_of(node) in (*DEVICES, "host") or any(k != LinkKind.NVLINK for _, _, k in graph.edges(node, "kind"))
    )
    wired.add_edges_from(
        (a, b, {"late": kind == LinkKind.NETWORK}) for a, b, kind in graph.edges(data="kind") if kind != LinkKind.NVLINK
    )
    return nx.minimum_spanning_tree(wired, weight="late")


def _components(tree: "nx.Graph") -> list[list[str]]:
    """Connected nodes together, in the order of their first ones; so are the nodes in each."""
    import networkx as nx  # a third of a second that only this needs

    order = {node: k for k, node in enumerate(tree)}
    groups = [sorted(nodes, key=order.__getitem__) for nodes in nx.connected_components(tree)]
    return sorted(groups, key=lambda nodes: order[nodes[0]])


def _height(tree: "nx.Graph", node: str) -> tuple[int, int]:
    """The level of a node in the tree: the spine, the network, other switches of a network, hosts, devices."""
    above = ("spine", "network", "leaf")
    if kind_of(node) in above:
        return above.index(kind_of(node)), 0
    switch = kind_of(node) not in (*DEVICES, "host") and any(late for _, _, late in tree.edges(node, "late"))
    return (3, -tree.degree(node)) if switch else (4 + (kind_of(node) != "host"), 0)


def _branch(cluster: Cluster, graph: "nx.Graph", tree: "nx.Graph", node: str, parent: str | None) -> Branch:
    children = [child for child in tree[node] if child != parent]
    device = f" ({cluster.device(int(node.split()[-1])).name})" if kind_of(node) in DEVICES else ""
    links = [] if parent is None else [describe_link(graph, node, parent)]
    links += _side_links(graph, tree, node)
    note = device + (f": {'; '.join(links)}" if links else "")
    return Branch(node, note, tuple(_branch(cluster, graph, tree, child, node) for child in children))


def _side_links(graph: "nx.Graph", tree: "nx.Graph", node: str) -> Iterator[str]:
    """Links that the tree does not have, told by the device, or by both ends where neither is one."""
    counts: dict[tuple[str, str], int] = {}
    for other in graph[node]:
        if not tree.has_edge(node, other) and (kind_of(node) == "gpu" or kind_of(other) != "gpu"):
            key = describe_link(graph, node, other), kind_of(other)
            counts[key] = counts.get(key, 0) + 1
    for (link, kind), count in counts.items():
        yield f"{link} to {f'{count} x ' if count > 1 else ''}{kind}"
