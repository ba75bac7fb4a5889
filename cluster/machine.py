"""Devices, links and clusters as records in SI units; `halocast.cluster.catalogue` reads them from TOML files.

A cluster is hosts with devices; ranks fill the hosts in order. The links are described, not simulated: `topology`
turns them into a graph, `links` into time.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from halocast.base.parts_of_cores import part_of
from halocast.base.records import require
from halocast.cluster.measured import Measured
from halocast.cluster.tables import AllReduce, AllToAll, Efficiency, LinkKind, Per, PriceTable, Streams, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    source: str
    memory_bytes: int
    fp32_flops_per_s: float
    fp64_flops_per_s: float
    memory_bytes_per_s: float
    cache_bytes: float
    launch_s: float
    efficiency: Efficiency
    pcie_bytes_per_s: float | None = None  # peak of its slot, one direction; none for a CPU core
    transports: tuple[Transport, ...] = tuple(Transport)
    measured: Measured | None = field(default=None, repr=False)  # replaces rates and efficiencies above

    def flops_per_s(self, itemsize: int) -> float:
        rates = {4: self.fp32_flops_per_s, 8: self.fp64_flops_per_s}
        require(itemsize in rates, f"itemsize = {itemsize}: device {self.name} has rates for 4 and 8 bytes")
        return rates[itemsize]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A directed connection that carries bytes at one rate after a latency."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie(Link):
    """From a device to host memory, over a switch that some devices share and a root complex that all do."""

    devices_per_switch: int | None = None
    switch_bytes_per_s: float | None = None  # between a switch and the root complex, each way
    root_bytes_per_s: float | None = None  # through the root complex, each way: to memory, and between switches


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlink(Link):
    groups: tuple[tuple[int, ...], ...] = ()  # devices of a host with direct links to each other; none: a switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(Link):
    per: Per = Per.HOST
    payload: float = 1.0  # of the rate, what headers of packets leave
    burst_s: float = 0.0  # of a rate limiter: so much of its rate passes at once after a pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Leaves with equal hosts under one spine; without it all hosts are at one switch that never blocks."""

    hosts_per_leaf: int
    oversubscription: float = 1.0  # what the ports of a full leaf carry, over what its way to the spine does
    latency_s: float = 0.0  # between leaf and spine


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire(Link):
    """A link that the file names: from the first end to the second, or both ways."""

    ends: tuple[str, ...]
    kind: LinkKind
    both: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gloo:
    rendezvous: ClassVar[bool] = False  # receives are posted ahead, so bytes leave at once
    exchange: ClassVar[AllToAll] = AllToAll.GROUPED
    stream_bytes_per_s: float  # of one TCP stream: each pair of ranks has one
    host_bytes_per_s: float  # of all streams of a host together
    latency_s: float
    exchange_s: float = 0.0  # before the first byte of a rank's sends: waking threads, pinning, synchronising
    rank_bytes_per_s: float | None = None  # of all streams of one rank, in and out: one thread serves them
    streams: Streams = Streams.MESSAGE
    chunk_bytes: float | None = None  # a message is copied, sent and copied up in pieces of this size; none: as a whole
    core_s_per_byte: float | None = None  # of the cores that ranks share, both ends together, for a byte that moves
    core_s_per_message: float = 0.0  # the same for a message, however small
    core_s_per_step: float = 0.0  # of each rank's core, for a step of an all-reduce
    compute_slowdown: float = 1.0  # of a rank's kernels while its bytes move
    transfer_slowdown: float = 1.0  # of a rank's bytes while its kernels run


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    rendezvous: ClassVar[bool] = True  # both ends copy: bytes move when the kernels of both are there
    core_s_per_message: ClassVar[float] = 0.0  # kernels of the device copy
    core_s_per_step: ClassVar[float] = 0.0
    efficiency: float  # fraction of a link's rate that payload gets
    latency_s: float
    remote_bytes_per_s: float | None = None  # of one flow to another host, where that is below what the links allow
    allreduce: AllReduce = AllReduce.AUTO
    exchange: AllToAll = AllToAll.GROUPED
    compute_slowdown: float = 1.0  # of a rank's kernels while its bytes move
    transfer_slowdown: float = 1.0  # of a rank's bytes while its kernels run


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str
    description: str
    source: str
    devices: tuple[Device, ...]  # of each rank in use
    hosts: tuple[int, ...] = field(repr=False)  # of each rank there is, in use or not
    transport: Transport
    pcie: Pcie | None
    nvlink: Nvlink | None
    nic: Nic | None
    gloo: Gloo | None
    nccl: Nccl | None
    network: Network | None = None
    links: tuple[Wire, ...] = field(default=(), repr=False)
    shared_cores: int | None = None  # of the one machine that all hosts are emulated on; none: each rank has its own
    price: PriceTable | None = None

    @property
    def num_ranks(self) -> int:
        return len(self.devices)

    @property
    def core_parts(self) -> tuple[tuple[int, ...], ...]:
        """The cores of one machine that each rank keeps to; ranks may have the same."""
        assert self.shared_cores is not None
        cores = range(self.shared_cores)
        return tuple(tuple(part_of(cores, rank, self.num_ranks)) for rank in range(self.num_ranks))

    @property
    def num_hosts(self) -> int:
        """Hosts with ranks in use."""
        return self.host(self.num_ranks - 1) + 1

    @property
    def staged(self) -> bool:
        """Whether ranks are devices with memory of their own; CPU processes are not, and have no links of their own."""
        return self.pcie is not None or any(end.startswith("gpu ") for wire in self.links for end in wire.ends)

    def device(self, rank: int) -> Device:
        return self.devices[self._checked(rank)]

    def host(self, rank: int) -> int:
        return self.hosts[self._checked(rank)]

    def same_host(self, a: int, b: int) -> bool:
        return self.host(a) == self.host(b)

    def _checked(self, rank: int) -> int:
        assert 0 <= rank < self.num_ranks, f"rank {rank} is not in 0..{self.num_ranks - 1} of {self.name}"
        return rank
