"""Machines as data: devices and clusters from TOML files, checked, in SI units (bytes, seconds, FLOP/s).

A cluster is hosts of equal devices. Ranks fill the hosts in order. The links between devices are described, not
simulated: `halocast.sim.links` turns them into time.
"""

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from halocast.base.errors import InputError, unknown
from halocast.base.records import read_toml, record, require
from halocast.sim.tables import PCIE_LANE_BYTES_PER_S, Catalogue, ClusterTable, Efficiency, Transport, si_values

__all__ = [
    "Cluster",
    "Device",
    "Efficiency",
    "Gloo",
    "Link",
    "Nccl",
    "Transport",
    "list_clusters",
    "list_devices",
    "load_cluster",
    "load_device",
]

DEVICES = "devices"  # the one file in machines/ that is not a cluster


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
class Gloo:
    stream_bytes_per_s: float  # of one TCP stream: each pair of ranks has one
    host_bytes_per_s: float  # of all streams of a host together
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    efficiency: float  # fraction of a link's rate that payload gets
    latency_s: float
    remote_bytes_per_s: float | None = None  # of one flow to another host, where that is below what the links allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str
    description: str
    source: str
    num_hosts: int
    devices_per_host: int
    devices: tuple[Device, ...]  # of each rank in use
    transport: Transport
    pcie: Link | None  # device to host memory; none where ranks are CPU processes
    nvlink: Link | None
    nic: Link | None
    gloo: Gloo | None
    nccl: Nccl | None

    @property
    def num_ranks(self) -> int:
        return len(self.devices)

    def device(self, rank: int) -> Device:
        return self.devices[self._checked(rank)]

    def host(self, rank: int) -> int:
        return self._checked(rank) // self.devices_per_host

    def same_host(self, a: int, b: int) -> bool:
        return self.host(a) == self.host(b)

    def _checked(self, rank: int) -> int:
        assert 0 <= rank < self.num_ranks, f"rank {rank} is not in 0..{self.num_ranks - 1} of {self.name}"
        return rank


def list_clusters() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _machines().glob("*.toml") if path.stem != DEVICES))


def list_devices() -> tuple[str, ...]:
    return tuple(sorted(_catalogue().devices))


def load_device(name: str) -> Device:
    return _device(name, "")


def load_cluster(
    name_or_path: str | os.PathLike[str], *, gpus: int | None = None, transport: str | None = None
) -> Cluster:
    """A cluster of the catalogue or of a TOML file, cut to its first `gpus` ranks."""
    path = _cluster_path(name_or_path)
    table = record(ClusterTable, read_toml(path), str(path))
    device = _device(table.device, f"{path}.device")
    return Cluster(
        name=path.stem,
        description=table.description,
        source=table.source,
        num_hosts=table.num_hosts,
        devices_per_host=table.devices_per_host,
        devices=(device,) * _num_ranks(table, gpus, path),
        transport=_transport(table, transport, path),
        pcie=Link(**si_values(table.pcie)) if table.pcie else None,
        nvlink=Link(**si_values(table.nvlink)) if table.nvlink else None,
        nic=Link(**si_values(table.nic)) if table.nic else None,
        gloo=Gloo(**si_values(table.gloo)) if table.gloo else None,
        nccl=Nccl(**si_values(table.nccl)) if table.nccl else None,
    )


def _machines() -> Path:
    return Path(str(files("halocast.sim.machines")))


def _catalogue() -> Catalogue:
    path = _machines() / f"{DEVICES}.toml"
    return record(Catalogue, read_toml(path), str(path))


def _device(name: str, where: str) -> Device:
    catalogue = _catalogue()
    if name not in catalogue.devices:
        raise unknown("device", name, catalogue.devices, where)
    values = si_values(catalogue.devices[name])
    generation, lanes = values.pop("pcie_generation"), values.pop("pcie_lanes")
    slot = lanes * PCIE_LANE_BYTES_PER_S[generation] if lanes else None
    values["memory_bytes"] = round(values["memory_bytes"])
    return Device(name=name, efficiency=catalogue.efficiency, pcie_bytes_per_s=slot, **values)


def _cluster_path(name_or_path: str | os.PathLike[str]) -> Path:
    path = Path(name_or_path)
    if isinstance(name_or_path, os.PathLike) or path.suffix == ".toml" or len(path.parts) > 1:
        return path
    if name_or_path not in list_clusters():
        raise unknown("cluster", name_or_path, list_clusters(), "a cluster is a name or a .toml file")
    return _machines() / f"{name_or_path}.toml"


def _num_ranks(table: ClusterTable, gpus: int | None, path: Path) -> int:
    most = table.num_hosts * table.devices_per_host
    if gpus is None:
        return most
    require(1 <= gpus <= most, f"gpus = {gpus}: cluster {path.stem} has 1 to {most} ({path})")
    return gpus


def _transport(table: ClusterTable, asked: str | None, path: Path) -> Transport:
    name = table.transport if asked is None else asked
    if name not in list(Transport):
        raise unknown("transport", name, [one.value for one in Transport])
    have = [one for one in Transport if getattr(table, one) is not None]
    if name not in have:
        tables = ", ".join(f"[{one}]" for one in have) or "none"
        raise InputError(f"{path}: transport {str(name)!r} needs a [{name}] table (the file has: {tables})")
    return Transport(name)
