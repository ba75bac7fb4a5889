"""What machines are: devices, links, transports and clusters as records in SI units.

A cluster is hosts with devices; ranks fill the hosts in order. The links are described, not simulated: `topology`
turns them into a graph, `halocast.sim.network` into time. Every record can be read from a TOML table, in SI units or in
those its fields allow (`halocast.base.records`); `catalogue` does.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from types import MappingProxyType
from typing import ClassVar

from halocast.base.cores import part_of
from halocast.base.kernels import Numbers
from halocast.base.records import (
    ByteRate,
    Bytes,
    Checked,
    Count,
    Factor,
    FlopRate,
    NotNegative,
    Positive,
    Seconds,
    Share,
    WholeBytes,
    require,
)
from halocast.cluster.measured import Measured

# Bytes per second and lane after the line code, one direction.
PCIE_LANE_BYTES_PER_S: Mapping[int, float] = MappingProxyType({3: 0.985e9, 4: 1.969e9, 5: 3.938e9})


class Transport(StrEnum):
    GLOO = "gloo"  # staged through host memory: copy down, TCP, copy up
    NCCL = "nccl"  # device to device


class LinkKind(StrEnum):
    PCIE = "pcie"
    NVLINK = "nvlink"
    NETWORK = "network"


class Per(StrEnum):
    HOST = "host"
    DEVICE = "device"


class Streams(StrEnum):
    """The unit of traffic that has the rate of a stream for itself."""

    MESSAGE = "message"  # each message: the rate is that of the thread that copies and sends it
    PAIR = "pair"  # all that goes from one rank to another at a time: the rate is that of their socket


class Summing(StrEnum):
    """The algorithm by which an all-reduce sums."""

    RING = "ring"  # 2(P-1) steps, each rank sends 2(P-1)/P of the payload
    TREE = "tree"  # 2 log2 P steps, the whole payload up and down
    AUTO = "auto"  # whichever is sooner for a payload, as the library chooses


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency(Checked):
    """Shares of a device's peaks that kernels reach; one set for the whole catalogue."""

    flops: Share
    flops_shared: Share  # where half of the multiply-adds share their unit with integers
    matrix: Share  # of the units for tf32 and bfloat16
    gemm_tile: Count
    stream: Share
    gather: Share
    degree_sigma: NotNegative  # of ln(degree), of graphs that do not say
    spmm_columns: Count
    spmm_entry_clocks: NotNegative
    spmm_row_clocks: NotNegative
    spmm_store: Share
    spmm_skew: NotNegative
    spmm_blend: Factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Checked):
    """A device that computes for a rank: a GPU, or a core of a CPU."""

    name: str
    source: str
    memory_bytes: WholeBytes
    fp32_flops_per_s: FlopRate
    fp64_flops_per_s: FlopRate
    memory_bytes_per_s: ByteRate
    cache_bytes: Bytes
    launch_s: Seconds
    efficiency: Efficiency
    cache_bytes_per_s: ByteRate | None = None  # none: no faster than memory
    fmas_per_clock: Count | None = None  # fp32 multiply-adds of a compute unit; none: units are not told apart
    fmas_shared: bool = False  # half of them with integers: products reach less of the peak
    matrix_share: Share | None = None  # of the rates below that products reach; none: that of the catalogue
    pcie_generation: int | None = None  # of its slot; none for a CPU core
    pcie_lanes: Count | None = None
    tf32_flops_per_s: FlopRate | None = None  # of matrix products; none: no faster than fp32
    bf16_flops_per_s: FlopRate | None = None
    transports: tuple[Transport, ...] = tuple(Transport)
    measured: Measured | None = field(default=None, repr=False)  # replaces rates and efficiencies above

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        generation = self.pcie_generation
        legal = ", ".join(map(str, PCIE_LANE_BYTES_PER_S))
        known = generation is None or generation in PCIE_LANE_BYTES_PER_S
        require(known, f"pcie_generation = {generation}: known are {legal}")
        require((generation is None) == (self.pcie_lanes is None), "pcie_generation and pcie_lanes go together")

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """Peak bytes per second of the device's PCIe slot, in one direction."""
        if self.pcie_generation is None or self.pcie_lanes is None:
            return None
        return self.pcie_lanes * PCIE_LANE_BYTES_PER_S[self.pcie_generation]

    @property
    def cache_rate(self) -> float:
        """Bytes per second from the cache; no slower than memory."""
        return max(self.cache_bytes_per_s or 0.0, self.memory_bytes_per_s)

    @property
    def unit_clocks_per_s(self) -> float | None:
        """Clocks per second of all compute units together."""
        return None if self.fmas_per_clock is None else self.fp32_flops_per_s / (2 * self.fmas_per_clock)

    def flops_per_s(self, numbers: Numbers) -> float:
        """The peak of matrix products of such numbers; without a rate for tf32 or bfloat16, that of float32 ones."""
        if numbers is Numbers.FLOAT64:
            return self.fp64_flops_per_s
        return self.matrix_flops_per_s(numbers) or self.fp32_flops_per_s

    def matrix_flops_per_s(self, numbers: Numbers) -> float | None:
        """The peak of the units for matrix products of few bits; none without them."""
        if numbers is Numbers.TF32:
            return self.tf32_flops_per_s
        return self.bf16_flops_per_s if numbers is Numbers.BFLOAT16 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Checked):
    """A directed connection that carries bytes at one rate after a latency."""

    bytes_per_s: ByteRate
    latency_s: Seconds

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie(Link):
    """The way from a device to host memory, over a switch that some devices share and a root complex that all do."""

    devices_per_switch: Count | None = None
    switch_bytes_per_s: ByteRate | None = None  # between a switch and the root complex, each way
    root_bytes_per_s: ByteRate | None = None  # through the root complex, each way: to memory, and between switches

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        together = (self.devices_per_switch is None) == (self.switch_bytes_per_s is None)
        require(together, "devices_per_switch and switch_gbytes_per_s go together")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlink(Link):
    """Direct links between the devices of a host, or from each to a switch."""

    groups: tuple[tuple[int, ...], ...] = ()  # devices of a host with direct links to each other; none: a switch

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for group in self.groups:
            legal = len(set(group)) == len(group) > 1 and min(group) >= 0
            require(legal, f"groups: {list(group)}: a group is two or more devices of a host, numbered from 0")
        pairs = Counter(tuple(sorted(pair)) for group in self.groups for pair in combinations(group, 2))
        for (a, b), times in pairs.items():
            require(times == 1, f"groups: devices {a} and {b} are in {times} groups; give their link once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(Link):
    """The port of a host, or of each of its devices, to the network; the latency is from end to end."""

    per: Per = Per.HOST
    shared: bool = False  # both directions pass one path, of that rate together
    payload: Share = 1.0  # of the rate, what headers of packets leave
    burst_s: Seconds = 0.0  # of a rate limiter: so much of its rate passes at once after a pause

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        require(not (self.shared and self.per is Per.DEVICE), "shared = true: of a port per host, not per device")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSpine(Checked):
    """Leaves with equal hosts under one spine; without it all hosts are at one switch that never blocks."""

    hosts_per_leaf: Count
    oversubscription: Factor = 1.0  # what the ports of a full leaf carry, over what its way to the spine does
    latency_s: Seconds = 0.0  # between leaf and spine


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire(Link):
    """A link that the file names: from the first end to the second, or both ways."""

    ends: tuple[str, ...]
    kind: LinkKind
    both: bool = True

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        require(len(set(self.ends)) == len(self.ends) == 2, f"ends = {list(self.ends)}: a link joins two nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gloo(Checked):
    """Bytes staged through host memory and carried by TCP."""

    rendezvous: ClassVar[bool] = False  # receives are posted ahead, so bytes leave at once
    stream_bytes_per_s: ByteRate  # of one TCP stream: each pair of ranks has one
    host_bytes_per_s: ByteRate  # of all streams of a host together
    latency_s: Seconds
    rank_bytes_per_s: ByteRate | None = None  # of all streams of one rank, in and out: one thread serves them
    streams: Streams = Streams.MESSAGE
    chunk_bytes: Bytes | None = None  # a message is copied, sent and copied up in pieces of this size; none: as a whole
    core_s_per_byte: Positive | None = None  # of the cores that ranks share, both ends together, for a byte that moves
    core_s_per_message: NotNegative = 0.0  # the same for a message, however small
    core_s_per_step: NotNegative = 0.0  # of each rank's core, for a step of an all-reduce
    compute_slowdown: Factor = 1.0  # of a rank's kernels while its bytes move
    transfer_slowdown: Factor = 1.0  # of a rank's bytes while its kernels run


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl(Checked):
    """Bytes copied from device to device by kernels."""

    rendezvous: ClassVar[bool] = True  # both ends copy: bytes move when the kernels of both are there
    core_s_per_message: ClassVar[float] = 0.0  # kernels of the device copy
    core_s_per_step: ClassVar[float] = 0.0
    efficiency: Share  # of a link's rate, what payload gets
    latency_s: Seconds  # of a message, and of a collective's first step: a kernel is launched at either end
    step_s: Seconds | None = None  # of every further step of a collective; none: as the first
    remote_bytes_per_s: ByteRate | None = None  # of one flow to another host, where that is below what the links allow
    allreduce: Summing = Summing.AUTO
    compute_slowdown: Factor = 1.0  # of a rank's kernels while its bytes move
    transfer_slowdown: Factor = 1.0  # of a rank's bytes while its kernels run


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Checked):
    """The price of a host while it is rented, whole; a list price is what it was on its date."""

    per_host_hour: Positive
    date: str
    source: str
    currency: str = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joints(Checked):
    """All that joins devices, in a file and in the cluster it describes: links, transports; and the price of a host."""

    description: str
    source: str
    transport: Transport
    pcie: Pcie | None = None
    nvlink: Nvlink | None = None
    nic: Nic | None = None
    network: LeafSpine | None = None
    links: tuple[Wire, ...] = field(default=(), repr=False)
    gloo: Gloo | None = None
    nccl: Nccl | None = None
    shared_cores: Count | None = None  # of the one machine that all hosts are emulated on; none: each rank has its own
    price: Price | None = None
    guessed: bool = False  # its devices or links: described to compare published figures, not to plan on


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Joints):
    """Ranks with a device and a host each, and all that joins them."""

    name: str
    devices: tuple[Device, ...]  # of each rank in use
    hosts: tuple[int, ...] = field(repr=False)  # of each rank there is, in use or not

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
