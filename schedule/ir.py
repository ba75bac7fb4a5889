"""The schedule IR: an epoch is a loop body whose dependencies carry an iteration distance.

    Schedule := num_ranks, itemsize, matrices, buffers, ops, meta
    Matrix   := name, counts, spread         counts[i, j] = rows rank i gives to rank j (with a spread: on average)
    Buffer   := name, rank, num_bytes, rows, persistent, exact    rank SHARED: in the store, seen by all ranks
    Op       := name, rank, lane, kind, work, reads, writes, after, every, offset, carries
    after    := ((op name, lag), ...)        wait for instance (epoch - lag) of an op of the same rank
    work     := kernels, the bytes of the op's kind (table WORK_OF), and params: words for whoever does the op
    Kernel   := kind, dims                   (table KERNEL_DIMS)

The rules every interpreter shares:

* A lane runs its ops in the order of the list, epoch after epoch.
* An op exists in epochs offset, offset + every, ...; a waiter sees the newest instance that is not too new.
  Before epoch 0 a value is its initial value (zeros, or exact: what fresh rows would be), so nobody waits for it.
* Ranks meet only in communication: ops of the same name on different ranks are one communication. An EXCHANGE
  sends row `rank` of its matrix and receives column `rank` (transposed: the other way round); its sends start
  when it starts, it ends when its own sends and receives are done.
* Kernels of a communication op run before its first byte leaves (packing).
* A shared buffer as large as several times what all ranks push into it holds as many instances: a PULL finds the one it
  means, not a newer one that a faster rank has pushed meanwhile. Otherwise it finds the newest there is.
* Ranks that meet only in the store never wait for each other, unless a PULL has a bound: it waits until every rank has
  pushed its instance of `bound` + 1 epochs before, so no rank runs further ahead than that.
* An EXCHANGE moves what it reads first. If it reads ids as well, only those rows travel: the ids of the rows a rank
  sends lie in a buffer of sent ids, those of the halo rows that reach it in one of halo ids.
* A name is `verb.index...`; the executor's handlers are found by the verb, never by the method.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from halocast.base.kernels import KERNEL_DIMS as KERNEL_DIMS

SHARED = -1
NO_BOUND = -1
NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Reals = NDArray[np.float64]


class Kind(StrEnum):
    COMPUTE = "compute"
    EXCHANGE = "exchange"
    SEND = "send"
    RECV = "recv"
    ALLREDUCE = "allreduce"
    PUSH = "push"
    PULL = "pull"
    SAMPLE = "sample"
    BARRIER = "barrier"


class Lane(StrEnum):
    COMPUTE = "compute"
    HALO = "halo"  # rows of features or activations
    GRAD = "grad"  # gradients of rows, where a method sends them beside the rows
    REDUCE = "reduce"  # weight gradients
    STORE = "store"
    SAMPLE = "sample"
    SEND = "send"  # to the next stage of a pipeline
    RECV = "recv"  # from the stage before


class Rows(StrEnum):
    """Which rows a buffer holds; an EXCHANGE moves inner -> halo (gather), halo -> sent (give back), or ids."""

    NONE = "none"
    INNER = "inner"
    HALO = "halo"
    SENT = "sent"  # one row per (peer, node this rank sends to it), grouped by peer
    SENT_IDS = "sent_ids"  # which of its rows a rank sends to each peer
    HALO_IDS = "halo_ids"  # which halo rows it gets from each peer
    GRAPH = "graph"  # a local graph


WORK_OF: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.COMPUTE: "",
        Kind.SAMPLE: "",
        Kind.BARRIER: "",
        Kind.EXCHANGE: "matrix",
        Kind.SEND: "peer",
        Kind.RECV: "peer",
        Kind.ALLREDUCE: "payload",
        Kind.PUSH: "payload",
        Kind.PULL: "payload",
    }
)
MATCHED = frozenset({Kind.EXCHANGE, Kind.SEND, Kind.RECV, Kind.ALLREDUCE, Kind.BARRIER})
COLLECTIVE = frozenset({Kind.ALLREDUCE, Kind.BARRIER})
IDS = frozenset({Rows.SENT_IDS, Rows.HALO_IDS})
# These move values without making new ones, so the age of what they write is that of what they read.
CARRIES = frozenset({Kind.EXCHANGE, Kind.SEND, Kind.RECV, Kind.PUSH, Kind.PULL})


class Matrix:
    """A named, read-only table of row counts that compares by value.

    With a spread the counts are drawn: they are what is expected, the spread is their standard deviation from epoch to
    epoch (kept to the third decimal), and those of an instance follow from the ids drawn for it.
    """

    __slots__ = ("counts", "name", "spread")

    def __init__(self, name: str, counts: Ints, spread: Reals | None = None) -> None:
        self.name = name
        self.counts = np.array(counts, dtype=np.int64)
        self.counts.setflags(write=False)
        self.spread: Reals | None = None if spread is None else np.asarray(np.round(spread, 3), np.float64)

    @property
    def drawn(self) -> bool:
        return self.spread is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matrix):
            return NotImplemented
        same = (self.name, self.drawn) == (other.name, other.drawn) and np.array_equal(self.counts, other.counts)
        return same and (self.spread is None or np.array_equal(self.spread, other.spread))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash((self.name, self.counts.tobytes()))

    def __repr__(self) -> str:
        return f"Matrix({self.name!r}, {self.counts.shape[0]} ranks, {int(self.counts.sum())} rows)"


@dataclass(frozen=True, slots=True)
class Kernel:
    kind: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    kernels: tuple[Kernel, ...] = ()
    matrix: str = ""  # EXCHANGE: rows per pair, times row_bytes
    transposed: bool = False
    row_bytes: int = 0
    peer: int = -1  # SEND, RECV
    num_bytes: int = 0  # SEND, RECV, ALLREDUCE, PUSH, PULL
    scale: float = 1.0  # what a number is multiplied by: this rank's share in a sum, the old share of a running mean
    bound: int = NO_BOUND  # PULL: epochs it may be ahead of the slowest rank
    params: tuple[tuple[str, str], ...] = ()  # e.g. the rate and the seed of a draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    name: str
    rank: int
    num_bytes: int
    rows: Rows = Rows.NONE
    persistent: bool = False
    exact: bool = False  # initially what a fresh exchange at the initial weights would bring, not zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    name: str
    rank: int
    lane: Lane
    kind: Kind
    work: Work = field(default_factory=Work)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[tuple[str, int], ...] = ()
    every: int = 1
    offset: int = 0
    carries: bool = False  # a COMPUTE that passes on values of others (a running mean): they stay as old as they are

    @property
    def verb(self) -> str:
        return self.name.partition(".")[0]

    @property
    def index(self) -> tuple[int, ...]:
        """The numbers behind the verb: forward.2 -> (2,)."""
        return tuple(int(part) for part in self.name.split(".")[1:])

    @property
    def label(self) -> str:
        return f"{self.rank}/{self.name}"

    def exists(self, epoch: int) -> bool:
        return epoch >= self.offset and (epoch - self.offset) % self.every == 0

    def latest(self, epoch: int) -> int:
        """The newest epoch up to `epoch` in which the op exists; -1 if there is none yet."""
        return epoch - (epoch - self.offset) % self.every if epoch >= self.offset else -1


@dataclass(frozen=True, kw_only=True)
class Schedule:
    num_ranks: int
    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    itemsize: int = 4
    meta: tuple[tuple[str, str], ...] = ()

    @cached_property
    def by_rank(self) -> tuple[tuple[Op, ...], ...]:
        """The ops of every rank, in list order."""
        lists: list[list[Op]] = [[] for _ in range(self.num_ranks)]
        for op in self.ops:
            lists[op.rank].append(op)
        return tuple(tuple(ops) for ops in lists)

    @cached_property
    def places(self) -> dict[tuple[int, str], int]:
        return {(op.rank, op.name): place for place, op in enumerate(self.ops)}

    @cached_property
    def _buffers(self) -> dict[tuple[int, str], Buffer]:
        return {(b.rank, b.name): b for b in self.buffers}

    @cached_property
    def _groups(self) -> dict[str, tuple[int, ...]]:
        groups: dict[str, list[int]] = defaultdict(list)
        for op in self.ops:
            if op.kind in MATCHED:
                groups[op.name].append(op.rank)
        return {name: tuple(sorted(ranks)) for name, ranks in groups.items()}

    @cached_property
    def _writers(self) -> dict[tuple[int, str], list[Op]]:
        made: dict[tuple[int, str], list[Op]] = defaultdict(list)
        for op in self.ops:
            for name in op.writes:
                if buffer := self.buffer(op.rank, name):
                    made[buffer.rank, name].append(op)
        return dict(made)

    @cached_property
    def _matrices(self) -> dict[str, Matrix]:
        return {matrix.name: matrix for matrix in self.matrices}

    def find(self, rank: int, name: str) -> Op | None:
        return self.ops[place] if (place := self.places.get((rank, name))) is not None else None

    def buffer(self, rank: int, name: str) -> Buffer | None:
        """The buffer an op of `rank` means by `name`: its own, else the shared one."""
        return self._buffers.get((rank, name)) or self._buffers.get((SHARED, name))

    def writers(self, rank: int, name: str) -> list[Op]:
        """The ops that write what an op of `rank` calls `name`: on its own rank, or on any if it is shared."""
        buffer = self.buffer(rank, name)
        return self._writers.get((buffer.rank, name), []) if buffer else []

    def matrix(self, name: str) -> Matrix | None:
        return self._matrices.get(name)

    def group(self, op: Op) -> tuple[int, ...]:
        """All ranks that take part in the communication of this name."""
        return self._groups.get(op.name, ())

    def lanes(self, rank: int) -> dict[Lane, tuple[Op, ...]]:
        lanes: dict[Lane, list[Op]] = defaultdict(list)
        for op in self.by_rank[rank]:
            lanes[op.lane].append(op)
        return {lane: tuple(ops) for lane, ops in lanes.items()}

    def sent(self, op: Op) -> Ints:
        """Bytes one instance of the op sends to each rank."""
        return SENT[op.kind](self, op) if op.kind in SENT else np.zeros(self.num_ranks, dtype=np.int64)

    def received(self, op: Op) -> Ints:
        """Bytes one instance of the op receives from each rank."""
        if op.kind is Kind.EXCHANGE:
            return self._rows(op, not op.work.transposed) * op.work.row_bytes
        if op.kind is Kind.RECV:
            return self._one(op.work.peer, op.work.num_bytes)
        if op.kind is Kind.ALLREDUCE:
            group = self.group(op)
            before = group[group.index(op.rank) - 1]
            return self._one(before, ring_bytes(op.work.num_bytes, len(group)))
        return np.zeros(self.num_ranks, dtype=np.int64)

    def num_bytes(self, op: Op) -> int:
        """Bytes one instance of the op puts on the network or into the store (a PULL: takes out)."""
        if op.kind in (Kind.PUSH, Kind.PULL):
            return op.work.num_bytes
        return int(self.sent(op).sum())

    def senders(self, op: Op) -> tuple[int, ...]:
        """The ranks from which the op gets something; a collective needs every rank of its group."""
        if op.kind in COLLECTIVE:
            return self.partners(op)
        if op.kind is Kind.RECV:
            return (op.work.peer,)  # even a message without bytes is waited for
        return tuple(np.flatnonzero(self.received(op)).tolist())

    def gives(self, op: Op) -> Bools:
        """[i, j]: whether rank i gives rank j something in the EXCHANGE or collective that the op is part of."""
        if op.kind in COLLECTIVE:
            inside = np.isin(np.arange(self.num_ranks), self.group(op))
            return np.outer(inside, inside) & ~np.eye(self.num_ranks, dtype=np.bool_)
        counts = self._matrices[op.work.matrix].counts
        return np.asarray((counts.T if op.work.transposed else counts) * op.work.row_bytes > 0)

    def partners(self, op: Op) -> tuple[int, ...]:
        """The ranks the op gives something to or gets something from."""
        if op.kind in COLLECTIVE:
            return tuple(rank for rank in self.group(op) if rank != op.rank)
        if op.kind in (Kind.SEND, Kind.RECV):
            return (op.work.peer,)
        if op.kind in MATCHED:
            return tuple(np.flatnonzero(self.sent(op) + self.received(op)).tolist())
        return ()

    def bounded_by(self, op: Op) -> list[Op]:
        """The pushes of other ranks that a PULL with a bound may not run too far ahead of."""
        if op.work.bound == NO_BOUND:
            return []
        return [w for name in op.reads for w in self.writers(op.rank, name) if w.rank != op.rank]

    def _rows(self, op: Op, column: bool) -> Ints:
        matrix = self._matrices[op.work.matrix].counts
        return matrix[:, op.rank] if column else matrix[op.rank]

    def _one(self, peer: int, num_bytes: int) -> Ints:
        vector = np.zeros(self.num_ranks, dtype=np.int64)
        vector[peer] = num_bytes
        return vector


def ring_bytes(payload_bytes: int, num_ranks: int) -> int:
    """Bytes a rank sends in a ring all-reduce: 2(P-1)/P of the payload, rounded down."""
    return 2 * (num_ranks - 1) * payload_bytes // num_ranks


def ring_steps(num_ranks: int) -> int:
    return 2 * (num_ranks - 1)


def _sent_allreduce(schedule: Schedule, op: Op) -> Ints:
    group = schedule.group(op)
    after = group[(group.index(op.rank) + 1) % len(group)]
    return schedule._one(after, ring_bytes(op.work.num_bytes, len(group)))


SENT: Mapping[Kind, Callable[[Schedule, Op], Ints]] = MappingProxyType(
    {
        Kind.EXCHANGE: lambda s, op: s._rows(op, op.work.transposed) * op.work.row_bytes,
        Kind.SEND: lambda s, op: s._one(op.work.peer, op.work.num_bytes),
        Kind.ALLREDUCE: _sent_allreduce,
    }
)
