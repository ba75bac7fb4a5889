"""A schedule's degrees reach the sparse products that are priced, however the schedule was made."""

from dataclasses import replace

import pytest

from halocast.cluster.catalogue import load_cluster, load_device
from halocast.graph.card import load_card
from halocast.graph.chunks import chunks_from_card
from halocast.graph.halo import from_card
from halocast.methods import METHODS
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.schedule.ir import Kernel, Numbers, Schedule
from halocast.schedule.text import format_schedule, parse_schedule
from halocast.sim.cost import kernel_seconds, op_times

CLUSTER = load_cluster("a5000-2x4-pcie4-ib200", gpus=2)
CARD = load_card("ogbn-products")


def made(method: str) -> Schedule:
    chosen = METHODS[method]
    spec = ModelSpec(
        kind=ModelKind.SAGE,
        layers=2,
        hidden=128,
        dropout=0.0,
        norm=Norm.NONE,
        num_features=CARD.features,
        num_classes=CARD.classes,
    )
    if chosen.chunks:
        options = chosen.options(chunks=4, stages=2, ways=1)
        return chosen.make(chunks_from_card(CARD, 4), spec, options, Numbers.FLOAT32)
    return chosen.make(from_card(CARD, 2), spec, chosen.options(), Numbers.FLOAT32)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_passes_on_the_degrees_of_the_graph(method: str) -> None:
    assert made(method).degree_sigma == CARD.full.degree_sigma == 1.353


def test_ops_are_priced_with_the_degrees_of_their_schedule() -> None:
    schedule = made("vanilla")
    op = next(op for op in schedule.ops if op.label == "0/forward.1")
    device = load_device("a5000")

    def priced(sigma: float | None) -> float:
        return op_times(replace(schedule, degree_sigma=sigma), CLUSTER)[0, "forward.1"]

    def summed(sigma: float) -> float:
        known = replace(device, efficiency=replace(device.efficiency, degree_sigma=sigma))
        return sum(kernel_seconds(kernel, known) for kernel in op.work.kernels)

    assert priced(1.353) == pytest.approx(summed(1.353))
    assert priced(None) == pytest.approx(summed(1.0))
    assert priced(0.0) > 1.2 * priced(3.0)
    assert op_times(parse_schedule(format_schedule(schedule)), CLUSTER) == op_times(schedule, CLUSTER)


def test_products_with_weights_and_products_per_entry_feel_degrees_too() -> None:
    device = load_device("a5000")
    for kind in ("spmm", "spmm_weighted", "sddmm"):
        kernel = Kernel(kind, (10**5, 10**6, 10**7, 64))
        flat, steep = (
            kernel_seconds(kernel, replace(device, efficiency=replace(device.efficiency, degree_sigma=sigma)))
            for sigma in (0.0, 2.0)
        )
        assert flat > steep
