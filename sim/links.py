"""How long bytes are under way: the seam between the engine, which says when, and the network, which says how long.

The engine knows a `Network` and nothing of routes, transports or rates:

* `transfer(source, target, num_bytes)` returns an event that succeeds when the last byte is in the target's memory.
  The bytes leave at the time of the call. Zero bytes, or a transfer to oneself, take no time.
* `store(rank, num_bytes)` is the same to or from the key-value store in host memory.
* `ring_seconds(group, payload_bytes)` is how long a ring all-reduce takes from the arrival of its last rank.

An event is never processed before it is returned, so the caller may add callbacks. A network whose flows share links
goes behind the same three. Here flows do not see each other: a transfer pays the latencies of its way and the slowest
rate of each stage, one stage after the other. Nothing is drawn at random.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol

import simpy

from halocast.sim.cluster import Cluster, Link, Transport


class Network(Protocol):
    def transfer(self, source: int, target: int, num_bytes: int) -> simpy.Event: ...

    def store(self, rank: int, num_bytes: int) -> simpy.Event: ...

    def ring_seconds(self, group: Sequence[int], payload_bytes: int) -> float: ...


class UnlimitedLinks:
    """Any transfer takes no time: the limit in which the maximum cycle ratio is exact."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env

    def transfer(self, source: int, target: int, num_bytes: int) -> simpy.Event:
        return self._env.timeout(0)

    def store(self, rank: int, num_bytes: int) -> simpy.Event:
        return self._env.timeout(0)

    def ring_seconds(self, group: Sequence[int], payload_bytes: int) -> float:
        return 0.0


class SimpleLinks:
    """Every flow has its way to itself: staging copies (gloo only), then the wire, one after the other."""

    def __init__(self, env: simpy.Environment, cluster: Cluster) -> None:
        self._env = env
        self._cluster = cluster
        self._copy = cluster.pcie if cluster.transport is Transport.GLOO else None
        self._local, self._remote = WIRES[cluster.transport](cluster)

    def transfer(self, source: int, target: int, num_bytes: int) -> simpy.Event:
        return self._env.timeout(self._transfer_seconds(source, target, num_bytes))

    def store(self, rank: int, num_bytes: int) -> simpy.Event:
        return self._env.timeout(self._store_seconds(rank, num_bytes))

    def ring_seconds(self, group: Sequence[int], payload_bytes: int) -> float:
        """2(P-1) steps of 1/P of the payload, each as slow as the slowest hop; gloo stages the whole payload once."""
        num_ranks = len(group)
        if num_ranks < 2 or payload_bytes == 0:
            return 0.0
        hops = pairwise((*group, group[0]))
        step_s = max(self._wire(a, b).seconds(payload_bytes / num_ranks) for a, b in hops)
        return self._staging_seconds(payload_bytes) + 2 * (num_ranks - 1) * step_s

    def _transfer_seconds(self, source: int, target: int, num_bytes: int) -> float:
        if num_bytes == 0 or source == target:
            return 0.0
        return self._staging_seconds(num_bytes) + self._wire(source, target).seconds(num_bytes)

    def _store_seconds(self, rank: int, num_bytes: int) -> float:
        """The store lives in the memory of host 0; ranks elsewhere reach it over their NIC."""
        if num_bytes == 0:
            return 0.0
        nic = self._cluster.nic if self._cluster.host(rank) else None
        return self._host_memory(rank).seconds(num_bytes) + (nic.seconds(num_bytes) if nic else 0.0)

    def _host_memory(self, rank: int) -> Link:
        """A GPU copies over PCIe; a CPU process reads and writes every byte once."""
        device = self._cluster.device(rank)
        rate = device.memory_bytes_per_s * device.efficiency.stream / 2
        return self._cluster.pcie or Link(bytes_per_s=rate, latency_s=0.0)

    def _staging_seconds(self, num_bytes: int) -> float:
        """Device to host memory at one end, host to device at the other."""
        return 2 * self._copy.seconds(num_bytes) if self._copy else 0.0

    def _wire(self, source: int, target: int) -> Link:
        wire = self._local if self._cluster.same_host(source, target) else self._remote
        assert wire is not None, "a cluster of several hosts has a [nic] table"
        return wire


Wires = tuple[Link, Link | None]  # within a host, to another host


def _gloo(cluster: Cluster) -> Wires:
    gloo, nic = cluster.gloo, cluster.nic
    assert gloo is not None, "load_cluster checks the transport's table"
    rate = min(gloo.stream_bytes_per_s, gloo.host_bytes_per_s)
    local = Link(bytes_per_s=rate, latency_s=gloo.latency_s)
    if nic is None:
        return local, None
    return local, Link(bytes_per_s=min(rate, nic.bytes_per_s), latency_s=gloo.latency_s + nic.latency_s)


def _nccl(cluster: Cluster) -> Wires:
    nccl, pcie, nic = cluster.nccl, cluster.pcie, cluster.nic
    assert nccl is not None, "load_cluster checks the transport's table"
    assert pcie is not None, "load_cluster checks that [nccl] comes with [pcie]"
    near = cluster.nvlink or pcie
    local = Link(bytes_per_s=near.bytes_per_s * nccl.efficiency, latency_s=nccl.latency_s + near.latency_s)
    if nic is None:
        return local, None
    rate = min(pcie.bytes_per_s, nic.bytes_per_s) * nccl.efficiency
    cap = rate if nccl.remote_bytes_per_s is None else nccl.remote_bytes_per_s
    latency_s = nccl.latency_s + pcie.latency_s + nic.latency_s
    return local, Link(bytes_per_s=min(rate, cap), latency_s=latency_s)


WIRES: Mapping[Transport, Callable[[Cluster], Wires]] = MappingProxyType({Transport.GLOO: _gloo, Transport.NCCL: _nccl})
