"""The constants of the roofline against the measured times that they were, and were not, fitted to."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from halocast.cluster.catalogue import load_device

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
without_data = pytest.mark.skipif(
    not (SHARED / "kernels").exists(), reason=f"no measured times of kernels at {SHARED / 'kernels'}"
)


def _benchmark(name: str) -> Any:
    """A benchmark's module; they are no package."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


TIMES, FIT = _benchmark("kernel_times"), _benchmark("compute_fit")
A5000 = load_device("a5000")


def layer_seconds(num_parts: int, model: str, layer_type: int) -> float:
    """A layer on all of flickr, in equal chunks one after the other."""
    nodes, edges = 89_250 // num_parts, 989_006 // num_parts
    chunk = TIMES.Chunk(dataset="flickr", num_vertices=nodes, num_edges=edges, hidden=100, num_parts=num_parts)
    return num_parts * float(FIT.total_seconds(chunk.kernels(model, layer_type), A5000))


@pytest.mark.parametrize(
    ("model", "layer_type", "measured"),
    [("gcn", 0, 1.67), ("gcn", 1, 1.84), ("gcn", 2, 2.39), ("gcnii", 1, 1.99), ("gcnii", 2, 2.23)],
)
def test_32_small_chunks_cost_as_much_more_than_8_parts_as_was_measured(
    model: str, layer_type: int, measured: float
) -> None:
    """chunk_compute.csv: the layers that aggregate, 32 chunks of the pipeline over the 8 parts of vanilla."""
    inflation = layer_seconds(32, model, layer_type) / layer_seconds(8, model, layer_type)
    assert inflation == pytest.approx(measured, rel=0.1)


@pytest.fixture(scope="module")
def samples() -> Any:
    return FIT.all_samples(SHARED)


def test_graphs_are_in_two_halves_by_name() -> None:
    assert TIMES._halves(["d", "b", "a", "b", "c"]) == {"a": 0, "b": 1, "c": 0, "d": 1}


@without_data
def test_no_kernel_is_in_both_halves(samples: Any) -> None:
    assert len(samples) == 2 * 2 * 134 + 565 + 3 * 288 + 19
    assert [sum(sample.half == half for sample in samples) for half in (0, 1, None)] == [995, 970, 19]
    of_graphs = [sample for sample in samples if sample.table != "A5000 layers"]
    even, odd = ({frozenset(s.kernels) for s in of_graphs if s.half == half} for half in (0, 1))
    assert not even & odd


@without_data
@pytest.mark.parametrize(
    ("table", "worst", "of_before"),
    [
        ("RTX 3090 fp32", 0.08, 0.3),
        ("RTX 4090 fp32", 0.10, 0.6),
        ("A100 fp32", 0.06, 0.1),
        ("A5000 layers", 0.055, 1.05),
    ],
)
def test_times_of_kernels_are_those_measured(samples: Any, table: str, worst: float, of_before: float) -> None:
    mine = [sample for sample in samples if sample.table == table]
    now, before = (
        median(abs(error) for error in FIT.errors(mine, rule)) for rule in (FIT.predict(FIT.catalogue()), FIT.before)
    )
    assert now <= min(worst, of_before * before)


@without_data
def test_degrees_of_the_graph_tell_real_graphs_apart(samples: Any) -> None:
    """The same constants for graphs taken to be uniform are worse, on the card whose cache is small."""
    real = [s for s in samples if s.table == "RTX 3090 fp32" and s.sigma > 0]
    flat = [replace(s, sigma=0.0) for s in real]
    seconds = FIT.predict(FIT.catalogue())
    knowing, blind = (sum(abs(e) for e in FIT.errors(some, seconds)) / len(real) for some in (real, flat))
    assert knowing < 0.75 * blind


@pytest.mark.slow
@without_data
def test_the_catalogue_holds_the_fitted_constants(samples: Any) -> None:
    assert FIT.fit(FIT.alike(sample for sample in samples if sample.half is not None)) == FIT.catalogue()


@pytest.mark.slow
@without_data
def test_times_of_the_half_that_was_not_fitted_are_predicted_within_ten_per_cent(samples: Any) -> None:
    used = [sample for sample in samples if sample.half is not None]
    seconds = FIT.across(used, FIT.catalogue())
    for mine in (
        [sample for sample in used if sample.table.endswith("fp32")],
        [sample for sample in used if sample.table == "A5000 layers"],
    ):
        assert median(abs(error) for error in FIT.errors(mine, seconds)) <= 0.10
