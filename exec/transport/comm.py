"""Messages of one rank over torch.distributed: collectives, pairs, one-off trades.

Every wait has a time limit and names op, peer and epoch when it fails.

gloo's messages lie in host memory: its sends and receives hand the tensor's address to a socket, whatever device it is
of. It does reduce CUDA tensors, by copies of its own into pinned memory; here all its messages are staged alike, which
a test can do without a GPU. Each peer's rows leave as soon as they are down and go up as soon as they are there, as in
the simulator. Where device and host are one, nothing is staged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halocast.base.errors import RunError
from halocast.exec.transport.device import Cpu, Seam
from halocast.exec.transport.link import Call, Halves
from halocast.schedule.ir import Lane

ONCE = 0  # the tag of one-off trades, which no channel uses


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

    def trade(self, packed: Tensor, send_rows: list[int], recv_rows: list[int], what: str) -> Halves[Tensor]:
        """Exchange rows outside the schedule: precomputation and evaluation."""
        received = packed.new_empty((sum(recv_rows), *packed.shape[1:]))
        inbox, outbox = self.room(received), self.down(packed)
        ops = [dist.P2POp(dist.irecv, rows, peer, tag=ONCE) for peer, rows in segments(inbox, recv_rows)]
        ops += [dist.P2POp(dist.isend, rows, peer, tag=ONCE) for peer, rows in segments(outbox, send_rows)]
        works = dist.batch_isend_irecv(ops) if ops else []
        yield None
        for work in works:
            self.wait(work, what, "another rank")
        self.move(inbox, received)
        return received

    def meet(self, call: Call) -> Halves[None]:
        work = dist.all_reduce(torch.zeros(1, device=self.wire), group=self._group(call), async_op=True)
        yield None
        self.wait(work, str(call), "another rank")

    def sum(self, values: Tensor, call: Call) -> Halves[None]:
        room = self.down(values)
        work = dist.all_reduce(room, group=self._group(call), async_op=True)
        yield None
        self.wait(work, str(call), "another rank")
        self.move(room, values)

    def join(self, piece: Tensor, whole: Tensor, call: Call) -> Halves[None]:
        yield from self._collect(dist.all_gather_into_tensor, piece, whole, call)

    def share_out(self, whole: Tensor, piece: Tensor, call: Call) -> Halves[None]:
        yield from self._collect(dist.reduce_scatter_tensor, whole, piece, call)

    def _collect(self, collective: Callable[..., Any], given: Tensor, result: Tensor, call: Call) -> Halves[None]:
        source, target = self.down(given), self.room(result)
        work = collective(target, source, group=self._group(call), async_op=True)
        yield None
        self.wait(work, str(call), "its group")
        self.move(target, result)

    def pass_on(self, values: Tensor, root: int, call: Call) -> Halves[None]:
        room = self.down(values) if self.rank == root else self.room(values)
        work = dist.broadcast(room, root, group=self._group(call), async_op=True)
        yield None
        self.wait(work, str(call), f"rank {root}")
        self.move(room, values)

    def send(self, rows: Sequence[Tensor], peer: int, call: Call) -> Halves[None]:
        group = self._group(call)
        works = [dist.isend(self.down(table), peer, group=group, tag=call.tag + k) for k, table in enumerate(rows)]
        yield None
        for work in works:
            self.wait(work, str(call), f"rank {peer}")

    def receive(self, rows: Sequence[Tensor], peer: int, call: Call) -> Halves[None]:
        group, rooms = self._group(call), [self.room(table) for table in rows]
        works = [dist.irecv(room, peer, group=group, tag=call.tag + k) for k, room in enumerate(rooms)]
        yield None
        for work, room, table in zip(works, rooms, rows, strict=True):
            self.wait(work, str(call), f"rank {peer}")
            self.move(room, table)

    def swap(self, sent: Mapping[int, Tensor], came: Mapping[int, Tensor], call: Call) -> Halves[None]:
        group, rooms = self._group(call), {peer: self.room(rows) for peer, rows in came.items()}
        works = [(peer, dist.irecv(room, peer, group=group, tag=call.tag)) for peer, room in rooms.items()]
        downs = {peer: self.down(rows) for peer, rows in sent.items()}
        works += [(peer, dist.isend(rows, peer, group=group, tag=call.tag)) for peer, rows in downs.items()]
        yield None
        for peer, work in works:
            self.wait(work, str(call), f"rank {peer}")
        for peer, rows in came.items():
            self.move(rooms[peer], rows)

    def _group(self, call: Call) -> Any:
        return None if call.lane is None else self.group(call.lane, call.ranks)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def segments(rows: Tensor, counts: list[int]) -> list[tuple[int, Tensor]]:
    """Pairs (peer, its slice) of rows grouped by peer, without the peers that have none."""
    return [(peer, part) for peer, part in enumerate(torch.split(rows, counts)) if len(part)]


def smallest(link: Endpoint, value: float, what: str) -> float:
    """The smallest of all ranks' values."""
    values = torch.tensor([value], dtype=torch.float64, device=link.wire)
    link.wait(dist.all_reduce(values, op=dist.ReduceOp.MIN, async_op=True), what, "another rank")
    return float(values)
