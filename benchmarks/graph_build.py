"""Seconds and peak memory of building 8 parts of a graph with 1 M nodes and 20 M edges; prints one line per step."""

import resource
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from halocast.graph import assign, build_parts, check_parts, from_parts, synthetic

T = TypeVar("T")
NUM_PARTS = 8


def timed(step: str, work: Callable[[], T]) -> T:
    """Run one step and print what it took; the peak is that of the whole process so far."""
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"{step:<42} {seconds:7.2f} s   peak {peak_gb:5.2f} GB", flush=True)
    return result


def main(nodes: int = 1_000_000) -> None:
    """Generate, partition, build; the target is the last two steps within 15 s and 4 GB."""
    graph = timed(
        f"generate {nodes:,} nodes of degree 20",
        lambda: synthetic(nodes=nodes, degree=20, skew=0.5, classes=32, features=32, mixing=0.2, seed=0),
    )
    parts_of = timed(f"METIS, {NUM_PARTS} parts, volume", lambda: assign(graph, NUM_PARTS, cache=False))
    parts = timed("parts: halo, send lists, local CSR", lambda: build_parts(graph, parts_of))
    halo = timed("halo matrix and sizes", lambda: from_parts(parts))
    timed("check that sends meet halo rows", lambda: check_parts(parts))
    print(f"edges {graph.num_edges:,} with self-loops, Vol {halo.volume:,}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
