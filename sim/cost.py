"""Kernel and op durations on a device: launch overhead plus the roofline, max(FLOPs / rate, bytes / bandwidth).

The launch is also the ramp: a kernel of n bytes runs at n / (n + launch * bandwidth) of its bandwidth, so small kernels
are slow without a further rule. What depends on the shape otherwise: a matrix product computes whole tiles of its
output, and `sparse` has the rules of sparse products, which depend on the graph's degrees, too.

A device that was measured (`measured`) has prices for its kinds of kernels instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from halocast.base.kernels import KERNEL_DIMS, KERNEL_LIKE, PASSES
from halocast.cluster.catalogue import Cluster, Device
from halocast.cluster.measured import Measured
from halocast.codes.implementation import BARE, Implementation
from halocast.models.arithmetic import bytes_moved, flops
from halocast.schedule.ir import Kernel, Kind, Numbers, Op, Pull, Push, Schedule
from halocast.sim.host import host_seconds
from halocast.sim.network.transports import settings_of
from halocast.sim.sparse import sparse_seconds

ALL_WELL: Mapping[int, float] = MappingProxyType({})


def op_times(
    schedule: Schedule,
    cluster: Cluster,
    speed: Mapping[int, float] = ALL_WELL,
    code: Implementation = BARE,
) -> dict[tuple[int, str], float]:
    """Seconds of every op by rank and name: its kernels, what it takes of the host in an implementation and,
    where that was measured, what its messages take of cores.

    Of a measured device, kernels are as cold as what the rank holds makes them. `speed` is that of ranks whose devices
    are slower than described.
    """
    message_s = settings_of(cluster).core_s_per_message
    devices = {
        rank: _run_by(code, _on_graph(_touching(cluster.device(rank), footprint(schedule, rank)), schedule))
        for rank in range(schedule.num_ranks)
    }
    return {
        (op.rank, op.name): op_seconds(op, devices[op.rank], speed.get(op.rank, 1.0))
        + host_seconds(schedule, op, code, devices[op.rank])
        + (message_s * num_ends(schedule, op) / 2 if message_s else 0.0)
        for op in schedule.ops
    }


def num_ends(schedule: Schedule, op: Op) -> int:
    """Messages that an op sends, and those that it receives."""
    if op.kind not in (Kind.EXCHANGE, Kind.SEND, Kind.RECV):
        return 0
    return int((schedule.sent(op) > 0).sum() + (schedule.received(op) > 0).sum())


def footprint(schedule: Schedule, rank: int) -> int:
    """Bytes that an epoch of a rank touches: all it holds."""
    return sum(buffer.num_bytes for buffer in schedule.buffers if buffer.rank == rank)


def _touching(device: Device, num_bytes: int) -> Device:
    return device if device.measured is None else replace(device, measured=device.measured.touching(num_bytes))


def _run_by(code: Implementation, device: Device) -> Device:
    """The device without what our executor took on it beside kernels, where another implementation runs."""
    if device.measured is None or code.calibrated:
        return device
    return replace(device, measured=replace(device.measured, op_s=0.0, communication_op_s=0.0))


def _on_graph(device: Device, schedule: Schedule) -> Device:
    """The device with the spread of the graph's degrees, where the schedule has it."""
    sigma = schedule.degree_sigma
    return device if sigma is None else replace(device, efficiency=replace(device.efficiency, degree_sigma=sigma))


def op_seconds(op: Op, device: Device, speed: float = 1.0) -> float:
    """Seconds of an op's kernels in turn, and of the executor's own work where it was measured; no communication.

    A device of less speed takes longer for its kernels in whatever op they are, to pack rows as well; what the host
    does for a communication is not slower. The executor's stragglers keep the same rule.
    """
    overhead_s = 0.0 if device.measured is None else _overhead_s(op, device.measured)
    kernels_s = sum(kernel_seconds(kernel, device) for kernel in op.work.kernels)
    if op.kind in (Kind.COMPUTE, Kind.SAMPLE):
        return (overhead_s + kernels_s) / speed
    return overhead_s + kernels_s / speed


def _overhead_s(op: Op, measured: Measured) -> float:
    """Seconds that the executor takes for an op beside its kernels."""
    if op.kind in (Kind.COMPUTE, Kind.SAMPLE):
        return measured.op_s * measured.turns
    stored_s = measured.store_s(op.work.num_bytes) if isinstance(op.work, Push | Pull) else 0.0
    return measured.communication_op_s + stored_s


def kernel_seconds(kernel: Kernel, device: Device) -> float:
    """Seconds of a kernel; one whose output is empty is not launched and costs nothing."""
    roof, itemsize = ROOFS[kernel.kind], kernel.numbers.itemsize
    if any(kernel.dims[k] == 0 for k in roof.empty):
        return 0.0
    if device.measured is not None:
        # profiles measure float32 (float64 is scaled): that fewer bits are faster there, nothing says
        return device.measured.seconds(kernel.kind, kernel.dims, max(itemsize, Numbers.FLOAT32.itemsize))
    compute_s = roof.flops(kernel, device) / _rate(kernel, device)
    return device.launch_s + max(compute_s, roof.memory_s(kernel, device, itemsize))


def _rate(kernel: Kernel, device: Device) -> float:
    """FLOP/s that are reached: only matrix products use the units that make tf32 and bfloat16 fast."""
    e, numbers = device.efficiency, kernel.numbers
    if numbers is Numbers.FLOAT64:
        return device.fp64_flops_per_s * e.flops
    if kernel.kind == "gemm" and (matrix := device.matrix_flops_per_s(numbers)):
        return matrix * (device.matrix_share or e.matrix)
    return device.fp32_flops_per_s * (e.flops_shared if device.fmas_shared else e.flops)


def _flops(kernel: Kernel, device: Device) -> float:
    return flops(kernel.kind, kernel.dims)


def _tiled_flops(kernel: Kernel, device: Device) -> float:
    """FLOPs of the tiles that cover the output: the last one of a row or column is computed whole."""
    m, k, n = kernel.dims
    tile = device.efficiency.gemm_tile
    return flops(kernel.kind, (_round_up(m, tile), k, _round_up(n, tile)))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _stream_s(kernel: Kernel, device: Device, itemsize: int) -> float:
    moved = bytes_moved(kernel.kind, kernel.dims, itemsize)
    return moved / (device.memory_bytes_per_s * device.efficiency.stream)


def _gather_s(kernel: Kernel, device: Device, itemsize: int) -> float:
    moved = bytes_moved(kernel.kind, kernel.dims, itemsize)
    return moved / (device.memory_bytes_per_s * device.efficiency.gather)


def _spmm_s(kernel: Kernel, device: Device, itemsize: int) -> float:
    return sparse_seconds(kernel.dims, itemsize, device)


@dataclass(frozen=True, slots=True)
class Roof:
    """A rule for how one kind of kernel meets the roofline."""

    flops: Callable[[Kernel, Device], float]
    memory_s: Callable[[Kernel, Device, int], float]
    empty: tuple[int, ...]  # the dims of which a zero means: no output, no launch


def _roof(
    kind: str,
    flops: Callable[[Kernel, Device], float],
    memory_s: Callable[[Kernel, Device, int], float],
    *dims: str,
) -> Roof:
    return Roof(flops, memory_s, tuple(KERNEL_DIMS[kind].index(dim) for dim in dims))


_KNOWN: Mapping[str, Roof] = MappingProxyType(
    {
        "gemm": _roof("gemm", _tiled_flops, _stream_s, "m", "n"),
        "spmm": _roof("spmm", _flops, _spmm_s, "rows", "nnz", "width"),
        "elementwise": _roof("elementwise", _flops, _stream_s, "numel"),
        "gather": _roof("gather", _flops, _gather_s, "rows", "width"),
        **{kind: _roof(kind, _flops, _stream_s, "rows", "width") for kind in PASSES},
    }
)
ROOFS: Mapping[str, Roof] = MappingProxyType({kind: _KNOWN[KERNEL_LIKE.get(kind, kind)] for kind in KERNEL_DIMS})
