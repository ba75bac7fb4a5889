"""Kernel and op durations on a device: launch overhead plus the roofline, max(FLOPs / rate, bytes / bandwidth)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from halocast.models.arithmetic import bytes_moved, flops
from halocast.schedule.ir import KERNEL_DIMS, Kernel, Op
from halocast.sim.cluster import Device


def op_seconds(op: Op, device: Device, itemsize: int) -> float:
    """The op's kernels one after the other; communication is not in it."""
    return sum(kernel_seconds(kernel, device, itemsize) for kernel in op.work.kernels)


def kernel_seconds(kernel: Kernel, device: Device, itemsize: int) -> float:
    """A kernel whose output is empty is not launched and costs nothing."""
    roof = ROOFS[kernel.kind]
    if any(kernel.dims[k] == 0 for k in roof.empty):
        return 0.0
    compute_s = flops(kernel.kind, kernel.dims) / (device.flops_per_s(itemsize) * device.efficiency.flops)
    bandwidth = device.memory_bytes_per_s * roof.bandwidth(kernel, device, itemsize)
    return device.launch_s + max(compute_s, bytes_moved(kernel.kind, kernel.dims, itemsize) / bandwidth)


def _stream(kernel: Kernel, device: Device, itemsize: int) -> float:
    return device.efficiency.stream


def _gather(kernel: Kernel, device: Device, itemsize: int) -> float:
    return device.efficiency.gather


def _spmm(kernel: Kernel, device: Device, itemsize: int) -> float:
    """Above 1 where the cache serves most reads: the bytes count one row per edge, and popular rows are read often."""
    _, cols, nnz, width = kernel.dims
    e = device.efficiency
    fits = min(1.0, device.cache_bytes / max(1, cols * width * itemsize))
    hit = max(0.0, 1 - cols / nnz) * math.pow(fits, e.spmm_skew)
    return 1 / ((1 - hit) / e.spmm_miss + hit / e.spmm_hit)


@dataclass(frozen=True, slots=True)
class Roof:
    """How one kind of kernel meets the roofline."""

    bandwidth: Callable[[Kernel, Device, int], float]  # fraction of memory bandwidth it reaches
    empty: tuple[int, ...]  # the dims of which a zero means: no output, no launch


def _roof(kind: str, bandwidth: Callable[[Kernel, Device, int], float], *dims: str) -> Roof:
    return Roof(bandwidth, tuple(KERNEL_DIMS[kind].index(dim) for dim in dims))


ROOFS: Mapping[str, Roof] = MappingProxyType(
    {
        "gemm": _roof("gemm", _stream, "m", "n"),
        "spmm": _roof("spmm", _spmm, "rows", "nnz", "width"),
        "elementwise": _roof("elementwise", _stream, "numel"),
        "gather": _roof("gather", _gather, "rows", "width"),
    }
)
