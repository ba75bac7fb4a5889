"""The numerical oracle: the same model on the whole graph in one process, plain autograd, no schedule."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from halocast.graph.graph import Graph
from halocast.models.aggregate import neighbour_sum
from halocast.models.modules import NEIGHBOURS, Block, Gnn, build_model, make_block, master, summed_loss
from halocast.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """Losses before every step; weights after the last, the gradients it used, and logits in evaluation mode."""

    losses: tuple[float, ...]
    weights: Tensor
    grads: Tensor
    logits: Tensor
    model: Gnn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeGraph:
    """A graph as tensors, with the rows that layer 0 aggregates where they are precomputed."""

    spec: ModelSpec
    block: Block
    features: Tensor
    aggregated: Tensor | None

    def logits(self, model: Gnn) -> Tensor:
        rows = first = self.features
        for layer in range(self.spec.layers):
            mixed = first if self.spec.mixes_first(layer) else None
            rows = model.layer(layer, rows, self.block, self.aggregated if layer == 0 else None, mixed)
            first = rows if layer == 0 else first
        return rows


def whole_graph(graph: Graph, spec: ModelSpec, dtype: torch.dtype, kernel: str = "") -> WholeGraph:
    aggregate = neighbour_sum(
        torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices), graph.num_nodes, kernel=kernel
    )
    degrees = [torch.from_numpy(np.asarray(d)).to(master(dtype)) for d in (graph.in_degree, graph.out_degree)]
    block, features = make_block(aggregate, *degrees), torch.from_numpy(graph.features).to(dtype)
    aggregated = NEIGHBOURS[spec.kind](block, features) if spec.precompute else None
    return WholeGraph(spec=spec, block=block, features=features, aggregated=aggregated)


def train_reference(
    graph: Graph,
    spec: ModelSpec,
    *,
    num_epochs: int,
    lr: float,
    seed: int,
    weight_decay: float = 0.0,
    dtype: torch.dtype = torch.float32,
    kernel: str = "",
    scored: Graph | None = None,
) -> Reference:
    """Train on a graph; the logits are of `scored`, if that is another one."""
    given = whole_graph(graph, spec, dtype, kernel)
    model = build_model(spec, seed, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    labels = torch.from_numpy(graph.labels)
    train = torch.from_numpy(np.flatnonzero(graph.train_mask))
    losses = []
    for _ in range(num_epochs):
        optimizer.zero_grad()
        loss = summed_loss(given.logits(model)[train], labels[train]) / len(train)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        optimizer.step()
    grads = torch.cat([_grad(w) for w in model.parameters()])
    model.eval()
    with torch.no_grad():
        final = (given if scored is None else whole_graph(scored, spec, dtype, kernel)).logits(model)
    weights = torch.cat([w.detach().reshape(-1) for w in model.parameters()])
    return Reference(losses=tuple(losses), weights=weights, grads=grads, logits=final, model=model)


def _grad(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad.reshape(-1)
