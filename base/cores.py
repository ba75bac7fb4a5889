"""Which cores of a machine each of its ranks keeps to: the executor sees to it, and the simulator counts on it."""

from collections.abc import Sequence


def part_of(cores: Sequence[int], rank: int, num_ranks: int) -> list[int]:
    """The cores of a rank: equal parts, in order; with a multiple of ranks, one shared with others; else all."""
    if num_ranks > len(cores):
        return list(cores) if num_ranks % len(cores) else [cores[rank % len(cores)]]
    first, end = (k * len(cores) // num_ranks for k in (rank, rank + 1))
    return list(cores[first:end])
