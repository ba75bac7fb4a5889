"""How much memory a rank's buffers take over time: what passes.memory finds the peak of, op by op and span by span."""

from collections.abc import Iterable

from halocast.schedule.ir import Lane, Schedule
from halocast.schedule.passes import live
from halocast.schedule.trace import Span


def live_bytes(schedule: Schedule, rank: int) -> dict[str, int]:
    """Bytes of the rank's buffers that are alive at each of its ops."""
    pairs = zip(schedule.by_rank[rank], live(schedule, rank), strict=True)
    return {op.name: sum(alive.values()) for op, alive in pairs}


def live_over_time(spans: Iterable[Span], alive: dict[str, int]) -> list[tuple[float, int]]:
    """(time, bytes alive from then on) for the spans of one rank: the most that any op under way needs."""
    points: list[tuple[float, int]] = []
    newest: dict[Lane, Span] = {}
    for span in sorted(spans, key=lambda span: span.start_s):
        newest[span.lane] = span
        running = [one for one in newest.values() if one is span or one.end_s > span.start_s]
        points.append((span.start_s, max(alive[one.op] for one in running)))
    return points
