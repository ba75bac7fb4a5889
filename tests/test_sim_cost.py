"""The roofline, with a device of round numbers so that every expected value is worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocast.cluster.catalogue import Device, Efficiency, load_device
from halocast.schedule.ir import KERNEL_DIMS, Compute, Kernel, Lane, Numbers, Op
from halocast.sim.cost import ROOFS, kernel_seconds, op_seconds
from halocast.sim.sparse import hit_share

DEVICE = Device(
    name="round",
    source="a test",
    memory_bytes=10**9,
    fp32_flops_per_s=2000.0,
    fp64_flops_per_s=1000.0,
    memory_bytes_per_s=100.0,
    cache_bytes=16.0,
    launch_s=1.0,
    cache_bytes_per_s=400.0,
    efficiency=Efficiency(
        flops=0.5,
        flops_shared=0.25,
        matrix=0.8,
        gemm_tile=4,
        stream=0.8,
        gather=0.5,
        degree_sigma=2.0,
        spmm_columns=4,
        spmm_entry_clocks=3.0,
        spmm_row_clocks=5.0,
        spmm_store=0.5,
        spmm_skew=0.25,
        spmm_blend=2.0,
    ),
)
FAST_MEMORY = replace(DEVICE, memory_bytes_per_s=1e9)
DEVICES = {name: load_device(name) for name in ("a5000", "cpu")}


def seconds(kind: str, *dims: int, device: Device = DEVICE, itemsize: int = 4) -> float:
    numbers = {4: Numbers.FLOAT32, 8: Numbers.FLOAT64}[itemsize]
    return kernel_seconds(Kernel(kind, dims, numbers), device)


def test_the_table_is_total() -> None:
    assert ROOFS.keys() == KERNEL_DIMS.keys()


def test_a_gemm_is_bound_by_flops_or_by_memory() -> None:
    # 2 * 12 * 10 * 12 FLOPs at 2000 * 0.5; 3 * 100 * 4 bytes at 100 * 0.8
    assert seconds("gemm", 10, 10, 10, device=FAST_MEMORY) == 1 + 2.88
    assert seconds("gemm", 10, 10, 10) == pytest.approx(1 + 15.0)


def test_a_gemm_computes_whole_tiles_of_its_output() -> None:
    whole = seconds("gemm", 8, 10, 8, device=FAST_MEMORY)
    assert whole == 1 + 2 * 8 * 10 * 8 / 1000
    assert seconds("gemm", 5, 10, 7, device=FAST_MEMORY) == whole
    assert seconds("gemm", 9, 10, 8, device=FAST_MEMORY) == 1 + 2 * 12 * 10 * 8 / 1000


def test_eight_byte_numbers_use_the_fp64_rate_and_twice_the_bytes() -> None:
    assert seconds("gemm", 10, 10, 10, device=FAST_MEMORY, itemsize=8) == 1 + 5.76
    assert seconds("gemm", 10, 10, 10, itemsize=8) == pytest.approx(1 + 30.0)


def test_elementwise_streams_every_pass() -> None:
    assert seconds("elementwise", 100, 3) == pytest.approx(1 + 100 * 3 * 4 / 80)


def test_gather_reads_and_writes_rows_and_reads_their_indices() -> None:
    assert seconds("gather", 10, 5) == pytest.approx(1 + (2 * 10 * 5 * 4 + 8 * 10) / 50)


def on_graph(sigma: float, **changes: Any) -> Device:
    return replace(DEVICE, efficiency=replace(DEVICE.efficiency, degree_sigma=sigma), **changes)


UNIFORM = on_graph(0.0)
FEW = 1 - math.exp(-1)  # of columns that have an entry, with as many entries as columns


def test_spmm_that_reads_each_row_once_misses_the_cache() -> None:
    # 4 entries to 4 of 4 columns of 2 numbers (32 bytes, the cache holds 16): 4 (1 - 1/e) first touches, half of the
    # other reads miss: 8 bytes each, and 4 per entry, at 100 * 0.8; 16 bytes of output at 100 * 0.5
    missed = 4 * FEW + 4 * (1 - FEW) / 2
    assert seconds("spmm", 2, 4, 4, 2, device=UNIFORM) == pytest.approx(1 + (8 * missed + 16) / 80 + 16 / 50)


def test_spmm_whose_table_and_output_stay_in_the_cache_works_at_its_rate() -> None:
    # 1 column and 1 row of 2 numbers are 16 bytes: 100 reads of 8 bytes at 400, before 400 bytes of entries at 80
    assert seconds("spmm", 1, 1, 100, 2, device=UNIFORM) == pytest.approx(1 + 400 / 80 + 8 / 400)
    assert seconds("spmm", 1, 1, 100, 2, device=on_graph(0.0, memory_bytes_per_s=400.0)) == pytest.approx(
        1 + 800 / 400 + 8 / 400
    )


def test_spmm_whose_table_alone_fits_the_cache_reads_and_writes_memory_once() -> None:
    # 1 column of 2 numbers fits the cache, 4 rows beside it do not: the first touch misses, no other read does
    missed = 8 * (1 - math.exp(-8)) + 4 * 8
    assert seconds("spmm", 4, 1, 8, 2, device=UNIFORM) == pytest.approx(1 + missed / 80 + 32 / 50)


def test_spmm_on_unequal_degrees_finds_more_rows_in_the_cache() -> None:
    # 8 columns of 4 numbers are 128 bytes, of which 1/8 is kept; 40 entries in 4 rows: odds of 2 * 0.25 * 10 = 5, so
    # of 7/8 five sixths hit, too
    num_first = 8 * (1 - math.exp(-5))
    for sigma, hit in ((0.0, 1 / 8), (2.0, 1 / 8 + 7 / 8 * 5 / 6)):
        missed = num_first + (40 - num_first) * (1 - hit)
        for width in (4, 8):  # 8 columns in two passes, each over a table as narrow as before
            expected = 1 + (4 * width * missed + 160) / 80 + 16 * width / 50
            assert seconds("spmm", 4, 8, 40, width, device=on_graph(sigma)) == pytest.approx(expected)


def test_hits_are_the_cached_share_of_the_table_and_of_the_rest_what_near_rows_share() -> None:
    assert hit_share(0.25, 10, 0.0) == 0.25
    assert hit_share(0.25, 10, 0.1) == 0.25 + 0.75 * 0.5
    assert hit_share(1.0, 10, 0.0) == hit_share(7.0, 10, 0.3) == 1.0


def test_narrow_spmm_is_ruled_by_its_entries() -> None:
    # two compute units of 500 multiply-adds at 1 Hz: 30 entries take 3 clocks each, 1 row 5; the rest is fast
    device = on_graph(0.0, memory_bytes_per_s=1e9, fmas_per_clock=500)
    assert device.unit_clocks_per_s == 2
    assert seconds("spmm", 1, 5, 30, 1, device=device) == pytest.approx(1 + 30 * 3 / 2 + 5 / 2)


def test_reading_and_issuing_take_longer_together_than_the_longer_of_them() -> None:
    # 20 entries of 3 clocks at 6 a second: 10 s; 80 bytes of rows and 80 of entries, from memory at 10 * 0.8: the row
    # that is read first stays, so 80 / 8 = 10 s, and 20 * 4 / 10 = 8 s from the cache; 1 row of 4 bytes at 10, 5 / 6 s
    device = on_graph(0.0, cache_bytes_per_s=10.0, memory_bytes_per_s=10.0, fmas_per_clock=100, fp32_flops_per_s=1200.0)
    expected = 1 + math.hypot(10, 10) + 4 / 10 + 5 / 6
    assert seconds("spmm", 1, 1, 20, 1, device=device) == pytest.approx(expected)


def test_wide_spmm_goes_over_its_entries_once_per_four_columns() -> None:
    """Twice, four times the width: so much longer exactly, beside the launch, as the table of a pass is the same."""
    device = replace(DEVICE, fmas_per_clock=500)
    four, eight, sixteen = (seconds("spmm", 9, 7, 50, width, device=device) - 1 for width in (4, 8, 16))
    index_s = 4 * 50 / 80  # columns are read once
    assert four > 10 * index_s
    assert (eight, sixteen) == pytest.approx((2 * four, 4 * four), rel=0.02)


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


@pytest.mark.parametrize("name", ["a5000", "cpu"])
@given(data=st.data())
def test_a_larger_kernel_is_never_faster(name: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KERNEL_DIMS)))
    small = [data.draw(st.integers(1, 10**6)) for _ in KERNEL_DIMS[kind]]
    large = [dim + data.draw(st.integers(0, 10**6)) for dim in small]
    device = DEVICES[name]
    faster = seconds(kind, *large, device=device) < seconds(kind, *small, device=device) * (1 - 1e-12)
    assert not faster


def test_large_kernels_reach_the_stated_fractions_of_the_peaks() -> None:
    """A5000: 27.8 TFLOP/s, half of them shared with integers, 768 GB/s; A100: 19.5 TFLOP/s, its matrix units 156."""
    a5000, a100 = DEVICES["a5000"], load_device("a100-80")
    cube = (8192, 8192, 8192)
    assert 2 * 8192**3 / seconds("gemm", *cube, device=a5000) == pytest.approx(0.65 * 27.8e12, rel=0.01)
    assert 2 * 8192**3 / seconds("gemm", *cube, device=a100) == pytest.approx(0.87 * 19.5e12, rel=0.01)
    fast = kernel_seconds(Kernel("gemm", cube, Numbers.TF32), a100)
    assert 2 * 8192**3 / fast == pytest.approx(0.87 * 156e12, rel=0.01)
    assert 8e9 / seconds("elementwise", 10**9, 2, device=a5000) == pytest.approx(0.85 * 768e9, rel=0.01)


def test_matrix_units_reach_their_measured_share_or_that_of_the_catalogue() -> None:
    device = replace(FAST_MEMORY, bf16_flops_per_s=8000.0)
    kernel = Kernel("gemm", (8, 10, 8), Numbers.BFLOAT16)
    assert kernel_seconds(kernel, device) == pytest.approx(1 + 1280 / (8000 * 0.8))
    assert kernel_seconds(kernel, replace(device, matrix_share=0.4)) == pytest.approx(1 + 1280 / (8000 * 0.4))
    assert kernel_seconds(kernel, FAST_MEMORY) == pytest.approx(1 + 1280 / (2000 * 0.5))  # it has none


def test_multiply_adds_that_share_their_unit_reach_less_of_the_peak_in_fp32_alone() -> None:
    shared = replace(FAST_MEMORY, fmas_shared=True)
    assert seconds("gemm", 8, 10, 8, device=shared) == pytest.approx(1 + 1280 / (2000 * 0.25))
    assert seconds("gemm", 8, 10, 8, device=shared, itemsize=8) == pytest.approx(1 + 1280 / (1000 * 0.5))


def test_a_kernel_as_long_as_its_launch_runs_at_half_speed() -> None:
    half = round(DEVICE.launch_s * 80 / 8)  # the launch at 100 * 0.8 bytes a second, in numbers read and written
    assert seconds("elementwise", half, 2) == pytest.approx(2.0)


def test_an_op_is_the_sum_of_its_kernels() -> None:
    kernels = (Kernel("elementwise", (100, 3)), Kernel("gather", (0, 5)), Kernel("gather", (10, 5)))
    op = Op(name="forward.0", rank=0, lane=Lane.COMPUTE, work=Compute(kernels=kernels))
    assert op_seconds(op, DEVICE) == pytest.approx(16.0 + 0 + 10.6)
    assert op_seconds(replace(op, work=Compute()), DEVICE) == 0.0


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
