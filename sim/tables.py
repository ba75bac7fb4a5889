"""The machine files as TOML tables: which keys there are, which values are legal, and what their units mean in SI."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from math import isfinite
from types import MappingProxyType
from typing import Any

from halocast.base.records import require

# Bytes per second and lane after the line code, one direction.
PCIE_LANE_BYTES_PER_S: Mapping[int, float] = MappingProxyType({3: 0.985e9, 4: 1.969e9, 5: 3.938e9})


class Transport(StrEnum):
    GLOO = "gloo"  # staged through host memory: copy down, TCP, copy up
    NCCL = "nccl"  # device to device


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A TOML table whose numbers are checked by name: times may be 0, all else is above 0, everything is finite."""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, int | float):
                least = "at least" if name.endswith("_us") else "above"
                legal = isfinite(value) and (value > 0 or (value == 0 and least == "at least"))
                require(legal, f"{name} = {value}: needs to be a number {least} 0")


def _at_most_one(table: object, *names: str) -> None:
    for name in names:
        value = getattr(table, name)
        require(value <= 1, f"{name} = {value}: a fraction of a peak needs to be at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency(Table):
    """What kernels reach of a device's peaks; one set for the whole catalogue."""

    flops: float
    stream: float
    gather: float
    spmm_miss: float
    spmm_hit: float
    spmm_skew: float

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        _at_most_one(self, "flops", "stream", "gather", "spmm_miss")  # a cache hit may beat memory


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
class NicTable(Table):
    gbit_per_s: float
    latency_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooTable(Table):
    stream_gbytes_per_s: float
    host_gbytes_per_s: float
    latency_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTable(Table):
    efficiency: float
    latency_us: float
    remote_gbytes_per_s: float | None = None

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        _at_most_one(self, "efficiency")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTable(Table):
    description: str
    source: str
    num_hosts: int
    devices_per_host: int
    device: str
    transport: Transport
    pcie: LinkTable | None = None
    nvlink: LinkTable | None = None
    nic: NicTable | None = None
    gloo: GlooTable | None = None
    nccl: NcclTable | None = None

    def __post_init__(self) -> None:
        Table.__post_init__(self)
        require(self.num_hosts == 1 or self.nic is not None, f"num_hosts = {self.num_hosts} needs a [nic] table")
        require(self.nccl is None or self.pcie is not None, "[nccl] needs a [pcie] table: nccl joins GPUs")


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
