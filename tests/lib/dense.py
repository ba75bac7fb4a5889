"""Training on dense matrices in one process: an oracle for methods that change the graph from epoch to epoch."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halocast.graph import Graph, Part
from halocast.graph.sampling import Picked
from halocast.models.attention import Edges
from halocast.models.modules import Block, Gnn, build_model, make_block, summed_loss
from halocast.models.spec import ModelSpec

Dense = NDArray[np.float64]


class DenseSum:
    """A sum of neighbours as a plain product."""

    def __init__(self, matrix: Dense) -> None:
        self.matrix = torch.from_numpy(matrix)

    def __call__(self, rows: Tensor) -> Tensor:
        return self.matrix @ rows

    @cached_property
    def edges(self) -> Edges:
        raise NotImplementedError


def adjacency(graph: Graph) -> Dense:
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for row in range(graph.num_nodes):
        matrix[row, graph.indices[graph.indptr[row] : graph.indptr[row + 1]]] = 1
    return matrix


def without_cut(graph: Graph, parts: Sequence[Part]) -> Dense:
    """Only the edges inside a part."""
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    full = adjacency(graph)
    for part in parts:
        inside = np.ix_(part.inner, part.inner)
        matrix[inside] = full[inside]
    return matrix


def with_rows(graph: Graph, parts: Sequence[Part], sent: Sequence[Picked], scale: Callable[[int, int], float]) -> Dense:
    """Cut edges only from rows their owner sends, times scale(rows in the pair's list, rows sent of it)."""
    matrix, full = without_cut(graph, parts), adjacency(graph)
    for owner, drawn in zip(parts, sent, strict=True):
        for receiver in parts:
            listed = owner.inner[
                owner.send_rows[owner.send_offsets[receiver.rank] : owner.send_offsets[receiver.rank + 1]]
            ]
            nodes = listed[drawn.of(receiver.rank)]
            if len(nodes):
                place = np.ix_(receiver.inner, nodes)
                matrix[place] = full[place] * scale(len(listed), len(nodes))
    return matrix


def renormalised(graph: Graph, matrix: Dense) -> Dense:
    """The edges that are left, each counted so often that a node has as many neighbours as in the whole graph."""
    left = (matrix > 0).astype(np.float64)
    again: Dense = left * (adjacency(graph).sum(1) / left.sum(1))[:, None]
    return again


def with_edges(graph: Graph, parts: Sequence[Part], weights: Sequence[Dense]) -> Dense:
    """Every local entry of a part times its weight."""
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for part, own in zip(parts, weights, strict=True):
        columns = np.concatenate((part.inner, part.halo))
        rows = np.repeat(part.inner, np.diff(part.indptr))
        matrix[rows, columns[part.indices]] = own
    return matrix


def train_dense(
    graph: Graph,
    spec: ModelSpec,
    matrix_of: Callable[[int], Dense],
    *,
    num_epochs: int,
    lr: float = 0.01,
    seed: int = 5,
) -> tuple[list[float], Tensor]:
    """Losses and final weights when layer l of epoch t sums over matrix_of(t), a precomputed layer 0 over the graph."""
    degrees = [torch.from_numpy(np.asarray(d)).double() for d in (graph.in_degree, graph.out_degree)]
    model = build_model(spec, seed, torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    features, labels = torch.from_numpy(graph.features).double(), torch.from_numpy(graph.labels)
    train = torch.from_numpy(np.flatnonzero(graph.train_mask))
    exact = make_block(DenseSum(adjacency(graph)), *degrees)
    losses = []
    for epoch in range(num_epochs):
        drawn: Block = make_block(DenseSum(matrix_of(epoch)), *degrees)
        rows = features
        for layer in range(spec.layers):
            rows = model.layer(layer, rows, drawn if spec.aggregates(layer) else exact)
        optimizer.zero_grad()
        loss = summed_loss(rows[train], labels[train]) / len(train)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        optimizer.step()
    return losses, torch.cat([w.detach().reshape(-1) for w in model.parameters()])


def train_stale(
    graph: Graph,
    spec: ModelSpec,
    matrices_of: Callable[[int, int], tuple[Dense, Dense]],
    *,
    lag: int,
    num_epochs: int,
    observe: Callable[[int, dict[tuple[int, int], Tensor], Gnn], None] = lambda epoch, rows, model: None,
    lr: float = 0.01,
    seed: int = 5,
) -> tuple[list[float], Tensor]:
    """As train_dense, with (inside, cut) matrices per epoch and layer: rows across a cut, and their gradients, are
    `lag` epochs old, and zeros before. `observe` sees what enters every layer, by epoch and layer, before the step."""
    num, count = graph.num_nodes, torch.from_numpy(np.asarray(graph.out_degree)).double()
    model = build_model(spec, seed, torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    features, labels = torch.from_numpy(graph.features).double(), torch.from_numpy(graph.labels)
    train = torch.from_numpy(np.flatnonzero(graph.train_mask))
    rows: dict[tuple[int, int], Tensor] = {}  # by epoch and layer
    returned: dict[tuple[int, int], Tensor] = {}
    losses = []
    for epoch in range(num_epochs):
        own, passes = features, []
        for layer in range(spec.layers):
            block = make_block(
                DenseSum(np.concatenate(matrices_of(epoch, layer), axis=1)),
                torch.from_numpy(np.asarray(graph.in_degree)).double(),
                torch.cat([count, count]),
            )
            rows[epoch, layer] = own.detach()
            stale = rows.get((epoch - lag, layer), torch.zeros_like(own))
            joined = torch.cat([own.detach(), stale.detach()]).requires_grad_()
            own = model.layer(layer, joined, block)
            passes.append((joined, own))
        observe(epoch, rows, model)
        optimizer.zero_grad()
        logits = own.detach().requires_grad_()
        loss = summed_loss(logits[train], labels[train]) / len(train)
        (grad,) = torch.autograd.grad(loss, logits)
        losses.append(float(loss.detach()))
        for layer in reversed(range(spec.layers)):
            joined, out = passes[layer]
            torch.autograd.backward(out, grad)
            assert joined.grad is not None
            returned[epoch, layer] = joined.grad[num:]
            grad = joined.grad[:num] + returned.get((epoch - lag, layer), torch.zeros(1).double())
        optimizer.step()
    return losses, torch.cat([w.detach().reshape(-1) for w in model.parameters()])
