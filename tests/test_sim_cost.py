"""The roofline, with a device of round numbers so that every expected value is worked out by hand."""

import math
from dataclasses import replace

import pytest

from halocast.schedule.ir import KERNEL_DIMS, Kernel, Kind, Lane, Op, Work
from halocast.sim.cluster import Device, Efficiency, load_device
from halocast.sim.cost import ROOFS, kernel_seconds, op_seconds

DEVICE = Device(
    name="round",
    source="a test",
    memory_bytes=10**9,
    fp32_flops_per_s=2000.0,
    fp64_flops_per_s=1000.0,
    memory_bytes_per_s=100.0,
    cache_bytes=16.0,
    launch_s=1.0,
    efficiency=Efficiency(flops=0.5, stream=0.8, gather=0.5, spmm_miss=0.5, spmm_hit=2.0, spmm_skew=0.5),
)
FAST_MEMORY = replace(DEVICE, memory_bytes_per_s=1e9)


def seconds(kind: str, *dims: int, device: Device = DEVICE, itemsize: int = 4) -> float:
    return kernel_seconds(Kernel(kind, dims), device, itemsize)


def test_the_table_is_total() -> None:
    assert ROOFS.keys() == KERNEL_DIMS.keys()


def test_a_gemm_is_bound_by_flops_or_by_memory() -> None:
    # 2 * 10 * 10 * 10 FLOPs at 2000 * 0.5; 3 * 100 * 4 bytes at 100 * 0.8
    assert seconds("gemm", 10, 10, 10, device=FAST_MEMORY) == 1 + 2.0
    assert seconds("gemm", 10, 10, 10) == pytest.approx(1 + 15.0)


def test_eight_byte_numbers_use_the_fp64_rate_and_twice_the_bytes() -> None:
    assert seconds("gemm", 10, 10, 10, device=FAST_MEMORY, itemsize=8) == 1 + 4.0
    assert seconds("gemm", 10, 10, 10, itemsize=8) == pytest.approx(1 + 30.0)


def test_elementwise_streams_every_pass() -> None:
    assert seconds("elementwise", 100, 3) == pytest.approx(1 + 100 * 3 * 4 / 80)


def test_gather_reads_and_writes_rows_and_reads_their_indices() -> None:
    assert seconds("gather", 10, 5) == pytest.approx(1 + (2 * 10 * 5 * 4 + 8 * 10) / 50)


def test_spmm_that_reads_each_row_once_misses_the_cache() -> None:
    # 4 edges to 4 columns: all first touches. 4*(4*2 + 2*2) + 4*4 + 8*2 = 80 bytes at 100 * 0.5
    assert seconds("spmm", 2, 4, 4, 2) == pytest.approx(1 + 80 / 50)


def test_spmm_that_rereads_a_table_in_the_cache_beats_memory_bandwidth() -> None:
    # 2 columns of 2 numbers fit in the cache of 16 bytes; of 8 edges 2 are first touches, 6 hit:
    # efficiency 1 / (0.25 / 0.5 + 0.75 / 2) = 8/7; 4*(8*2 + 2*2) + 4*8 + 8*2 = 128 bytes
    assert seconds("spmm", 2, 2, 8, 2) == pytest.approx(1 + 128 / (100 * 8 / 7))


def test_spmm_hits_less_often_the_larger_the_table() -> None:
    # 8 columns of 2 numbers are 64 bytes, 4 times the cache: half (0.25 ** 0.5) of the 24 of 32 re-reads hit:
    # efficiency 1 / (0.625 / 0.5 + 0.375 / 2) = 1 / 1.4375; 4*(32*2 + 2*2) + 4*32 + 8*2 = 416 bytes
    assert seconds("spmm", 2, 8, 32, 2) == pytest.approx(1 + 416 * 1.4375 / 100)


def test_spmm_with_more_columns_than_edges_never_hits() -> None:
    # 4*(2*2 + 2*2) + 4*2 + 8*2 = 56 bytes at 100 * 0.5
    assert seconds("spmm", 2, 50, 2, 2) == pytest.approx(1 + 56 / 50)


@pytest.mark.parametrize(
    ("kind", "dims"),
    [
        ("gemm", (0, 5, 5)),
        ("gemm", (5, 5, 0)),
        ("spmm", (0, 5, 0, 5)),
        ("spmm", (5, 5, 0, 5)),
        ("spmm", (5, 5, 9, 0)),
        ("elementwise", (0, 3)),
        ("gather", (0, 5)),
        ("gather", (5, 0)),
    ],
)
def test_an_empty_output_is_not_launched(kind: str, dims: tuple[int, ...]) -> None:
    assert seconds(kind, *dims) == 0.0


def test_a_kernel_without_work_costs_its_launch() -> None:
    assert seconds("elementwise", 5, 0, device=FAST_MEMORY) == 1 + 5 / 1000  # 5 FLOPs, no bytes
    assert seconds("gemm", 5, 0, 5) == pytest.approx(1 + 4 * 25 / 80)  # an inner dimension of 0 still writes zeros


def test_an_op_is_the_sum_of_its_kernels() -> None:
    kernels = (Kernel("elementwise", (100, 3)), Kernel("gather", (0, 5)), Kernel("gather", (10, 5)))
    op = Op(name="forward.0", rank=0, lane=Lane.COMPUTE, kind=Kind.COMPUTE, work=Work(kernels=kernels))
    assert op_seconds(op, DEVICE, 4) == pytest.approx(16.0 + 0 + 10.6)
    assert op_seconds(replace(op, work=Work()), DEVICE, 4) == 0.0


def test_spmm_on_a_cpu_core_is_near_what_was_measured() -> None:
    """packaging.md: nodes, degree, width and seconds of an aggregate on one core."""
    for nodes, degree, width, measured_s in (
        (50_000, 50, 128, 0.110),
        (20_000, 200, 256, 0.235),
        (100_000, 10, 64, 0.023),
    ):
        predicted_s = seconds("spmm", nodes, nodes, nodes * degree, width, device=load_device("cpu"))
        assert math.isclose(predicted_s, measured_s, rel_tol=0.25)


def test_spmm_on_an_a5000_is_near_what_was_measured() -> None:
    """chunk_compute.csv: 0.62 ms per million edges of width 100 for three passes over a chunk of reddit."""
    per_pass_s = seconds("spmm", 7_279, 82_000, 3_582_000, 100, device=load_device("a5000"))
    assert math.isclose(3 * per_pass_s / 3.582, 0.62e-3, rel_tol=0.15)
