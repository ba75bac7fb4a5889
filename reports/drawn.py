"""Sizes that are drawn anew every epoch: their spread from epoch to epoch, as a band around the mean."""

from typing import Any

import numpy as np

from halocast.schedule.ir import Exchange, Ints, Reals, Schedule

SIGMAS = 2.0  # half the width of a band: about 95 % of epochs are in it
MOST_PAIRS = 8


def drawn_summary(schedule: Schedule) -> dict[str, Any]:
    """The band of an epoch's bytes, and rows per pair for those with the most; nothing where all sizes are fixed.

    All exchanges of an epoch follow one draw, so the deviations of a pair's bytes add; rows of different pairs are
    drawn independently, so their variances do.
    """
    drawn = {matrix.name: (matrix.counts, matrix.spread) for matrix in schedule.matrices if matrix.spread is not None}
    if not drawn:
        return {}
    moved = {op.name: op.work for op in schedule.ops}
    row_bytes = {name: (w.matrix, w.row_bytes) for name, w in moved.items() if isinstance(w, Exchange)}
    sizes = [(num_bytes, *drawn[name]) for name, num_bytes in row_bytes.values() if name in drawn]
    total = float(sum(num_bytes * counts.sum() for num_bytes, counts, _ in sizes))
    deviation = sum(num_bytes * spread for num_bytes, _, spread in sizes)
    std = float(np.sqrt(np.square(deviation).sum()))
    return {
        "drawn_bytes": total,
        "drawn_bytes_std": std,
        "drawn_bytes_band": [max(0.0, total - SIGMAS * std), total + SIGMAS * std],
        "drawn_rows": [pair for name in sorted(drawn) for pair in _pairs(name, *drawn[name])],
    }


def _pairs(name: str, counts: Ints, spread: Reals) -> list[dict[str, Any]]:
    order = np.argsort(-counts, axis=None, kind="stable")[:MOST_PAIRS]
    places = [divmod(int(place), len(counts)) for place in order]
    return [
        {"matrix": name, "from": i, "to": j, "rows": int(counts[i, j]), "std": float(spread[i, j])}
        for i, j in places
        if counts[i, j]
    ]
