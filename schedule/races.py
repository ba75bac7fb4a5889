"""Whether two legal orders can give different values: races in the store, found on the unrolled dependence graph.

Values of a rank's own buffers, and of messages, are told apart by their epoch, so that every reader means one of them.
In the store a reader finds what is there: the order of events settles it, unless every push that a pull means has ended
before it begins, and no push that takes the place of one ends before. Vectors, to which ranks add, depend on the order
of additions.
"""

from collections import defaultdict
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from halocast.schedule.ir import COLLECTIVE, MATCHED, SHARED, Kind, Op, Payload, Role, Schedule
from halocast.schedule.passes import hyperperiod, longest_lag, read_lag

Event = tuple[int, str, int, bool]  # rank, op, epoch, whether it begins


def order_matters(schedule: Schedule) -> bool:
    """Whether two legal orders of a schedule's events can give different values."""
    pulls = [op for op in schedule.ops if op.kind is Kind.PULL]
    if any(_is_vector(schedule, op.reads[0]) for op in pulls):
        return True
    return bool(pulls) and schedule.num_ranks > 1 and _has_race(schedule, pulls)


def _is_vector(schedule: Schedule, table: str) -> bool:
    """Whether several ranks add to what is in the store."""
    buffer = schedule.buffer(SHARED, table)
    pushes = {op.rank for op in schedule.writers(SHARED, table)}
    return buffer is not None and buffer.role is Role.WEIGHTS and len(pushes) > 1


def _has_race(schedule: Schedule, pulls: list[Op]) -> bool:
    period = hyperperiod(schedule)
    slots = max(num_store_slots(schedule, op.reads[0]) for op in pulls)
    num_epochs = (2 + slots) * period + longest_lag(schedule)
    events = _Events(schedule, num_epochs)
    # the first instances and those of a period in the steady state
    instances = [epoch for epoch in range(2 * period) if epoch < 2 or epoch >= period]
    return any(
        _races(schedule, events, pull, epoch, num_epochs) for pull in pulls for epoch in instances if pull.exists(epoch)
    )


def num_store_slots(schedule: Schedule, table: str) -> int:
    """How many instances of all ranks' pushes a shared buffer holds."""
    pushes, buffer = schedule.writers(SHARED, table), schedule.buffer(SHARED, table)
    assert buffer is not None, "the checker has seen it"
    all_bytes = sum(op.work.num_bytes for op in pushes if isinstance(op.work, Payload))
    return max(1, buffer.num_bytes // max(all_bytes, 1))


def _races(schedule: Schedule, events: "_Events", pull: Op, epoch: int, num_epochs: int) -> bool:
    """Whether what a pull finds depends on the order: a push that it means may be late, or a later one early."""
    table = pull.reads[0]
    means, slots = read_lag(schedule, pull, table), num_store_slots(schedule, table)
    if means is None:
        return True
    here = pull.rank, pull.name, epoch, True
    before, after = events.before(here), events.after(here)
    for push in schedule.writers(SHARED, table):
        instance = push.latest(epoch - means[1])
        late = instance >= 0 and events.number((push.rank, push.name, instance, False)) not in before
        number = -1 if instance < 0 else (instance - push.offset) // push.every
        next_in_place = push.offset + (number + slots) * push.every
        end = events.number((push.rank, push.name, next_in_place, False)) if next_in_place < num_epochs else None
        if late or (end is not None and end not in after):
            return True
    return False


class _Events:
    """The begins and ends of some epochs, and which of them come before which in every legal order."""

    def __init__(self, schedule: Schedule, num_epochs: int) -> None:
        self._numbers: dict[Event | tuple[str, int], int] = {}
        edges = [
            (self.number(source), self.number(target))
            for epoch in range(num_epochs)
            for source, target in _edges(schedule, epoch)
        ]
        edges += [(self.number(a), self.number(b)) for a, b in _lane_edges(schedule, num_epochs)]
        source, target = np.array(edges, dtype=np.int32).T
        size, ones = len(self._numbers), np.ones(len(edges), dtype=np.bool_)
        self._forward = csr_array((ones, (source, target)), shape=(size, size))
        self._backward = csr_array((ones, (target, source)), shape=(size, size))

    def number(self, event: Event | tuple[str, int]) -> int:
        return self._numbers.setdefault(event, len(self._numbers))

    def before(self, event: Event) -> set[int]:
        return self._reached(self._backward, event)

    def after(self, event: Event) -> set[int]:
        return self._reached(self._forward, event)

    def _reached(self, graph: csr_array, event: Event) -> set[int]:
        reached: NDArray[np.int32] = breadth_first_order(graph, self.number(event), return_predecessors=False)
        return set(reached.tolist())


def _edges(schedule: Schedule, epoch: int) -> list[tuple[Event | tuple[str, int], Event | tuple[str, int]]]:
    """The pairs (earlier, later) of one epoch: an op's own, what it awaits, whom it communicates with."""
    edges: list[tuple[Event | tuple[str, int], Event | tuple[str, int]]] = []
    for op in (op for op in schedule.ops if op.exists(epoch)):
        begin, end = (op.rank, op.name, epoch, True), (op.rank, op.name, epoch, False)
        edges.append((begin, end))
        edges += [((source.rank, source.name, at, False), begin) for source, at in schedule.awaits(op, epoch)]
        if op.kind in COLLECTIVE:  # an event of its own stands for all having come
            edges += [(begin, (op.name, epoch)), ((op.name, epoch), end)]
        elif op.kind in MATCHED:
            edges += [((rank, op.name, epoch, True), end) for rank in schedule.senders(op)]
    return edges


def _lane_edges(schedule: Schedule, num_epochs: int) -> list[tuple[Event, Event]]:
    lanes: dict[tuple[int, str], list[Op]] = defaultdict(list)
    for op in schedule.ops:
        lanes[op.rank, str(op.lane)].append(op)
    edges: list[tuple[Event, Event]] = []
    for ops in lanes.values():
        turns = [(op, epoch) for epoch in range(num_epochs) for op in ops if op.exists(epoch)]
        edges += [((a.rank, a.name, e, False), (b.rank, b.name, f, True)) for (a, e), (b, f) in pairwise(turns)]
    return edges
