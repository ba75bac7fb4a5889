"""Whether a schedule computes what training on one device does, or approximates it, and how.

It is exact if every value of another rank or chunk is this epoch's and nothing is left out. That is read off the
schedule: ages from the staleness pass, and whether what a SAMPLE draws is all that it draws from.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from halocast.base.kernels import built_rows
from halocast.schedule.check import Read, reads_of
from halocast.schedule.ir import Buffer, Exchange, Kind, Op, Role, Rows, Schedule


class Approximation(StrEnum):
    """What a method does to the numbers: nothing, older rows than this epoch's, or some rows in place of all."""

    EXACT = "exact"
    STALE = "stale"
    SAMPLED = "sampled"  # and perhaps stale as well, which its ages say


def approximation_of(schedule: Schedule, reads: Iterable[Read] | None = None) -> Approximation:
    """The approximation of a schedule; `reads` are its staleness, where that is known already."""
    if any(op.kind is Kind.SAMPLE and not _keeps_all(schedule, op) for op in schedule.ops):
        return Approximation.SAMPLED
    if _steps_apart(schedule) or _reads_old(schedule, reads_of(schedule) if reads is None else reads):
        return Approximation.STALE
    return Approximation.EXACT


def _steps_apart(schedule: Schedule) -> bool:
    """Whether ranks step by themselves, and learn of each other's steps later: from weights that are averaged, or that
    lie in a store and change at any time."""
    return schedule.free or any(
        op.kind is Kind.ALLREDUCE and len(schedule.group(op)) > 1 and _role(schedule, op, name) is Role.WEIGHTS
        for op in schedule.ops
        for name in op.reads
    )


def _reads_old(schedule: Schedule, reads: Iterable[Read]) -> bool:
    """Whether some value that other ranks or chunks made, or a gradient of weights, is older than its epoch."""
    old = (read for read in reads if read.ages and read.ages[-1] > 0)
    return any(_is_remote(schedule, read) or _buffer_of(schedule, read).role is Role.WEIGHT_GRADS for read in old)


def remote_reads(schedule: Schedule, reads: Iterable[Read]) -> list[Read]:
    """Those of some reads in which an op computes with rows of other ranks, gradients of them, or a snapshot."""
    return [read for read in reads if _is_remote(schedule, read)]


def _is_remote(schedule: Schedule, read: Read) -> bool:
    buffer, op = _buffer_of(schedule, read), schedule.find(read.rank, read.op)
    assert op is not None
    received = buffer.rows in (Rows.HALO, Rows.SENT) and op.kind is Kind.COMPUTE
    return received or buffer.role is Role.SNAPSHOT


def _buffer_of(schedule: Schedule, read: Read) -> Buffer:
    buffer = schedule.buffer(read.rank, read.buffer)
    assert buffer is not None
    return buffer


def _keeps_all(schedule: Schedule, sample: Op) -> bool:
    """Whether a draw keeps all that it draws from. One that does not show what it keeps does not."""
    count = sum(kernel.dims[0] for kernel in sample.work.kernels if kernel.kind == "draw")
    rows = {_rows(schedule, sample, name) for name in sample.writes}
    kept: list[bool] = []
    if Rows.SENT_IDS in rows:
        kept += _sends_all(schedule, sample, count)
    if Rows.HALO_IDS in rows:
        kept += _builds_all(schedule, sample, count)
    return bool(kept) and all(kept)


def _sends_all(schedule: Schedule, sample: Op, count: int) -> Iterator[bool]:
    """Whether each exchange of rows that their owner draws moves all of them, `count`, in every epoch."""
    for op in _readers(schedule, sample):
        if isinstance(op.work, Exchange) and _rows(schedule, op, op.reads[0]) is Rows.INNER:
            matrix = schedule.matrix(op.work.matrix)
            assert matrix is not None
            varies = matrix.spread is not None and bool(matrix.spread.any())
            sent = matrix.counts[:, op.rank] if op.work.transposed else matrix.counts[op.rank]
            yield not varies and int(sent.sum()) == count


def _builds_all(schedule: Schedule, sample: Op, count: int) -> Iterator[bool]:
    """Whether each graph that is built of edges drawn where they end has all of them, `count`, on average."""
    for op in _readers(schedule, sample):
        builds = [kernel.dims[0] for kernel in op.work.kernels if kernel.kind == "build"]
        if builds:
            yield builds == [built_rows(count, count)]


def _readers(schedule: Schedule, sample: Op) -> list[Op]:
    """The ops that read what a draw writes."""
    return [op for op in schedule.by_rank[sample.rank] if not set(sample.writes).isdisjoint(op.reads)]


def _rows(schedule: Schedule, op: Op, name: str) -> Rows:
    buffer = schedule.buffer(op.rank, name)
    return Rows.NONE if buffer is None else buffer.rows


def _role(schedule: Schedule, op: Op, name: str) -> Role:
    buffer = schedule.buffer(op.rank, name)
    return Role.NONE if buffer is None else buffer.role
