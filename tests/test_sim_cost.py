"""The roofline, with a device of round numbers so that every expected value is worked out by hand."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocast.cluster.catalogue import Device, Efficiency, load_device
from halocast.schedule.ir import KERNEL_DIMS, Compute, Kernel, Lane, Numbers, Op
from halocast.sim.cost import ROOFS, kernel_seconds, op_seconds, popular_share

ROOT = Path(__file__).resolve().parents[1]
CHUNK_TIMES = ROOT.parent / "shared/published/chunk_compute.csv"
DEVICE = Device(
    name="round",
    source="a test",
    memory_bytes=10**9,
    fp32_flops_per_s=2000.0,
    fp64_flops_per_s=1000.0,
    memory_bytes_per_s=100.0,
    cache_bytes=16.0,
    launch_s=1.0,
    efficiency=Efficiency(flops=0.5, gemm_tile=4, stream=0.8, gather=0.5, spmm_hit=2.0, spmm_skew=1.0),
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


def test_spmm_that_reads_each_row_once_misses_the_cache() -> None:
    # 4 edges to 4 columns: all first touches. 4*(4*2 + 2*2) + 4*4 + 8*2 = 80 bytes at 100 * 0.8
    assert seconds("spmm", 2, 4, 4, 2) == pytest.approx(1 + 80 / 80)


def test_spmm_that_rereads_a_table_in_the_cache_beats_memory_bandwidth() -> None:
    # 2 columns of 2 numbers fit in the cache of 16 bytes; of 8 edges 2 are first touches, 6 hit: 64 bytes at
    # 1 / (0.25 / 0.8 + 0.75 / 2) of bandwidth; 4*2*2 + 4*8 + 8*2 = 64 bytes of output and indices at 0.8
    assert seconds("spmm", 2, 2, 8, 2) == pytest.approx(1 + (64 * 0.6875 + 64 / 0.8) / 100)


def test_spmm_hits_less_often_the_larger_the_table() -> None:
    # 4 columns of 2 numbers are 32 bytes, twice the cache; the popular half gets the normal law's 0.841345 at skew 1.
    # Of 16 edges 12 are re-reads, 0.631009 of all hit: 128 bytes; 4*2*2 + 4*16 + 8*2 = 96 bytes of output and indices
    read = 128 * (0.368991 / 0.8 + 0.631009 / 2)
    assert seconds("spmm", 2, 4, 16, 2) == pytest.approx(1 + (read + 96 / 0.8) / 100, rel=1e-6)


def test_spmm_with_more_columns_than_edges_never_hits() -> None:
    # 4*(2*2 + 2*2) + 4*2 + 8*2 = 56 bytes at 100 * 0.8
    assert seconds("spmm", 2, 50, 2, 2) == pytest.approx(1 + 56 / 80)


@pytest.mark.parametrize("skew", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_the_popular_rows_get_their_share_of_a_lognormal_law(fraction: float, skew: float) -> None:
    """The oracle draws the reads of a million rows and counts those of the most popular ones."""
    reads = np.sort(np.exp(skew * np.random.default_rng(0).standard_normal(10**6)))[::-1]
    drawn = reads[: round(fraction * reads.size)].sum() / reads.sum()
    assert popular_share(fraction, skew) == pytest.approx(drawn, rel=0.02)


def test_a_table_in_the_cache_is_hit_always() -> None:
    assert popular_share(1.0, 2.0) == popular_share(7.0, 2.0) == 1.0


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
    """A5000: 27.8 TFLOP/s and 768 GB/s."""
    device = DEVICES["a5000"]
    assert 2 * 8192**3 / seconds("gemm", 8192, 8192, 8192, device=device) == pytest.approx(0.67 * 27.8e12, rel=0.01)
    assert 8e9 / seconds("elementwise", 10**9, 2, device=device) == pytest.approx(0.9 * 768e9, rel=0.01)


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


def _fit() -> Any:
    """The benchmark that fits the constants; it is no package."""
    spec = importlib.util.spec_from_file_location("compute_fit", ROOT / "benchmarks/compute_fit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FIT = _fit()


def layer_seconds(num_parts: int, model: str, layer_type: int) -> float:
    """A layer on all of flickr, in equal chunks one after the other."""
    nodes, edges = 89_250 // num_parts, 989_006 // num_parts
    chunk = FIT.Chunk(dataset="flickr", num_vertices=nodes, num_edges=edges, hidden=100, num_parts=num_parts)
    return num_parts * float(FIT.total_seconds(chunk.kernels(model, layer_type), DEVICES["a5000"]))


@pytest.mark.parametrize(
    ("model", "layer_type", "measured"),
    [("gcn", 0, 1.67), ("gcn", 1, 1.84), ("gcn", 2, 2.39), ("gcnii", 1, 1.99), ("gcnii", 2, 2.23)],
)
def test_32_small_chunks_cost_1_6_to_2_8_times_as_much_as_8_parts(model: str, layer_type: int, measured: float) -> None:
    """chunk_compute.csv: the layers that aggregate, 32 chunks of the pipeline over the 8 parts of vanilla."""
    inflation = layer_seconds(32, model, layer_type) / layer_seconds(8, model, layer_type)
    assert 1.6 < inflation < 2.8
    assert inflation == pytest.approx(measured, rel=0.1)


@pytest.mark.skipif(not CHUNK_TIMES.exists(), reason=f"no measured chunk times at {CHUNK_TIMES}")
def test_held_out_chunk_times_are_predicted_within_ten_per_cent() -> None:
    held_out = FIT.held_out(FIT.read_samples(CHUNK_TIMES))
    assert len(held_out) == 432
    assert median(abs(sample.error(DEVICES["a5000"])) for sample in held_out) <= 0.10


@pytest.mark.slow
@pytest.mark.skipif(not CHUNK_TIMES.exists(), reason=f"no measured chunk times at {CHUNK_TIMES}")
def test_the_catalogue_holds_the_fitted_constants() -> None:
    fitted = [sample for sample in FIT.read_samples(CHUNK_TIMES) if sample.fitted]
    assert FIT.fit(FIT.times(fitted), DEVICES["a5000"]) == FIT.constants_of(DEVICES["a5000"])
