"""Prints what training in virtual time costs: CPU time per epoch of all ranks in one process, against plain training.

Plain training is the same model on the whole graph, in a loop of torch, without parts, schedule or ranks. Everything
has one thread, and trainings take turns epoch by epoch in one process, so that slow spells of a shared machine hit all
of them; times are means, over as many epochs as DIGEST and PSC need for all they do. `layers` is what the model's
layers alone take on the parts: the same arithmetic on more and smaller tensors, halo rows included, and nobody who
moves them. Peak memory is that of a process each. Where the directory of graphs is missing, a drawn graph stands in.
"""

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halocast.exec.launch.job import Job, Settings
from halocast.exec.run.part_tensors import PartTensors
from halocast.exec.run.process import keep_freed_memory
from halocast.exec.run.reference import whole_graph
from halocast.exec.run.state import flatten
from halocast.exec.run.together import Together
from halocast.exec.transport.inside import Inside, Post
from halocast.graph import Graph, Part, assign, build_parts, from_parts, synthetic
from halocast.graph.formats.loaders import load
from halocast.methods import METHODS
from halocast.models.modules import build_model, summed_loss
from halocast.models.spec import ModelKind, ModelSpec
from halocast.schedule.check import check
from halocast.schedule.ir import Numbers
from halocast.schedule.order import list_order

GRAPHS = ("pubmed", "amazon-computers")
FEW, MANY = 8, 64  # ranks
AIMS = {(name, FEW): 1.5 if name == "psc" else 1.3 for name in METHODS} | {(name, MANY): 2.0 for name in METHODS}
AT_MANY = ("vanilla", "psc", "digest")
WITH_ERRORS = ("pipegcn", "digest", "psc")
WARM, AT_ONCE = 2, 5  # epochs that are not counted; trainings that take turns with plain training
PLAIN, LAYERS = "plain", "layers"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training on a graph: plain, of the layers alone, or of a method on all ranks together."""

    graph: str
    data: Path
    ranks: int = FEW
    what: str = PLAIN
    errors: bool = False  # of rows
    gradients: bool = False  # and, with them, of the weights' gradient

    def epochs(self) -> Iterator[None]:
        """Train an epoch after the other."""
        graph, spec = self._given()
        if self.what == PLAIN:
            return plain_epochs(graph, spec)
        parts = self._parts(graph)
        return layer_epochs(parts, spec) if self.what == LAYERS else self._together(parts, spec)

    def _given(self) -> tuple[Graph, ModelSpec]:
        path = self.data / f"{self.graph}.npz"
        drawn: dict[str, Any] = {"nodes": 20_000, "degree": 12, "skew": 1.0, "classes": 8, "features": 256}
        graph = load(path) if self.graph in GRAPHS else synthetic(**drawn, mixing=0.2, seed=0)
        fields: dict[str, Any] = {"num_features": graph.num_features, "num_classes": graph.num_classes}
        return graph, ModelSpec(kind=ModelKind.SAGE, layers=3, hidden=64, dropout=0.5, **fields)

    def _parts(self, graph: Graph) -> tuple[Part, ...]:
        return build_parts(graph, assign(graph, self.ranks, seed=0))

    def _together(self, parts: tuple[Part, ...], spec: ModelSpec) -> Iterator[None]:
        method = METHODS[self.what]
        options = {"stages": 2, "ways": self.ranks // 2} if method.chunks else {}
        schedule = check(method.make(from_parts(parts), spec, method.options(**options), Numbers.FLOAT32))
        settings = Settings(errors=self.errors, fresh_gradients=self.gradients)
        ranks = Together(Job(schedule=schedule, spec=spec, settings=settings), parts)
        for moment in list_order(schedule):
            if ranks.do(moment) is not None:
                yield


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


def layer_epochs(parts: Sequence[Part], spec: ModelSpec) -> Iterator[None]:
    ranks = [LayersOf(part, spec) for part in parts]
    while True:
        for rank in ranks:
            rank.epoch()
        yield


class LayersOf:
    """One part's layers forward and backward, and its step; halo rows hold anything."""

    def __init__(self, part: Part, spec: ModelSpec) -> None:
        self.own = PartTensors(part, spec, torch.float32, Inside(rank=part.rank, post=Post(part.num_parts)))
        self.model = build_model(spec, 0)
        self.weights, self.grads = flatten(self.model)
        self.optimizer = torch.optim.Adam([self.weights], lr=0.01)

    def epoch(self) -> None:
        own, rows, passes = self.own, self.own.features, list[tuple[torch.Tensor, torch.Tensor]]()
        for layer in range(own.spec.layers):
            halo = rows.new_zeros((own.part.num_halo, rows.shape[1]))
            joined = torch.cat([rows.detach(), halo]).requires_grad_(layer > 0)
            rows = self.model.layer(layer, joined, own.block)
            passes.append((joined, rows))
        logits = rows.detach().requires_grad_()
        share = summed_loss(logits[own.mask_rows[0]], own.mask_labels[0]) / own.part.num_train_total
        (grad,) = torch.autograd.grad(share, logits)
        own.hits(logits.detach())
        for joined, out in reversed(passes):
            torch.autograd.backward(out, grad)
            grad = grad if joined.grad is None else joined.grad[: own.part.num_inner]
        self.optimizer.step()
        self.grads.zero_()


def seconds(runs: Sequence[Run], num_epochs: int) -> list[float]:
    """CPU seconds per epoch of each of some trainings, which take turns."""
    trainings = [run.epochs() for run in runs]
    spent: list[list[float]] = [[] for _ in runs]
    for epoch in range(WARM + num_epochs):
        for training, times in zip(trainings, spent, strict=True):
            start = time.process_time()
            next(training)
            times += [time.process_time() - start] if epoch >= WARM else []
    return [statistics.mean(times) for times in spent]


def show_ratios(base: Run, methods: Sequence[str], num_epochs: int) -> None:
    print(f"{base.graph}, {base.ranks} METIS parts: CPU time per epoch of plain training, and how many times that")
    for first in range(0, len(methods), AT_ONCE):
        names = methods[first : first + AT_ONCE]
        plain, layers, *found = seconds([replace(base, what=what) for what in (PLAIN, LAYERS, *names)], num_epochs)
        for name, value in zip(names, found, strict=True):
            aim = f"aim: at most {AIMS[name, base.ranks]}"
            print(f"  {name:10} {plain:6.3f} s  {value / plain:5.2f}  ({aim}; layers {layers / plain:.2f})", flush=True)


def show_errors(base: Run, num_epochs: int) -> None:
    print(f"{base.graph}, {base.ranks} METIS parts: an epoch that measures errors of rows, against one that does not")
    for name in WITH_ERRORS:
        plain = replace(base, what=name)
        rows = replace(plain, errors=True)
        without, measured, gradients = seconds([plain, rows, replace(rows, gradients=True)], num_epochs)
        both = f"{gradients / without:.2f} with those of the weights' gradient"
        print(f"  {name:10} {measured / without:5.2f}  ({both})", flush=True)


def show_memory(base: Run) -> None:
    print(f"{base.graph}, {base.ranks} METIS parts: peak memory of a process (aim: at most 1.5 times the plain one's)")
    plain = peak_bytes(base)
    print(f"  {PLAIN:10} {plain / 1e6:6.0f} MB")
    for name in ("vanilla", "pipegcn", "psc"):
        print(
            f"  {name:10} {(peak := peak_bytes(replace(base, what=name))) / 1e6:6.0f} MB  {peak / plain:5.2f}",
            flush=True,
        )


def peak_bytes(run: Run) -> int:
    """Peak memory of a process that trains three epochs."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_tell_peak, args=(run, there))
    process.start()
    peak: int = here.recv()
    process.join()
    return peak


def _tell_peak(run: Run, to: Connection) -> None:
    settle()
    training = run.epochs()
    for _ in range(3):
        next(training)
    to.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def settle() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="directory of the graphs (.npz)")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    settle()
    graphs = [name for name in GRAPHS if (args.data / f"{name}.npz").exists()]
    if not graphs:
        print(f"{args.data} has none of {', '.join(GRAPHS)}: a drawn graph of 20,000 nodes instead")
    runs = [Run(graph=name, data=args.data) for name in graphs or ["drawn"]]
    for few in runs:  # first: a process begins with the peak of the one that starts it
        show_memory(few)
    for few in runs:
        show_ratios(few, list(METHODS), args.epochs)
        show_ratios(replace(few, ranks=MANY), AT_MANY, args.epochs)
    show_errors(runs[0], args.epochs)


if __name__ == "__main__":
    main()
