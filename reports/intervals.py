"""Sets of time as sorted lists of disjoint (start, end)."""

from collections.abc import Iterable

Interval = tuple[float, float]
Intervals = list[Interval]


def merge(intervals: Iterable[Interval]) -> Intervals:
    """Make a set of any intervals: join those that overlap, drop empty ones."""
    merged: Intervals = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersect(a: Intervals, b: Intervals) -> Intervals:
    common: Intervals = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The time that is in set `a` and not in set `b`."""
    if not a:
        return []
    edges = [a[0][0], *(edge for interval in b for edge in interval), a[-1][1]]
    holes = [(edges[k], edges[k + 1]) for k in range(0, len(edges), 2) if edges[k] < edges[k + 1]]
    return intersect(a, holes)


def clip(a: Intervals, window: Interval) -> Intervals:
    return intersect(a, [window]) if window[0] < window[1] else []


def length(a: Intervals) -> float:
    return sum(end - start for start, end in a)
