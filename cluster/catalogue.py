"""Machines from TOML files: the catalogue of devices and clusters, checked, in SI units."""

import os
from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from halocast.base.errors import InputError, MachineError, unknown
from halocast.base.records import read_toml, record, require
from halocast.cluster.machine import Cluster, Device, Gloo, Link, Nccl, Network, Nic, Nvlink, Pcie, Wire
from halocast.cluster.tables import (
    PCIE_LANE_BYTES_PER_S,
    AllReduce,
    AllToAll,
    Catalogue,
    ClusterTable,
    Efficiency,
    LinkKind,
    Per,
    Table,
    Transport,
    si_values,
)
from halocast.cluster.topology import require_reachable

__all__ = [
    "AllReduce",
    "AllToAll",
    "Cluster",
    "Device",
    "Efficiency",
    "Gloo",
    "Link",
    "LinkKind",
    "Nccl",
    "Network",
    "Nic",
    "Nvlink",
    "Pcie",
    "Per",
    "Transport",
    "Wire",
    "enlarged",
    "list_clusters",
    "list_devices",
    "load_cluster",
    "load_device",
]

T = TypeVar("T")
DEVICES = "devices"  # the one file in machines/ that is not a cluster


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
    table = record(ClusterTable, tables, str(path))
    hosts = table.host_devices()
    devices = _devices(table, path)
    cluster = Cluster(
        name=path.stem,
        description=table.description,
        source=table.source,
        hosts=tuple(host for host, names in enumerate(hosts) for _ in names),
        devices=devices[: max(1, gpus or len(devices))],
        transport=_transport(table, transport, devices, path),
        pcie=_link(Pcie, table.pcie),
        nvlink=_link(Nvlink, table.nvlink),
        nic=_link(Nic, table.nic),
        network=_link(Network, table.network),
        links=tuple(Wire(**si_values(wire)) for wire in table.links),
        shared_cores=table.shared_cores,
        gloo=_link(Gloo, table.gloo),
        nccl=_link(Nccl, table.nccl),
        price=table.price,
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


def _link(cls: type[T], table: Table | None) -> T | None:
    return None if table is None else cls(**si_values(table))


def _machines() -> Path:
    return Path(str(files("halocast.cluster.machines")))


def _catalogue() -> Catalogue:
    path = _machines() / f"{DEVICES}.toml"
    return record(Catalogue, read_toml(path), str(path))


def _device(catalogue: Catalogue, name: str, where: str) -> Device:
    if name not in catalogue.devices:
        raise unknown("device", name, catalogue.devices, where)
    values = si_values(catalogue.devices[name])
    generation, lanes = values.pop("pcie_generation"), values.pop("pcie_lanes")
    slot = lanes * PCIE_LANE_BYTES_PER_S[generation] if lanes else None
    values["memory_bytes"] = round(values["memory_bytes"])
    return Device(name=name, efficiency=catalogue.efficiency, pcie_bytes_per_s=slot, **values)


def _devices(table: ClusterTable, path: Path) -> tuple[Device, ...]:
    """The device of every rank; equal ones are one object."""
    catalogue = _catalogue()
    where = f"{path}.{'hosts' if table.hosts else 'device'}"
    names = [name for host in table.host_devices() for name in host]
    known = {name: _device(catalogue, name, where) for name in dict.fromkeys(names)}
    for device in known.values():
        fits = table.pcie is None or device.pcie_bytes_per_s is not None
        require(fits, f"{where}: device {device.name} has no PCIe slot, but the file has a [pcie] table")
    return tuple(known[name] for name in names)


def _cluster_path(name_or_path: str | os.PathLike[str]) -> Path:
    path = Path(name_or_path)
    if isinstance(name_or_path, os.PathLike) or path.suffix == ".toml" or len(path.parts) > 1:
        return path
    if name_or_path not in list_clusters():
        raise unknown("cluster", name_or_path, list_clusters(), "a cluster is a name or a .toml file")
    return _machines() / f"{name_or_path}.toml"


def _transport(table: ClusterTable, asked: str | None, devices: Iterable[Device], path: Path) -> Transport:
    name = table.transport if asked is None else asked
    if name not in list(Transport):
        raise unknown("transport", name, [one.value for one in Transport])
    for device in dict.fromkeys(devices):
        supported = ", ".join(device.transports)
        legal = name in device.transports
        require(legal, f"{path}: device {device.name} does not support transport {str(name)!r} (it has: {supported})")
    have = [one for one in Transport if getattr(table, one) is not None]
    if name not in have:
        tables = ", ".join(f"[{one}]" for one in have) or "none"
        raise InputError(f"{path}: transport {str(name)!r} needs a [{name}] table (the file has: {tables})")
    return Transport(name)


def _require_places(cluster: Cluster, path: Path) -> None:
    """Devices that [nvlink] and [[links]] number are there."""
    sizes = [cluster.hosts.count(host) for host in dict.fromkeys(cluster.hosts)]
    for group in cluster.nvlink.groups if cluster.nvlink else ():
        legal = max(group) < max(sizes)
        require(legal, f"{path}.nvlink.groups: {list(group)}: devices of a host are 0 to {max(sizes) - 1}")
    there = {"gpu": len(cluster.hosts), "host": len(sizes)}
    for k, end in ((k, end) for k, wire in enumerate(cluster.links) for end in wire.ends):
        kind, _, number = end.partition(" ")
        legal = kind not in there or (number.isdecimal() and int(number) < there[kind])
        require(legal, f"{path}.links[{k}].ends: {end!r}: there are {kind} 0 to {kind} {there.get(kind, 1) - 1}")
