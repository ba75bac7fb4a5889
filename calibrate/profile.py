"""A profile: what `halocast calibrate` measured of one machine, as a TOML file, and a cluster with its values in place.

A profile replaces a device's kernels, the executor's overhead and the transport's constants. What it cannot know stays
the cluster's: the rates of NICs and of the links between devices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import tomli_w

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.base.kernels import KERNEL_DIMS, KERNEL_LIKE
from halocast.base.records import read_toml, record, require, without_none
from halocast.cluster.machine import Cluster, Device, Gloo, Nccl, Transport
from halocast.cluster.measured import Fit, Measured, crowd_of, share_of_caches
from halocast.schedule.ir import Kind, Numbers, Op, Schedule

FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The origin of a profile: where, when and with what it was measured."""

    date: str
    host: str
    device: str  # a name of the device catalogue
    hardware: str  # what the machine itself calls it
    cores: int
    threads: int
    backend: str
    ranks: int
    quick: bool
    versions: dict[str, str]
    last_cache_bytes: int = 0  # that the cores share; 0: not known
    format: int = FORMAT

    def __post_init__(self) -> None:
        require(self.format == FORMAT, f"format = {self.format}: this version reads format {FORMAT}; calibrate again")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTable:
    """A fit as the file has it; dims by name."""

    seconds: dict[str, float]
    range: dict[str, tuple[int, ...]]
    num_points: int
    num_held_out: int
    median_error: float
    p90_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCosts:
    """A transport's constants; a message takes latency_s, then its bytes at the rate of a stream."""

    latency_s: float
    stream_bytes_per_s: float
    host_bytes_per_s: float  # all streams of the machine together, both ends of each on it
    compute_slowdown: float = 1.0
    transfer_slowdown: float = 1.0
    core_s_per_byte: float = 0.0  # of a core, both ends together, for a byte that moves
    core_s_per_message: float = 0.0  # the same for a message, however small
    core_s_per_step: float = 0.0  # of each rank's core, for a step of an all-reduce
    low_bytes: float = 0.0  # sizes that were measured
    high_bytes: float = 0.0
    median_error: float = 0.0
    p90_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Seconds that the executor adds to an op, to a communication, and to a kernel in an op."""

    op_s: float = 0.0
    communication_op_s: float = 0.0
    launch_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTable:
    made: Made
    kernels: dict[str, FitTable]  # cold, where both were measured
    warm: dict[str, FitTable] = field(default_factory=dict)
    context: dict[str, float] = field(default_factory=dict)
    cache_bytes: float = 0.0
    cache_ranks: int = 1  # at once on the machine when that was found
    busy: dict[str, float] = field(default_factory=dict)
    turns: float = 1.0  # how much longer ops take on a core that two ranks take turns on, beside the turns themselves
    overhead: Overhead = field(default_factory=Overhead)
    messages: MessageCosts | None = None
    emulated: MessageCosts | None = None  # the same between namespaces of one machine
    allreduce: FitTable | None = None
    store: FitTable | None = None  # rows to or from the memory of the host
    copies: dict[str, FitTable] = field(default_factory=dict)  # between device and pinned host memory: down, up


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    path: str
    table: ProfileTable
    kernels: tuple[Fit, ...]
    warm: tuple[Fit, ...]

    @property
    def device(self) -> str:
        return self.table.made.device

    @property
    def source(self) -> str:
        """The profile's file, and when and where it was measured, as text."""
        return f"{self.path} ({self.table.made.date}, {self.table.made.host})"


def load_profile(path: str | Path) -> Profile:
    table = record(ProfileTable, read_toml(Path(path)), str(path))
    for kind in (*table.kernels, *table.warm):
        require(kind in KERNEL_DIMS, f"{path}: kernels.{kind}: known are {', '.join(KERNEL_DIMS)}")
    for kind in KERNEL_DIMS:
        known = kind in table.kernels or KERNEL_LIKE.get(kind) in table.kernels
        require(known, f"{path}: kernels.{kind} is missing; measure again (halocast calibrate)")
    kernels, warm = _fits(table.kernels, f"{path}: kernels"), _fits(table.warm, f"{path}: warm")
    return Profile(path=str(path), table=table, kernels=kernels, warm=warm)


def _fits(tables: Mapping[str, FitTable], where: str) -> tuple[Fit, ...]:
    return tuple(_fit(kind, table, KERNEL_DIMS[kind], f"{where}.{kind}") for kind, table in tables.items())


def _fit(kind: str, table: FitTable, dims: tuple[str, ...], where: str) -> Fit:
    require(set(table.range) == set(dims), f"{where}.range: needs {', '.join(dims)}")
    ends = [table.range[name] for name in dims]
    require(all(len(end) == 2 for end in ends), f"{where}.range: a range is [smallest, largest]")
    return Fit(
        kind=kind,
        prices=tuple(table.seconds.items()),
        low=tuple(end[0] for end in ends),
        high=tuple(end[1] for end in ends),
        num_points=table.num_points,
        num_held_out=table.num_held_out,
        median_error=table.median_error,
        p90_error=table.p90_error,
    )


def fit_table(fit: Fit, dims: tuple[str, ...]) -> FitTable:
    return FitTable(
        seconds=dict(fit.prices),
        range={name: (low, high) for name, low, high in zip(dims, fit.low, fit.high, strict=True)},
        num_points=fit.num_points,
        num_held_out=fit.num_held_out,
        median_error=fit.median_error,
        p90_error=fit.p90_error,
    )


def calibrated(cluster: Cluster, profile: Profile, *, speed: float = 1.0) -> Cluster:
    """The cluster with the profile's kernels, overheads and transport; refused if its devices are others.

    `speed`: kernels take so many times less, for those who ask what a faster device of the kind would give.
    """
    others = sorted({device.name for device in cluster.devices} - {profile.device})
    if others:
        raise InputError(
            f"cluster.profile: {profile.path} was measured on device {profile.device!r}, cluster {cluster.name} has "
            f"{', '.join(map(repr, others))}"
        )
    measured = replace(_measured(profile, cluster), speed=speed)
    known: dict[Device, Device] = {device: replace(device, measured=measured) for device in set(cluster.devices)}
    return replace(
        cluster,
        devices=tuple(known[device] for device in cluster.devices),
        **_transports(cluster, profile),
        **_cables(cluster, profile),
    )


def _measured(profile: Profile, cluster: Cluster) -> Measured:
    table, messages = profile.table, _messages_on(profile, cluster)
    return Measured(
        kernels=profile.kernels,
        warm=profile.warm,
        cache_bytes=table.cache_bytes * _share_of_caches(table.cache_ranks, cluster),
        op_s=table.overhead.op_s,
        communication_op_s=table.overhead.communication_op_s,
        launch_s=table.overhead.launch_s,
        store=None if table.store is None else _fit("store", table.store, ("bytes",), f"{profile.path}: store"),
        context=tuple(table.context.items()),
        busy=tuple(table.busy.items()),
        turns=table.turns if _shares(cluster) else 1.0,
        crowd=_crowd(table.made.ranks, cluster),
        message_bytes=(0.0, inf) if messages is None else (messages.low_bytes, messages.high_bytes),
        quick=table.made.quick,
        source=profile.source,
    )


def _crowd(measured: int, cluster: Cluster) -> float:
    """How far a slowdown holds that was measured with so many ranks at once; ranks of one machine share its memory."""
    used = [cluster.host(rank) for rank in range(cluster.num_ranks)]
    together = cluster.num_ranks if cluster.shared_cores else max(used.count(host) for host in set(used))
    return crowd_of(together, measured)


def _share_of_caches(measured: int, cluster: Cluster) -> float:
    return share_of_caches(measured, cluster.num_ranks) if cluster.shared_cores is not None else 1.0


def _shares(cluster: Cluster) -> bool:
    """Whether ranks take turns on a core."""
    return cluster.shared_cores is not None and cluster.num_ranks > cluster.shared_cores


def _transports(cluster: Cluster, profile: Profile) -> dict[str, Any]:
    messages = _messages_on(profile, cluster)
    if messages is None:
        return {}
    slower: dict[str, Any] = {
        "compute_slowdown": _compute_slowdown(messages, cluster),
        "transfer_slowdown": max(1.0, messages.transfer_slowdown),
    }
    if profile.table.made.backend == Transport.GLOO and isinstance(cluster.gloo, Gloo):
        rates: dict[str, Any] = {
            "stream_bytes_per_s": messages.stream_bytes_per_s,
            "host_bytes_per_s": messages.host_bytes_per_s,
            "core_s_per_byte": messages.core_s_per_byte or None,
            "core_s_per_message": messages.core_s_per_message,
            "core_s_per_step": messages.core_s_per_step,
        }
        return {"gloo": replace(cluster.gloo, latency_s=messages.latency_s, **rates, **slower)}
    if profile.table.made.backend == Transport.NCCL and isinstance(cluster.nccl, Nccl):
        return {"nccl": replace(cluster.nccl, latency_s=messages.latency_s, **slower)}
    return {}


def _cables(cluster: Cluster, profile: Profile) -> dict[str, Any]:
    """Changes to the cables between emulated hosts: messages were measured over them, so they add no latency."""
    if cluster.nic is None or profile.table.emulated is None or not _emulated(cluster):
        return {}
    return {"nic": replace(cluster.nic, latency_s=0.0)}


def _emulated(cluster: Cluster) -> bool:
    return cluster.shared_cores is not None and cluster.num_hosts > 1


def _messages_on(profile: Profile, cluster: Cluster) -> MessageCosts | None:
    """The costs of messages on a cluster: those between emulated hosts, where it has such."""
    return (profile.table.emulated if _emulated(cluster) else None) or profile.table.messages


def _compute_slowdown(messages: MessageCosts, cluster: Cluster) -> float:
    """The slowdown of compute: as measured, or less where NICs let bytes move slower and so take less of the cores."""
    full = messages.stream_bytes_per_s / max(1.0, messages.transfer_slowdown)
    slow = cluster.nic is not None and cluster.num_hosts > 1
    share = min(1.0, cluster.nic.bytes_per_s / full) if slow and cluster.nic is not None else 1.0
    return 1 + share * (max(1.0, messages.compute_slowdown) - 1)


def outside_range(schedule: Schedule, cluster: Cluster) -> list[str]:
    """What of a schedule leaves the range a profile was measured in, one line per kind: how many, and the worst."""
    sizes_of: dict[str, list[tuple[float, str]]] = {}
    for op in schedule.ops:
        measured = cluster.device(op.rank).measured
        if measured is not None:
            for kernel in op.work.kernels:
                fit = measured.fit(kernel.kind)
                if all(kernel.dims) and fit is not None:
                    text = f"{op.label} {kernel.kind}{kernel.dims}"
                    sizes_of.setdefault(kernel.kind, []).append((fit.outside(kernel.dims), text))
            sizes_of.setdefault("messages", []).extend(_messages_outside(schedule, op, measured.message_bytes))
    beyond = [line for kind, sizes in sizes_of.items() for line in _complaint(kind, sizes)]
    return [*_not_measured(schedule, cluster), *beyond]


def _not_measured(schedule: Schedule, cluster: Cluster) -> Iterable[str]:
    """Lines about the types of numbers that no profile is measured with, one each."""
    ops = [op for op in schedule.ops if cluster.device(op.rank).measured is not None]
    used = {kernel.numbers for op in ops for kernel in op.work.kernels}
    for numbers in sorted(used - {Numbers.FLOAT32, Numbers.FLOAT64}):
        yield f"{numbers}: outside the measured range (profiles measure float32): kernels take as long as float32 ones"


def _messages_outside(schedule: Schedule, op: Op, measured: tuple[float, float]) -> Iterable[tuple[float, str]]:
    if op.kind not in (Kind.EXCHANGE, Kind.SEND):
        return
    for size in schedule.sent(op).tolist():
        if size:
            yield max(measured[0] / size, size / measured[1], 1.0), f"{op.label} {size:,} bytes"


def _complaint(kind: str, sizes: list[tuple[float, str]]) -> list[str]:
    beyond = [item for item in sizes if item[0] > 1]
    if not beyond:
        return []
    factor, text = max(beyond)
    return [f"{kind}: {len(beyond)} of {len(sizes)} outside the measured range, the worst by {factor:.2g}x ({text})"]


def write_profile(path: Path, table: ProfileTable) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(format_profile(table), encoding="utf-8")


def format_profile(table: ProfileTable) -> str:
    """The TOML text of a profile, with every digit of its numbers."""
    head = "# Measured by `halocast calibrate`; seconds per unit of each term. The points are beside this file.\n"
    return head + tomli_w.dumps(without_none(asdict(table)))
