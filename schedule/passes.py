"""Passes over a schedule: who waits for whom, the oracle of steady-state time, how long buffers live."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from halocast.schedule.ir import (
    MATCHED,
    Broadcast,
    Exchange,
    Ints,
    Kind,
    Message,
    Op,
    Payload,
    Schedule,
    Work,
)

Floats = NDArray[np.float64]
Column = NDArray[np.int32]  # half the memory of int64, and there are fewer than 2^31 events
PAIRED = frozenset({Kind.SEND, Kind.RECV})
FEW_EPOCHS = 4  # cadences up to this are simulated as they are
Rare = dict[tuple[int, str], int]  # (rank, name) -> cadence


class Dependence(NamedTuple):
    """An edge: `target` happens no sooner than `source` of `lag` epochs before, plus the duration of op `carries`.

    Events are numbered 2i (op i starts) and 2i + 1 (op i ends).
    """

    source: int
    target: int
    lag: int
    carries: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dependences:
    """Dependence edges in columns, since a communication of many ranks has many."""

    source: Column
    target: Column
    lag: Column
    carries: Column

    @classmethod
    def of(cls, edges: Iterable[Dependence]) -> "Dependences":
        table = np.array(list(edges), dtype=np.int32).reshape(-1, len(Dependence._fields))
        return cls(**dict(zip(Dependence._fields, table.T, strict=True)))

    @classmethod
    def joined(cls, pieces: Sequence["Dependences"]) -> "Dependences":
        return cls(**{f.name: np.concatenate([getattr(piece, f.name) for piece in pieces]) for f in fields(cls)})

    def __iter__(self) -> Iterator[Dependence]:
        columns = (self.source, self.target, self.lag, self.carries)
        return map(Dependence._make, zip(*(column.tolist() for column in columns), strict=True))


def dependence_edges(schedule: Schedule, *, rendezvous: bool = False) -> Dependences:
    """Every reason to wait: an op's own duration, `after`, lane order, and the ranks it communicates with.

    With `rendezvous` a send also waits for its receiver to be there, as it does where receives are not posted early;
    without, only receivers wait for senders.
    """
    place = {(op.rank, op.name): k for k, op in enumerate(schedule.ops)}
    edges = [Dependence(2 * k, 2 * k + 1, 0, k) for k in range(len(schedule.ops))]
    for k, op in enumerate(schedule.ops):
        edges += [
            Dependence(2 * place[other.rank, other.name] + 1, 2 * k, lag) for other, lag in schedule.distances(op)
        ]
        if isinstance(op.work, Message) and (op.kind is Kind.RECV or rendezvous):
            peer = place[op.work.peer, op.name]
            edges.append(Dependence(2 * peer, 2 * k + 1, 0, peer))
    for rank in range(schedule.num_ranks):
        for ops in schedule.lanes(rank).values():
            ids = [place[rank, op.name] for op in ops]
            edges += [Dependence(2 * a + 1, 2 * b, 0) for a, b in pairwise(ids)]
            edges.append(Dependence(2 * ids[-1] + 1, 2 * ids[0], 1))
    met = (_meeting(schedule, members, rendezvous) for members in communications(schedule))
    return Dependences.joined([Dependences.of(edges), *met])


def communications(schedule: Schedule) -> list[list[int]]:
    """The exchanges and collectives: numbers of ops that share a name and all that their ranks must agree on."""
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for k, op in enumerate(schedule.ops):
        if op.kind in MATCHED and op.kind not in PAIRED:
            together[op.name, op.kind, agreed_size(op.work), op.every, op.offset].append(k)
    return list(together.values())


def agreed_size(work: Work) -> tuple[object, ...]:
    """The sizes that all ranks of a communication have to say alike."""
    if isinstance(work, Exchange):
        return work.matrix, work.transposed, work.row_bytes, work.bits
    root = (work.root,) if isinstance(work, Broadcast) else ()
    return (work.num_bytes, *root) if isinstance(work, Message | Payload) else ()


def _meeting(schedule: Schedule, members: list[int], rendezvous: bool) -> Dependences:
    """The waits among the ops of one exchange or collective.

    Where all wait for all, all end at one time. Then one end waits for every start and the other ends for that one,
    which says with 2k edges the same as k(k - 1).
    """
    at, ranks = np.array(members, dtype=np.int32), [schedule.ops[k].rank for k in members]
    waits = schedule.gives(schedule.ops[members[0]])[np.ix_(ranks, ranks)]
    if rendezvous:
        waits = waits | waits.T
    if waits.sum() == len(at) * (len(at) - 1):
        first, others = at[0], at[1:]
        here, none = np.full_like(others, 2 * first + 1), np.full_like(others, -1)
        source, target, carries = np.r_[2 * others, here], np.r_[here, 2 * others + 1], np.r_[others, none]
    else:
        carries, receiver = (at[side] for side in np.nonzero(waits))
        source, target = 2 * carries, 2 * receiver + 1
    return Dependences(source=source, target=target, lag=np.zeros_like(source), carries=carries)


def find_cycle(edges: Dependences, num_events: int) -> list[int]:
    """The events of a cycle of lag-0 edges (a deadlock), each followed by one that waits for it, or an empty list."""
    now = edges.lag == 0
    source, target = edges.source[now], edges.target[now]
    graph = csr_array((np.ones(len(source), dtype=np.bool_), (source, target)), shape=(num_events, num_events))
    _, part = connected_components(graph, connection="strong")
    inside = part[source] == part[target]  # then target leads back to source
    return _walk_back(source[inside], target[inside], num_events)


def _walk_back(source: Column, target: Column, num_events: int) -> list[int]:
    """Follow edges, each of which lies on a cycle, backwards until an event repeats."""
    if not len(target):
        return []
    before = np.empty(num_events, dtype=np.int32)
    before[target] = source
    event, seen = int(target.min()), dict[int, int]()
    while event not in seen:
        seen[event] = len(seen)
        event = int(before[event])
    return list(seen)[seen[event] :][::-1]


def hyperperiod(schedule: Schedule) -> int:
    """The number of epochs after which the pattern of cadences repeats."""
    return lcm(1, *(op.every for op in schedule.ops))


def steady_epochs(schedule: Schedule) -> tuple[int, int]:
    """The epochs (of warm-up, in all) that a simulation needs for whole periods of steady state."""
    longest, period = longest_lag(schedule), hyperperiod(schedule)
    warmup = period * -(-(1 + 2 * longest) // period)
    return warmup, warmup + period * -(-(1 + 3 * longest) // period)


def longest_lag(schedule: Schedule) -> int:
    """How many epochs back an op looks at most."""
    return max((lag for op in schedule.ops for _, lag in op.after), default=0)


def unroll(schedule: Schedule, factor: int) -> Schedule:
    """Unroll `factor` epochs into one loop body without cadences, as seen in steady state; op names gain `.epoch`."""
    assert factor % hyperperiod(schedule) == 0
    far = factor * (2 + longest_lag(schedule))
    ops = []
    for epoch in range(factor):
        for op in schedule.ops:
            if op.exists(epoch + far):
                after = tuple(_unrolled_edge(schedule, op, edge, epoch, factor, far) for edge in op.after)
                ops.append(replace(op, name=f"{op.name}.{epoch}", after=after, every=1, offset=0))
    return replace(schedule, ops=tuple(ops))


def _unrolled_edge(
    schedule: Schedule, op: Op, edge: tuple[str, int], epoch: int, factor: int, far: int
) -> tuple[str, int]:
    name, lag = edge
    source = schedule.find(op.rank, name)
    assert source is not None
    instance = source.latest(epoch - lag + far) - far
    return f"{name}.{instance % factor}", -(instance // factor)


def max_cycle_ratio(schedule: Schedule, durations: dict[tuple[int, str], float]) -> float:
    """Seconds per epoch in steady state with unlimited links: the largest duration / lag over all cycles.

    `durations` are the seconds of every op's kernels, by (rank, name). Raises no bound by search: a cycle better
    than the current ratio is found (longest paths, Bellman-Ford), its ratio becomes the current one, until none is.
    """
    factor = hyperperiod(schedule)
    body = schedule if factor == 1 else unroll(schedule, factor)
    edges = dependence_edges(body)
    seconds = [durations[op.rank, _original(op.name, factor)] for op in body.ops]
    weight = np.array([*seconds, 0.0])[edges.carries]  # an edge that carries no op has -1, the last
    ratio = 0.0
    while True:
        cycle = _positive_cycle(edges, weight - ratio * edges.lag, 2 * len(body.ops))
        better = weight[cycle].sum() / edges.lag[cycle].sum() if cycle else ratio
        if better <= ratio * (1 + 1e-12):
            return ratio / factor
        ratio = float(better)


def _original(name: str, factor: int) -> str:
    return name if factor == 1 else name.rpartition(".")[0]


def _positive_cycle(edges: Dependences, weight: Floats, num_events: int) -> list[int]:
    """The edges of a cycle of positive total weight, or an empty list."""
    order = np.argsort(edges.target, kind="stable")
    source, target, weight = edges.source[order], edges.target[order], weight[order]
    first = np.flatnonzero(np.r_[True, target[1:] != target[:-1]])
    heads = target[first]
    reach = np.zeros(num_events)
    parent = np.full(num_events, -1)
    tiny = 1e-13 * max(1e-300, float(np.abs(weight).sum()))
    for _ in range(num_events + 1):
        candidate = reach[source] + weight
        best = np.maximum.reduceat(candidate, first)
        grown = best > reach[heads] + tiny
        if not grown.any():
            return []
        winner = _first_equal(candidate, best, first)
        reach[heads[grown]] = best[grown]
        parent[heads[grown]] = winner[grown]
        cycle = _cycle_of_parents(parent, source)
        if cycle and weight[cycle].sum() > 0:
            return [int(order[k]) for k in cycle]
    return []


def _first_equal(candidate: Floats, best: Floats, first: Ints) -> Ints:
    """The index of the first edge that reaches the best value, for every group of edges into one event."""
    sizes = np.diff(np.r_[first, len(candidate)])
    hit = np.flatnonzero(candidate == np.repeat(best, sizes))
    group = np.repeat(np.arange(len(first)), sizes)[hit]
    return hit[np.r_[True, group[1:] != group[:-1]]]


def _cycle_of_parents(parent: Ints, source: Column) -> list[int]:
    """The edges of some cycle in the parent pointers, if there is one."""
    state = np.zeros(len(parent), dtype=np.int64)
    for start in range(len(parent)):
        event, path = start, []
        while state[event] == 0 and parent[event] >= 0:
            state[event] = start + 1
            path.append(event)
            event = int(source[parent[event]])
        if path and state[event] == start + 1:
            return [int(parent[e]) for e in path[path.index(event) :]]
        if state[event] == 0:
            state[event] = start + 1
    return []


def read_lag(schedule: Schedule, reader: Op, buffer: str) -> tuple[Op, int] | None:
    """The writer whose value the reader sees and how many epochs back, or None if nothing orders them.

    An explicit `after` edge decides; without one, writer and reader must share a lane.
    """
    lags = dict(reversed(reader.after))
    writers = schedule.writers(reader.rank, buffer)
    waited = [(lags[w.name], -k, w) for k, w in enumerate(writers) if w.name in lags]
    if waited:
        lag, _, writer = min(waited, key=lambda item: item[:2])
        return writer, lag
    same = [w for w in writers if w.rank == reader.rank and w.lane == reader.lane]
    if not same:
        return None
    place = schedule.places
    before = [w for w in same if place[w.rank, w.name] < place[reader.rank, reader.name]]
    return (before[-1], 0) if before else (same[-1], 1)


def num_copies(schedule: Schedule, rank: int, buffer: str) -> int:
    """How many values of a buffer are alive at once: one, and one more per instance a reader looks back."""
    readers = [op for op in schedule.by_rank[rank] if buffer in op.reads]
    seen = [found for op in readers if (found := read_lag(schedule, op, buffer))]
    return 1 + max((-(-lag // writer.every) for writer, lag in seen), default=0)


def num_slots(schedule: Schedule, rank: int, buffer: str) -> int:
    """How many places a buffer has: received rows have one more, into which the next instance may already arrive."""
    received = any(op.kind is Kind.EXCHANGE for op in schedule.writers(rank, buffer))
    return num_copies(schedule, rank, buffer) + received


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak bytes of one rank, the op at which it is reached, and what is alive then, largest first."""

    peak_bytes: int
    at: str
    alive: tuple[tuple[str, int], ...]


def live(schedule: Schedule, rank: int) -> list[dict[str, int]]:
    """Bytes of the buffers that are alive at each op of a rank, in list order."""
    ops = schedule.by_rank[rank]
    alive: list[dict[str, int]] = [{} for _ in ops]
    for buffer in schedule.buffers:
        if buffer.rank == rank:
            slots = 1 if buffer.persistent else num_slots(schedule, rank, buffer.name)
            for k in _lifetime(ops, buffer.name, buffer.persistent or slots > 1):
                alive[k][buffer.name] = buffer.num_bytes * slots
    return alive


def memory(schedule: Schedule, rank: int) -> Memory:
    """Peak of the buffers of a rank over one epoch, in list order of its ops."""
    alive = live(schedule, rank)
    if not alive:
        return Memory(0, "", ())
    peak = max(range(len(alive)), key=lambda k: sum(alive[k].values()))
    largest = sorted(alive[peak].items(), key=lambda item: (-item[1], item[0]))
    return Memory(sum(alive[peak].values()), schedule.by_rank[rank][peak].name, tuple(largest))


def _lifetime(ops: Sequence[Op], buffer: str, always: bool) -> range:
    """The ops during which a buffer is alive: from its first write to its last read of the same epoch."""
    writes = [k for k, op in enumerate(ops) if buffer in op.writes]
    reads = [k for k, op in enumerate(ops) if buffer in op.reads]
    if always or not writes or (reads and min(reads) < writes[0]):
        return range(len(ops))
    return range(writes[0], max([*reads, *writes]) + 1)


def spread_rare(schedule: Schedule) -> tuple[Schedule, Rare]:
    """The schedule with its rare ops in every epoch, and which ones they are: their durations are to be divided.

    With a cadence of 23 a period has 23 epochs, of which 22 are alike. An op that nobody waits for, and that waits for
    nothing its lane has not waited for already, only adds its own duration D to one epoch of N. An epoch with it takes
    at least as long as one without and at most D longer; the same holds of D / N in every epoch: the means differ by at
    most D / N.
    """
    awaited = {(op.rank, name) for op in schedule.ops for name, _ in op.after}
    rare: Rare = {}
    for rank in range(schedule.num_ranks):
        for ops in schedule.lanes(rank).values():
            known: set[tuple[str, int]] = set()
            for op in ops:
                known |= set(op.after) if op.every == 1 else set()
                if _is_rare(op) and (rank, op.name) not in awaited and set(op.after) <= known:
                    rare[rank, op.name] = op.every
    if not rare:
        return schedule, {}
    eased = (replace(op, every=1, offset=0) if (op.rank, op.name) in rare else op for op in schedule.ops)
    return replace(schedule, ops=tuple(eased)), rare


def _is_rare(op: Op) -> bool:
    return op.kind is Kind.COMPUTE and op.every > FEW_EPOCHS
