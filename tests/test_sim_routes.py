"""Routes of random topologies against a search of all legal ways."""

from collections.abc import Sequence
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.cluster.machine import Link, LinkKind
from halocast.cluster.topology import Topology

NODES = ["gpu 0", "gpu 1", "gpu 2", "host 0", "host 1", "s", "t", "u"]
HOMES = {"gpu 0": "host 0", "gpu 1": "host 0", "gpu 2": "host 1"}


@st.composite
def random_topologies(draw: st.DrawFn) -> Topology:
    topology = Topology("random", HOMES)
    topology.graph.add_nodes_from(NODES)
    pairs = st.lists(st.sampled_from([(a, b) for a in NODES for b in NODES if a != b]), unique=True, max_size=24)
    for a, b in draw(pairs):
        rate = draw(st.sampled_from([1e6, 2e6, 5e6, 7e6]))
        topology.add(a, b, Link(bytes_per_s=rate, latency_s=0.1), draw(st.sampled_from(LinkKind)))
    return topology


def price(topology: Topology, way: Sequence[str]) -> tuple[int, int, float]:
    """How often a way goes onto the network, how many hosts it passes, its seconds."""
    graph = topology.graph
    inside = {a for a, _, kind in graph.edges(data="kind") if kind != LinkKind.NETWORK} | set(NODES[:5])
    steps = list(pairwise(way))
    out = sum(graph.edges[step]["kind"] == LinkKind.NETWORK and step[0] in inside for step in steps)
    hosts = sum(node.startswith("host") for node in way[1:-1])
    return out, hosts, round(sum(0.1 + 1e6 / topology.capacity[graph.edges[step]["index"]] for step in steps), 9)


def legal(a: str, b: str, way: Sequence[str]) -> bool:
    """Switches and the hosts of the two ends may be passed, the source's before the target's."""
    mine = [HOMES[node] for node in (a, b) if node in HOMES]
    hosts = [node for node in way[1:-1] if not node.startswith(("s", "t", "u"))]
    return hosts in [[], mine[:1], mine[-1:], mine] and not any(node.startswith("gpu") for node in way[1:-1])


@given(random_topologies())
def test_every_route_is_the_best_of_all_legal_ways(topology: Topology) -> None:
    for a, b in ((a, b) for a in NODES[:5] for b in NODES[:5] if a != b):
        ways = [way for way in nx.all_simple_paths(topology.graph, a, b) if legal(a, b, way)]
        if not ways:
            with pytest.raises(InputError, match=f"no way from {a} to {b}"):
                topology.route(a, b)
            continue
        steps = [topology.names[link].split(" > ") for link in topology.route(a, b)]
        found = [steps[0][0], *(step[1] for step in steps)]
        assert all(step[0] == node for step, node in zip(steps, found, strict=False))
        assert price(topology, found) == min(price(topology, way) for way in ways)
