"""How much memory a rank's buffers take over time: what passes.memory finds the peak of, op by op and span by span."""

from collections.abc import Iterable, Sequence

from halocast.schedule.ir import Lane, Op, Schedule
from halocast.schedule.passes import num_slots
from halocast.schedule.trace import Span


def live_bytes(schedule: Schedule, rank: int) -> dict[str, int]:
    """Bytes of the rank's buffers that are alive at each of its ops, in list order."""
    ops = schedule.by_rank[rank]
    live = [0] * len(ops)
    for buffer in schedule.buffers:
        if buffer.rank == rank:
            slots = 1 if buffer.persistent else num_slots(schedule, rank, buffer.name)
            for k in _lifetime(ops, buffer.name, buffer.persistent or slots > 1):
                live[k] += buffer.num_bytes * slots
    return {op.name: num_bytes for op, num_bytes in zip(ops, live, strict=True)}


def _lifetime(ops: Sequence[Op], buffer: str, always: bool) -> range:
    """The rule of passes.memory."""
    writes = [k for k, op in enumerate(ops) if buffer in op.writes]
    reads = [k for k, op in enumerate(ops) if buffer in op.reads]
    if always or not writes or (reads and min(reads) < writes[0]):
        return range(len(ops))
    return range(writes[0], max([*reads, *writes]) + 1)


def live_over_time(spans: Iterable[Span], live: dict[str, int]) -> list[tuple[float, int]]:
    """(time, bytes alive from then on) for the spans of one rank: the most that any op under way needs."""
    points: list[tuple[float, int]] = []
    newest: dict[Lane, Span] = {}
    for span in sorted(spans, key=lambda span: span.start_s):
        newest[span.lane] = span
        running = [one for one in newest.values() if one is span or one.end_s > span.start_s]
        points.append((span.start_s, max(live[one.op] for one in running)))
    return points
