"""Messages of one rank over torch.distributed: channels for EXCHANGE ops, collectives, one-off gathers.

A channel owns persistent buffers: one for packed rows to send, a ring for received ones; where sizes are drawn, it
makes them anew for every instance. Over gloo, receives are posted one instance ahead (if its sizes are known by then),
so that a sender never waits for a busy receiver. Over nccl a pre-posted receive would hold the device, so the sends and
receives of an exchange are posted together, grouped (ungrouped ones deadlock).
Every wait has a time limit and names op, peer and epoch when it fails.

gloo's messages lie in host memory: its sends and receives hand the tensor's address to a socket, whatever device it is
of. It does reduce CUDA tensors, by copies of its own into pinned memory; here all its messages are staged alike, which
a test can do without a GPU. Each peer's rows leave as soon as they are down and go up as soon as they are there, as in
the simulator. Where device and host are one, nothing is staged.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from halocast.base.errors import RunError
from halocast.exec.transport.device import Cpu, Seam
from halocast.schedule.ir import Exchange, Lane, Op, Schedule, ring_bytes

TAGS = 2**30  # gloo's tags are 31-bit; wrapping is harmless because only neighbouring epochs are ever in flight
ONCE = 0  # the tag of one-off gathers, which no channel uses
NUM_POSTED = 2  # instances of an op whose receives are posted at once: the one that runs, and the next
Sizes = tuple[list[int], list[int]]  # rows sent to and received from each rank


class PeerError(RunError):
    """A wait for another rank failed: most likely that rank failed first, and its own message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The connections and settings that all channels of a rank share."""

    rank: int
    timeout_s: float
    backend: str
    device: torch.device
    seam: Seam = field(default_factory=Cpu)
    # process groups of every lane, since lanes have no common order: of all ranks, and of those that collect
    groups: dict[tuple[Lane, tuple[int, ...]], Any] = field(default_factory=dict)

    def group(self, lane: Lane, ranks: tuple[int, ...] = ()) -> Any:
        """The lane's group of these ranks; without ranks, and where no smaller one was made, that of all."""
        return self.groups.get((lane, ranks), self.groups.get((lane, ())))

    @property
    def staged(self) -> bool:
        """Whether the transport cannot reach the device's memory."""
        return self.seam.stages and self.backend != "nccl"

    @property
    def wire(self) -> torch.device:
        """The device of tensors that the transport can take as they are."""
        return self.device if self.backend == "nccl" else torch.device("cpu")

    def room(self, rows: Tensor) -> Tensor:
        """Memory for such rows that the transport reaches: their own where it can."""
        return self.seam.host_like(rows) if self.staged else rows

    def down(self, rows: Tensor) -> Tensor:
        """The rows where the transport reaches them."""
        room = self.room(rows)
        self.move(rows, room)
        return room

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy one tensor to another and wait for it, unless both are the same."""
        if source is not target:
            self.seam.copy(source, target)
            self.seam.finish()

    def wait(self, work: Any, what: str, peer: str) -> None:
        try:
            done = work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            raise PeerError(f"rank {self.rank}: {what} failed while waiting for {peer}: {_first_line(error)}") from None
        if done is False:
            raise PeerError(f"rank {self.rank}: {what} timed out after {self.timeout_s:g} s waiting for {peer}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def message_tag(epoch: int, exchange: int, num_exchanges: int) -> int:
    """The tag of one instance of an exchange (= of one layer, in one direction); no other in flight has it."""
    return 1 + (epoch * num_exchanges + exchange) % TAGS


class Posted(NamedTuple):
    """A send or a receive on its way."""

    peer: str
    work: Any
    landing: tuple[Tensor, Tensor] | None = None  # received rows in host memory, and where they go on the device


@dataclass(slots=True, kw_only=True)
class Channel:
    """One EXCHANGE op of this rank."""

    op: Op
    tag: int  # differs between the exchanges of a schedule
    num_tags: int
    link: Endpoint
    send_rows: list[int]  # per peer
    recv_rows: list[int]
    packed: Tensor  # rows on their way out; free again when an instance has ended
    ring: list[Tensor]
    last_epoch: int
    is_free: Callable[[int, bool], bool]  # (instance whose slot is wanted, may wait)
    drawn: Callable[[int], Sizes | None] | None = None  # sizes of an instance once they are known, where they differ
    _received: dict[int, list[int]] = field(default_factory=dict)  # by slot: rows from each peer, where drawn
    _posted: dict[int, list[Posted]] = field(default_factory=dict)
    _outbox: Tensor | None = None  # in host memory, if staged: rows on their way out, as long as `packed`
    _inbox: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.link.staged:
            rows = self.ring[0]
            leaving = rows.new_empty((sum(self.send_rows), *rows.shape[1:]), device="meta")
            self._outbox = self.link.room(leaving)
            self._inbox = [self.link.room(rows) for _ in range(NUM_POSTED)]

    def read(self, instance: int) -> Tensor:
        """Rows of an instance; before the first one, the initial zeros."""
        return self.ring[self._slot(instance)] if instance >= 0 else torch.zeros_like(self.ring[0])

    def drawn_rows(self, instance: int) -> list[int]:
        """Rows from each peer of an instance that can be read; empty unless sizes are drawn."""
        return self._received.get(self._slot(instance), [])

    def pack(self, rows: Tensor, picked: Tensor) -> Tensor:
        if self.drawn is not None:
            return rows.index_select(0, picked)
        return torch.index_select(rows, 0, picked, out=self.packed)

    def run(self, epoch: int, packed: Tensor) -> int:
        """Send rows that lie grouped by peer, receive this epoch's; returns bytes sent."""
        sends = self._start(epoch, packed)
        name = f"{self.op.name} of epoch {epoch}"
        for message in [*self._posted.pop(epoch, []), *sends]:
            self.link.wait(message.work, name, message.peer)
            if message.landing is not None:
                self.link.seam.copy(*message.landing)
        self.link.seam.finish()
        return packed.numel() * packed.element_size()

    def _start(self, epoch: int, packed: Tensor) -> list[Posted]:
        if self.link.backend == "nccl":
            self.is_free(epoch, True)
            return self._grouped(epoch, packed)
        self.post(epoch, wait=True)
        send_rows, _ = self._sizes(epoch) or ([], [])
        sends = [
            Posted(f"rank {peer}", dist.isend(rows, peer, group=self.link.group(self.op.lane), tag=self._tag(epoch)))
            for peer, rows in self._leaving(packed, send_rows)
        ]
        self.post(epoch + self.op.every, wait=False)
        return sends

    def _sizes(self, epoch: int) -> Sizes | None:
        return (self.send_rows, self.recv_rows) if self.drawn is None else self.drawn(epoch)

    def _leaving(self, packed: Tensor, send_rows: list[int]) -> Iterator[tuple[int, Tensor]]:
        """Pairs (peer, its rows where the transport reads them); if staged, each as soon as it is down."""
        parts = _segments(packed, send_rows)
        if self._outbox is None:
            yield from parts
            return
        if self.drawn is not None:
            self._outbox = self.link.room(packed)
        seam, rooms, events = self.link.seam, _segments(self._outbox, send_rows), []
        for (_, rows), (_, room) in zip(parts, rooms, strict=True):
            seam.copy(rows, room)
            events.append(seam.record())
        for event, part in zip(events, rooms, strict=True):
            event.synchronize()
            yield part

    def post(self, epoch: int, *, wait: bool) -> None:
        """Post the receives of an instance, unless posted, past the end, not yet drawn, or its slot is being read."""
        if epoch in self._posted or epoch > self.last_epoch:
            return
        sizes = self._sizes(epoch)
        if sizes is None or not self.is_free(epoch, wait):
            return
        group, tag, recv_rows = self.link.group(self.op.lane), self._tag(epoch), sizes[1]
        self._make_room(epoch, recv_rows)
        slot = _segments(self.ring[self._slot(epoch)], recv_rows)
        rooms = _segments(self._inbox[self._turn(epoch, NUM_POSTED)], recv_rows) if self._inbox else slot
        self._posted[epoch] = [
            Posted(f"rank {peer}", dist.irecv(room, peer, group=group, tag=tag), (room, rows) if self._inbox else None)
            for (peer, rows), (_, room) in zip(slot, rooms, strict=True)
        ]

    def _make_room(self, epoch: int, recv_rows: list[int]) -> None:
        """Make the slot of an instance as large as its drawn sizes say."""
        if self.drawn is None:
            return
        slot = self._slot(epoch)
        self.ring[slot] = self.ring[slot].new_empty((sum(recv_rows), *self.ring[slot].shape[1:]))
        self._received[slot] = recv_rows
        if self._inbox:
            self._inbox[self._turn(epoch, NUM_POSTED)] = self.link.room(self.ring[slot])

    def _grouped(self, epoch: int, packed: Tensor) -> list[Posted]:
        send_rows, recv_rows = self._sizes(epoch) or ([], [])
        self._make_room(epoch, recv_rows)
        slot = self.ring[self._slot(epoch)]
        group = self.link.group(self.op.lane)
        ops = [dist.P2POp(dist.isend, rows, peer, group) for peer, rows in _segments(packed, send_rows)]
        ops += [dist.P2POp(dist.irecv, rows, peer, group) for peer, rows in _segments(slot, recv_rows)]
        return [Posted("its peers", work) for work in dist.batch_isend_irecv(ops)] if ops else []

    def _slot(self, epoch: int) -> int:
        return self._turn(epoch, len(self.ring))

    def _turn(self, epoch: int, places: int) -> int:
        return (epoch // self.op.every) % places

    def _tag(self, epoch: int) -> int:
        return message_tag(epoch, self.tag, self.num_tags)


def _segments(rows: Tensor, counts: list[int]) -> list[tuple[int, Tensor]]:
    """Pairs (peer, its slice) of rows grouped by peer, without the peers that have none."""
    return [(peer, part) for peer, part in enumerate(torch.split(rows, counts)) if len(part)]


def rows_per_peer(schedule: Schedule, op: Op) -> tuple[list[int], list[int]]:
    """Rows an EXCHANGE sends to and receives from each rank."""
    assert isinstance(op.work, Exchange)
    size = max(op.work.row_bytes, 1)
    return (schedule.sent(op) // size).tolist(), (schedule.received(op) // size).tolist()


def gather_once(link: Endpoint, packed: Tensor, send_rows: list[int], recv_rows: list[int], what: str) -> Tensor:
    """A blocking exchange outside the schedule: precomputation and evaluation."""
    received = packed.new_empty((sum(recv_rows), *packed.shape[1:]))
    inbox, outbox = link.room(received), link.down(packed)
    ops = [dist.P2POp(dist.irecv, rows, peer, tag=ONCE) for peer, rows in _segments(inbox, recv_rows)]
    ops += [dist.P2POp(dist.isend, rows, peer, tag=ONCE) for peer, rows in _segments(outbox, send_rows)]
    for work in dist.batch_isend_irecv(ops) if ops else []:
        link.wait(work, what, "another rank")
    link.move(inbox, received)
    return received


def all_reduce(link: Endpoint, values: Tensor, what: str, group: Any = None) -> int:
    """Sum over all ranks of a group, in place; returns the bytes a ring sends per rank."""
    room = link.down(values)
    link.wait(dist.all_reduce(room, group=group, async_op=True), what, "another rank")
    link.move(room, values)
    return ring_bytes(values.numel() * values.element_size(), dist.get_world_size(group))


def smallest(link: Endpoint, value: float, what: str) -> float:
    """The smallest of all ranks' values."""
    values = torch.tensor([value], dtype=torch.float64, device=link.wire)
    link.wait(dist.all_reduce(values, op=dist.ReduceOp.MIN, async_op=True), what, "another rank")
    return float(values)


def barrier(link: Endpoint, what: str, group: Any = None) -> int:
    values = torch.zeros(1, device=link.wire)
    link.wait(dist.all_reduce(values, group=group, async_op=True), what, "another rank")
    return 0
