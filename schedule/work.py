"""What ops do, as a sum type: each variant says what travels and is of one kind; and the bytes of collectives."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from halocast.base.kernels import Numbers

NO_BOUND = -1


class Kind(StrEnum):
    COMPUTE = "compute"
    EXCHANGE = "exchange"
    SEND = "send"
    RECV = "recv"
    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    PUSH = "push"
    PULL = "pull"
    SAMPLE = "sample"
    BARRIER = "barrier"


COLLECTIVE = frozenset({Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER, Kind.BROADCAST, Kind.BARRIER})
MATCHED = COLLECTIVE | {Kind.EXCHANGE, Kind.SEND, Kind.RECV}
# These move values without making new ones, so the age of what they write is that of what they read.
CARRIES = frozenset({Kind.EXCHANGE, Kind.SEND, Kind.RECV, Kind.ALLGATHER, Kind.BROADCAST, Kind.PUSH, Kind.PULL})


@dataclass(frozen=True, slots=True)
class Kernel:
    kind: str
    dims: tuple[int, ...]
    numbers: Numbers = Numbers.FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an op does; the variants below say what travels, and each is of one kind."""

    kind: ClassVar[Kind]
    kernels: tuple[Kernel, ...] = ()
    scale: float = 1.0  # what a number is multiplied by: this rank's share in a sum, the old share of a running mean
    params: tuple[tuple[str, str], ...] = ()  # e.g. the rate and the seed of a draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Work):
    kind = Kind.COMPUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Work):
    kind = Kind.SAMPLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Work):
    kind = Kind.BARRIER


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Work):
    """Rows traded with other ranks, as many as a matrix says; a row takes `row_bytes`, of its numbers each `bits`."""

    kind = Kind.EXCHANGE
    matrix: str
    row_bytes: int
    transposed: bool = False
    bits: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Work):
    """A message of some bytes between two ranks."""

    peer: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Message):
    kind = Kind.SEND


@dataclass(frozen=True, slots=True, kw_only=True)
class Recv(Message):
    kind = Kind.RECV


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload(Work):
    """Bytes of a collective, or to or from the store: of the whole tensor, of which ranks may hold pieces."""

    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Payload):
    """A tensor that all ranks of the group hold, summed."""

    kind = Kind.ALLREDUCE


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(Payload):
    """A tensor of which every rank of the group holds an equal piece, in the order of ranks, to all of them."""

    kind = Kind.ALLGATHER


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceScatter(Payload):
    """A tensor that all ranks of the group hold, summed; every rank keeps its piece."""

    kind = Kind.REDUCE_SCATTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast(Payload):
    """A tensor of one rank, to all of the group."""

    kind = Kind.BROADCAST
    root: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Payload):
    kind = Kind.PUSH


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull(Payload):
    kind = Kind.PULL
    bound: int = NO_BOUND  # epochs it may be ahead of the slowest rank


WORKS: tuple[type[Work], ...] = (
    *(Compute, Sample, Barrier, Exchange, Send, Recv),
    *(AllReduce, AllGather, ReduceScatter, Broadcast, Push, Pull),
)


def ring_bytes(payload_bytes: int, num_ranks: int) -> int:
    """Bytes a rank sends in a ring all-reduce: 2(P-1)/P of the payload, rounded down."""
    return 2 * (num_ranks - 1) * payload_bytes // num_ranks


def shard_bytes(payload_bytes: int, num_ranks: int) -> int:
    """Bytes a rank sends in a ring all-gather or reduce-scatter: (P-1)/P of the payload, rounded down."""
    return (num_ranks - 1) * payload_bytes // num_ranks


def ring_steps(num_ranks: int) -> int:
    return 2 * (num_ranks - 1)


def broadcast_chain(group: tuple[int, ...], root: int) -> tuple[int, ...]:
    """The ranks of a group in the order in which a broadcast passes them: from the root on, around."""
    place = group.index(root)
    return (*group[place:], *group[:place])
