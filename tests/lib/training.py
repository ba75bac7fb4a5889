"""Training for tests: a small workload, run on real processes and by the reference, and how far they differ."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import Run, execute
from halocast.exec.run.reference import Reference, train_reference
from halocast.exec.run.state import RankState
from halocast.exec.transport.channels import make_channels
from halocast.exec.transport.dist_channel import DistChannel
from halocast.graph import Graph, Part, assign, build_parts, from_edges, from_parts, synthetic
from halocast.graph.parts import Assignment
from halocast.methods import METHODS
from halocast.models.spec import ModelKind, ModelSpec
from halocast.schedule.check import check
from halocast.schedule.ir import Numbers, Schedule

EPOCHS = 4


def with_channels(state: RankState) -> dict[str, DistChannel]:
    """Give a rank the channels that a process of its own has; nobody needs to be at their other ends."""
    channels = make_channels(state)
    state.channels = channels
    return channels


def small_graph(**changes: Any) -> Graph:
    settings = {"nodes": 300, "degree": 8, "skew": 1.0, "classes": 4, "features": 12, "mixing": 0.3, "seed": 3}
    return synthetic(**{**settings, **changes})


def spec_for(graph: Graph, **changes: Any) -> ModelSpec:
    fields: dict[str, Any] = {"kind": ModelKind.SAGE, "layers": 3, "hidden": 16, "dropout": 0.0} | changes
    return ModelSpec(num_features=graph.num_features, num_classes=graph.num_classes, **fields)


def schedule_for(
    parts: tuple[Part, ...], spec: ModelSpec, dtype: str, method: str = "vanilla", **options: Any
) -> Schedule:
    chosen = METHODS[method]
    return check(chosen.make(from_parts(parts), spec, chosen.options(**options), Numbers(dtype)))


@dataclass(frozen=True, eq=False)
class Trained:
    run: Run
    schedule: Schedule
    parts: tuple[Part, ...]
    logits: Tensor  # in global order
    weights: list[Tensor]  # per rank
    grads: list[Tensor]


def train(
    graph: Graph,
    assignment: Assignment,
    spec: ModelSpec,
    directory: Path,
    *,
    dtype: str = "float64",
    change: Callable[[Schedule], Schedule] = lambda schedule: schedule,
    method: str = "vanilla",
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> Trained:
    """Run a method, or what `change` makes of its schedule, on real processes."""
    parts = build_parts(graph, assignment)
    schedule = check(change(schedule_for(parts, spec, dtype, method, **(options or {}))))
    chosen = Settings(**{"epochs": EPOCHS, "dtype": dtype, "audit": True, "seed": 5, **settings})
    job = Job(schedule=schedule, spec=spec, settings=chosen)
    run = execute(job, parts, keep=directory)
    audits = [torch.load(directory / f"audit-{part.rank}.pt") for part in parts]
    logits = torch.zeros(graph.num_nodes, graph.num_classes, dtype=getattr(torch, dtype))
    for part, audit in zip(parts, audits, strict=True):
        logits[torch.from_numpy(part.inner)] = audit["logits"]
    return Trained(run, schedule, parts, logits, [a["weights"] for a in audits], [a["grads"] for a in audits])


def reference_for(graph: Graph, spec: ModelSpec, dtype: str = "float64", lr: float = 0.01) -> Reference:
    return train_reference(graph, spec, num_epochs=EPOCHS, lr=lr, seed=5, dtype=getattr(torch, dtype))


def assert_equal_training(trained: Trained, expected: Reference, *, logits: float, grads: float) -> None:
    """Losses and logits to one tolerance, gradients to another; weights identical on all ranks after every step."""
    assert np.allclose(trained.run.losses, expected.losses, rtol=logits, atol=logits)
    assert (trained.logits - expected.logits).abs().max() <= logits
    for found in trained.grads:
        assert (found - expected.grads).abs().max() <= grads
    for step in zip(*trained.run.weight_hashes, strict=True):
        assert len(set(step)) == 1
    assert all(len(hashes) == EPOCHS for hashes in trained.run.weight_hashes)


def random_parts(graph: Graph, num_parts: int) -> Assignment:
    return assign(graph, num_parts, partitioner="random", seed=1)


def metis_parts(graph: Graph, num_parts: int) -> Assignment:
    return assign(graph, num_parts, partitioner="metis", seed=1)


def hub_graph() -> Graph:
    """Node 0 is joined to everybody, in both directions; the rest is a ring."""
    n = 200
    ring = np.arange(n)
    src = np.concatenate([ring, np.zeros(n - 1, dtype=np.int64), ring[1:]])
    dst = np.concatenate([(ring + 1) % n, ring[1:], np.zeros(n - 1, dtype=np.int64)])
    return graph_of(src, dst, n)


def graph_of(src: NDArray[np.int64], dst: NDArray[np.int64], num_nodes: int) -> Graph:
    """A graph of these edges, with the features, labels and masks of a small synthetic one."""
    base = small_graph(nodes=num_nodes)
    return from_edges(
        src,
        dst,
        num_nodes,
        features=base.features,
        labels=base.labels,
        train_mask=base.train_mask,
        val_mask=base.val_mask,
        test_mask=base.test_mask,
        num_classes=base.num_classes,
    )
