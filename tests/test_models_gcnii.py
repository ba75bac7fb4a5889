"""GCNII and the residual GCN are their formulas, train exactly under every exact method, and count their weights."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor
from training import assert_equal_training, metis_parts, reference_for, small_graph, spec_for, train

from halocast.base.errors import InputError
from halocast.graph import Graph
from halocast.models import arithmetic
from halocast.models.aggregate import neighbour_sum
from halocast.models.arithmetic import PartSize
from halocast.models.modules import Block, GcniiLinear, Gnn, build_model, make_block
from halocast.models.spec import ModelKind, ModelSpec, Norm

DEEP = [(ModelKind.GCNII, Norm.NONE), (ModelKind.RESGCN, Norm.LAYER)]


def block_of(graph: Graph) -> tuple[Block, Tensor]:
    """The block of a whole graph, and its normalised adjacency as a dense matrix."""
    indptr, indices = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices)
    degrees = [torch.from_numpy(d).double() for d in (graph.in_degree, graph.out_degree)]
    dense = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    dense[torch.repeat_interleave(torch.arange(graph.num_nodes), indptr.diff()), indices.long()] = 1
    scaled = dense / degrees[0].sqrt()[:, None] / degrees[1].sqrt()[None]
    return make_block(neighbour_sum(indptr, indices, graph.num_nodes), *degrees), scaled


def run(model: Gnn, rows: Tensor, block: Block) -> Tensor:
    first = rows
    for layer in range(model.spec.layers):
        rows = model.layer(layer, rows, block, first=first if model.spec.mixes_first(layer) else None)
        first = rows if layer == 0 else first
    return rows


def test_a_gcnii_is_its_formula() -> None:
    graph = small_graph(nodes=80)
    spec = spec_for(graph, kind=ModelKind.GCNII, layers=4, norm=Norm.NONE, first_share=0.3, weight_decline=0.7)
    model, (block, p) = build_model(spec, seed=2, dtype=torch.float64), block_of(graph)
    x = torch.from_numpy(graph.features).double()
    projection, *convolutions = model.linears
    first = rows = F.relu(projection(x))
    for number, convolution in enumerate(convolutions, start=1):
        assert isinstance(convolution, GcniiLinear)
        beta = math.log(0.7 / number + 1)
        mixed = 0.7 * p @ rows + 0.3 * first
        rows = F.relu((1 - beta) * mixed + beta * mixed @ convolution.matrix.weight.T)
    last = convolutions[-1].classify
    assert isinstance(last, torch.nn.Linear)
    assert torch.allclose(run(model, x, block), last(rows), atol=1e-12)


def test_a_residual_gcn_adds_the_input_of_hidden_layers() -> None:
    graph = small_graph(nodes=80)
    spec = spec_for(graph, kind=ModelKind.RESGCN, layers=3, norm=Norm.NONE)
    model, (block, p) = build_model(spec, seed=2, dtype=torch.float64), block_of(graph)
    x = torch.from_numpy(graph.features).double()
    linears: list[Any] = [linear.neighbours for linear in model.linears]
    hidden = F.relu(linears[0](p @ x))
    hidden = hidden + F.relu(linears[1](p @ hidden))
    assert torch.allclose(run(model, x, block), linears[2](p @ hidden), atol=1e-12)


@pytest.mark.parametrize("kind", [ModelKind.GCN, ModelKind.SAGE, ModelKind.GAT, ModelKind.RESGCN])
def test_a_model_with_a_projection_aggregates_no_features_and_trains_exactly(kind: ModelKind, tmp_path: Path) -> None:
    graph = small_graph()
    spec = spec_for(graph, kind=kind, layers=3, projection=True)
    assert spec.exchanged_layers == (1, 2)
    weights = [weight.numel() for weight in build_model(spec, seed=0).linears[0].parameters()]
    assert sum(weights) == graph.num_features * spec.hidden + spec.hidden
    assert spec.num_weights == sum(weight.numel() for weight in build_model(spec, seed=0).parameters())
    trained = train(graph, metis_parts(graph, 2), spec, tmp_path)
    assert_equal_training(trained, reference_for(graph, spec), logits=1e-9, grads=1e-9)


@pytest.mark.parametrize(("kind", "norm"), DEEP)
@pytest.mark.parametrize("layers", [2, 5])
def test_weights_are_counted_as_the_modules_have_them(kind: ModelKind, norm: Norm, layers: int) -> None:
    spec = ModelSpec(kind=kind, layers=layers, hidden=16, num_features=10, num_classes=3, norm=norm)
    model = build_model(spec, seed=0)
    assert spec.num_weights == sum(weight.numel() for weight in model.parameters())
    for layer in range(layers):
        modules = [model.linears[layer], *model.norms[layer : layer + 1]]
        assert spec.layer_weights(layer) == sum(w.numel() for module in modules for w in module.parameters())


@pytest.mark.parametrize(("kind", "norm"), DEEP)
def test_deep_models_on_parts_equal_one_device(kind: ModelKind, norm: Norm, tmp_path: Path) -> None:
    graph = small_graph()
    spec = spec_for(graph, kind=kind, layers=5, norm=norm)
    trained = train(graph, metis_parts(graph, 3), spec, tmp_path)
    assert_equal_training(trained, reference_for(graph, spec), logits=1e-9, grads=1e-9)


def test_pipegcn_without_lag_trains_a_gcnii_exactly(tmp_path: Path) -> None:
    graph = small_graph()
    spec = spec_for(graph, kind=ModelKind.GCNII, layers=4, norm=Norm.NONE)
    options = {"lag": 0}
    trained = train(graph, metis_parts(graph, 2), spec, tmp_path, method="pipegcn", options=options)
    assert_equal_training(trained, reference_for(graph, spec), logits=1e-9, grads=1e-9)


def test_recomputing_changes_nothing_but_memory_and_time() -> None:
    graph = small_graph(nodes=80)
    block, _ = block_of(graph)
    x = torch.from_numpy(graph.features).double()
    grads = []
    for recompute in (False, True):
        spec = spec_for(graph, kind=ModelKind.GCNII, layers=4, norm=Norm.NONE, dropout=0.5, recompute=recompute)
        model = build_model(spec, seed=2, dtype=torch.float64)
        torch.manual_seed(1)
        run(model, x, block).square().sum().backward()  # type: ignore[no-untyped-call]
        grads.append(torch.cat([weight.grad.reshape(-1) for weight in model.parameters() if weight.grad is not None]))
    assert torch.allclose(grads[0], grads[1], rtol=0, atol=1e-12)


def test_recomputing_adds_a_forward_to_the_backward_and_keeps_the_joined_rows_alone() -> None:
    size = PartSize(num_inner=100, num_halo=40, num_edges=900)
    fields: dict[str, Any] = {"kind": ModelKind.GCNII, "layers": 4, "hidden": 16, "num_features": 8, "num_classes": 3}
    spec, again = ModelSpec(**fields), ModelSpec(**fields, recompute=True)
    for layer in range(4):
        both = (*arithmetic.forward(spec, layer, size), *arithmetic.backward(spec, layer, size))
        assert arithmetic.backward(again, layer, size) == both
        assert arithmetic.kept_bytes(again, layer, size, 4) == (140 * 16 * 4 if layer else 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"layers": 1}, "a projection and at least one convolution"),
        ({"kind": ModelKind.GCN, "projection": True, "precompute": True}, "precompute: a projection"),
        ({"num_linear": 1}, "num_linear = 1"),
        ({"precompute": True}, "precompute"),
        ({"first_share": 1.5}, "first_share = 1.5"),
        ({"weight_decline": 0.0}, "weight_decline = 0.0"),
    ],
)
def test_a_gcnii_refuses_what_it_cannot_be(wrong: dict[str, Any], says: str) -> None:
    fields: dict[str, Any] = {"kind": ModelKind.GCNII, "layers": 4, "hidden": 16, "num_features": 8, "num_classes": 3}
    with pytest.raises(InputError, match=says):
        ModelSpec(**{**fields, **wrong})
