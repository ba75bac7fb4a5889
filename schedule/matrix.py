"""Tables of row counts per pair of ranks."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Matrix:
    """A named, read-only table of row counts that compares by value.

    Drawn: the counts are what is expected; those of an instance follow from the ids drawn for it.
    """

    __slots__ = ("counts", "drawn", "name")

    def __init__(self, name: str, counts: Ints, drawn: bool = False) -> None:
        self.name, self.drawn = name, drawn
        self.counts = np.array(counts, dtype=np.int64)
        self.counts.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matrix):
            return NotImplemented
        same = (self.name, self.drawn) == (other.name, other.drawn)
        return same and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash((self.name, self.counts.tobytes()))

    def __repr__(self) -> str:
        return f"Matrix({self.name!r}, {self.counts.shape[0]} ranks, {int(self.counts.sum())} rows)"
