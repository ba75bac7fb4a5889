"""Memory of one rank's device: the schedule's buffers at their peak, and what framework, transport and driver take.

`allocated_bytes` is what torch counts (its max_memory_allocated); `total_bytes` is what has to fit. Blocks the caching
allocator cannot use whole are not modelled: the capacity of a device is its size in GB where the card has GiB, and
these 7 % are left to fragmentation.
"""

from collections import defaultdict
from dataclasses import dataclass

from halocast.cluster.catalogue import Cluster, Transport
from halocast.codes.implementation import BARE, Implementation
from halocast.schedule.ir import COLLECTIVE, Lane, Payload, Schedule
from halocast.schedule.passes import memory

# CUDA context and kernels, outside the allocator: 300 MB (pytorch issue 107667, CUDA since 11.7), 300-400 MB (20532, on
# a V100), 390 MB (499 shown by nvidia-smi, 109 by torch). Before CUDA 11.7 all kernels were loaded: above 1000 MB.
CONTEXT_BYTES = 400_000_000
# torch gives each cuBLAS handle 2 x 4096 + 8 x 16 KiB; backward runs on a thread, and so a handle, of its own.
BLAS_BYTES = 2 * 8_519_680
# nccl, per connection and channel: a receive buffer of 10 MiB (simple, LL and LL128 protocols; NCCL_BUFFSIZE = 4 MiB
# is the first of them) and a send buffer of 2 MiB, as its allocation log shows (nccl issue 1685).
NCCL_CHANNEL_BYTES = 12 * 2**20
# Channels per peer (ncclTopoGetNchannels): 2 over PCIe or a network, over NVLink 2 per link of 20 GB/s, at most 32.
NCCL_CHANNELS, NCCL_MOST_CHANNELS, NVLINK_BYTES_PER_S = 2, 32, 20e9
# Messages to other hosts share one pool per direction: channels x 16 steps x 128 KiB (NCCL_P2P_NET_CHUNKSIZE).
NCCL_NET_BYTES = 2 * NCCL_MOST_CHANNELS * 16 * 128 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The fullest moment of a rank's device; contributors are largest first, buffers of all layers together."""

    rank: int
    at: str
    allocated_bytes: int
    total_bytes: int
    capacity_bytes: int
    contributors: tuple[tuple[str, int], ...]

    @property
    def headroom_bytes(self) -> int:
        return self.capacity_bytes - self.total_bytes

    @property
    def fits(self) -> bool:
        return self.headroom_bytes >= 0


def device_memory(schedule: Schedule, cluster: Cluster, rank: int, code: Implementation = BARE) -> DeviceMemory:
    """What a rank of a schedule takes, which has been lowered for the implementation that runs it."""
    peak = memory(schedule, rank)
    parts: dict[str, int] = defaultdict(int)
    for name, num_bytes in peak.alive:
        parts[name.partition(".")[0]] += num_bytes
    parts["workspace"] += BLAS_BYTES if _on_gpu(cluster, rank) else 0
    allocated = sum(parts.values())
    parts["transport"] = _staging(schedule, cluster, rank)
    parts["libraries"] = int(code.memory.libraries_bytes or 0) if _on_gpu(cluster, rank) else 0
    parts["context"] = CONTEXT_BYTES if _on_gpu(cluster, rank) else 0
    return DeviceMemory(
        rank=rank,
        at=peak.at,
        allocated_bytes=allocated,
        total_bytes=sum(parts.values()),
        capacity_bytes=cluster.device(rank).memory_bytes,
        contributors=tuple(sorted(((n, b) for n, b in parts.items() if b), key=lambda item: (-item[1], item[0]))),
    )


def tightest(memories: list[DeviceMemory]) -> DeviceMemory:
    """The rank with the least head-room: where devices differ, not always the one that holds most."""
    return min(memories, key=lambda one: (one.headroom_bytes, one.rank))


def pinned_bytes(schedule: Schedule, cluster: Cluster) -> tuple[int, ...]:
    """Page-locked memory of every host: gloo keeps a copy of each message on its way down and up."""
    hosts = [0] * (1 + max(cluster.host(rank) for rank in range(schedule.num_ranks)))
    if cluster.transport is Transport.GLOO and cluster.staged:
        for op in schedule.ops:
            moved = int(schedule.sent(op).sum() + schedule.received(op).sum())
            # a collective works in one host copy of the whole
            hosts[cluster.host(op.rank)] += op.work.num_bytes if isinstance(op.work, Payload) else moved
    return tuple(hosts)


def _on_gpu(cluster: Cluster, rank: int) -> bool:
    return cluster.device(rank).pcie_bytes_per_s is not None


def _staging(schedule: Schedule, cluster: Cluster, rank: int) -> int:
    """Device bytes of the transport. Each lane is a communicator: a ring for collectives, a connection per peer."""
    if cluster.transport is not Transport.NCCL:
        return 0  # gloo stages in host memory
    peers: dict[Lane, set[int]] = defaultdict(set)
    rings: set[Lane] = set()
    for op in schedule.by_rank[rank]:
        if op.kind in COLLECTIVE:
            rings.add(op.lane)
        else:
            peers[op.lane].update(schedule.partners(op))
    near = sum(cluster.same_host(rank, peer) for partners in peers.values() for peer in partners)
    far = sum(any(not cluster.same_host(rank, peer) for peer in partners) for partners in peers.values())
    connections = near + (len(rings) if schedule.num_ranks > 1 else 0)
    return connections * _num_channels(cluster) * NCCL_CHANNEL_BYTES + far * NCCL_NET_BYTES


def _num_channels(cluster: Cluster) -> int:
    """Channels per connection; one number for a communicator, so that of the network if it spans hosts."""
    if cluster.nvlink is None or not cluster.same_host(0, cluster.num_ranks - 1):
        return NCCL_CHANNELS
    wanted = NCCL_CHANNELS * max(1, int(cluster.nvlink.bytes_per_s / NVLINK_BYTES_PER_S))
    return min(NCCL_MOST_CHANNELS, 1 << (wanted - 1).bit_length())
