"""Seconds and peak memory of building 8 parts of a graph with 1 M nodes and 20 M edges; prints one line per step."""

import contextlib
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from halocast.graph import assign, build_parts, check_parts, from_parts, synthetic

T = TypeVar("T")
NUM_PARTS = 8


def reset_peak() -> None:
    """Forget the peak so far, where the kernel offers it (Linux); elsewhere the peak is that of all steps."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_gb() -> float:
    """Peak resident memory since the last reset."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024 / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def timed(step: str, work: Callable[[], T]) -> T:
    """Run one step and print what it took; its peak includes what earlier steps left behind."""
    reset_peak()
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    print(f"{step:<42} {seconds:7.2f} s   peak {peak_gb():5.2f} GB", flush=True)
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
