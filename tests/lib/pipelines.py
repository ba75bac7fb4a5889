"""Training in chunks for tests: on real processes, and by an oracle that is the whole graph in one process, plain
autograd, snapshots as constants."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from training import EPOCHS, Trained, schedule_for

from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import execute
from halocast.graph import Graph, build_parts
from halocast.graph.parts import Assignment
from halocast.models.aggregate import neighbour_sum
from halocast.models.modules import Gnn, build_model, make_block, summed_loss
from halocast.models.spec import ModelSpec


def pipeline(
    graph: Graph,
    assignment: Assignment,
    spec: ModelSpec,
    directory: Path,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """Train by stages; every rank has the logits of all nodes, and weights and gradients of its own layers."""
    parts = build_parts(graph, assignment)
    schedule = schedule_for(parts, spec, "float64", "gnnpipe", **options)
    chosen = {"epochs": EPOCHS, "dtype": "float64", "audit": True, "seed": 5, **(settings or {})}
    job = Job(schedule=schedule, spec=spec, settings=Settings(**chosen))
    run = execute(job, parts, keep=directory)
    audits = [torch.load(directory / f"audit-{rank}.pt") for rank in range(schedule.num_ranks)]
    logits = torch.zeros(graph.num_nodes, graph.num_classes, dtype=torch.float64)
    logits[torch.from_numpy(np.concatenate([part.inner for part in parts]))] = audits[-1]["logits"]
    return Trained(run, schedule, parts, logits, [a["weights"] for a in audits], [a["grads"] for a in audits])


@dataclass(eq=False)
class Oracle:
    """Every layer of every chunk is a layer of the whole graph, of which only the chunk's rows are taken."""

    graph: Graph
    assignment: Assignment
    spec: ModelSpec
    order: Callable[[int], tuple[int, ...]]
    freeze: int = 1
    factor: float = 2.0
    late: bool = False
    lr: float = 0.01
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model: Gnn = build_model(self.spec, 5, torch.float64)
        degrees = [torch.from_numpy(np.asarray(d)).double() for d in (self.graph.in_degree, self.graph.out_degree)]
        table = (torch.from_numpy(self.graph.indptr), torch.from_numpy(self.graph.indices), self.graph.num_nodes)
        self.block = make_block(neighbour_sum(*table), *degrees)
        self.nodes = [torch.from_numpy(np.flatnonzero(self.assignment == c)) for c in range(self.assignment.max() + 1)]
        self.snapshots = [torch.zeros(self.graph.num_nodes, w).double() for w in self.spec.widths]
        self.snapshots[0] = torch.from_numpy(self.graph.features).double()
        self.returned = [torch.zeros_like(table) for table in self.snapshots]

    def train(self, num_epochs: int) -> "Oracle":
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr)
        labels, train = torch.from_numpy(self.graph.labels), torch.from_numpy(self.graph.train_mask)
        for epoch in range(num_epochs):
            optimizer.zero_grad()
            given = [table.clone().requires_grad_() for table in self.snapshots]
            rows = self._forward(epoch, given)
            loss = summed_loss(rows[-1][train], labels[train]) / int(train.sum())
            self.losses.append(float(loss.detach()))
            inner = range(1, self.spec.layers)
            extra = sum((rows[k] * self.returned[k]).sum() for k in inner) if self.late else 0.0
            (loss + extra).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self.returned = [t.grad if t.grad is not None else torch.zeros_like(t) for t in given]
            if (epoch + 1) % self.freeze == 0:
                self.snapshots = [self.snapshots[0], *(table.detach() for table in rows[1:])]
        return self

    def _forward(self, epoch: int, given: list[Tensor]) -> list[Tensor]:
        """The rows of all nodes that enter every layer, and the logits."""
        rows: list[list[Tensor]] = [[] for _ in given]
        order = self.order(epoch)
        for turn, chunk in enumerate(order):
            own = given[0][self.nodes[chunk]]
            for layer in range(self.spec.layers):
                rows[layer].append(own)
                table = given[layer]
                for before, fresh in zip(order[:turn], rows[layer], strict=False):
                    crossing = self.factor * fresh - (self.factor - 1) * fresh.detach()
                    table = table.index_copy(0, self.nodes[before], crossing)
                table = table.index_copy(0, self.nodes[chunk], own) if layer else given[0]
                first = table.new_zeros(len(table), self.spec.hidden)
                if self.spec.mixes_first(layer):
                    first = first.index_copy(0, self.nodes[chunk], rows[1][turn])
                mixed = first if self.spec.mixes_first(layer) else None
                own = self.model.layer(layer, table, self.block, None, mixed)[self.nodes[chunk]]
            rows[self.spec.layers].append(own)
        where = torch.cat([self.nodes[chunk] for chunk in order]).argsort()
        return [torch.cat(table)[where] for table in rows]

    def stage_grads(self, layers: range) -> Tensor:
        """As a stage holds them: the matrices of its layers, then the norms."""
        norms = [self.model.norms[layer] for layer in layers if layer < self.spec.layers - 1]
        modules = [*(self.model.linears[layer] for layer in layers), *norms]
        found = [weight.grad for module in modules for weight in module.parameters()]
        return torch.cat([grad.reshape(-1) for grad in found if grad is not None])
