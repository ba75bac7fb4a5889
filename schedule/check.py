"""The checker: what makes a schedule legal, and how old every value it reads is.

Each rule is a function from a schedule to messages that name the op; later rules assume that earlier ones hold.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from halocast.base.errors import InputError
from halocast.schedule.ir import (
    CARRIES,
    KERNEL_DIMS,
    MATCHED,
    NAME,
    SHARED,
    WORK_OF,
    Kind,
    Op,
    Rows,
    Schedule,
    Work,
)
from halocast.schedule.passes import dependence_edges, find_cycle, hyperperiod, read_lag, writers

Rule = Callable[[Schedule], Iterator[str]]


def check(schedule: Schedule) -> Schedule:
    """The schedule itself if it is legal; else an InputError with the first problem."""
    found = problems(schedule)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InputError(f"illegal schedule: {found[0]}{more}")
    return schedule


def problems(schedule: Schedule) -> tuple[str, ...]:
    """Messages of the first rule that is broken; empty if the schedule is legal."""
    for rule in RULES:
        found = tuple(rule(schedule))
        if found:
            return found
    return ()


def _names(schedule: Schedule) -> Iterator[str]:
    for op in schedule.ops:
        if not NAME.fullmatch(op.name):
            yield f"op {op.label}: a name is verb.index, lower case, not {op.name!r}"
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
        yield from _work_of_kind(schedule, op)


def _work_of_kind(schedule: Schedule, op: Op) -> Iterator[str]:
    work, needs = op.work, WORK_OF[op.kind]
    said = Work(kernels=work.kernels)
    if needs == "matrix":
        said = Work(
            kernels=work.kernels,
            matrix=work.matrix,
            transposed=work.transposed,
            row_bytes=work.row_bytes,
        )
        if schedule.matrix(work.matrix) is None:
            yield f"op {op.label}: exchanges rows of matrix {work.matrix!r}, which is not defined"
    elif needs == "peer":
        said = Work(kernels=work.kernels, peer=work.peer, num_bytes=work.num_bytes)
        if not 0 <= work.peer < schedule.num_ranks or work.peer == op.rank:
            yield f"op {op.label}: peer {work.peer} is not another rank"
    elif needs == "payload":
        said = Work(kernels=work.kernels, num_bytes=work.num_bytes)
    if said != work:
        yield f"op {op.label}: a {op.kind} has no such work: {work}"
    if min(work.row_bytes, work.num_bytes) < 0:
        yield f"op {op.label}: negative bytes"


def _matching(schedule: Schedule) -> Iterator[str]:
    """Both sides of every communication exist and agree on what is moved and when."""
    for op in schedule.ops:
        if op.kind not in MATCHED:
            continue
        for rank in schedule.partners(op):
            peer = schedule.find(rank, op.name)
            if peer is None:
                yield f"op {op.label}: rank {rank} has no {op.name!r} to match it"
            elif problem := _disagreement(op, peer):
                yield f"op {op.label} and op {peer.label}: {problem}"


def _disagreement(op: Op, peer: Op) -> str:
    opposite = {Kind.SEND: Kind.RECV, Kind.RECV: Kind.SEND}
    a, b = op.work, peer.work
    if peer.kind is not opposite.get(op.kind, op.kind):
        return f"{op.kind} meets {peer.kind}"
    if op.kind in opposite and b.peer != op.rank:
        return f"peers differ, {peer.label} means rank {b.peer}"
    if (a.matrix, a.transposed, a.row_bytes) != (b.matrix, b.transposed, b.row_bytes):
        return f"sizes differ, {a.matrix} x {a.row_bytes} and {b.matrix} x {b.row_bytes}"
    if a.num_bytes != b.num_bytes:
        return f"sizes differ, {a.num_bytes} and {b.num_bytes} bytes"
    if (op.every, op.offset) != (peer.every, peer.offset):
        return f"cadences differ, every {op.every} and every {peer.every}"
    return ""


def _no_deadlock(schedule: Schedule) -> Iterator[str]:
    cycle = find_cycle(dependence_edges(schedule, rendezvous=True), 2 * len(schedule.ops))
    if cycle:
        ops = dict.fromkeys(schedule.ops[event // 2].label for event in cycle)
        yield f"op {next(iter(ops))}: deadlock, each waits for the one before: {' -> '.join(ops)}"


def _reads(schedule: Schedule) -> Iterator[str]:
    """Every value that is read is written by somebody the reader waits for, by name or in its own lane: a chain through
    a third op would leave open which instance is meant."""
    for op in schedule.ops:
        for name in op.reads:
            buffer = schedule.buffer(op.rank, name)
            assert buffer is not None
            if not writers(schedule, op.rank, name):
                if not buffer.persistent:
                    yield f"op {op.label}: reads {name!r}, which nothing writes"
            elif read_lag(schedule, op, name) is None:
                yield f"op {op.label}: reads {name!r} without waiting for an op that writes it"


def _exchanged_rows(schedule: Schedule) -> Iterator[str]:
    """A buffer of halo or sent rows is as large as the exchange that fills or empties it says."""
    for op in schedule.ops:
        if op.kind is Kind.EXCHANGE:
            received, sent = int(schedule.received(op).sum()), int(schedule.sent(op).sum())
            yield from _wrong_size(schedule, op, op.writes, f"receives {received} bytes into", received)
            yield from _wrong_size(schedule, op, op.reads, f"sends {sent} bytes from", sent)


def _wrong_size(schedule: Schedule, op: Op, names: tuple[str, ...], does: str, num_bytes: int) -> Iterator[str]:
    for name in names:
        buffer = schedule.buffer(op.rank, name)
        assert buffer is not None
        if buffer.rows in (Rows.HALO, Rows.SENT) and buffer.num_bytes != num_bytes:
            yield f"op {op.label}: {does} {name!r} of {buffer.num_bytes} bytes"


RULES: tuple[Rule, ...] = (_names, _references, _work, _matching, _no_deadlock, _reads, _exchanged_rows)


@dataclass(frozen=True, slots=True)
class Read:
    """The ages, in epochs, that a value has when an op reads it in steady state."""

    rank: int
    op: str
    buffer: str
    ages: tuple[int, ...]


def staleness(schedule: Schedule) -> tuple[Read, ...]:
    """The age of every value read that some op writes: epochs since a COMPUTE or SAMPLE made it."""
    period = hyperperiod(schedule)
    longest = max((lag for op in schedule.ops for _, lag in op.after), default=0)
    start = period * (3 + 3 * longest)  # any chain of one exchange and one pull has reached steady state
    memo: dict[tuple[int, str, str, int], frozenset[int]] = {}
    reads = []
    for op in schedule.ops:
        epochs = [epoch for epoch in range(start, start + period) if op.exists(epoch)]
        for buffer in op.reads:
            if writers(schedule, op.rank, buffer):
                ages = frozenset[int]().union(*(_ages(schedule, op, buffer, e, memo) for e in epochs))
                reads.append(Read(op.rank, op.name, buffer, tuple(sorted(ages))))
    return tuple(reads)


def _ages(
    schedule: Schedule,
    op: Op,
    buffer: str,
    epoch: int,
    memo: dict[tuple[int, str, str, int], frozenset[int]],
) -> frozenset[int]:
    key = (op.rank, op.name, buffer, epoch)
    if key not in memo:
        seen = read_lag(schedule, op, buffer)
        if seen is None:
            return frozenset()
        writer, lag = seen
        found = schedule.buffer(op.rank, buffer)
        assert found is not None
        sources = writers(schedule, op.rank, buffer) if found.rank == SHARED else [writer]
        memo[key] = frozenset().union(*(_made(schedule, w, epoch, lag, memo) for w in sources))
    return memo[key]


def _made(
    schedule: Schedule,
    writer: Op,
    epoch: int,
    lag: int,
    memo: dict[tuple[int, str, str, int], frozenset[int]],
) -> frozenset[int]:
    """Ages at `epoch` of what the writer's newest instance up to `epoch - lag` wrote."""
    instance = writer.latest(epoch - lag)
    if instance < 0:
        return frozenset()
    if writer.kind not in CARRIES:
        return frozenset({epoch - instance})
    ages: set[int] = set()
    for source in _origins(schedule, writer):
        for name in source.reads:
            if not writers(schedule, source.rank, name):
                ages.add(epoch - instance)
            else:
                ages |= {epoch - instance + age for age in _ages(schedule, source, name, instance, memo)}
    return frozenset(ages)


def _origins(schedule: Schedule, carrier: Op) -> list[Op]:
    """The ops whose reads a carrier's written values come from: its senders, or itself."""
    if carrier.kind in (Kind.PUSH, Kind.PULL, Kind.SEND):
        return [carrier]
    found = (schedule.find(rank, carrier.name) for rank in schedule.senders(carrier))
    return [op for op in found if op is not None]
