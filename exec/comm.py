"""Messages of one rank over torch.distributed: channels for EXCHANGE ops, collectives, one-off gathers.

A channel owns persistent buffers: one for packed rows to send, a ring for received ones. Over gloo, receives are
posted one instance ahead, so that a sender never waits for a busy receiver. Over nccl a pre-posted receive would
hold the device, so the sends and receives of an exchange are posted together, grouped (ungrouped ones deadlock).
Every wait has a time limit and names op, peer and epoch when it fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halocast.base.errors import RunError
from halocast.schedule.ir import Lane, Op, Schedule, ring_bytes

TAGS = 2**30  # gloo's tags are 32-bit; wrapping is harmless because only neighbouring epochs are ever in flight
ONCE = 0  # the tag of one-off gathers, which no channel uses


class PeerError(RunError):
    """A wait for another rank failed: most likely that rank failed first, and its own message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What all channels of a rank share."""

    rank: int
    timeout_s: float
    backend: str
    device: torch.device
    groups: dict[Lane, Any] = field(default_factory=dict)  # a lane's own process group: lanes have no common order

    def group(self, lane: Lane) -> Any:
        return self.groups.get(lane)

    def wait(self, work: Any, what: str, peer: str) -> None:
        try:
            done = work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            raise PeerError(f"rank {self.rank}: {what} failed while waiting for {peer}: {_first_line(error)}") from None
        if done is False:
            raise PeerError(f"rank {self.rank}: {what} timed out after {self.timeout_s:g} s waiting for {peer}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@dataclass(slots=True, kw_only=True)
class Channel:
    """One EXCHANGE op of this rank."""

    op: Op
    tag: int  # differs between the exchanges of a schedule
    num_tags: int
    link: Link
    send_rows: list[int]  # per peer
    recv_rows: list[int]
    packed: Tensor  # rows on their way out; free again when an instance has ended
    ring: list[Tensor]
    last_epoch: int
    is_free: Callable[[int, bool], bool]  # (instance whose slot is wanted, may wait)
    _posted: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)

    def read(self, instance: int) -> Tensor:
        """Rows of an instance; before the first one, the initial zeros."""
        return self.ring[self._slot(instance)] if instance >= 0 else torch.zeros_like(self.ring[0])

    def pack(self, rows: Tensor, picked: Tensor) -> Tensor:
        return torch.index_select(rows, 0, picked, out=self.packed)

    def run(self, epoch: int, packed: Tensor) -> int:
        """Send rows that lie grouped by peer, receive this epoch's; returns bytes sent."""
        sends = self._start(epoch, packed)
        name = f"{self.op.name} of epoch {epoch}"
        for peer, work in [*self._posted.pop(epoch, []), *sends]:
            self.link.wait(work, name, peer)
        return packed.numel() * packed.element_size()

    def _start(self, epoch: int, packed: Tensor) -> list[tuple[str, Any]]:
        if self.link.backend == "nccl":
            self.is_free(epoch, True)
            return self._grouped(epoch, packed)
        self.post(epoch, wait=True)
        sends = [
            (f"rank {peer}", dist.isend(rows, peer, group=self.link.group(self.op.lane), tag=self._tag(epoch)))
            for peer, rows in _segments(packed, self.send_rows)
        ]
        self.post(epoch + self.op.every, wait=False)
        return sends

    def post(self, epoch: int, *, wait: bool) -> None:
        """Post the receives of an instance, unless posted, past the end, or its slot is still being read."""
        if epoch in self._posted or epoch > self.last_epoch or not self.is_free(epoch, wait):
            return
        slot = self.ring[self._slot(epoch)]
        works = [
            (f"rank {peer}", dist.irecv(rows, peer, group=self.link.group(self.op.lane), tag=self._tag(epoch)))
            for peer, rows in _segments(slot, self.recv_rows)
        ]
        self._posted[epoch] = works

    def _grouped(self, epoch: int, packed: Tensor) -> list[tuple[str, Any]]:
        slot = self.ring[self._slot(epoch)]
        group = self.link.group(self.op.lane)
        ops = [dist.P2POp(dist.isend, rows, peer, group) for peer, rows in _segments(packed, self.send_rows)]
        ops += [dist.P2POp(dist.irecv, rows, peer, group) for peer, rows in _segments(slot, self.recv_rows)]
        return [("its peers", work) for work in dist.batch_isend_irecv(ops)] if ops else []

    def _slot(self, epoch: int) -> int:
        return (epoch // self.op.every) % len(self.ring)

    def _tag(self, epoch: int) -> int:
        return 1 + (epoch * self.num_tags + self.tag) % TAGS


def _segments(rows: Tensor, counts: list[int]) -> list[tuple[int, Tensor]]:
    """(peer, its slice) of rows grouped by peer, without the peers that have none."""
    return [(peer, part) for peer, part in enumerate(torch.split(rows, counts)) if len(part)]


def rows_per_peer(schedule: Schedule, op: Op) -> tuple[list[int], list[int]]:
    """Rows an EXCHANGE sends to and receives from each rank."""
    size = max(op.work.row_bytes, 1)
    return (schedule.sent(op) // size).tolist(), (schedule.received(op) // size).tolist()


def gather_once(link: Link, packed: Tensor, send_rows: list[int], recv_rows: list[int], what: str) -> Tensor:
    """A blocking exchange outside the schedule: precomputation and evaluation."""
    received = packed.new_empty((sum(recv_rows), *packed.shape[1:]))
    ops = [dist.P2POp(dist.irecv, rows, peer, tag=ONCE) for peer, rows in _segments(received, recv_rows)]
    ops += [dist.P2POp(dist.isend, rows, peer, tag=ONCE) for peer, rows in _segments(packed, send_rows)]
    for work in dist.batch_isend_irecv(ops) if ops else []:
        link.wait(work, what, "another rank")
    return received


def all_reduce(link: Link, values: Tensor, what: str, group: Any = None) -> int:
    """Sum over all ranks, in place; returns the bytes a ring sends per rank."""
    link.wait(dist.all_reduce(values, group=group, async_op=True), what, "another rank")
    return ring_bytes(values.numel() * values.element_size(), dist.get_world_size())


def smallest(link: Link, value: float, what: str) -> float:
    """The smallest of all ranks' values."""
    values = torch.tensor([value], dtype=torch.float64, device=link.device)
    link.wait(dist.all_reduce(values, op=dist.ReduceOp.MIN, async_op=True), what, "another rank")
    return float(values)


def barrier(link: Link, what: str, group: Any = None) -> int:
    all_reduce(link, torch.zeros(1, device=link.device), what, group)
    return 0
