"""Prints the accuracy of a deep GCNII trained in chunks: exactly (one chunk), with all three tricks of GNNPipe, and
without each of them, on a synthetic graph or on a graph of a file; mean and standard deviation over seeds.

The score is the test accuracy, exact and without dropout, of the epoch with the best validation accuracy among those
evaluated; `last` is that of the last epoch. Results do not depend on the number of stages, so one process is enough.
"""

import argparse
from statistics import mean, stdev
from typing import Any

from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import execute
from halocast.graph import Graph, assign, build_parts, from_parts, synthetic
from halocast.graph.formats.loaders import load
from halocast.methods import gnnpipe
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.schedule.check import check

TRICKS: dict[str, dict[str, Any]] = {
    "exact (one chunk)": {"chunks": 1},
    "all tricks": {},
    "without shuffling": {"shuffle": False},
    "with late gradients": {"late_gradients": True},
    "without freezing": {"freeze": 1},
    "without any": {"shuffle": False, "late_gradients": True, "freeze": 1},
}
EVALUATIONS = 25
Scores = dict[int, dict[str, float]]  # by epoch and mask


def trained(
    graph: Graph, options: gnnpipe.Options, asked: argparse.Namespace, seed: int
) -> dict[int, dict[str, float]]:
    """The scores of the evaluated epochs."""
    spec = ModelSpec(
        kind=ModelKind.GCNII,
        layers=asked.convolutions + 1,
        hidden=32,
        norm=Norm.NONE,
        dropout=0.5,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
    )
    assert options.chunks is not None
    parts = build_parts(graph, assign(graph, options.chunks, balance="cost"))
    schedule = check(gnnpipe.gnnpipe(from_parts(parts), spec, options))
    every = max(1, asked.epochs // EVALUATIONS)
    settings = Settings(epochs=asked.epochs, seed=seed, lr=asked.lr, eval_every=every, threads=1)
    return execute(Job(schedule=schedule, spec=spec, settings=settings), parts).evaluated


def small_graph() -> Graph:
    return synthetic(nodes=1000, degree=8, skew=1.0, classes=8, features=24, mixing=0.45, seed=1)


def spread(values: list[float]) -> str:
    return f"{mean(values):9.1%} ±{stdev(values) if len(values) > 1 else 0.0:6.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", nargs="?", help="a graph's file [a synthetic one]")
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--convolutions", type=int, default=16)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="a word of the rows to print [all rows]")
    asked = parser.parse_args()
    graph = load(asked.graph) if asked.graph else small_graph()
    print(f"{asked.graph or 'synthetic'}, {asked.convolutions} convolutions, {asked.epochs} epochs, lr {asked.lr}")
    print(f"{'test accuracy':24}{'best':>17}{'last':>17}   over {asked.seeds} seeds")
    for name, changes in ((name, changes) for name, changes in TRICKS.items() if asked.only in name):
        options = gnnpipe.Options(**{"stages": 1, "chunks": asked.chunks, **changes})
        scores = [trained(graph, options, asked, seed) for seed in range(asked.seeds)]
        best = [max(found.values(), key=lambda score: score["val"])["test"] for found in scores]
        print(f"{name:24}{spread(best)}{spread([found[max(found)]['test'] for found in scores])}", flush=True)


if __name__ == "__main__":
    main()
