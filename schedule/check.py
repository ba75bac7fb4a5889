"""The checker: what makes a schedule legal, and how old every value it reads is.

Each rule is a function from a schedule to messages that name the op; later rules assume that earlier ones hold.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from halocast.base.errors import InputError
from halocast.schedule.ir import (
    CARRIES,
    IDS,
    KERNEL_DIMS,
    LANE_ROLE,
    MATCHED,
    NAME,
    NO_BOUND,
    SHARED,
    Broadcast,
    Exchange,
    Kind,
    Message,
    Op,
    Payload,
    Pull,
    Rows,
    Schedule,
    Work,
)
from halocast.schedule.passes import agreed_size as _size
from halocast.schedule.passes import communications, dependence_edges, find_cycle, hyperperiod, longest_lag, read_lag

Rule = Callable[[Schedule], Iterator[str]]
WORD = re.compile(r"[A-Za-z0-9_.+-]+")  # of params
MOST_BITS = 64  # of a number


def check(schedule: Schedule) -> Schedule:
    """The schedule itself if it is legal; else an InputError with the first problem."""
    broken = problems(schedule)
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise InputError(f"illegal schedule: {broken[0]}{more}")
    return schedule


def problems(schedule: Schedule) -> tuple[str, ...]:
    """Messages of the first rule that is broken; empty if the schedule is legal."""
    for rule in RULES:
        messages = tuple(rule(schedule))
        if messages:
            return messages
    return ()


def _names(schedule: Schedule) -> Iterator[str]:
    for op in schedule.ops:
        if not NAME.fullmatch(op.name):
            yield f"op {op.label}: a name is verb.index, lower case, not {op.name!r}"
        if not LANE_ROLE.fullmatch(op.lane.role) or op.lane.index < 0:
            yield f"op {op.label}: a lane is a word and an index of at least 0, not {op.lane}"
        if not 0 <= op.rank < schedule.num_ranks:
            yield f"op {op.label}: rank {op.rank} is not in 0..{schedule.num_ranks - 1}"
        if op.every < 1 or not 0 <= op.offset < op.every:
            yield f"op {op.label}: cadence every {op.every} offset {op.offset} needs 0 <= offset < every"
    named = [
        *(b.name for b in schedule.buffers),
        *(m.name for m in schedule.matrices),
        *(key for key, _ in schedule.meta),
    ]
    for name in named:
        if not NAME.fullmatch(name):
            yield f"{name!r}: names of buffers, matrices and meta are lower case words joined by dots"
    for label, count in Counter(op.label for op in schedule.ops).items():
        if count > 1:
            yield f"op {label}: defined {count} times"
    for (rank, name), count in Counter((b.rank, b.name) for b in schedule.buffers).items():
        if count > 1:
            yield f"buffer {rank}/{name}: defined {count} times"
        if not SHARED <= rank < schedule.num_ranks:
            yield f"buffer {rank}/{name}: rank {rank} is not in {SHARED}..{schedule.num_ranks - 1}"
    yield from _sizes(schedule)


def _sizes(schedule: Schedule) -> Iterator[str]:
    for buffer in schedule.buffers:
        if buffer.num_bytes < 0:
            yield f"buffer {buffer.rank}/{buffer.name}: negative size {buffer.num_bytes}"
        if not 1 <= buffer.bits <= MOST_BITS:
            yield f"buffer {buffer.rank}/{buffer.name}: bits = {buffer.bits}: a number has 1 to {MOST_BITS}"
    for matrix in schedule.matrices:
        if matrix.counts.shape != (schedule.num_ranks, schedule.num_ranks):
            yield f"matrix {matrix.name}: shape {matrix.counts.shape} is not ranks x ranks"
        elif (matrix.counts < 0).any() or matrix.counts.diagonal().any():
            yield f"matrix {matrix.name}: needs counts >= 0 and an empty diagonal"


def _references(schedule: Schedule) -> Iterator[str]:
    for op in schedule.ops:
        for name, lag in op.after:
            if schedule.find(op.rank, name) is None:
                yield f"op {op.label}: waits for {name!r}, which rank {op.rank} does not have"
            if lag < 0:
                yield f"op {op.label}: waits for {name!r} with negative lag {lag}"
        for buffer in (*op.reads, *op.writes):
            if schedule.buffer(op.rank, buffer) is None:
                yield f"op {op.label}: uses buffer {buffer!r}, which rank {op.rank} does not have"


def _work(schedule: Schedule) -> Iterator[str]:
    for op in schedule.ops:
        for kernel in op.work.kernels:
            dims = KERNEL_DIMS.get(kernel.kind)
            if dims is None or len(dims) != len(kernel.dims) or min(kernel.dims) < 0:
                yield f"op {op.label}: kernel {kernel.kind}{kernel.dims} is not one of {dict(KERNEL_DIMS)}"
        for key, word in op.work.params:
            if not NAME.fullmatch(key) or not WORD.fullmatch(word):
                yield f"op {op.label}: params are words, not {key!r} = {word!r}"
        if op.carries and op.kind is not Kind.COMPUTE:
            yield f"op {op.label}: only a COMPUTE says whether it carries, a {op.kind} is known to"
        yield from (f"op {op.label}: {problem}" for problem in _moved(schedule, op, op.work))


def _moved(schedule: Schedule, op: Op, work: Work) -> Iterator[str]:
    """Problems with the bytes that an op moves."""
    if isinstance(work, Exchange):
        if schedule.matrix(work.matrix) is None:
            yield f"exchanges rows of matrix {work.matrix!r}, which is not defined"
        if not 1 <= work.bits <= MOST_BITS:
            yield f"bits = {work.bits}: a number has 1 to {MOST_BITS}"
    if isinstance(work, Message) and (not 0 <= work.peer < schedule.num_ranks or work.peer == op.rank):
        yield f"peer {work.peer} is not another rank"
    if (work.row_bytes if isinstance(work, Exchange) else _payload(work)) < 0:
        yield "negative bytes"
    if isinstance(work, Pull) and work.bound < NO_BOUND:
        yield f"bound {work.bound} needs to be at least 0"
    if isinstance(work, Broadcast) and work.root not in schedule.group(op):
        yield f"root {work.root} is not one of its ranks {schedule.group(op)}"


def _payload(work: Work) -> int:
    return work.num_bytes if isinstance(work, Message | Payload) else 0


def _matching(schedule: Schedule) -> Iterator[str]:
    """Check that both sides of every communication exist and agree on what is moved and when."""
    agreed = _agreed(schedule)
    for op in schedule.ops:
        if op.kind not in MATCHED or op.name in agreed:
            continue
        for rank in schedule.partners(op):
            peer = schedule.find(rank, op.name)
            if peer is None:
                yield f"op {op.label}: rank {rank} has no {op.name!r} to match it"
            elif problem := _disagreement(op, peer):
                yield f"op {op.label} and op {peer.label}: {problem}"


def _agreed(schedule: Schedule) -> frozenset[str]:
    """Names of communications whose ops all agree and reach no other rank; comparing all their pairs would be slow."""
    names = []
    for members in communications(schedule):
        op = schedule.ops[members[0]]
        group, gives = schedule.group(op), schedule.gives(op)
        inside = np.isin(np.arange(schedule.num_ranks), group)
        if len(members) == len(group) and not (gives | gives.T)[np.ix_(inside, ~inside)].any():
            names.append(op.name)
    return frozenset(names)


def _disagreement(op: Op, peer: Op) -> str:
    opposite = {Kind.SEND: Kind.RECV, Kind.RECV: Kind.SEND}
    a, b = op.work, peer.work
    if peer.kind is not opposite.get(op.kind, op.kind):
        return f"{op.kind} meets {peer.kind}"
    if isinstance(b, Message) and b.peer != op.rank:
        return f"peers differ, {peer.label} means rank {b.peer}"
    if isinstance(a, Exchange) and isinstance(b, Exchange) and _size(a) != _size(b):
        return f"sizes differ, {a.matrix} x {a.row_bytes} and {b.matrix} x {b.row_bytes}"
    if _payload(a) != _payload(b):
        return f"sizes differ, {_payload(a)} and {_payload(b)} bytes"
    if _size(a) != _size(b):
        return f"roots differ, {_size(a)[-1]} and {_size(b)[-1]}"
    if (op.every, op.offset) != (peer.every, peer.offset):
        return f"cadences differ, every {op.every} and every {peer.every}"
    return ""


def _no_deadlock(schedule: Schedule) -> Iterator[str]:
    cycle = find_cycle(dependence_edges(schedule, rendezvous=True), 2 * len(schedule.ops))
    if cycle:
        # an end that another end follows only stands for a group, see passes
        waits = [event for event, after in pairwise([*cycle, cycle[0]]) if not event % 2 or not after % 2]
        ops = dict.fromkeys(schedule.ops[event // 2].label for event in waits)
        yield f"op {next(iter(ops))}: deadlock, each waits for the one before: {' -> '.join(ops)}"


def _reads(schedule: Schedule) -> Iterator[str]:
    """Check that every value read is written by an op the reader waits for, by name or in its own lane: a chain through
    a third op would leave open which instance is meant."""
    for op in schedule.ops:
        for name in op.reads:
            buffer = schedule.buffer(op.rank, name)
            assert buffer is not None
            if not schedule.writers(op.rank, name):
                if not buffer.persistent:
                    yield f"op {op.label}: reads {name!r}, which nothing writes"
            elif read_lag(schedule, op, name) is None:
                yield f"op {op.label}: reads {name!r} without waiting for an op that writes it"


def _exchanged_rows(schedule: Schedule) -> Iterator[str]:
    """Check that a buffer of halo or sent rows is as large as the exchange that fills or empties it says."""
    for op in schedule.ops:
        if op.kind is Kind.EXCHANGE:
            received, sent = int(schedule.received(op).sum()), int(schedule.sent(op).sum())
            yield from _wrong_size(schedule, op, op.writes, f"receives {received} bytes into", received)
            yield from _wrong_size(schedule, op, op.reads, f"sends {sent} bytes from", sent)


def _drawn_sizes(schedule: Schedule) -> Iterator[str]:
    """Check that both ends know drawn sizes from the ids of the rows; the ids themselves say how many they are."""
    for op in schedule.ops:
        matrix = schedule.matrix(op.work.matrix) if isinstance(op.work, Exchange) else None
        if matrix is not None and matrix.drawn:
            kinds = [found.rows for name in op.reads if (found := schedule.buffer(op.rank, name))]
            if not kinds or (kinds[0] not in IDS and not set(kinds) >= IDS):
                yield f"op {op.label}: rows of {matrix.name!r} are drawn, it needs the ids of both ends among its reads"


def _collected_sizes(schedule: Schedule) -> Iterator[str]:
    """Check that buffers of a collective hold what it moves: the whole, or an equal piece per rank of its group."""
    for op in schedule.ops:
        if op.kind in COLLECTED and isinstance(op.work, Payload):
            whole, num = op.work.num_bytes, len(schedule.group(op))
            given, taken = (whole // num if piece else whole for piece in COLLECTED[op.kind])
            if whole % num and given != taken and (op.reads or op.writes):
                yield f"op {op.label}: {whole} bytes cannot be divided among {num} ranks"
            for names, size, does in ((op.reads[:1], given, "gives"), (op.writes, taken, "takes")):
                for name in names:
                    buffer = schedule.buffer(op.rank, name)
                    assert buffer is not None
                    if buffer.num_bytes != size:
                        yield f"op {op.label}: {does} {size} bytes of {name!r}, which has {buffer.num_bytes}"


# of these, whether what a rank gives and what it takes are pieces of the whole
COLLECTED = {Kind.ALLGATHER: (True, False), Kind.REDUCE_SCATTER: (False, True), Kind.BROADCAST: (False, False)}


def _wrong_size(schedule: Schedule, op: Op, names: tuple[str, ...], does: str, num_bytes: int) -> Iterator[str]:
    for name in names:
        buffer = schedule.buffer(op.rank, name)
        assert buffer is not None
        if buffer.rows in (Rows.HALO, Rows.SENT) and buffer.num_bytes != num_bytes:
            yield f"op {op.label}: {does} {name!r} of {buffer.num_bytes} bytes"


RULES: tuple[Rule, ...] = (
    _names,
    _references,
    _work,
    _matching,
    _no_deadlock,
    _reads,
    _exchanged_rows,
    _drawn_sizes,
    _collected_sizes,
)


@dataclass(frozen=True, slots=True)
class Read:
    """The ages, in epochs, that a value has when an op reads it in steady state."""

    rank: int
    op: str
    buffer: str
    ages: tuple[int, ...]


def staleness(schedule: Schedule) -> tuple[Read, ...]:
    """The age of every value read that some op writes: epochs since a COMPUTE or SAMPLE made it."""
    return tuple(reads_of(schedule))


def reads_of(schedule: Schedule) -> Iterator[Read]:
    """The staleness, one read after the other, for whoever looks for a single one: all of them take long where the
    epochs of a period are many."""
    period, longest = hyperperiod(schedule), longest_lag(schedule)
    start = period * (3 + 3 * longest)  # any chain of one exchange and one pull has reached steady state
    ages = _Ages(schedule)
    for op in schedule.ops:
        epochs = [epoch for epoch in range(start, start + period) if op.exists(epoch)]
        for buffer in op.reads:
            own = op.carries and buffer in op.writes  # a running mean's last value
            if schedule.writers(op.rank, buffer) and not own:
                ages_seen = frozenset[int]().union(*(ages.read(op, buffer, epoch) for epoch in epochs))
                yield Read(op.rank, op.name, buffer, tuple(sorted(ages_seen)))


class _Ages:
    """Ages of values, each found once: what ranks share (a communication, the store) is not traced by each of them."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._written: dict[tuple[object, ...], frozenset[int]] = {}
        self._moved: dict[tuple[str, int], dict[int, frozenset[int]]] = defaultdict(dict)

    def read(self, op: Op, name: str, epoch: int) -> frozenset[int]:
        """Ages of what the op's instance of `epoch` finds in a buffer."""
        seen, buffer = read_lag(self._schedule, op, name), self._schedule.buffer(op.rank, name)
        if seen is None or buffer is None:
            return frozenset()
        writer, lag = seen
        shared = buffer.rank == SHARED
        key = (buffer.rank, name, "" if shared else writer.name, epoch, lag)
        if key not in self._written:
            sources = self._schedule.writers(op.rank, name) if shared else [writer]
            self._written[key] = frozenset().union(*(self._made(w, epoch, lag) for w in sources))
        return self._written[key]

    def _made(self, writer: Op, epoch: int, lag: int) -> frozenset[int]:
        """Ages at `epoch` of what the writer's newest instance up to `epoch - lag` wrote."""
        instance = writer.latest(epoch - lag)
        if instance < 0:
            return frozenset()
        carries = writer.carries or writer.kind in CARRIES
        moved = self._origins(writer, instance) if carries else {frozenset({0})}
        return frozenset(epoch - instance + age for ages in moved for age in ages)

    def _origins(self, carrier: Op, instance: int) -> set[frozenset[int]]:
        """Ages of what an instance of a carrier moves, per rank it comes from: its senders, or itself."""
        itself = carrier.kind in (Kind.PUSH, Kind.PULL, Kind.SEND, Kind.COMPUTE)
        ranks = (carrier.rank,) if itself else self._schedule.senders(carrier)
        known = self._moved[carrier.name, instance]
        for rank in ranks:
            if rank not in known:
                known[rank] = self._read_by(rank, carrier.name, instance)
        return {known[rank] for rank in ranks}

    def _read_by(self, rank: int, name: str, instance: int) -> frozenset[int]:
        """Ages of all that an op reads, its own last result apart; what nobody writes is as new as can be.

        Ids say which rows are moved, they are not among them, unless nothing else is.
        """
        op = self._schedule.find(rank, name)
        assert op is not None
        given = [buffer for buffer in op.reads if buffer not in op.writes] or self._changed(op)
        given = [buffer for buffer in given if not self._is_ids(rank, buffer)] or given
        written = [buffer for buffer in given if self._schedule.writers(rank, buffer)]
        new = {0} if len(written) < len(given) else set[int]()
        return frozenset(new).union(*(self.read(op, buffer, instance) for buffer in written))

    def _changed(self, op: Op) -> list[str]:
        """The buffers that an op changes in place and another one wrote before it."""
        seen = ((buffer, read_lag(self._schedule, op, buffer)) for buffer in op.reads)
        return [buffer for buffer, source in seen if source is not None and source[0] is not op]

    def _is_ids(self, rank: int, name: str) -> bool:
        buffer = self._schedule.buffer(rank, name)
        return buffer is not None and buffer.rows in IDS
