"""The edges of a stand-in: given degrees, communities, and bridges between communities, matched stub by stub.

A stub is one end of an edge; a node has as many as its degree. Stubs that bridge are matched with those of a partner
community, the others with those of the same class in their community. What finds no mate there is matched in the class,
then in the community, then anywhere. So degrees come out as asked for, whatever the communities are.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from halocast.graph.graph import Ints, Mask

ROUNDS = 8  # matchings of what is left; few stubs are, unless there is no mate
MOST_OUTSIDE = 0.9  # of the stubs of a node that bridges
PARTNERS = 8  # that a community has of its own class, and as many of any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridges:
    """How communities are joined: `stubs` decides how many edges METIS cuts, `partners` how many rows those need."""

    stubs: float  # share of all stubs that lead into partner communities
    partners: float  # partner communities of a node, on average
    near: float  # share of those that are of the same class


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Where nodes are."""

    community: Ints  # of every node, numbers from 0
    group: Ints  # of every node; those of one class are matched first
    block: Ints  # of every community: the class that most of it has


class _Wires(NamedTuple):
    keys: Ints  # distinct edges as smaller · nodes + larger, ascending
    left: Ints  # stubs without a mate


def wire(degrees: Ints, places: Places, bridges: Bridges, rng: np.random.Generator) -> Ints:
    """The undirected edges as ascending keys, smaller end · nodes + larger end."""
    n, community, num_groups = len(degrees), places.community, int(places.group.max()) + 1
    wires, inside = _bridged(degrees, places, bridges, rng)
    stubs = np.concatenate((np.repeat(np.arange(n), inside), wires.left))
    cell = community * num_groups + places.group
    for level in (cell, places.group, community, np.zeros_like(community)):
        wires = _match(stubs, level[stubs], None, n, rng, wires.keys)
        stubs = wires.left
    return wires.keys


def _bridged(degrees: Ints, places: Places, bridges: Bridges, rng: np.random.Generator) -> tuple[_Wires, Ints]:
    """The edges between partner communities, and how many stubs every node has left for its own."""
    n, communities = len(degrees), len(places.block)
    nodes, outside = _bridging(degrees, bridges, rng)
    home = places.community[nodes]
    there = _partners(places.block, bridges.near, home, rng)
    pair = np.minimum(home, there) * communities + np.maximum(home, there)
    stubs, group, side = np.repeat(nodes, outside), np.repeat(pair, outside), np.repeat(home > there, outside)
    return _match(stubs, group, side, n, rng), degrees - np.bincount(nodes, weights=outside, minlength=n).astype(
        np.int64
    )


def _bridging(degrees: Ints, bridges: Bridges, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Nodes that bridge, once per partner community, and how many of their stubs lead there."""
    n = len(degrees)
    times = np.minimum(int(bridges.partners) + (rng.random(n) < bridges.partners % 1), degrees)
    share = min(MOST_OUTSIDE, bridges.stubs * int(degrees.sum()) / max(1, int(degrees[times > 0].sum())))
    total = np.floor(degrees * share + rng.random(n)).astype(np.int64)  # never above degrees, since share is below 1
    nodes = np.repeat(np.arange(n), times)
    nth = np.arange(len(nodes)) - np.repeat(np.cumsum(times) - times, times)
    return nodes, total[nodes] // times[nodes] + (nth < total[nodes] % times[nodes])


def _partners(block: Ints, near: float, home: Ints, rng: np.random.Generator) -> Ints:
    """A partner community for every entry of `home`, drawn from those of its class or from those of any.

    Partners are mutual. A community that has none in its class is its own, and its stubs find no mate there.
    """
    of_class = [_pairs(block, rng) for _ in range(PARTNERS)]
    of_any = [_pairs(np.zeros_like(block), rng) for _ in range(PARTNERS)]
    slot = rng.integers(0, PARTNERS, len(home)) + PARTNERS * (rng.random(len(home)) >= near)
    return np.stack(of_class + of_any)[slot, home]


def _pairs(block: Ints, rng: np.random.Generator) -> Ints:
    """Communities paired at random within their block; of an odd number, one with itself."""
    order = np.lexsort((rng.random(len(block)), block))
    first = np.flatnonzero(_place(block[order]) % 2 == 0)
    first = first[first + 1 < len(block)]
    first = first[block[order[first]] == block[order[first + 1]]]
    partner = np.arange(len(block))
    partner[order[first]], partner[order[first + 1]] = order[first + 1], order[first]
    return partner


def _place(values: Ints) -> Ints:
    """Each entry's place in its run of equal values."""
    places = np.arange(len(values))
    starts = np.ones(len(values), np.bool_)
    starts[1:] = values[1:] != values[:-1]
    return places - np.maximum.accumulate(np.where(starts, places, 0))


def _match(
    stubs: Ints, group: Ints, side: Mask | None, nodes: int, rng: np.random.Generator, keys: Ints | None = None
) -> _Wires:
    """Match stubs at random inside their group, with the other side where there are sides; no loops, no edge twice."""
    keys = np.empty(0, np.int64) if keys is None else keys
    for _ in range(ROUNDS):
        if len(stubs) < 2:
            break
        a, b = _drawn_pairs(group, side, rng)
        ends = np.minimum(stubs[a], stubs[b]) * nodes + np.maximum(stubs[a], stubs[b])
        fresh = np.zeros(len(ends), np.bool_)
        fresh[np.unique(ends, return_index=True)[1]] = True
        fresh &= (stubs[a] != stubs[b]) & ~_among(ends, keys)
        keys = np.sort(np.concatenate((keys, ends[fresh])))
        free = np.ones(len(stubs), np.bool_)
        free[a[fresh]] = free[b[fresh]] = False
        stubs, group, side = stubs[free], group[free], None if side is None else side[free]
    return _Wires(keys, stubs)


def _among(values: Ints, keys: Ints) -> Mask:
    """Which values are among ascending keys."""
    if not len(keys):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.asarray(keys[place] == values)


def _drawn_pairs(group: Ints, side: Mask | None, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Places of stubs that are drawn as pairs: of one group, of different sides."""
    half = group * 2 + (0 if side is None else side)
    order = np.argsort(half + rng.random(len(group)))
    slot = _place(half[order]) // (2 if side is None else 1)
    key = group[order] * (len(group) + 1) + slot
    by_key = np.argsort(key, kind="stable")
    order, key = order[by_key], key[by_key]
    mates = np.flatnonzero(key[1:] == key[:-1])
    return order[mates], order[mates + 1]
