"""Machines from TOML files: the catalogue of devices and clusters, checked, in SI units."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from halocast.base.errors import InputError, MachineError, unknown
from halocast.base.records import Checked, Count, read_toml, record, require
from halocast.cluster.machine import (
    Cluster,
    Device,
    Efficiency,
    Gloo,
    Joints,
    LeafSpine,
    Link,
    LinkKind,
    Nccl,
    Nic,
    Nvlink,
    Pcie,
    Per,
    Summing,
    Transport,
    Wire,
)
from halocast.cluster.topology import require_reachable

__all__ = [
    "Cluster",
    "Device",
    "Efficiency",
    "Gloo",
    "LeafSpine",
    "Link",
    "LinkKind",
    "Nccl",
    "Nic",
    "Nvlink",
    "Pcie",
    "Per",
    "Summing",
    "Transport",
    "Wire",
    "enlarged",
    "list_clusters",
    "list_devices",
    "load_cluster",
    "load_device",
]

DEVICES = "devices"  # the one file in machines/ that is not a cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualHosts(Checked):
    """Some hosts of a cluster with the same devices."""

    devices: tuple[str, ...]
    count: Count = 1

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        require(len(self.devices) > 0, "devices = []: a host needs at least one")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile(Joints):
    """A cluster as its file has it: hosts by the names of their devices, in one of two ways."""

    num_hosts: Count | None = None
    devices_per_host: Count | None = None
    device: str | None = None
    hosts: tuple[EqualHosts, ...] = ()

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """The device catalogue: the tables of devices by name, and what holds for all of them."""

    efficiency: Efficiency
    devices: dict[str, dict[str, Any]]


def list_clusters() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _machines().glob("*.toml") if path.stem != DEVICES))


def list_devices() -> tuple[str, ...]:
    return tuple(sorted(_catalogue().devices))


def load_device(name: str) -> Device:
    return _device(_catalogue(), name, "")


def load_cluster(
    name_or_path: str | os.PathLike[str], *, gpus: int | None = None, transport: str | None = None
) -> Cluster:
    """A cluster of the catalogue or of a TOML file, cut to its first `gpus` ranks.

    A file that describes a machine that cannot work is a MachineError, which is an InputError.
    """
    path = _cluster_path(name_or_path)
    tables = read_toml(path)
    try:
        cluster = _cluster(tables, path, gpus, transport)
    except InputError as error:
        raise MachineError(str(error)) from None
    most = len(cluster.hosts)
    require(gpus is None or 1 <= gpus <= most, f"gpus = {gpus}: cluster {path.stem} has 1 to {most} ({path})")
    return cluster


def _cluster(tables: dict[str, Any], path: Path, gpus: int | None, transport: str | None) -> Cluster:
    file = record(ClusterFile, tables, str(path))
    devices = _devices(file, path)
    joints = {f.name: getattr(file, f.name) for f in fields(Joints)}
    joints["transport"] = _transport(file, transport, devices, path)
    cluster = Cluster(
        name=path.stem,
        hosts=tuple(host for host, names in enumerate(file.host_devices()) for _ in names),
        devices=devices[: max(1, gpus or len(devices))],
        **joints,
    )
    _require_places(cluster, path)
    require_reachable(cluster)
    return cluster


def enlarged(cluster: Cluster, num_ranks: int) -> Cluster:
    """The cluster with its hosts repeated until there are as many ranks."""
    assert not cluster.links, "links that name their ends do not repeat"
    num_hosts, times = cluster.hosts[-1] + 1, -(-num_ranks // cluster.num_ranks)
    hosts = tuple(host + k * num_hosts for k in range(times) for host in cluster.hosts)
    return replace(cluster, hosts=hosts, devices=(cluster.devices * times)[:num_ranks])


def _machines() -> Path:
    return Path(str(files("halocast.cluster.machines")))


def _device_file() -> Path:
    return _machines() / f"{DEVICES}.toml"


def _catalogue() -> DeviceFile:
    return record(DeviceFile, read_toml(_device_file()), str(_device_file()))


def _device(catalogue: DeviceFile, name: str, where: str) -> Device:
    if name not in catalogue.devices:
        raise unknown("device", name, catalogue.devices, where)
    table = {"name": name, "efficiency": catalogue.efficiency, **catalogue.devices[name]}
    return record(Device, table, f"{_device_file()}.devices.{name}")


def _devices(file: ClusterFile, path: Path) -> tuple[Device, ...]:
    """The device of every rank; equal ones are one object."""
    catalogue = _catalogue()
    where = f"{path}.{'hosts' if file.hosts else 'device'}"
    names = [name for host in file.host_devices() for name in host]
    known = {name: _device(catalogue, name, where) for name in dict.fromkeys(names)}
    for device in known.values():
        fits = file.pcie is None or device.pcie_bytes_per_s is not None
        require(fits, f"{where}: device {device.name} has no PCIe slot, but the file has a [pcie] table")
    return tuple(known[name] for name in names)


def _cluster_path(name_or_path: str | os.PathLike[str]) -> Path:
    path = Path(name_or_path)
    if isinstance(name_or_path, os.PathLike) or path.suffix == ".toml" or len(path.parts) > 1:
        return path
    if name_or_path not in list_clusters():
        raise unknown("cluster", name_or_path, list_clusters(), "a cluster is a name or a .toml file")
    return _machines() / f"{name_or_path}.toml"


def _transport(file: ClusterFile, asked: str | None, devices: Iterable[Device], path: Path) -> Transport:
    name = file.transport if asked is None else asked
    if name not in list(Transport):
        raise unknown("transport", name, [transport.value for transport in Transport])
    for device in dict.fromkeys(devices):
        supported = ", ".join(device.transports)
        legal = name in device.transports
        require(legal, f"{path}: device {device.name} does not support transport {str(name)!r} (it has: {supported})")
    have = [transport for transport in Transport if getattr(file, transport) is not None]
    if name not in have:
        tables = ", ".join(f"[{transport}]" for transport in have) or "none"
        raise InputError(f"{path}: transport {str(name)!r} needs a [{name}] table (the file has: {tables})")
    return Transport(name)


def _require_places(cluster: Cluster, path: Path) -> None:
    """Raise InputError unless the devices that [nvlink] and [[links]] number are there."""
    sizes = [cluster.hosts.count(host) for host in dict.fromkeys(cluster.hosts)]
    for group in cluster.nvlink.groups if cluster.nvlink else ():
        legal = max(group) < max(sizes)
        require(legal, f"{path}.nvlink.groups: {list(group)}: devices of a host are 0 to {max(sizes) - 1}")
    there = {"gpu": len(cluster.hosts), "host": len(sizes)}
    for k, end in ((k, end) for k, wire in enumerate(cluster.links) for end in wire.ends):
        kind, _, number = end.partition(" ")
        legal = kind not in there or (number.isdecimal() and int(number) < there[kind])
        require(legal, f"{path}.links[{k}].ends: {end!r}: there are {kind} 0 to {kind} {there.get(kind, 1) - 1}")
