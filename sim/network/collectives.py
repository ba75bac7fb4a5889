"""Collectives as flows: who sends how much to whom, in how many steps, and what each end copies to and from its device.

A ring sends pieces around, a tree whole halves up and down; a broadcast goes down a chain, or down a tree. Whatever the
algorithm, all its flows are under way together: pieces follow each other closely.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from halocast.schedule.ir import Broadcast, Kind, Payload, broadcast_chain, ring_bytes, ring_steps, shard_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One flow of a collective; the latencies of its steps add up."""

    source: int
    target: int
    num_bytes: int
    num_steps: int
    down_bytes: int  # copied from the source's device before, where a transport stages
    up_bytes: int  # copied to the target's device after


def ring(work: Payload, group: Sequence[int]) -> list[Hop]:
    """Hops of a collective around its group, or from the root down the chain that the group is then."""
    return RINGS[work.kind](work, group)


def tree(work: Payload, group: Sequence[int], hosts: Callable[[int], int]) -> list[Hop]:
    """Hops over trees of hosts with a chain of ranks each; what trees do not help (pieces for all) stays a ring."""
    if work.kind is Kind.ALLREDUCE:
        half = work.num_bytes // 2
        halves = [(half, list(group)), (work.num_bytes - half, list(group)[::-1])]
        return [hop for size, ranks in halves for hop in _both_ways(work, ranks, size, hosts)]
    if isinstance(work, Broadcast):
        return _down(work, list(broadcast_chain(tuple(group), work.root)), hosts)
    return ring(work, group)


def num_steps(kind: Kind, num_ranks: int) -> int:
    """Steps of a ring, or of a chain: all pieces pass every rank, in an all-reduce twice."""
    return ring_steps(num_ranks) if kind is Kind.ALLREDUCE else num_ranks - 1


def _around(work: Payload, group: Sequence[int], sent: int, down: int, up: int) -> list[Hop]:
    ends = zip(group, (*group[1:], group[0]), strict=True)
    steps = num_steps(work.kind, len(group))
    return [Hop(source=a, target=b, num_bytes=sent, num_steps=steps, down_bytes=down, up_bytes=up) for a, b in ends]


def _all_reduce(work: Payload, group: Sequence[int]) -> list[Hop]:
    return _around(work, group, ring_bytes(work.num_bytes, len(group)), work.num_bytes, work.num_bytes)


def _all_gather(work: Payload, group: Sequence[int]) -> list[Hop]:
    piece = work.num_bytes // len(group)
    return _around(work, group, shard_bytes(work.num_bytes, len(group)), piece, work.num_bytes)


def _reduce_scatter(work: Payload, group: Sequence[int]) -> list[Hop]:
    piece = work.num_bytes // len(group)
    return _around(work, group, shard_bytes(work.num_bytes, len(group)), work.num_bytes, piece)


def _chain(work: Payload, group: Sequence[int]) -> list[Hop]:
    assert isinstance(work, Broadcast)
    chain = broadcast_chain(tuple(group), work.root)
    return [_passed(work, a, b, len(chain) - 1) for a, b in pairwise(chain)]


def _passed(work: Broadcast, source: int, target: int, steps: int) -> Hop:
    """A hop of the payload on to another rank; it comes from the device only where it is the root's."""
    size = work.num_bytes
    down = size if source == work.root else 0
    return Hop(source=source, target=target, num_bytes=size, num_steps=steps, down_bytes=down, up_bytes=size)


def _both_ways(work: Payload, ranks: list[int], num_bytes: int, hosts: Callable[[int], int]) -> list[Hop]:
    pairs, depth = tree_edges(_by_host(ranks, hosts))
    copied = work.num_bytes
    return [
        Hop(source=a, target=b, num_bytes=num_bytes, num_steps=2 * depth, down_bytes=copied, up_bytes=copied)
        for pair in pairs
        for a, b in (pair, pair[::-1])
    ]


def _down(work: Broadcast, ranks: list[int], hosts: Callable[[int], int]) -> list[Hop]:
    pairs, depth = tree_edges(_by_host(ranks, hosts))
    return [_passed(work, parent, child, depth) for child, parent in pairs]


def _by_host(ranks: list[int], hosts: Callable[[int], int]) -> list[list[int]]:
    homes = dict.fromkeys(hosts(rank) for rank in ranks)
    return [[rank for rank in ranks if hosts(rank) == home] for home in homes]


def tree_edges(hosts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, int]], int]:
    """Edges (child, parent) of a reduction tree and its depth: a chain per host, a binary tree of hosts."""
    chains = [edge for ranks in hosts for edge in ((b, a) for a, b in pairwise(ranks))]
    heads = [ranks[0] for ranks in hosts]
    binary = [(heads[k], heads[(k - 1) // 2]) for k in range(1, len(heads))]
    return chains + binary, max(len(ranks) for ranks in hosts) - 1 + len(heads).bit_length() - 1


RINGS: Mapping[Kind, Callable[[Payload, Sequence[int]], list[Hop]]] = MappingProxyType(
    {
        Kind.ALLREDUCE: _all_reduce,
        Kind.ALLGATHER: _all_gather,
        Kind.REDUCE_SCATTER: _reduce_scatter,
        Kind.BROADCAST: _chain,
    }
)
