"""The former rule for sparse products, to compare with: one spread of degrees for all graphs, caches 4.5 times as fast
as memory on all devices, no floor."""

from collections import Counter
from dataclasses import replace
from statistics import NormalDist

from halocast.cluster.catalogue import Device
from halocast.schedule.ir import Kernel, Numbers
from halocast.sim.cost import kernel_seconds

FLOPS, STREAM, HIT, SKEW, LAUNCH_S = 0.67, 0.9, 4.5, 2.0, 8.5e-6
SHEET_CACHES = {"a100-40": 40e6}
NORMAL = NormalDist()


def former_seconds(kernels: Counter[Kernel], device: Device) -> float:
    return sum(count * _former(kernel, device) for kernel, count in kernels.items())


def _former(kernel: Kernel, device: Device) -> float:
    if kernel.kind == "spmm":
        return LAUNCH_S + _former_spmm_s(kernel, device)
    return LAUNCH_S + _as_before(kernel, device) - device.launch_s


def _as_before(kernel: Kernel, device: Device) -> float:
    efficiency = replace(device.efficiency, flops=FLOPS, flops_shared=FLOPS, stream=STREAM)
    return kernel_seconds(kernel, replace(device, efficiency=efficiency))


def _former_spmm_s(kernel: Kernel, device: Device) -> float:
    rows, cols, nnz, width = kernel.dims
    itemsize = 2 if kernel.numbers is Numbers.BFLOAT16 else 4
    read, streamed = nnz * width * itemsize, rows * width * itemsize + 4 * nnz + 8 * rows
    kept = SHEET_CACHES.get(device.name, device.cache_bytes) / (cols * width * itemsize)
    popular = 1.0 if kept >= 1 else NORMAL.cdf(SKEW + NORMAL.inv_cdf(kept))
    hit = max(0.0, 1 - cols / nnz) * popular
    return (read * ((1 - hit) / STREAM + hit / HIT) + streamed / STREAM) / device.memory_bytes_per_s
