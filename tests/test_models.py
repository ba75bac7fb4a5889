"""Both aggregation kernels agree, the modules compute what their formulas say, specs refuse nonsense."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from training import small_graph, spec_for

from halocast.base.errors import InputError
from halocast.graph import Graph
from halocast.models import arithmetic
from halocast.models.aggregate import kernels, neighbour_sum
from halocast.models.arithmetic import PartSize
from halocast.models.modules import (
    NEIGHBOURS,
    Block,
    SageLinear,
    build_model,
    drop,
    hits,
    make_block,
    mean_neighbours,
    normalised_neighbours,
    unit_rows,
)
from halocast.models.spec import ModelKind, ModelSpec, Norm

BOTH = pytest.mark.skipif(kernels() != ("dgl", "torch"), reason="dgl is not importable here: one kernel only")


@st.composite
def csr(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    num_rows, num_cols = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    rows = [sorted(draw(st.sets(st.integers(0, num_cols - 1), min_size=1))) for _ in range(num_rows)]
    indptr = np.cumsum([0, *map(len, rows)])
    return torch.from_numpy(indptr), torch.tensor([c for row in rows for c in row]), num_cols


def dense(indptr: Tensor, indices: Tensor, num_cols: int) -> Tensor:
    matrix = torch.zeros(len(indptr) - 1, num_cols, dtype=torch.float64)
    for row in range(len(indptr) - 1):
        matrix[row, indices[indptr[row] : indptr[row + 1]]] = 1
    return matrix


@pytest.mark.parametrize("kernel", kernels())
@given(matrix=csr(), width=st.integers(1, 5), at_once=st.booleans())
def test_a_kernel_and_its_gradient_are_the_dense_product(
    kernel: str, matrix: tuple[Tensor, Tensor, int], width: int, at_once: bool
) -> None:
    a, rows = dense(*matrix), torch.randn(matrix[2], width, dtype=torch.float64, requires_grad=True)
    result = neighbour_sum(*matrix, kernel=kernel, at_once=at_once)(rows)
    weight = torch.randn_like(result)
    (grad,) = torch.autograd.grad((result * weight).sum(), rows)
    assert torch.allclose(result, a @ rows, atol=1e-12)
    assert torch.allclose(grad, a.T @ weight, atol=1e-12)


@BOTH
def test_dgl_and_torch_kernels_agree_in_float32() -> None:
    graph = small_graph(nodes=2000, degree=30, skew=2.0)
    indptr, indices = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices)
    rows = torch.randn(2000, 32)
    results = []
    for kernel in kernels():
        leaf = rows.clone().requires_grad_()
        out = neighbour_sum(indptr, indices, 2000, kernel=kernel)(leaf) / graph_degree(graph)
        (grad,) = torch.autograd.grad(out.square().sum(), leaf)
        results.append((out.detach(), grad))
    assert (results[0][0] - results[1][0]).abs().max() <= 1e-6
    assert (results[0][1] - results[1][1]).abs().max() <= 1e-5


@pytest.mark.parametrize("kernel", kernels())
def test_a_dense_wide_float32_sum_is_right(kernel: str) -> None:
    """Wide rows and many edges take dgl's blocked kernel, which small graphs never reach."""
    graph = small_graph(nodes=3000, degree=100, skew=1.0)
    rows = torch.randn(3000, 602)
    table = (torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices))
    adjacency = torch.sparse_csr_tensor(*table, torch.ones(graph.num_edges, dtype=torch.float64)).to_dense()
    found = neighbour_sum(*table, 3000, kernel=kernel)(rows)
    assert ((found - adjacency @ rows.double()).abs().max() / adjacency.sum(1).max().sqrt()) < 1e-4


def graph_degree(graph: Graph) -> Tensor:
    return torch.from_numpy(graph.in_degree).float().reshape(-1, 1)


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="unknown aggregation kernel 'cusparse'"):
        neighbour_sum(torch.tensor([0, 1]), torch.tensor([0]), 1, kernel="cusparse")


def block_of(graph: Graph) -> tuple[Block, Tensor]:
    """The block of a whole graph and its dense adjacency."""
    indptr, indices = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices)
    degrees = [torch.from_numpy(d).double() for d in (graph.in_degree, graph.out_degree)]
    return make_block(neighbour_sum(indptr, indices, graph.num_nodes), *degrees), dense(
        indptr, indices, graph.num_nodes
    )


@pytest.mark.parametrize("directed", [False, True])
def test_mean_and_symmetric_normalisation_are_their_formulas(directed: bool) -> None:
    graph = small_graph(nodes=60, directed=directed)
    block, a = block_of(graph)
    rows = torch.randn(60, 5, dtype=torch.float64)
    assert torch.allclose(mean_neighbours(block, rows), (a / a.sum(1, keepdim=True)) @ rows)
    both = a / a.sum(1, keepdim=True).sqrt() / a.sum(0, keepdim=True).sqrt()
    assert torch.allclose(normalised_neighbours(block, rows), both @ rows)


def test_a_sage_layer_is_own_plus_mean_of_neighbours() -> None:
    graph = small_graph(nodes=60)
    block, a = block_of(graph)
    model = build_model(spec_for(graph, layers=1), seed=1, dtype=torch.float64)
    rows = torch.from_numpy(graph.features).double()
    layer = model.linears[0]
    assert isinstance(layer, SageLinear)
    own, other = layer.own, layer.neighbours
    expected = rows @ own.weight.T + own.bias + (a / a.sum(1, keepdim=True)) @ rows @ other.weight.T + other.bias
    assert torch.allclose(model.layer(0, rows, block), expected)


def test_the_same_seed_gives_the_same_weights_and_disturbs_nobodys_random_state() -> None:
    spec = spec_for(small_graph(nodes=60))
    torch.manual_seed(7)
    first = build_model(spec, seed=1)
    drawn = torch.rand(1)
    torch.manual_seed(7)
    assert drawn == torch.rand(1)
    again = build_model(spec, seed=1)
    assert all(torch.equal(x, y) for x, y in zip(first.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_stated_share_and_the_mean_and_passes_its_mask_to_the_gradient(rate: float) -> None:
    torch.manual_seed(0)
    rows = torch.ones(1000, 401, requires_grad=True)  # an odd number of elements
    out = drop(rows, rate)
    share = float((out > 0).double().mean())
    sigma = (rate * (1 - rate) / rows.numel()) ** 0.5
    assert abs(share - (1 - rate)) < 4 * sigma + 2**-16
    assert float(out.detach().max()) == pytest.approx(1 / (1 - rate), rel=1e-4)
    lanes = (out.detach().reshape(-1)[:400_000].reshape(-1, 4) > 0).double().mean(0)
    assert (lanes - (1 - rate)).abs().max() < 4 * 2 * sigma + 2**-16
    (grad,) = torch.autograd.grad(out.sum(), rows)
    assert torch.equal(grad, out.detach())


def test_unit_rows_have_length_1_and_rows_of_zeros_stay() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]], dtype=torch.float64, requires_grad=True)
    out = unit_rows(rows)
    assert out.tolist() == [[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]]
    (grad,) = torch.autograd.grad((out * torch.tensor([5.0, 10.0])).sum(), rows)
    # across the row only, shrunk by its length: (5, 10) less its share 11 (0.6, 0.8), over 5
    assert torch.allclose(grad, torch.tensor([[-0.32, 0.24], [5.0, 10.0], [2.5, 0.0]], dtype=torch.float64))
    assert torch.autograd.gradcheck(unit_rows, torch.randn(5, 3, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("kind", list(ModelKind))
def test_l2_scales_the_rows_of_hidden_layers_and_no_others(kind: ModelKind) -> None:
    graph = small_graph(nodes=60)
    block, _ = block_of(graph)
    rows = torch.from_numpy(graph.features).double()
    specs = [spec_for(graph, kind=kind, layers=2, norm=norm) for norm in (Norm.NONE, Norm.L2)]
    models = [build_model(spec, seed=1, dtype=torch.float64) for spec in specs]
    plain, scaled = (model.layer(0, rows, block) for model in models)
    assert (scaled.norm(dim=1) - 1).abs().max() < 1e-12
    assert torch.allclose(scaled * plain.norm(dim=1, keepdim=True), plain)
    assert torch.equal(*(model.layer(1, plain, block) for model in models))


def test_scores_are_accuracy_or_micro_f1() -> None:
    assert hits(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1])) == (2.0, 3.0)
    logits, labels = torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert hits(logits, labels) == (4.0, 5.0)  # 2 true positives; 3 predicted, 2 actual


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers = 0"),
        ({"hidden": 0}, "hidden = 0"),
        ({"num_linear": 3}, "num_linear = 3"),
        ({"dropout": 1.0}, "dropout = 1.0: needs 0 <= dropout <= 0.99"),
        ({"num_classes": 0}, "0 classes"),
        ({"kind": ModelKind.GAT, "heads": 3}, "heads = 3: needs to divide hidden = 8"),
        ({"kind": ModelKind.GAT, "heads": 0}, "heads = 0: needs to divide hidden = 8"),
        ({"heads": 2}, "heads = 2: only gat has heads, sage needs heads = 1"),
    ],
)
def test_a_spec_refuses_nonsense(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "kind": ModelKind.SAGE,
        "layers": 3,
        "hidden": 8,
        "num_features": 4,
        "num_classes": 2,
    } | changes
    with pytest.raises(InputError, match=message):
        ModelSpec(**fields)


def test_the_arithmetic_of_a_sage_layer_by_hand() -> None:
    spec = ModelSpec(kind=ModelKind.SAGE, layers=2, hidden=8, num_features=4, num_classes=2, dropout=0.0)
    size = PartSize(num_inner=10, num_halo=5, num_edges=60)
    kernels_of_layer = arithmetic.forward(spec, 1, size)
    assert kernels_of_layer == (
        ("elementwise", (15 * 8, 2)),
        ("spmm", (10, 15, 60, 8)),
        ("elementwise", (10 * 8, 2)),
        ("gemm", (10, 8, 2)),
        ("gemm", (10, 8, 2)),
        ("elementwise", (10 * 2, 3)),  # both products added
    )
    assert sum(arithmetic.flops(*kernel) for kernel in kernels_of_layer) == 120 + 960 + 80 + 2 * 320 + 20
    assert arithmetic.bytes_moved("spmm", (10, 15, 60, 8), 4) == 4 * (60 * 8 + 10 * 8) + 4 * 60 + 8 * 10


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("precompute", [False, True])
@pytest.mark.parametrize(
    ("kind", "heads"), [(ModelKind.SAGE, 1), (ModelKind.GCN, 1), (ModelKind.GAT, 1), (ModelKind.GAT, 2)]
)
@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("kernel", kernels())
def test_the_memory_a_layer_keeps_is_what_autograd_saves(
    kernel: str, kind: ModelKind, heads: int, norm: Norm, precompute: bool, dropout: float
) -> None:
    """40 inner rows, 20 halo rows; every distinct large tensor that backward holds on to."""
    graph = small_graph(nodes=60)
    linear = 0 if heads > 1 else 1  # else no layer takes the mean of the heads
    fields = {"kind": kind, "heads": heads, "norm": norm, "precompute": precompute, "dropout": dropout}
    spec = spec_for(graph, num_linear=linear, layers=4, **fields)
    part, num_edges = part_of(graph, 40, kernel)
    size = PartSize(num_inner=40, num_halo=20, num_edges=num_edges)
    model = build_model(spec, seed=1, dtype=torch.float64)
    for layer in range(spec.layers):
        own, halo = (torch.randn(n, spec.widths[layer], dtype=torch.float64) for n in (40, 20))
        rows = torch.cat([own, halo]) if spec.aggregates(layer) else own
        rows.requires_grad_(layer > 0)
        kept = NEIGHBOURS[kind](part, torch.cat([own, halo])) if precompute and layer == 0 else None
        saved: dict[int, int] = {}

        def note(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 8
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            out = model.layer(layer, rows, part, kept)
        if spec.aggregates(layer):
            note(rows)  # the handler keeps the joined rows as the leaf
        given = [own, out, *model.parameters(), *([] if kept is None else [kept])]
        for tensor in given:
            saved.pop(tensor.untyped_storage().data_ptr(), None)
        large = sum(numel for numel in saved.values() if numel >= 40 * 3)  # not the moments of the normalisation
        assert arithmetic.kept_numel(spec, layer, size) == large, f"layer {layer}"
        assert kept is None or arithmetic.num_precomputed(spec, size) == len(kept)


def part_of(graph: Graph, num_inner: int, kernel: str = "") -> tuple[Block, int]:
    """The first nodes of a graph as a part, all others being its halo; and its number of edges."""
    num_edges = int(graph.indptr[num_inner])
    table = torch.from_numpy(graph.indptr[: num_inner + 1]), torch.from_numpy(graph.indices[:num_edges])
    degrees = [torch.from_numpy(d).double() for d in (graph.in_degree[:num_inner], graph.out_degree)]
    return make_block(neighbour_sum(*table, graph.num_nodes, kernel=kernel), *degrees), num_edges


def test_backward_of_layer_0_needs_no_gradient_of_the_features() -> None:
    spec = ModelSpec(kind=ModelKind.GCN, layers=2, hidden=8, num_features=4, num_classes=2)
    size = PartSize(num_inner=10, num_halo=5, num_edges=60)
    assert "spmm" not in [kind for kind, _ in arithmetic.backward(spec, 0, size)]
    assert "spmm" in [kind for kind, _ in arithmetic.backward(spec, 1, size)]
