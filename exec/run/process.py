"""Settings of a process that trains on CPUs: what it does with freed memory, and how many threads compute."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks. By default it returns each to the system, and every epoch's tensors are
    paged in again: on the CPU that more than doubles the time of elementwise kernels."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Compute with one thread; afterwards threads and random numbers are as they were.

    Trainings side by side gain more than threads within one: two OpenMP threads were slower than one.
    """
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    keep_freed_memory()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(random)
