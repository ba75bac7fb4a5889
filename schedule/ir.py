"""The schedule IR: an epoch is a loop body whose dependencies carry an iteration distance.

    Schedule := num_ranks, matrices, buffers, ops, meta, degree_sigma
    Matrix   := name, counts, rows, spread   counts[i, j] = rows rank i gives to rank j (with a spread: on average)
    Buffer   := name, rank, num_bytes, rows, role, bits, persistent, exact    rank SHARED: in the store, seen by all
    Op       := name, rank, lane, work, reads, writes, after, every, offset, carries
    Lane     := role, index                  an open set: compute, halo, halo.2 ...
    after    := ((op name, lag), ...)        wait for instance (epoch - lag) of an op of the same rank
    work     := Compute | Sample | Barrier | Exchange | Send | Recv | AllReduce | AllGather | ReduceScatter | Broadcast
                | Push | Pull                each with kernels, scale, and params: words for whoever does the op
    Kernel   := kind, dims, numbers          (table KERNEL_DIMS; numbers: the precision it computes in)

The rules every interpreter shares:

* A lane runs its ops in the order of the list, epoch after epoch.
* An op exists in epochs offset, offset + every, ...; a waiter sees the newest instance that is not too new.
  Before epoch 0 a value is its initial value (zeros, or exact: what fresh rows would be), so nobody waits for it.
  `Schedule.awaits` says which instances an op has to wait for; nobody else works that out.
* Ranks meet only in communication: ops of the same name on different ranks are one communication, and the ranks that
  have it are its group. An EXCHANGE sends row `rank` of its matrix and receives column `rank` (transposed: the other
  way round); its sends start when it starts, it ends when its own sends and receives are done.
* Kernels of a communication op run before its first byte leaves (packing); a slow device packs slowly, too.
* A shared buffer as large as several times what all ranks push into it holds as many instances: a PULL finds the one it
  means, not a newer one that a faster rank has pushed meanwhile. Otherwise it finds the newest there is.
* Ranks that meet only in the store never wait for each other, unless a PULL has a bound: it waits until every rank has
  pushed its instance of `bound` + 1 epochs before, so no rank runs further ahead than that.
* An EXCHANGE moves what it reads first. Which rows those are, its matrix says: halo rows, or all inner rows of a rank.
  If it reads ids as well, only those rows travel: the ids of the rows a rank sends lie in a buffer of sent ids, those
  of the halo rows that reach it in one of halo ids.
* A layer may be computed in pieces, `forward.l.k`: a piece adds the share of its rows to a buffer of sums; the last,
  which writes the layer's output, finishes it.
* A name is `verb.index...`; the executor's handlers are found by the verb, never by the method. What a buffer is for
  is said by its rows and its role, never by its name.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from halocast.base.kernels import KERNEL_DIMS as KERNEL_DIMS
from halocast.base.kernels import Numbers as Numbers
from halocast.schedule.work import CARRIES as CARRIES
from halocast.schedule.work import COLLECTIVE as COLLECTIVE
from halocast.schedule.work import MATCHED as MATCHED
from halocast.schedule.work import NO_BOUND as NO_BOUND
from halocast.schedule.work import WORKS as WORKS
from halocast.schedule.work import AllGather as AllGather
from halocast.schedule.work import AllReduce as AllReduce
from halocast.schedule.work import Barrier as Barrier
from halocast.schedule.work import Broadcast as Broadcast
from halocast.schedule.work import Compute as Compute
from halocast.schedule.work import Exchange as Exchange
from halocast.schedule.work import Kernel as Kernel
from halocast.schedule.work import Kind as Kind
from halocast.schedule.work import Message as Message
from halocast.schedule.work import Payload as Payload
from halocast.schedule.work import Pull as Pull
from halocast.schedule.work import Push as Push
from halocast.schedule.work import Recv as Recv
from halocast.schedule.work import ReduceScatter as ReduceScatter
from halocast.schedule.work import Sample as Sample
from halocast.schedule.work import Send as Send
from halocast.schedule.work import Work as Work
from halocast.schedule.work import broadcast_chain as broadcast_chain
from halocast.schedule.work import ring_bytes as ring_bytes
from halocast.schedule.work import ring_steps as ring_steps
from halocast.schedule.work import shard_bytes as shard_bytes

SHARED = -1
NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")
LANE_ROLE = re.compile(r"[a-z][a-z_]*")

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue of ops that a rank runs one after the other: a role, and an index where a method has several of it."""

    role: str
    index: int = 0

    COMPUTE: ClassVar["Lane"]
    HALO: ClassVar["Lane"]  # rows of features or activations
    GRAD: ClassVar["Lane"]  # gradients of rows, where a method sends them beside the rows
    REDUCE: ClassVar["Lane"]  # weight gradients
    STORE: ClassVar["Lane"]
    SAMPLE: ClassVar["Lane"]
    SEND: ClassVar["Lane"]  # to the next stage of a pipeline
    RECV: ClassVar["Lane"]  # from the stage before

    def __str__(self) -> str:
        return f"{self.role}.{self.index}" if self.index else self.role

    def __lt__(self, other: "Lane") -> bool:
        """Put the usual roles first, in the order of ROLES: both interpreters start their lanes in one order."""
        return self._place < other._place

    @property
    def _place(self) -> tuple[int, str, int]:
        return ROLES.index(self.role) if self.role in ROLES else len(ROLES), self.role, self.index


ROLES = ("compute", "halo", "grad", "reduce", "store", "sample", "send", "recv")
for _role in ROLES:
    setattr(Lane, _role.upper(), Lane(_role))


def all_lanes(used: Iterable[Lane]) -> list[Lane]:
    """The usual lanes in their order, then the others that are used."""
    usual = [Lane(role) for role in ROLES]
    return [*usual, *sorted(set(used) - set(usual))]


@cache
def parse_lane(text: str) -> Lane:
    """The lane that prints as `text`: halo, halo.2."""
    role, _, index = text.partition(".")
    if not LANE_ROLE.fullmatch(role) or str(Lane(role, int(index or 0))) != text:
        raise ValueError(f"a lane is role or role.index, not {text!r}")
    return Lane(role, int(index or 0))


class Rows(StrEnum):
    """Which rows a buffer holds; an EXCHANGE moves inner -> halo (gather), halo -> sent (give back), or ids."""

    NONE = "none"
    INNER = "inner"
    HALO = "halo"
    SENT = "sent"  # one row per (peer, node this rank sends to it), grouped by peer
    SENT_IDS = "sent_ids"  # which of its rows a rank sends to each peer
    HALO_IDS = "halo_ids"  # which halo rows it gets from each peer
    GRAPH = "graph"  # a local graph
    ALL = "all"  # of all nodes, in one table


class Role(StrEnum):
    """What a buffer is to the op that reads or writes it, where its rows do not say it."""

    NONE = "none"
    FEATURES = "features"  # rows that enter layer 0
    ROWS = "rows"  # rows that enter another layer
    FIRST = "first"  # rows that enter layer 1, where all later layers mix them in
    GRAD = "grad"  # gradients of rows that enter a layer
    FIRST_GRAD = "first_grad"  # of the rows that later layers mix in, added up
    SUM = "sum"  # of neighbours' rows, as far as pieces of a layer have added them
    SUM_GRAD = "sum_grad"
    SNAPSHOT = "snapshot"  # rows as they were in an earlier epoch
    LATE_GRAD = "late_grad"  # gradients for rows of a snapshot, given back in this epoch
    OLD_GRAD = "old_grad"  # the same of the epoch before
    WEIGHTS = "weights"
    WEIGHT_GRADS = "weight_grads"


class Counted(StrEnum):
    """Which of its rows a rank gives to another, where a matrix has a count above 0 for the two."""

    HALO = "halo"  # those that the other's inner nodes need
    ALL = "all"  # all its inner rows
    SLOT = "slot"  # of the chunk in a slot, those that the other's chunks need


IDS = frozenset({Rows.SENT_IDS, Rows.HALO_IDS})


class Matrix:
    """A named, read-only table of row counts that compares by value; `rows` says which rows they count.

    With a spread the counts are drawn: they are what is expected, the spread is their standard deviation from epoch to
    epoch (kept to the third decimal), and those of an instance follow from the ids drawn for it.
    """

    __slots__ = ("counts", "name", "rows", "spread")

    def __init__(self, name: str, counts: Ints, spread: Reals | None = None, *, rows: Counted = Counted.HALO) -> None:
        self.name, self.rows = name, rows
        self.counts = np.array(counts, dtype=np.int64)
        self.counts.setflags(write=False)
        self.spread: Reals | None = None if spread is None else np.asarray(np.round(spread, 3), np.float64)

    @property
    def drawn(self) -> bool:
        return self.spread is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matrix):
            return NotImplemented
        said = (self.name, self.rows, self.drawn) == (other.name, other.rows, other.drawn)
        same = said and np.array_equal(self.counts, other.counts)
        return same and (self.spread is None or np.array_equal(self.spread, other.spread))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash((self.name, self.counts.tobytes()))

    def __repr__(self) -> str:
        return f"Matrix({self.name!r}, {self.counts.shape[0]} ranks, {int(self.counts.sum())} rows)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    name: str
    rank: int
    num_bytes: int
    rows: Rows = Rows.NONE
    role: Role = Role.NONE
    bits: int = 32  # per number
    persistent: bool = False
    exact: bool = False  # initially what a fresh exchange at the initial weights would bring, not zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    name: str
    rank: int
    lane: Lane
    work: Work = field(default_factory=Compute)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[tuple[str, int], ...] = ()
    every: int = 1
    offset: int = 0
    carries: bool = False  # a COMPUTE that passes on values of others (a running mean): they stay as old as they are

    @property
    def kind(self) -> Kind:
        return self.work.kind

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
    meta: tuple[tuple[str, str], ...] = ()
    degree_sigma: float | None = None  # standard deviation of ln(degree) of the graph: reads of its sparse products

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
        writers: dict[tuple[int, str], list[Op]] = defaultdict(list)
        for op in self.ops:
            for name in op.writes:
                if buffer := self.buffer(op.rank, name):
                    writers[buffer.rank, name].append(op)
        return dict(writers)

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
        return self._moved(op, True)

    def received(self, op: Op) -> Ints:
        """Bytes one instance of the op receives from each rank."""
        return self._moved(op, False)

    def _moved(self, op: Op, sent: bool) -> Ints:
        """Bytes to each rank, or from each rank."""
        return MOVED[op.kind](self, op, sent) if op.kind in MOVED else np.zeros(self.num_ranks, dtype=np.int64)

    def num_bytes(self, op: Op) -> int:
        """Bytes one instance of the op puts on the network or into the store (a PULL: takes out)."""
        if isinstance(op.work, Push | Pull):
            return op.work.num_bytes
        return int(self.sent(op).sum())

    def senders(self, op: Op) -> tuple[int, ...]:
        """The ranks from which the op gets something; a collective needs every rank of its group."""
        if op.kind in COLLECTIVE:
            return self.partners(op)
        if isinstance(op.work, Recv):
            return (op.work.peer,)  # even a message without bytes is waited for
        return tuple(np.flatnonzero(self.received(op)).tolist())

    def gives(self, op: Op) -> Bools:
        """The matrix [i, j] of whether rank i gives rank j something in the EXCHANGE or collective of the op."""
        if op.kind in COLLECTIVE:
            inside = np.isin(np.arange(self.num_ranks), self.group(op))
            return np.outer(inside, inside) & ~np.eye(self.num_ranks, dtype=np.bool_)
        assert isinstance(op.work, Exchange)
        counts = self._matrices[op.work.matrix].counts
        return np.asarray((counts.T if op.work.transposed else counts) * op.work.row_bytes > 0)

    def partners(self, op: Op) -> tuple[int, ...]:
        """The ranks the op gives something to or gets something from."""
        if op.kind in COLLECTIVE:
            return tuple(rank for rank in self.group(op) if rank != op.rank)
        if isinstance(op.work, Message):
            return (op.work.peer,)
        if op.kind in MATCHED:
            return tuple(np.flatnonzero(self.sent(op) + self.received(op)).tolist())
        return ()

    def bounded_by(self, op: Op) -> list[Op]:
        """The pushes of other ranks that a PULL with a bound may not run too far ahead of."""
        if not isinstance(op.work, Pull) or op.work.bound == NO_BOUND:
            return []
        return [w for name in op.reads for w in self.writers(op.rank, name) if w.rank != op.rank]

    @cached_property
    def _awaited(self) -> dict[tuple[int, str], tuple[tuple[Op, int], ...]]:
        """The ops that each (rank, op) waits for and how many epochs back, its bounds last."""
        return {(op.rank, op.name): tuple(self._waits(op)) for op in self.ops}

    def _waits(self, op: Op) -> Iterator[tuple[Op, int]]:
        for name, lag in op.after:
            source = self.find(op.rank, name)
            assert source is not None, f"{op.label} waits for {name!r}, which the checker would refuse"
            yield source, lag
        for writer in self.bounded_by(op):
            assert isinstance(op.work, Pull)
            yield writer, op.work.bound + 1

    @cached_property
    def free(self) -> bool:
        """Whether ranks run freely: they meet in the store alone, so that a fast one may be any number of epochs ahead,
        or as many as a bound allows."""
        kinds = {op.kind for op in self.ops}
        return self.num_ranks > 1 and Kind.PUSH in kinds and not kinds & MATCHED

    @cached_property
    def bounded(self) -> bool:
        """Whether ranks cannot be any number of epochs apart: they meet, or some PULL holds back whoever is ahead."""
        return not self.free or any(self.bounded_by(op) for op in self.ops)

    def awaits(self, op: Op, epoch: int) -> list[tuple[Op, int]]:
        """The instances that have to end before the op's of `epoch` starts, as (op, its epoch): those its `after` names
        and, of a bounded PULL, the pushes of other ranks. For what is before its first instance nobody waits."""
        waits = [(source, source.latest(epoch - lag)) for source, lag in self._awaited[op.rank, op.name]]
        return [wait for wait in waits if wait[1] >= 0]

    def distances(self, op: Op) -> tuple[tuple[Op, int], ...]:
        """The waits that `awaits` finds in every epoch, as (op, how many epochs back it looks)."""
        return self._awaited[op.rank, op.name]


def _vector(num_ranks: int, peer: int, num_bytes: int) -> Ints:
    vector = np.zeros(num_ranks, dtype=np.int64)
    vector[peer] = num_bytes
    return vector


def _exchanged(schedule: Schedule, op: Op, sent: bool) -> Ints:
    work = op.work
    assert isinstance(work, Exchange)
    counts = schedule._matrices[work.matrix].counts
    return (counts[:, op.rank] if work.transposed is sent else counts[op.rank]) * work.row_bytes


def _message(schedule: Schedule, op: Op, sent: bool) -> Ints:
    assert isinstance(op.work, Message)
    return _vector(schedule.num_ranks, op.work.peer, op.work.num_bytes if sent is (op.kind is Kind.SEND) else 0)


def _around(share: Callable[[int, int], int]) -> Callable[[Schedule, Op, bool], Ints]:
    """Bytes around a ring: a share of the payload goes to the group's next rank, as much comes from the one before."""

    def moved(schedule: Schedule, op: Op, sent: bool) -> Ints:
        assert isinstance(op.work, Payload)
        group = schedule.group(op)
        place = group.index(op.rank)
        peer = group[(place + 1) % len(group)] if sent else group[place - 1]
        return _vector(schedule.num_ranks, peer, share(op.work.num_bytes, len(group)))

    return moved


def _broadcast(schedule: Schedule, op: Op, sent: bool) -> Ints:
    """Bytes down a chain from the root: every rank but the last sends the payload on to the next."""
    assert isinstance(op.work, Broadcast)
    chain = broadcast_chain(schedule.group(op), op.work.root)
    place = chain.index(op.rank)
    ends = place + 1 < len(chain) if sent else place > 0
    peer = chain[(place + 1) % len(chain)] if sent else chain[place - 1]
    return _vector(schedule.num_ranks, peer, op.work.num_bytes if ends else 0)


MOVED: Mapping[Kind, Callable[[Schedule, Op, bool], Ints]] = MappingProxyType(
    {
        Kind.EXCHANGE: _exchanged,
        Kind.SEND: _message,
        Kind.RECV: _message,
        Kind.ALLREDUCE: _around(ring_bytes),
        Kind.ALLGATHER: _around(shard_bytes),
        Kind.REDUCE_SCATTER: _around(shard_bytes),
        Kind.BROADCAST: _broadcast,
    }
)
