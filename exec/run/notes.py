"""What ranks note about the rows they read, joined after the run: how old they were, how far from fresh ones, and
shares that handlers count.

A message's tag names op and epoch, so a receiver knows which instance it got; which epoch made the rows in it only the
sender knows. Both are noted, and put together when the ranks' notes meet. Rows from the store carry their epoch
themselves. Initial values, which no epoch made, have no age.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Key = tuple[str, str]  # reader, buffer
ALL_LAYERS = -1  # in the place of a layer's number


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """Squares of Frobenius norms, which add up over ranks.

    `what` is features or gradients of a layer's halo rows, or the gradient of the weights of all layers.
    """

    epoch: int
    layer: int
    what: str
    squared_error: float
    squared_norm: float  # of the fresh values


@dataclass(slots=True, kw_only=True)
class Tally:
    """A share counted in a run: of `total` things `count` were so, where `expected` would have been on average."""

    count: int = 0
    total: int = 0
    expected: float = 0.0

    def add(self, count: int, total: int, expected: float) -> None:
        self.count, self.total, self.expected = self.count + count, self.total + total, self.expected + expected


@dataclass(slots=True)
class AgeNotes:
    """Notes of one rank on ages of rows while it runs; lanes write to different keys."""

    made: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))  # exchange, instance -> epoch
    # (epoch, exchange, instance, rows from each peer if they are drawn)
    reads: dict[Key, list[tuple[int, str, int, list[int]]]] = field(default_factory=lambda: defaultdict(list))
    stored: dict[Key, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))  # ages of rows, as counted

    def note_stored(self, reader: str, buffer: str, ages: NDArray[np.int64]) -> None:
        values, counts = np.unique(ages, return_counts=True)
        self.stored[reader, buffer].update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def as_json(self) -> dict[str, Any]:
        return {
            "made": {op: sorted(instances.items()) for op, instances in self.made.items()},
            "reads": [[*key, times] for key, times in self.reads.items()],
            "stored": [[*key, sorted(ages.items())] for key, ages in self.stored.items()],
        }


def join_ages(
    notes: Sequence[dict[str, Any]], received_rows: Sequence[dict[str, list[int]]]
) -> dict[Key, dict[int, int]]:
    """Rows read at each age, by reader and buffer, over all ranks and epochs.

    `notes` as written by each rank; `received_rows[rank][exchange]` says how many rows come from each peer.
    """
    epochs_made = [{op: dict(map(tuple, pairs)) for op, pairs in note["made"].items()} for note in notes]
    rows_by_age: dict[Key, Counter[int]] = defaultdict(Counter)
    for rank, note in enumerate(notes):
        for reader, buffer, times in note["reads"]:
            for epoch, exchange, instance, drawn_rows in times:
                for peer, num_rows in enumerate(drawn_rows or received_rows[rank][exchange]):
                    if num_rows:
                        rows_by_age[reader, buffer][epoch - epochs_made[peer][exchange][instance]] += num_rows
        for reader, buffer, ages in note["stored"]:
            rows_by_age[reader, buffer].update(dict(ages))
    return {key: dict(sorted(ages.items())) for key, ages in sorted(rows_by_age.items())}


def join_tallies(notes: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Tally]:
    """Shares of all ranks together, by name."""
    sums: dict[str, Tally] = defaultdict(Tally)
    for name, tally in (named for rank in notes for named in rank.items()):
        sums[name].add(**tally)
    return dict(sums)


def join_errors(notes: Sequence[list[dict[str, Any]]]) -> tuple[RowError, ...]:
    """Errors of all ranks together, by epoch, layer and what."""
    sums: dict[tuple[int, int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for note in (note for rank in notes for note in rank):
        total = sums[note["epoch"], note["layer"], note["what"]]
        total[0] += note["squared_error"]
        total[1] += note["squared_norm"]
    return tuple(
        RowError(epoch=epoch, layer=layer, what=what, squared_error=error, squared_norm=norm)
        for (epoch, layer, what), (error, norm) in sorted(sums.items())
    )
