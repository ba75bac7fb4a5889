"""The machine files as TOML tables: which keys there are, which values are legal, and what their units mean in SI."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import combinations
from math import isfinite
from types import MappingProxyType
from typing import Any

from halocast.base.records import require

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
    """What has the rate of a stream for itself."""

    MESSAGE = "message"  # each message: the rate is that of the thread that copies and sends it
    PAIR = "pair"  # all that goes from one rank to another at a time: the rate is that of their socket


class AllReduce(StrEnum):
    RING = "ring"  # 2(P-1) steps, each rank sends 2(P-1)/P of the payload
    TREE = "tree"  # 2 log2 P steps, the whole payload up and down
    AUTO = "auto"  # whichever is sooner for a payload, as the library chooses


class AllToAll(StrEnum):
    GROUPED = "grouped"  # to all peers at once
    ROUNDS = "rounds"  # round k to the k-th next rank and from the k-th before; the next one when both are done


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A TOML table whose numbers are checked by name: times may be 0, all else is above 0, everything is finite."""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                least = "at least" if name.endswith("_us") else "above"
                legal = isfinite(value) and (value > 0 or (value == 0 and least == "at least"))
                require(legal, f"{name} = {value}: needs to be a number {least} 0")


def _at_most_one(table: object, *names: str) -> None:
    for name in names:
        value = getattr(table, name)
        require(value <= 1, f"{name} = {value}: a fraction of a peak needs to be at most 1")


def _at_least_one(table: object, *names: str) -> None:
    for name in names:
        value = getattr(table, name)
        require(value >= 1, f"{name} = {value}: needs to be a number at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency(Table):
    """What kernels reach of a device's peaks; one set for the whole catalogue."""

    flops: float
    gemm_tile: int
    stream: float
    gather: float
    spmm_hit: float
    spmm_skew: float

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        _at_most_one(self, "flops", "stream", "gather")
        _at_least_one(self, "spmm_hit")  # a cache is no slower than memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTable(Table):
    source: str
    memory_gbytes: float
    fp32_tflops: float
    fp64_tflops: float
    memory_gbytes_per_s: float
    cache_mbytes: float
    launch_us: float
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    transports: tuple[Transport, ...] = tuple(Transport)

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        generation = self.pcie_generation
        legal = ", ".join(map(str, PCIE_LANE_BYTES_PER_S))
        known = generation is None or generation in PCIE_LANE_BYTES_PER_S
        require(known, f"pcie_generation = {generation}: known are {legal}")
        require((generation is None) == (self.pcie_lanes is None), "pcie_generation and pcie_lanes go together")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    efficiency: Efficiency
    devices: dict[str, DeviceTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable(Table):
    gbytes_per_s: float
    latency_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieTable(LinkTable):
    devices_per_switch: int | None = None
    switch_gbytes_per_s: float | None = None
    root_gbytes_per_s: float | None = None

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        together = (self.devices_per_switch is None) == (self.switch_gbytes_per_s is None)
        require(together, "devices_per_switch and switch_gbytes_per_s go together")


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkTable(LinkTable):
    groups: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        for group in self.groups:
            legal = len(set(group)) == len(group) > 1 and min(group) >= 0
            require(legal, f"groups: {list(group)}: a group is two or more devices of a host, numbered from 0")
        pairs = Counter(tuple(sorted(pair)) for group in self.groups for pair in combinations(group, 2))
        for (a, b), times in pairs.items():
            require(times == 1, f"groups: devices {a} and {b} are in {times} groups; give their link once")


@dataclass(frozen=True, slots=True, kw_only=True)
class NicTable(Table):
    gbit_per_s: float
    latency_us: float
    per: Per = Per.HOST
    payload: float = 1.0
    burst_us: float = 0.0

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        _at_most_one(self, "payload")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTable(Table):
    hosts_per_leaf: int
    oversubscription: float = 1.0
    latency_us: float = 0.0

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        _at_least_one(self, "oversubscription")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsTable(Table):
    devices: tuple[str, ...]
    count: int = 1

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        require(len(self.devices) > 0, "devices = []: a host needs at least one")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireTable(LinkTable):
    ends: tuple[str, ...]
    kind: LinkKind
    both: bool = True

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        require(len(set(self.ends)) == len(self.ends) == 2, f"ends = {list(self.ends)}: a link joins two nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooTable(Table):
    stream_gbytes_per_s: float
    host_gbytes_per_s: float
    latency_us: float
    rank_gbytes_per_s: float | None = None
    exchange_us: float = 0.0
    streams: Streams = Streams.MESSAGE
    chunk_mbytes: float | None = None
    core_s_per_byte: float | None = None
    compute_slowdown: float = 1.0
    transfer_slowdown: float = 1.0

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        _at_least_one(self, "compute_slowdown", "transfer_slowdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTable(Table):
    efficiency: float
    latency_us: float
    remote_gbytes_per_s: float | None = None
    allreduce: AllReduce = AllReduce.AUTO
    exchange: AllToAll = AllToAll.GROUPED
    compute_slowdown: float = 1.0
    transfer_slowdown: float = 1.0

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        _at_most_one(self, "efficiency")
        _at_least_one(self, "compute_slowdown", "transfer_slowdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable(Table):
    """What a host costs while it is rented, whole; a list price is what it was on its date."""

    per_host_hour: float
    date: str
    source: str
    currency: str = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTable(Table):
    description: str
    source: str
    transport: Transport
    num_hosts: int | None = None
    devices_per_host: int | None = None
    device: str | None = None
    shared_cores: int | None = None
    hosts: tuple[HostsTable, ...] = ()
    pcie: PcieTable | None = None
    nvlink: NvlinkTable | None = None
    nic: NicTable | None = None
    network: NetworkTable | None = None
    links: tuple[WireTable, ...] = ()
    gloo: GlooTable | None = None
    nccl: NcclTable | None = None
    price: PriceTable | None = None

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        self._require_hosts()
        num_hosts = len(self.host_devices())
        joined = self.nic is not None or self.links
        require(num_hosts == 1 or bool(joined), f"num_hosts = {num_hosts} needs a [nic] table or [[links]]")
        paths = self.pcie is not None or self.links
        require(self.nccl is None or bool(paths), "[nccl] needs a [pcie] table or [[links]]: nccl joins GPUs")
        require(self.network is None or self.nic is not None, "[network] needs a [nic] table")

    def _require_hosts(self) -> None:
        for name in ("num_hosts", "devices_per_host", "device"):
            given = getattr(self, name) is not None
            require(given or bool(self.hosts), f"missing key {name!r} (or a [[hosts]] table)")
            require(not (given and self.hosts), f"{name} and [[hosts]] exclude each other")

    def host_devices(self) -> tuple[tuple[str, ...], ...]:
        """The device names of each host, in order."""
        if self.hosts:
            return tuple(kind.devices for kind in self.hosts for _ in range(kind.count))
        assert self.num_hosts is not None
        assert self.devices_per_host is not None
        return ((str(self.device),) * self.devices_per_host,) * self.num_hosts


# The unit at the end of a key: its SI name, and the factor as a quotient (10 / 1e6 is exact where 10 * 1e-6 is not).
UNITS: Mapping[str, tuple[str, float, float]] = MappingProxyType(
    {
        "gbytes_per_s": ("bytes_per_s", 1e9, 1),
        "gbit_per_s": ("bytes_per_s", 1e9, 8),
        "tflops": ("flops_per_s", 1e12, 1),
        "gbytes": ("bytes", 1e9, 1),
        "mbytes": ("bytes", 1e6, 1),
        "us": ("s", 1, 1e6),
    }
)


def si_values(table: Table) -> dict[str, Any]:
    """The table's values by SI name: latency_us = 8 becomes latency_s = 8e-6."""
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(table)):
        value = getattr(table, name)
        for unit, (si, times, over) in UNITS.items():
            if name == unit or name.endswith(f"_{unit}"):
                name = name.removesuffix(unit) + si
                value = None if value is None else value * times / over
                break
        values[name] = value
    return values
