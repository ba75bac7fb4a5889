"""Prints what the executor costs: a 1-rank epoch against a hand-written dgl loop, and the speed-up of 2 ranks.

Every repetition runs the three one after the other, so that slow spells of a shared machine hit all of them; ratios are
of medians over all epochs. One thread per process. The hand-written loop is plain dgl and torch: it has neither the
executor's dropout nor its setting of malloc, so dropout 0 is the fairer comparison.
"""

import argparse
import statistics
import time
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import nn

from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import execute
from halocast.graph import Graph, assign, build_parts, from_parts, synthetic
from halocast.methods import METHODS
from halocast.models.spec import ModelKind, ModelSpec
from halocast.schedule.check import check
from halocast.schedule.ir import Lane, Numbers
from halocast.schedule.trace import Trace


class HandWritten(nn.Module):
    """GraphSAGE-mean as one writes it with dgl: no schedule, no ranks."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.neighbours = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(b) for _, b in pairs[:-1])

    def forward(self, graph: object, rows: torch.Tensor, degree: torch.Tensor, dropout: float) -> torch.Tensor:
        import dgl.ops

        for k, (own, neighbours) in enumerate(zip(self.own, self.neighbours, strict=True)):
            rows = F.dropout(rows, dropout, self.training)
            rows = own(rows) + neighbours(dgl.ops.copy_u_sum(graph, rows) / degree)
            if k < len(self.norms):
                rows = F.relu(self.norms[k](rows))
        return rows


def hand_written_seconds(graph: Graph, spec: ModelSpec, num_epochs: int) -> list[float]:
    import dgl

    torch.set_num_threads(1)
    ids = torch.arange(graph.num_edges, dtype=torch.int32)
    csc = (torch.from_numpy(graph.indptr).int(), torch.from_numpy(graph.indices), ids)
    block = dgl.graph(("csc", csc), num_nodes=graph.num_nodes)
    model = HandWritten(spec.widths)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows, labels = torch.from_numpy(graph.features), torch.from_numpy(graph.labels)
    degree = torch.from_numpy(graph.in_degree).float().reshape(-1, 1)
    train = torch.from_numpy(graph.train_mask).nonzero().squeeze(1)
    found = []
    for _ in range(num_epochs):
        start = time.perf_counter()
        loss = F.cross_entropy(model(block, rows, degree, spec.dropout)[train], labels[train])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(time.perf_counter() - start)
    return found[2:]


def epoch_seconds(trace: Trace) -> list[float]:
    """Seconds between the ends of consecutive epochs on rank 0, warm-up dropped."""
    ends: dict[int, float] = {}
    for span in trace.of_rank(0):
        if span.lane == Lane.COMPUTE:
            ends[span.epoch] = max(ends.get(span.epoch, 0.0), span.end_s)
    return [ends[epoch] - ends[epoch - 1] for epoch in range(2, len(ends))]


def executed_seconds(graph: Graph, spec: ModelSpec, ranks: int, num_epochs: int) -> list[float]:
    parts = build_parts(graph, assign(graph, ranks, seed=0))
    method = METHODS["vanilla"]
    schedule = check(method.make(from_parts(parts), spec, method.options(), Numbers.FLOAT32))
    settings = Settings(epochs=num_epochs, threads=1)
    return epoch_seconds(execute(Job(schedule=schedule, spec=spec, settings=settings), parts).trace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--degree", type=float, default=15)
    parser.add_argument("--mixing", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    graph = synthetic(
        nodes=args.nodes, degree=args.degree, skew=0.5, classes=16, features=64, mixing=args.mixing, seed=0
    )
    for dropout in (0.0, 0.5):
        compare(graph, dropout, args.epochs, args.repeat)


def compare(graph: Graph, dropout: float, num_epochs: int, repeat: int) -> None:
    spec = ModelSpec(
        kind=ModelKind.SAGE,
        layers=3,
        hidden=128,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        dropout=dropout,
    )
    found: dict[str, list[float]] = {"dgl by hand": [], "1 rank": [], "2 ranks": []}
    for _ in range(repeat):
        found["dgl by hand"] += hand_written_seconds(graph, spec, num_epochs)
        found["1 rank"] += executed_seconds(graph, spec, 1, num_epochs)
        found["2 ranks"] += executed_seconds(graph, spec, 2, num_epochs)
    medians = {name: statistics.median(values) for name, values in found.items()}
    print(f"dropout {dropout}")
    for name, value in medians.items():
        print(f"  {name:12} {value:8.3f} s per epoch (median of {len(found[name])})")
    print(f"  1 rank / dgl by hand: {medians['1 rank'] / medians['dgl by hand']:.3f} (aim: at most 1.05)")
    print(f"  speed-up of 2 ranks:  {medians['1 rank'] / medians['2 ranks']:.2f} (aim: at least 1.6)")


if __name__ == "__main__":
    main()
