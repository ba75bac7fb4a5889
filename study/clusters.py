"""The cluster of a scenario: one of the catalogue or of a file, and what of it is asked to be otherwise ("what if")."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from halocast.base.records import require
from halocast.calibrate.profile import calibrated, load_profile
from halocast.cluster.catalogue import Cluster, Device, load_cluster, load_device
from halocast.cluster.machine import Gloo, Link, LinkKind, Transport, Wire
from halocast.study.scenario import FACTORS, ClusterSection, Scenario
from halocast.study.testbeds import MOST_RANKS, resized

DEFAULT_CLUSTER, DEFAULT_RANKS = "cpu-local", 2  # of a scenario that names no cluster
BYTES_PER_GBIT = 1e9 / 8
L = TypeVar("L", bound=Link)


def scenario_cluster(scenario: Scenario) -> Cluster:
    section = scenario.cluster
    name = section.file or section.name or DEFAULT_CLUSTER
    gpus = section.gpus if section.file or section.name else section.gpus or DEFAULT_RANKS
    if section.hosts is None:
        cluster = load_cluster(name, gpus=gpus, transport=section.transport)
    else:
        cluster = _on_hosts(load_cluster(name, transport=section.transport), section.hosts, gpus)
    return _calibrated(_changed(cluster, section), section)


def _calibrated(cluster: Cluster, section: ClusterSection) -> Cluster:
    if section.profile is None:
        return cluster
    return calibrated(cluster, load_profile(section.profile), speed=section.device_speed)


def _on_hosts(cluster: Cluster, num_hosts: int, gpus: int | None) -> Cluster:
    """The cluster with as many hosts as asked for, all like its first; where there are several it needs a network."""
    per_host = cluster.hosts.count(cluster.hosts[0])
    num_ranks, most = gpus or num_hosts * per_host, min(MOST_RANKS, num_hosts * per_host)
    legal = num_hosts <= num_ranks <= most
    require(legal, f"gpus = {num_ranks}: with hosts = {num_hosts}, {cluster.name} has {num_hosts} to {most}")
    joined = num_hosts == 1 or cluster.nic is not None
    require(joined, f"hosts = {num_hosts}: {cluster.name} has no network between hosts (no [nic] table)")
    return resized(cluster, num_hosts=num_hosts, num_ranks=num_ranks)


def _changed(cluster: Cluster, section: ClusterSection) -> Cluster:
    """The cluster with other devices and rates; what it does not have cannot be changed."""
    _require_there(cluster, section)
    if section.device is not None:
        cluster = _with_device(cluster, section.device)
    if section.network_gbps is not None:
        assert cluster.nic is not None
        cluster = _with_network(cluster, section.network_gbps * BYTES_PER_GBIT / cluster.nic.bytes_per_s)
    if all(getattr(section, key) == 1 for key in FACTORS):
        return cluster
    devices = {device: _scaled_device(device, section) for device in dict.fromkeys(cluster.devices)}
    factors = {
        LinkKind.PCIE: section.pcie_speed,
        LinkKind.NVLINK: section.nvlink_speed,
        LinkKind.NETWORK: section.network_speed,
    }
    return replace(
        _with_network(cluster, section.network_speed),
        devices=tuple(devices[device] for device in cluster.devices),
        pcie=_scaled(cluster.pcie, section.pcie_speed),
        nvlink=_scaled(cluster.nvlink, section.nvlink_speed),
        links=_scaled_wires(cluster.links, factors),
        gloo=_staged_faster(cluster.gloo, section.staging_speed),
    )


def _require_there(cluster: Cluster, section: ClusterSection) -> None:
    kinds = {wire.kind for wire in cluster.links}
    there = {
        "pcie_speed": cluster.pcie is not None or LinkKind.PCIE in kinds,
        "nvlink_speed": cluster.nvlink is not None or LinkKind.NVLINK in kinds,
        "network_speed": cluster.nic is not None or LinkKind.NETWORK in kinds,
        "network_gbps": cluster.nic is not None,
    }
    for key, has in there.items():
        value = getattr(section, key)
        require(has or value in (None, 1.0), f"{key} = {value}: {cluster.name} has no such links")
    staged, speed = cluster.transport is Transport.GLOO, section.staging_speed
    require(staged or speed == 1, f"staging_speed = {speed}: {cluster.transport} goes from device to device")


def _with_device(cluster: Cluster, name: str) -> Cluster:
    device = load_device(name)
    supported = cluster.transport in device.transports
    require(supported, f"device = {name!r}: does not support transport {cluster.transport} of {cluster.name}")
    fits = cluster.pcie is None or device.pcie_bytes_per_s is not None
    require(fits, f"device = {name!r}: has no PCIe slot, but {cluster.name} has")
    return replace(cluster, devices=(device,) * cluster.num_ranks)


def _with_network(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with faster NICs and nccl flows between hosts; TCP streams of gloo are the CPU's matter."""
    nccl = cluster.nccl
    if nccl is not None and nccl.remote_bytes_per_s is not None:
        nccl = replace(nccl, remote_bytes_per_s=nccl.remote_bytes_per_s * factor)
    return replace(cluster, nic=_scaled(cluster.nic, factor), nccl=nccl)


def _scaled_device(device: Device, section: ClusterSection) -> Device:
    """The device with other speed and memory; launches stay as they are: the host's CPU makes them."""
    speed = section.device_speed
    return replace(
        device,
        fp32_flops_per_s=device.fp32_flops_per_s * speed,
        fp64_flops_per_s=device.fp64_flops_per_s * speed,
        tf32_flops_per_s=device.tf32_flops_per_s and device.tf32_flops_per_s * speed,
        bf16_flops_per_s=device.bf16_flops_per_s and device.bf16_flops_per_s * speed,
        memory_bytes_per_s=device.memory_bytes_per_s * speed,
        memory_bytes=round(device.memory_bytes * section.memory_size),
    )


def _staged_faster(gloo: Gloo | None, factor: float) -> Gloo | None:
    """Speed up what processors do for gloo: streams and threads."""
    if gloo is None or factor == 1:
        return gloo
    rank = None if gloo.rank_bytes_per_s is None else gloo.rank_bytes_per_s * factor
    return replace(
        gloo,
        stream_bytes_per_s=gloo.stream_bytes_per_s * factor,
        host_bytes_per_s=gloo.host_bytes_per_s * factor,
        rank_bytes_per_s=rank,
    )


def _scaled(link: L | None, factor: float) -> L | None:
    """Multiply all rates of a link: its own, and those of switches and root complex."""
    if link is None:
        return None
    names = [one.name for one in fields(link) if one.name.endswith("bytes_per_s")]
    rates: dict[str, Any] = {name: rate * factor for name in names if (rate := getattr(link, name)) is not None}
    return replace(link, **rates)


def _scaled_wires(wires: tuple[Wire, ...], factors: Mapping[LinkKind, float]) -> tuple[Wire, ...]:
    return tuple(replace(wire, bytes_per_s=wire.bytes_per_s * factors[wire.kind]) for wire in wires)
