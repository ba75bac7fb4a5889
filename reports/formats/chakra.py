"""A prediction as Chakra execution traces (MLCommons): one file of nodes per rank, and a JSON of process groups.

An op instance becomes one node, or several: an exchange is a SEND and a RECV per peer with the tag of its instance, and
what a communication packs first is a COMP node before them. Only data dependencies gate a replay, so the order of a
lane is written as such, beside what an op waits for. Durations are whole microseconds in the format; the exact seconds
are attributes. The first steady epochs are written, as many as there is room for.

The few rules of protobuf's wire format that this needs are at the end, writing only: a field is a varint key (number,
wire type) and its value. As in proto3, a field that has its default value is not written, except the members of a
oneof, whose presence says which one is set.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

from halocast.reports.comparison import KernelWork, MethodResult
from halocast.schedule.ir import (
    COLLECTIVE,
    MATCHED,
    Kernel,
    Kind,
    Lane,
    Op,
    Payload,
    Pull,
    Push,
    Recv,
    Schedule,
    Send,
)
from halocast.schedule.trace import Span

VERSION = "0.0.4"
GROUPS = "comm_groups.json"
MICRO = 1e6
# of the schema; a barrier is an all-reduce: replayers refuse BARRIER, and a sum of nothing waits for everybody, too
COMM_TYPES = {
    Kind.ALLREDUCE: 0,
    Kind.BARRIER: 0,
    Kind.ALLGATHER: 2,
    Kind.BROADCAST: 5,
    Kind.REDUCE_SCATTER: 7,
}
BARRIER_BYTES = 4
VARINT, FIXED64, BYTES = 0, 1, 2  # wire types
MOST_NODES = 60_000  # of all ranks of one method


class NodeType(IntEnum):
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class Arm(IntEnum):
    """Members of an attribute's oneof; a reader that looks at another one reads 0."""

    DOUBLE = 3
    INT32 = 7
    INT64 = 9
    UINT64 = 13
    BOOL = 27
    STRING = 29


Value = int | float | str | bool


def attribute(name: str, arm: Arm, value: Value) -> bytes:
    if arm is Arm.DOUBLE:
        member = member_double(arm, float(value))
    elif arm is Arm.STRING:
        member = member_bytes(arm, str(value).encode())
    else:
        member = member_uint(arm, int(value))
    return text_field(1, name) + member


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBody:
    """What one node does, without its place in the trace."""

    type: NodeType
    attributes: tuple[tuple[str, Arm, Value], ...]
    packs: bool = False  # comes before the other nodes of its op


def write_chakra(result: MethodResult, directory: Path, kernel_work: KernelWork | None = None) -> str:
    """Write one `.et` file per rank; where there would be too many nodes, write none and return that as the reason."""
    export = Export(result, kernel_work)
    if export.num_nodes > MOST_NODES:
        return f"{result.method}: an epoch has {export.num_nodes:,} nodes, more than {MOST_NODES:,}"
    directory.mkdir(parents=True)
    for rank in range(result.schedule.num_ranks):
        messages = chain([export.metadata(rank)], export.nodes(rank))
        with (directory / f"{result.method}.{rank}.et").open("wb") as out:
            out.writelines(delimited(messages))
    groups = {str(number): list(ranks) for ranks, number in export.groups.items()}
    (directory / GROUPS).write_text(json.dumps(groups), encoding="utf-8")
    return ""


class Export:
    """A trace's steady epochs as nodes."""

    def __init__(self, result: MethodResult, kernel_work: KernelWork | None = None) -> None:
        self.result = result
        self.schedule: Schedule = result.schedule
        self.kernel_work = kernel_work or (lambda kernel: (0, 0))
        self.first_epoch = result.summary.warmup_epochs
        self.pieces = {(op.rank, op.name): tuple(self._pieces(op)) for op in self.schedule.ops}

    @cached_property
    def nodes_per_epoch(self) -> int:
        return max(1, sum(map(len, self.pieces.values())))

    @cached_property
    def num_epochs(self) -> int:
        steady = self.result.trace.num_epochs - self.first_epoch
        return max(1, min(steady, MOST_NODES // self.nodes_per_epoch))

    @property
    def num_nodes(self) -> int:
        return self.nodes_per_epoch * self.num_epochs

    @cached_property
    def groups(self) -> dict[tuple[int, ...], int]:
        distinct = dict.fromkeys(self.schedule.group(op) for op in self.schedule.ops if op.kind in COLLECTIVE)
        return {ranks: number for number, ranks in enumerate(distinct)}

    @cached_property
    def messages(self) -> dict[str, int]:
        names = dict.fromkeys(op.name for op in self.schedule.ops if op.kind in MATCHED)
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def start_s(self) -> float:
        return min((s.start_s for s in self.result.trace.spans if s.epoch >= self.first_epoch), default=0.0)

    def metadata(self, rank: int) -> bytes:
        attributes: list[tuple[str, Arm, Value]] = [
            ("method", Arm.STRING, self.result.method),
            ("source", Arm.STRING, self.result.trace.source),
            ("cluster", Arm.STRING, self.result.summary.cluster),
            ("rank", Arm.INT64, rank),
            ("first_epoch", Arm.INT64, self.first_epoch),
            ("num_epochs", Arm.INT64, self.num_epochs),
        ]
        return text_field(1, VERSION) + b"".join(member_bytes(2, attribute(*one)) for one in attributes)

    def nodes(self, rank: int) -> Iterator[bytes]:
        """The nodes in order of epochs and of the list of ops; ids count up in that order."""
        last = self.first_epoch + self.num_epochs
        places = {op.name: place for place, op in enumerate(self.schedule.by_rank[rank])}
        spans = [s for s in self.result.trace.of_rank(rank) if self.first_epoch <= s.epoch < last]
        spans.sort(key=lambda span: (span.epoch, places[span.op]))
        ids: dict[tuple[str, int], range] = {}
        for span in spans:
            start = next(reversed(ids.values())).stop if ids else 0
            ids[span.op, span.epoch] = range(start, start + len(self.pieces[rank, span.op]))
        before = _lane_order(spans)
        for span in spans:
            yield from self._instance(span, ids, before.get((span.op, span.epoch)))

    def _instance(
        self, span: Span, ids: dict[tuple[str, int], range], before: tuple[str, int] | None
    ) -> Iterator[bytes]:
        op = self.schedule.find(span.rank, span.op)
        assert op is not None
        waits = [before] if before else []
        awaited = self.schedule.awaits(op, span.epoch)
        waits += [(source.name, epoch) for source, epoch in awaited if source.rank == op.rank]
        outer = [node for wait in dict.fromkeys(waits) for node in self._ends(op.rank, wait, ids)]
        pieces = self.pieces[op.rank, op.name]
        for number, piece in zip(ids[span.op, span.epoch], pieces, strict=True):
            packed_first = piece.type is NodeType.COMM_RECV or piece.packs or not pieces[0].packs
            deps = outer if packed_first else [ids[span.op, span.epoch].start]
            yield self._node(number, piece, span, deps)

    def _ends(self, rank: int, instance: tuple[str, int], ids: dict[tuple[str, int], range]) -> list[int]:
        """Nodes at whose end an op instance is over; none for an epoch that is not written, which is over already."""
        numbers = ids.get(instance, range(0))
        alone = len(numbers) <= 1
        return [
            n for n, piece in zip(numbers, self.pieces[rank, instance[0]], strict=False) if alone or not piece.packs
        ]

    def _node(self, number: int, piece: NodeBody, span: Span, deps: list[int]) -> bytes:
        attributes = [
            ("is_cpu_op", Arm.BOOL, False),
            *piece.attributes,
            ("epoch", Arm.INT64, span.epoch),
            ("start_s", Arm.DOUBLE, span.start_s),
            ("end_s", Arm.DOUBLE, span.end_s),
        ]
        if piece.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            tag = (span.epoch - self.first_epoch) * len(self.messages) + self.messages[span.op]
            attributes.append(("comm_tag", Arm.INT32, tag))
        return b"".join(
            [
                uint_field(1, number),
                text_field(2, f"{span.op}.pack" if piece.packs else span.op),
                uint_field(3, piece.type),
                packed_field(5, deps),
                uint_field(6, round((span.start_s - self.start_s) * MICRO)),
                uint_field(7, round((span.end_s - span.start_s) * MICRO)),
                *(member_bytes(10, attribute(*one)) for one in attributes),
            ]
        )

    def _pieces(self, op: Op) -> Iterator[NodeBody]:
        moves = list(self._moves(op))
        if op.work.kernels or not moves:
            yield self._computes(op.work.kernels, packs=bool(moves))
        yield from moves

    def _computes(self, kernels: tuple[Kernel, ...], packs: bool) -> NodeBody:
        work = [self.kernel_work(kernel) for kernel in kernels]
        flops, moved = sum(one[0] for one in work), sum(one[1] for one in work)
        attributes = (("num_ops", Arm.INT64, flops), ("tensor_size", Arm.UINT64, moved))
        return NodeBody(type=NodeType.COMP, attributes=attributes, packs=packs)

    def _moves(self, op: Op) -> Iterator[NodeBody]:
        if isinstance(op.work, Push | Pull):
            kind = NodeType.MEM_STORE if op.kind is Kind.PUSH else NodeType.MEM_LOAD
            yield NodeBody(type=kind, attributes=(("tensor_size", Arm.UINT64, op.work.num_bytes),))
        elif op.kind in COLLECTIVE:
            yield self._collective(op)
        elif op.kind in MATCHED:
            yield from self._pairs(op)

    def _collective(self, op: Op) -> NodeBody:
        return NodeBody(
            type=NodeType.COMM_COLL,
            attributes=(
                ("comm_type", Arm.INT64, COMM_TYPES[op.kind]),
                ("comm_size", Arm.INT64, op.work.num_bytes if isinstance(op.work, Payload) else BARRIER_BYTES),
                ("pg_name", Arm.STRING, str(self.groups[self.schedule.group(op)])),
            ),
        )

    def _pairs(self, op: Op) -> Iterator[NodeBody]:
        """A node per message to or from a peer; an empty message is sent only by an op that is a message."""
        sent, received = self.schedule.sent(op).tolist(), self.schedule.received(op).tolist()
        for peer in range(self.schedule.num_ranks):
            if sent[peer] or (isinstance(op.work, Send) and op.work.peer == peer):
                yield _message(NodeType.COMM_SEND, op.rank, peer, sent[peer])
            if received[peer] or (isinstance(op.work, Recv) and op.work.peer == peer):
                yield _message(NodeType.COMM_RECV, peer, op.rank, received[peer])


def _message(kind: NodeType, source: int, target: int, num_bytes: int) -> NodeBody:
    ends = (("comm_src", Arm.INT32, source), ("comm_dst", Arm.INT32, target))
    return NodeBody(type=kind, attributes=(("comm_size", Arm.INT64, num_bytes), *ends))


def _lane_order(spans: list[Span]) -> dict[tuple[str, int], tuple[str, int]]:
    lanes: dict[Lane, list[tuple[str, int]]] = {}
    for span in spans:
        lanes.setdefault(span.lane, []).append((span.op, span.epoch))
    return {now: before for lane in lanes.values() for before, now in pairwise(lane)}


def varint(value: int) -> bytes:
    """A number as seven bits a byte, the lowest first; negative numbers are not needed here."""
    assert value >= 0
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _key(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def member_uint(number: int, value: int) -> bytes:
    """A member of a oneof: any unsigned number, a signed one that is not negative, or a bool."""
    return _key(number, VARINT) + varint(value)


def member_double(number: int, value: float) -> bytes:
    return _key(number, FIXED64) + struct.pack("<d", value)


def member_bytes(number: int, value: bytes) -> bytes:
    return _key(number, BYTES) + varint(len(value)) + value


def uint_field(number: int, value: int) -> bytes:
    return member_uint(number, value) if value else b""


def text_field(number: int, value: str) -> bytes:
    return member_bytes(number, value.encode()) if value else b""


def packed_field(number: int, values: Sequence[int]) -> bytes:
    """A repeated field of numbers."""
    return member_bytes(number, b"".join(map(varint, values))) if values else b""


def delimited(messages: Iterable[bytes]) -> Iterable[bytes]:
    """A stream of messages, each behind its length."""
    for message in messages:
        yield varint(len(message))
        yield message
