"""The channel of an EXCHANGE op over torch.distributed.

A channel owns persistent buffers: one for packed rows to send, a ring for received ones; where sizes are drawn, it
makes them anew for every instance. Over gloo, receives are posted one instance ahead (if its sizes are known by then),
so that a sender never waits for a busy receiver. Over nccl a pre-posted receive would hold the device, so the sends and
receives of an exchange are posted together, grouped (ungrouped ones deadlock).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from halocast.exec.transport.comm import Endpoint, segments
from halocast.schedule.ir import Exchange, Op, Schedule

TAGS = 2**30  # gloo's tags are 31-bit; wrapping is harmless because only neighbouring epochs are ever in flight
NUM_POSTED = 2  # instances of an op whose receives are posted at once: the one that runs, and the next
Sizes = tuple[list[int], list[int]]  # rows sent to and received from each rank
Stretch = Callable[[Callable[[], Tensor], Callable[[], None]], Tensor]  # (kernels, wait for them) -> their result


def message_tag(epoch: int, exchange: int, num_exchanges: int) -> int:
    """The tag of one instance of an exchange (= of one layer, in one direction); no other in flight has it."""
    return 1 + (epoch * num_exchanges + exchange) % TAGS


def plainly(kernels: Callable[[], Tensor], finish: Callable[[], None]) -> Tensor:
    """Run kernels as fast as they are."""
    return kernels()


class Posted(NamedTuple):
    """A send or a receive on its way."""

    peer: str
    work: Any
    landing: tuple[Tensor, Tensor] | None = None  # received rows in host memory, and where they go on the device


@dataclass(slots=True, kw_only=True)
class DistChannel:
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
    stretch: Stretch = plainly  # packs as slowly as a slow device does
    _received: dict[int, list[int]] = field(default_factory=dict)  # by slot: rows from each peer, where drawn
    _posted: dict[int, list[Posted]] = field(default_factory=dict)
    _sends: list[Posted] = field(default_factory=list)
    _sent_bytes: int = 0
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

    def give(self, epoch: int, rows: Tensor, picked: Tensor | None = None) -> None:
        """Send rows that lie grouped by peer, or those that are picked so."""
        packed = rows if picked is None else self.stretch(lambda: self.pack(rows, picked), self.link.seam.finish)
        self._sends = self._start(epoch, packed)
        self._sent_bytes = packed.numel() * packed.element_size()

    def take(self, epoch: int) -> int:
        """Wait for what was sent and for this epoch's rows; returns bytes sent."""
        name = f"{self.op.name} of epoch {epoch}"
        for message in [*self._posted.pop(epoch, []), *self._sends]:
            self.link.wait(message.work, name, message.peer)
            if message.landing is not None:
                self.link.seam.copy(*message.landing)
        self.link.seam.finish()
        self._sends = []
        return self._sent_bytes

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
        parts = segments(packed, send_rows)
        if self._outbox is None:
            yield from parts
            return
        if self.drawn is not None:
            self._outbox = self.link.room(packed)
        seam, rooms, events = self.link.seam, segments(self._outbox, send_rows), []
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
        slot = segments(self.ring[self._slot(epoch)], recv_rows)
        rooms = segments(self._inbox[self._turn(epoch, NUM_POSTED)], recv_rows) if self._inbox else slot
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
        ops = [dist.P2POp(dist.isend, rows, peer, group) for peer, rows in segments(packed, send_rows)]
        ops += [dist.P2POp(dist.irecv, rows, peer, group) for peer, rows in segments(slot, recv_rows)]
        return [Posted("its peers", work) for work in dist.batch_isend_irecv(ops)] if ops else []

    def _slot(self, epoch: int) -> int:
        return self._turn(epoch, len(self.ring))

    def _turn(self, epoch: int, places: int) -> int:
        return (epoch // self.op.every) % places

    def _tag(self, epoch: int) -> int:
        return message_tag(epoch, self.tag, self.num_tags)


def rows_per_peer(schedule: Schedule, op: Op) -> tuple[list[int], list[int]]:
    """Rows an EXCHANGE sends to and receives from each rank."""
    assert isinstance(op.work, Exchange)
    size = max(op.work.row_bytes, 1)
    return (schedule.sent(op) // size).tolist(), (schedule.received(op) // size).tolist()
