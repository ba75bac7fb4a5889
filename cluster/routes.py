"""Ways through a cluster's links, from one node to many at a time.

GPUs, CPU processes and host memory are endpoints: a way passes switches only, and of the hosts only that of its source
and that of its target (whose root complex joins their PCIe trees and NICs). Of the legal ways the best one leaves a
host for the network least often, then passes host memory least often, then carries a megabyte soonest.

Every endpoint is two nodes of the searched graph, one to start from and one to arrive at, so that no search passes
one. A way is then the best of four: straight; over the source's host; over the target's; over both.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from halocast.cluster.machine import LinkKind

if TYPE_CHECKING:
    import networkx as nx

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NO_LINK = -1  # after the last link of a route
ENDPOINTS = ("gpu ", "host ", "copy ")
NOWHERE = -1

Reach = tuple[Floats, Ints]  # what each node costs from a start, and the node before it; the last entry is NOWHERE's


class Router:
    """Searches over a graph that does not change any more; `homes` has the host of each device."""

    def __init__(self, graph: "nx.DiGraph", homes: Mapping[str, str]) -> None:
        self._number = {node: k for k, node in enumerate(graph)}
        self._home = np.array([self._number.get(homes.get(node, ""), NOWHERE) for node in graph])
        ends = np.array([node.startswith(ENDPOINTS) for node in graph], dtype=bool)
        self._start = np.where(ends, len(ends) + np.cumsum(ends) - 1, np.arange(len(ends)))
        self._size = len(ends) + int(ends.sum())
        before = self._start[[self._number[a] for a, _ in graph.edges]]
        after = np.array([self._number[b] for _, b in graph.edges])
        seconds = np.array([taken for _, _, taken in graph.edges(data="seconds")])
        self._pass_cost = 4 * seconds.sum()  # more than any way takes, whose three legs use a link once each
        leave_cost = 4 * self._pass_cost  # more than a way that passes two hosts
        costs = seconds + leave_cost * np.array([leaves_host(graph, a, b) for a, b in graph.edges])
        self._costs = csr_array((costs, (before, after)), shape=(self._size, self._size))
        order = np.argsort(before * self._size + after)
        self._pairs = (before * self._size + after)[order]
        self._links = np.array([link for _, _, link in graph.edges(data="index")])[order]
        self._from_host: dict[int, Reach] = {}
        self._last = self._last_legs()

    def routes(self, source: str, targets: Sequence[str]) -> tuple[Ints, NDArray[np.bool_]]:
        """The links to each target, a row each with NO_LINK after the last; and whether there is a way at all."""
        here = self._number[source]
        ends = np.array([self._number[target] for target in targets], dtype=np.int64)
        own, their = int(self._home[here]), self._home[ends]
        near, far = self._reach(here), self._reach_of_host(own)
        to_own = near[0][own] + self._pass_cost
        down = self._last[0][ends] + self._pass_cost
        costs = np.stack([near[0][ends], to_own + far[0][ends], near[0][their] + down, to_own + far[0][their] + down])
        costs[:, ends == here] = 0.0
        best = np.where(ends == here, NOWHERE, costs.argmin(axis=0))
        goal = np.where(best >= 2, their, ends)
        over_own = best % 2 == 1
        first = np.where(best == NOWHERE, NOWHERE, np.where(over_own, own, goal))
        second = np.where((best == NOWHERE) | ~over_own, NOWHERE, goal)
        last = np.where(best[:, None] >= 2, self._last[1][ends], NO_LINK)
        table = np.hstack([self._walk(near, first), self._walk(far, second), last])
        return _packed(table), np.isfinite(costs.min(axis=0))

    def _reach(self, node: int) -> Reach:
        costs, before = dijkstra(self._costs, indices=self._start[node], return_predecessors=True)
        return np.append(costs, np.inf), np.append(before, NOWHERE).astype(np.int64)

    def _reach_of_host(self, host: int) -> Reach:
        if host == NOWHERE:
            return np.full(self._size + 1, np.inf), np.full(self._size + 1, NOWHERE)
        if host not in self._from_host:
            self._from_host[host] = self._reach(host)
        return self._from_host[host]

    def _last_legs(self) -> tuple[Floats, Ints]:
        """The ways from its host to each device: what they cost, and their links as a table."""
        costs = np.full(len(self._home), np.inf)
        tables = {}
        for host in dict.fromkeys(self._home[self._home != NOWHERE].tolist()):
            mine = np.flatnonzero(self._home == host)
            reach = self._reach_of_host(host)
            costs[mine] = reach[0][mine]
            tables[host] = mine, self._walk(reach, mine)
        width = max((table.shape[1] for _, table in tables.values()), default=0)
        links = np.full((len(self._home), width), NO_LINK)
        for mine, table in tables.values():
            links[mine, : table.shape[1]] = table
        return costs, links

    def _walk(self, reach: Reach, ends: Ints) -> Ints:
        """The links of the ways to these nodes, with NO_LINK before the first."""
        columns, at = [], ends
        while (moves := reach[1][at] >= 0).any():
            before = np.where(moves, reach[1][at], 0)
            place = np.minimum(np.searchsorted(self._pairs, before * self._size + at), len(self._pairs) - 1)
            columns.append(np.where(moves, self._links[place], NO_LINK))
            at = np.where(moves, before, NOWHERE)
        return np.stack(columns[::-1], axis=1) if columns else np.empty((len(ends), 0), dtype=np.int64)


def leaves_host(graph: "nx.DiGraph", a: str, b: str) -> bool:
    """Whether a link goes onto the network from a node that has links of other kinds, or is an endpoint."""
    if graph.edges[a, b]["kind"] != LinkKind.NETWORK:
        return False
    return a.startswith(ENDPOINTS) or any(kind != LinkKind.NETWORK for _, _, kind in graph.out_edges(a, data="kind"))


def _packed(table: Ints) -> Ints:
    """The rows of a table with their links first, as narrow as the longest allows."""
    links_first = np.argsort(table == NO_LINK, axis=1, kind="stable")
    packed = np.take_along_axis(table, links_first, axis=1)
    return packed[:, : max(1, int((packed != NO_LINK).sum(axis=1).max(initial=0)))]
