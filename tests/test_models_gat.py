"""Graph attention: both kernels, the layer against its dense formula, on parts, and its arithmetic."""

from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from training import assert_equal_training, metis_parts, reference_for, small_graph, spec_for, train

from halocast.graph import Graph
from halocast.models import arithmetic
from halocast.models.aggregate import kernels, neighbour_sum
from halocast.models.arithmetic import PartSize
from halocast.models.attention import Edges, attend
from halocast.models.modules import Block, GatLinear, build_model, make_block
from halocast.models.spec import ModelKind, ModelSpec, Norm

BOTH = pytest.mark.skipif(kernels() != ("dgl", "torch"), reason="dgl is not importable here: one kernel only")
SIZE = PartSize(num_inner=10, num_halo=5, num_edges=60)


def block_of(graph: Graph, kernel: str = "") -> Block:
    table = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices)
    degrees = [torch.from_numpy(d).double() for d in (graph.in_degree, graph.out_degree)]
    return make_block(neighbour_sum(*table, graph.num_nodes, kernel=kernel), *degrees)


def block_from(rows: list[list[int]], kernel: str = "") -> Block:
    """Row i has the neighbours rows[i]; as many columns as rows."""
    indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    indices = torch.tensor([column for row in rows for column in row])
    ones = torch.ones(len(rows), dtype=torch.float64)
    return make_block(neighbour_sum(indptr, indices, len(rows), kernel=kernel), ones, ones)


def attended(edges: Edges, dtype: torch.dtype) -> list[Tensor]:
    """What attention makes of 300 random rows, and the gradients of all that goes in."""
    draw = torch.Generator().manual_seed(1)
    shapes = [(300, 3), (300, 3), (300, 3, 5)]
    given = [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]
    out = attend(edges, *given)
    pull = torch.rand(out.shape, generator=draw, dtype=torch.float64).to(dtype)
    return [out.detach(), *torch.autograd.grad((out * pull).sum(), given)]


@BOTH
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_both_kernels_agree_forward_and_backward(dtype: torch.dtype, tolerance: float) -> None:
    graph = small_graph(skew=2.0, directed=True)
    results = [attended(block_of(graph, kernel).aggregate.edges, dtype) for kernel in kernels()]
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).abs().max() <= tolerance * max(1.0, float(ours.abs().max()))


@pytest.mark.parametrize("kernel", kernels())
def test_the_gradients_are_the_numerical_ones(kernel: str) -> None:
    edges = block_from([[0, 2, 3], [1], [0, 1, 2, 3], [3, 1]], kernel).aggregate.edges
    shapes = [(4, 2), (4, 2), (4, 2, 3)]
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda *tensors: attend(edges, *tensors), given)


@st.composite
def neighbours(draw: st.DrawFn) -> list[list[int]]:
    """Self-loops and any others."""
    n = draw(st.integers(1, 8))
    return [sorted(draw(st.sets(st.integers(0, n - 1))) | {i}) for i in range(n)]


@pytest.mark.parametrize("kernel", kernels())
@given(rows=neighbours(), scale=st.sampled_from([1.0, 1e4]), data=st.data())
def test_the_weights_of_a_rows_neighbours_sum_to_1_however_large_the_scores(
    kernel: str, rows: list[list[int]], scale: float, data: st.DataObject
) -> None:
    edges = block_from(rows, kernel).aggregate.edges
    torch.manual_seed(data.draw(st.integers(0, 99)))
    weights = edges.softmax(scale * torch.randn(sum(map(len, rows)), 2))
    assert (weights >= 0).all()
    ends = accumulate(map(len, rows), initial=0)
    for start, end in pairwise(ends):
        assert (weights[start:end].sum(0) - 1).abs().max() < 1e-6


def dense_attention(layer: GatLinear, adjacency: Tensor, rows: Tensor) -> list[Tensor]:
    """The formula, head by head, with all pairs of nodes."""
    heads, width, _ = layer.ends.shape
    found = []
    for head in range(heads):
        made = rows @ layer.rows.weight[head * width : (head + 1) * width].T
        source, target = (made @ layer.ends[head]).T
        pairs = target[:, None] + source[None, :]
        pairs = torch.where(pairs > 0, pairs, 0.2 * pairs).masked_fill(adjacency == 0, -torch.inf)
        found.append(pairs.softmax(1) @ made)
    return found


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize("heads", [1, 4])
def test_a_layer_is_its_formula_heads_side_by_side_and_in_the_last_layer_their_mean(kernel: str, heads: int) -> None:
    graph = small_graph(nodes=60, directed=True)
    block = block_of(graph, kernel)
    adjacency = torch.zeros(60, 60)
    adjacency[torch.repeat_interleave(torch.from_numpy(graph.in_degree)), torch.from_numpy(graph.indices).long()] = 1
    spec = spec_for(graph, kind=ModelKind.GAT, heads=heads, layers=2, norm=Norm.NONE)
    model = build_model(spec, seed=1, dtype=torch.float64)
    torch.nn.init.normal_(model.linears[0].bias)  # type: ignore[arg-type]
    rows = torch.from_numpy(graph.features).double()
    hidden = torch.randn(60, 16, dtype=torch.float64)
    first, last = model.linears
    assert isinstance(first, GatLinear)
    assert isinstance(last, GatLinear)
    beside = torch.cat(dense_attention(first, adjacency, rows), 1) + first.bias
    assert torch.allclose(model.layer(0, rows, block), beside.relu())
    mean = torch.stack(dense_attention(last, adjacency, hidden)).mean(0) + last.bias
    assert torch.allclose(model.layer(1, hidden, block), mean)


def test_with_a_single_neighbour_attention_is_the_linear_map() -> None:
    layer = GatLinear(5, 6, heads=2, head_width=3).double()
    rows = torch.randn(4, 5, dtype=torch.float64)
    neighbour_of = [2, 0, 3, 3]
    out = layer(block_from([[j] for j in neighbour_of]), rows)
    assert torch.allclose(out, layer.rows(rows)[neighbour_of])


def test_equal_scores_weigh_the_same() -> None:
    weights = block_from([[0, 1, 2], [1], [0, 2]]).aggregate.edges.softmax(torch.full((6, 1), 7.0))
    assert weights.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1, 0.5, 0.5])


@settings(max_examples=25)
@given(rows=neighbours(), data=st.data())
def test_renaming_the_nodes_permutes_the_rows(rows: list[list[int]], data: st.DataObject) -> None:
    n = len(rows)
    order = data.draw(st.permutations(range(n)))  # new node i is old node order[i]
    new_name = {old: new for new, old in enumerate(order)}
    renamed = [sorted(new_name[j] for j in rows[old]) for old in order]
    layer = GatLinear(3, 4, heads=2, head_width=2).double()
    values = torch.randn(n, 3, dtype=torch.float64)
    assert torch.allclose(layer(block_from(renamed), values[order]), layer(block_from(rows), values)[order])


@pytest.mark.parametrize("precompute", [False, True])
def test_gat_on_two_ranks_equals_the_reference(tmp_path: Path, precompute: bool) -> None:
    graph = small_graph(directed=True)
    spec = spec_for(graph, kind=ModelKind.GAT, heads=2)
    trained = train(graph, metis_parts(graph, 2), replace(spec, precompute=precompute), tmp_path)
    assert_equal_training(trained, reference_for(graph, spec), logits=1e-10, grads=1e-10)
    exchanged = {span.op for span in trained.run.trace.spans if span.op.startswith("exchange.")}
    assert exchanged == {"exchange.1", "exchange.2"} | (set() if precompute else {"exchange.0"})


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize(("heads", "num_linear"), [(1, 0), (4, 0), (4, 2)])
def test_the_weights_torch_holds_are_the_weights_the_spec_counts(heads: int, num_linear: int, norm: Norm) -> None:
    spec = spec_for(small_graph(nodes=60), kind=ModelKind.GAT, layers=4, heads=heads, num_linear=num_linear, norm=norm)
    held = build_model(spec, seed=1)
    assert sum(weight.numel() for weight in held.parameters()) == spec.num_weights


def gat_spec(precompute: bool = False) -> ModelSpec:
    """Widths 4, 8, 2; two heads: 4 columns each in layer 0, in layer 1 2 each."""
    return ModelSpec(
        kind=ModelKind.GAT,
        heads=2,
        layers=2,
        hidden=8,
        num_features=4,
        num_classes=2,
        dropout=0.0,
        precompute=precompute,
    )


def test_the_arithmetic_of_the_last_layer_by_hand() -> None:
    forward = arithmetic.forward(gat_spec(), 1, SIZE)
    assert forward == (
        ("elementwise", (15 * 8, 2)),  # join
        ("gemm", (15, 8, 4)),
        ("gemm", (15, 4, 4)),
        ("gather", (60, 2)),
        ("elementwise", (120, 2)),
        *(("softmax", (120, passes)) for passes in (1, 2, 2, 1, 3)),
        ("spmm_weighted", (10, 15, 60, 4)),
        ("elementwise", (10 * (4 + 2), 1)),  # mean of the heads
        ("elementwise", (10 * 2, 2)),  # bias
    )
    flops = 120 + 2 * 15 * 8 * 4 + 2 * 15 * 4 * 4 + 6 * 120 + 2 * 60 * 4 + 60 + 20
    assert sum(arithmetic.flops(*kernel) for kernel in forward) == flops
    backward = arithmetic.backward(gat_spec(), 1, SIZE)
    assert [dims for kind, dims in backward if kind == "spmm_weighted"] == [(15, 10, 60, 4)]
    assert [dims for kind, dims in backward if kind == "sddmm"] == [(10, 15, 60, 4)]
    assert [dims for kind, dims in backward if kind == "gemm"] == [(15, 4, 4), (4, 15, 4), (8, 15, 4), (15, 4, 8)]


def test_a_precomputed_layer_0_attends_as_ever_but_joins_nothing() -> None:
    plain, kept = (arithmetic.forward(gat_spec(precompute=precompute), 0, SIZE) for precompute in (False, True))
    assert plain == (("elementwise", (15 * 4, 2)), *kept)
    backward = [arithmetic.backward(gat_spec(precompute=precompute), 0, SIZE) for precompute in (False, True)]
    assert backward[0] == backward[1]
    kinds = [kind for kind, _ in backward[0]]
    assert (kinds.count("spmm_weighted"), kinds.count("sddmm")) == (1, 1)  # the weights of the attention need them
    assert arithmetic.num_precomputed(gat_spec(precompute=True), SIZE) == 15
    assert arithmetic.num_precomputed(replace(gat_spec(precompute=True), kind=ModelKind.SAGE, heads=1), SIZE) == 10
