"""The cores that a rank's threads run on, and who of them goes first. Only where ranks compute on CPUs.

Each rank of a machine stays on its part of the cores, as under an MPI launcher: a kernel that is moved to another core
finds its caches cold, and a rank that is moved to a core in use waits there.

The thread that computes and those of the transport are *batch* threads: one that wakes up does not take the core from
one that runs. gloo's thread for sockets tries a lock and, while another thread holds it, polls again at once; where it
had taken the core from that very thread, it polled until the scheduler's next tick, milliseconds later, for about
every tenth message. Threads of lanes, which send, may take the core from the one that computes: they need little of it,
and others wait for what they send. The transport's threads wait for the end of an op, when the thread that computes
gives them a turn; else they would wait for the tick, and a pipeline with them. A GPU's copy engines and network cards
do not wait for its kernels either. No thread gets more of a core than before, and neither do other processes.
(`benchmarks/turns.py` prints what this is worth.)
"""

import os
from contextlib import suppress

from halocast.base.cores import part_of

HAS_CALLS = hasattr(os, "sched_setaffinity")  # on Linux


def share_of_cores(num_ranks: int) -> int:
    """The number of threads that each of a machine's ranks may use."""
    num = len(os.sched_getaffinity(0)) if HAS_CALLS else os.cpu_count() or 1
    return max(1, num // num_ranks)


def keep_to_cores(rank: int, num_ranks: int) -> int:
    """Bind the calling thread, and all it starts, to the cores of a rank here; returns how many may compute."""
    num = share_of_cores(num_ranks)
    if HAS_CALLS:
        with suppress(OSError):  # a sandbox may not allow it; then ranks are where the system puts them
            os.sched_setaffinity(0, part_of(sorted(os.sched_getaffinity(0)), rank, num_ranks))
        _be(os.SCHED_BATCH)
    return num


def placement() -> tuple[set[int], int]:
    """The calling thread's cores and policy, to go back to."""
    return (os.sched_getaffinity(0), os.sched_getscheduler(0)) if HAS_CALLS else (set(), 0)


def go_back(before: tuple[set[int], int]) -> None:
    cores, policy = before
    if HAS_CALLS:
        with suppress(OSError):
            os.sched_setaffinity(0, cores)
        _be(policy)


def go_first() -> None:
    """Let the calling thread take the core from batch threads."""
    if HAS_CALLS:
        _be(os.SCHED_OTHER)


def _be(policy: int) -> None:
    with suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(0))


def give_turn() -> None:
    """Let whoever waits for the core of the calling thread go first."""
    if HAS_CALLS:
        os.sched_yield()
