"""Tables of row counts per pair of ranks."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]


class Matrix:
    """A named, read-only table of row counts that compares by value.

    With a spread the counts are drawn: they are what is expected, the spread is their standard deviation from epoch to
    epoch (kept to the third decimal), and those of an instance follow from the ids drawn for it.
    """

    __slots__ = ("counts", "name", "spread")

    def __init__(self, name: str, counts: Ints, spread: Reals | None = None) -> None:
        self.name = name
        self.counts = np.array(counts, dtype=np.int64)
        self.counts.setflags(write=False)
        self.spread: Reals | None = None if spread is None else np.asarray(np.round(spread, 3), np.float64)

    @property
    def drawn(self) -> bool:
        return self.spread is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matrix):
            return NotImplemented
        same = (self.name, self.drawn) == (other.name, other.drawn) and np.array_equal(self.counts, other.counts)
        return same and (self.spread is None or np.array_equal(self.spread, other.spread))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash((self.name, self.counts.tobytes()))

    def __repr__(self) -> str:
        return f"Matrix({self.name!r}, {self.counts.shape[0]} ranks, {int(self.counts.sum())} rows)"
