"""The skeleton of an epoch: what every method makes of it, op by op, and the kernels of a layer in two halves."""

from itertools import product
from typing import Any

import pytest
from training import metis_parts, small_graph, spec_for

from halocast.graph import build_parts, from_parts
from halocast.methods import METHODS
from halocast.methods.pipegcn import Lanes, Smooth
from halocast.methods.psc import Wait
from halocast.models import arithmetic
from halocast.models.arithmetic import PartSize
from halocast.models.spec import ModelKind
from halocast.schedule.check import check, staleness
from halocast.schedule.ir import Kind, Lane, Numbers, Op, Schedule

GRAPH = small_graph()
HALO = from_parts(build_parts(GRAPH, metis_parts(GRAPH, 2)))
SPEC = spec_for(GRAPH, layers=2)


def make(method: str, **options: Any) -> Schedule:
    chosen = METHODS[method]
    return check(chosen.make(HALO, SPEC, chosen.options(**options), Numbers.FLOAT32))


def shown(op: Op) -> str:
    """The op and what it waits for, as in forward.1<exchange.1-2: the exchange of two epochs before."""
    waits = [name if lag == 0 else f"{name}-{lag}" for name, lag in op.after]
    return op.name + ("<" + ",".join(waits) if waits else "")


END = "allreduce<backward.0 step<allreduce"
EPOCHS: list[tuple[str, dict[str, Any], str]] = [
    (
        "vanilla",
        {},
        "exchange.0<step-1 forward.0<exchange.0 exchange.1<forward.0 forward.1<exchange.1 loss "
        f"backward.1 exchange_grad.1<backward.1 backward.0<exchange_grad.1 {END}",
    ),
    (
        "pipegcn",
        {"lag": 2, "smooth": Smooth.BOTH},
        "exchange.0<step-1 forward.0<exchange.0-2 exchange.1<forward.0 smooth.1<exchange.1-2 forward.1 loss "
        f"backward.1 exchange_grad.1<backward.1 smooth_grad.1<exchange_grad.1-2 backward.0 {END}",
    ),
    (
        "bns",
        {},
        "sample_rows exchange_ids<sample_rows exchange.0<sample_rows,exchange_ids rebuild<exchange_ids "
        "forward.0<exchange.0,rebuild exchange.1<forward.0,sample_rows,exchange_ids forward.1<exchange.1,rebuild loss "
        "backward.1<rebuild exchange_grad.1<backward.1,sample_rows,exchange_ids "
        f"backward.0<exchange_grad.1,sample_rows,rebuild {END}",
    ),
    (
        "psc",
        {"cache": 0.3, "wait": Wait.BARRIER},
        "sample_edges<step-1,weigh-1 exchange_ids<sample_edges rebuild<sample_edges "
        "exchange.0<step-1,sample_edges,exchange_ids recall.0<exchange.0-1,sample_edges-1 "
        "forward.0<rebuild-1,exchange.0-1,exchange.1-1,exchange_grad.1-1 "
        "exchange.1<forward.0,sample_edges,exchange_ids forward.1<exchange.1-1,rebuild-1 loss "
        "weigh<exchange.1-1,sample_edges-1 backward.1<rebuild-1 "
        "exchange_grad.1<backward.1,sample_edges-1,exchange_ids-1 "
        f"backward.0<exchange_grad.1-1,exchange_ids-2,rebuild-1 {END}",
    ),
    (
        "digest-a",
        {},
        "fetch<deliver-1 forward.0<fetch push.1<forward.0 pull.1<push.1-1,fetch forward.1<pull.1 loss "
        "backward.1 backward.0 step deliver<step,push.1",
    ),
]


@pytest.mark.parametrize(("method", "options", "expected"), EPOCHS, ids=[method for method, *_ in EPOCHS])
def test_the_epoch_of_every_method_op_by_op(method: str, options: dict[str, Any], expected: str) -> None:
    for ops in make(method, **options).by_rank:
        assert " ".join(shown(op) for op in ops) == expected


def test_a_pipeline_may_have_a_lane_per_layer_for_rows_and_for_gradients() -> None:
    one, layer = make("pipegcn"), make("pipegcn", lanes=Lanes.LAYER)
    lanes = {op.name: op.lane for op in layer.by_rank[0] if op.kind is Kind.EXCHANGE}
    assert lanes == {"exchange.0": Lane("halo"), "exchange.1": Lane("halo", 1), "exchange_grad.1": Lane("grad", 1)}
    assert {op.lane for op in one.by_rank[0] if op.kind is Kind.EXCHANGE} == {Lane.HALO, Lane.GRAD}
    assert [shown(op) for op in layer.ops] == [shown(op) for op in one.ops]
    assert staleness(layer) == staleness(one)


SIZE = PartSize(num_inner=100, num_halo=30, num_edges=900)
MODELS = [
    {"kind": kind, "layers": layers, "dropout": dropout, "num_linear": linear, "precompute": precompute}
    for kind, (layers, linear), dropout, precompute in product(ModelKind, [(3, 0), (4, 1)], [0.0, 0.5], [False, True])
    if kind is not ModelKind.GCNII or not (linear or precompute)
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: "-".join(str(value) for value in model.values()))
def test_a_layer_is_its_sum_over_neighbours_and_what_comes_after(model: dict[str, Any]) -> None:
    spec = spec_for(GRAPH, **model)
    for layer in range(spec.layers):
        halves = arithmetic.aggregate(spec, layer, SIZE), arithmetic.transform(spec, layer, SIZE)
        assert arithmetic.forward(spec, layer, SIZE) == halves[0] + halves[1]
        sums = [kind for kind, _ in halves[0] if kind.startswith("spmm")]
        assert len(sums) == (spec.aggregates(layer) or spec.attends(layer))
        assert not [kind for kind, _ in halves[1] if kind.startswith("spmm")]
        back = arithmetic.transform_back(spec, layer, SIZE), arithmetic.aggregate_back(spec, layer, SIZE)
        assert arithmetic.backward(spec, layer, SIZE) == back[0] + back[1]


def test_the_halves_of_a_layer_of_graphsage_kernel_by_kernel() -> None:
    spec = spec_for(GRAPH, layers=3, dropout=0.5)
    assert arithmetic.aggregate(spec, 1, SIZE) == (
        ("elementwise", (130 * 16, 2)),
        ("dropout", (130 * 16, 3)),
        ("spmm", (100, 130, 900, 16)),
        ("elementwise", (100 * 16, 2)),
    )
    assert arithmetic.transform(spec, 1, SIZE) == (
        *[("gemm", (100, 16, 16))] * 2,
        ("elementwise", (100 * 16, 3)),
        ("norm", (100, 16)),
        ("elementwise", (100 * 16, 2)),
    )
    assert arithmetic.transform_back(spec, 1, SIZE) == (
        ("norm_back", (100, 16)),
        ("elementwise", (100 * 16, 3)),
        *[("sum_rows", (100, 16)), ("gemm", (16, 100, 16))] * 2,
        *[("gemm", (100, 16, 16))] * 2,
    )
    assert arithmetic.aggregate_back(spec, 1, SIZE) == (
        ("elementwise", (100 * 16, 2)),
        ("spmm", (130, 100, 900, 16)),
        ("elementwise", (130 * 16, 1)),
        ("elementwise", (130 * 16, 3)),
        ("elementwise", (130 * 16, 3)),
    )
