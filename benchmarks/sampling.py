"""Prints the CPU seconds of sampling: boundary draws of 1 M rows; probabilities and draws of 10 M edges."""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from halocast.graph import Part, assign, build_part, synthetic
from halocast.graph.inclusion import Important, edge_probabilities, halo_inclusion
from halocast.graph.sampling import draw_boundary, draw_edges, edges_of_rows, keep_edges


def timed(step: str, repeat: int, work: Callable[[], object]) -> None:
    """Run a step some times and print the median and the most of its CPU seconds: one core does all of it."""
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    print(f"{step:<56} {statistics.median(seconds):7.3f} s   most {max(seconds):7.3f} s", flush=True)


def boundary(num_rows: int, repeat: int) -> None:
    for peers in (8, 192):
        lists = np.linspace(0, num_rows, peers + 1).astype(np.int64)
        for rate in (0.1, 0.5):
            draw = partial(draw_boundary, lists, rate, seed=0, rank=0, epoch=0)
            timed(f"boundary draw, {num_rows:,} rows, {peers} peers, rate {rate}", repeat, draw)


def edges(part: Part, repeat: int) -> None:
    size = f"{part.num_edges:,} edges"
    norms = np.random.default_rng(0).lognormal(0, 1, part.num_edges)
    for eps in (0.1, 0.5, 0.9):
        odds = Important(eps=eps)
        timed(f"optimal probabilities, {size}, eps {eps}", repeat, partial(edge_probabilities, part, norms, odds))
    p = edge_probabilities(part, norms, Important(eps=0.1))
    kept = draw_edges(p, seed=0, rank=0, epoch=0)
    rows = np.arange(0, part.num_halo, 10)
    timed(f"inclusion of {part.num_halo:,} halo rows, {size}", repeat, lambda: halo_inclusion(part, p))
    timed(f"edge draw, {size}", repeat, lambda: draw_edges(p, seed=0, rank=0, epoch=0))
    timed(f"local graph of the draw, {size}", repeat, lambda: keep_edges(part, kept))
    timed(f"local graph of every tenth halo row, {size}", repeat, lambda: keep_edges(part, edges_of_rows(part, rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    boundary(args.rows, args.repeat)
    graph = synthetic(nodes=args.edges // 10, degree=19, skew=1, classes=8, features=1, mixing=0.2, seed=0)
    edges(build_part(graph, assign(graph, 2, partitioner="random"), 0), args.repeat)


if __name__ == "__main__":
    main()
