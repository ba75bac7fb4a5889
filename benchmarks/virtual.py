"""Prints what training in virtual time costs: CPU time per epoch of all ranks in one process, relative to plain training.

Plain training is the same model on the whole graph, in a loop of torch, without parts, schedule or ranks. Both are
processes of one thread that take turns epoch by epoch in one process, so that slow spells of a shared machine hit both;
the ratio is that of the medians. Peak memory is that of a process of its own for each, with what interpreter, torch and
the graph take in all of them. Without the directory of graphs a drawn one is used.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from halocast.exec.launch.job import Job, Settings
from halocast.exec.run.reference import whole_graph
from halocast.exec.run.together import Together
from halocast.exec.worker import keep_freed_memory
from halocast.graph import Graph, Part, assign, build_parts, from_parts, synthetic
from halocast.graph.formats.loaders import load
from halocast.methods import METHODS
from halocast.models.modules import build_model, summed_loss
from halocast.models.spec import ModelKind, ModelSpec
from halocast.schedule.check import check
from halocast.schedule.ir import Numbers
from halocast.schedule.order import list_order

GRAPHS = ("pubmed", "amazon-computers")
AIMS = {"psc": 1.5}  # of the ratio at few ranks, where it is not 1.3
AIM, MANY_AIM, MEMORY_AIM = 1.3, 2.0, 1.5
WARM = 3  # epochs that are not counted
LAYERS, HIDDEN = 3, 64


@dataclass(frozen=True, kw_only=True)
class Run:
    """One way to train on a graph: plainly (no method), or a method on all ranks together."""

    graph: str
    data: Path
    ranks: int = 1
    method: str = ""
    errors: bool = False

    def epochs(self) -> Iterator[None]:
        """Train an epoch after the other."""
        torch.set_num_threads(1)
        keep_freed_memory()
        graph = graph_of(self.graph, self.data)
        spec = spec_of(graph)
        return plain_epochs(graph, spec) if not self.method else self._together(graph, spec)

    def _together(self, graph: Graph, spec: ModelSpec) -> Iterator[None]:
        job, parts = self._job(graph, spec)
        ranks = Together(job, parts)
        for moment in list_order(job.schedule):
            if ranks.do(moment) is not None:
                yield

    def _job(self, graph: Graph, spec: ModelSpec) -> tuple[Job, tuple[Part, ...]]:
        method = METHODS[self.method]
        chunks = {"balance": "cost"} if self.method == "gnnpipe" else {}
        parts = build_parts(graph, assign(graph, 32 if chunks else self.ranks, seed=0, **chunks))
        options = {"stages": 2, "ways": self.ranks // 2} if chunks else {}
        schedule = check(method.make(from_parts(parts), spec, method.options(**options), Numbers.FLOAT32))
        return Job(schedule=schedule, spec=spec, settings=Settings(epochs=10**6, errors=self.errors)), parts


def graph_of(name: str, data: Path) -> Graph:
    if name in GRAPHS:
        return load(data / f"{name}.npz")
    return synthetic(nodes=20_000, degree=12, skew=1.0, classes=8, features=256, mixing=0.2, seed=0)


def spec_of(graph: Graph) -> ModelSpec:
    sizes = {"num_features": graph.num_features, "num_classes": graph.num_classes}
    return ModelSpec(kind=ModelKind.SAGE, layers=LAYERS, hidden=HIDDEN, dropout=0.5, **sizes)


def plain_epochs(graph: Graph, spec: ModelSpec) -> Iterator[None]:
    given, model = whole_graph(graph, spec, torch.float32), build_model(spec, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train = torch.from_numpy(np.flatnonzero(graph.train_mask))
    labels = torch.from_numpy(graph.labels)[train]
    while True:
        optimizer.zero_grad()
        loss = summed_loss(given.logits(model)[train], labels) / len(train)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield


def ratio(runs: list[Run], num_epochs: int) -> list[float]:
    """CPU seconds per epoch of each of some runs, which take turns."""
    trainings = [run.epochs() for run in runs]
    seconds: list[list[float]] = [[] for _ in runs]
    for epoch in range(WARM + num_epochs):
        for training, spent in zip(trainings, seconds, strict=True):
            start = time.process_time()
            next(training)
            spent += [time.process_time() - start] if epoch >= WARM else []
    return [statistics.mean(spent) for spent in seconds]
