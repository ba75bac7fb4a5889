"""The seam between what ranks say to each other and how it gets there.

Whatever ranks do together comes in two halves: a rank gives, then it takes. Both are one generator with a `yield` in
between. A rank that is a process of its own runs it through (`drain`) and waits for its peers in the second half. Where
all ranks live in one process nobody can wait: the first half runs when a communication begins, the second when it ends.
Routines outside the schedule, which all ranks go through together, are such generators as well, with a `yield` per
meeting. So a rule of communication is written once, whoever runs it.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from halocast.exec.transport.device import Seam
from halocast.schedule.ir import Lane

T = TypeVar("T")
Ready = Callable[[], bool]  # whether all that is to be taken has been given
Halves = Generator[Ready | None, None, T]
OUTSIDE = -1  # in place of an epoch: not an op of the schedule


def drain(steps: Halves[T]) -> T:
    """Run all halves one after the other; returns what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


@dataclass(frozen=True, slots=True)
class Call:
    """One communication among ranks: its name and epoch, its lane, and the ranks of its group (none: all)."""

    name: str
    epoch: int = OUTSIDE
    lane: Lane | None = None
    ranks: tuple[int, ...] = ()
    tag: int = 0  # of its first message, where a transport tells messages apart by numbers

    def __str__(self) -> str:
        return self.name if self.epoch == OUTSIDE else f"{self.name} of epoch {self.epoch}"


class RankLink(Protocol):
    """A rank's connections to the others. A tensor that is given must stay as it is until it has been taken."""

    @property
    def rank(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def seam(self) -> Seam: ...

    def trade(self, packed: Tensor, send_rows: list[int], recv_rows: list[int], what: str) -> Halves[Tensor]:
        """Send rows that lie grouped by peer, outside the schedule; returns those that came, grouped by peer."""
        ...

    def meet(self, call: Call) -> Halves[None]:
        """Wait until all ranks of a group have come."""
        ...

    def sum(self, values: Tensor, call: Call) -> Halves[None]:
        """Sum over the ranks of a group, in place."""
        ...

    def join(self, piece: Tensor, whole: Tensor, call: Call) -> Halves[None]:
        """Fill `whole` with the pieces of a group's ranks, one below the other."""
        ...

    def share_out(self, whole: Tensor, piece: Tensor, call: Call) -> Halves[None]:
        """Fill `piece` with this rank's part of the sum over a group."""
        ...

    def pass_on(self, values: Tensor, root: int, call: Call) -> Halves[None]:
        """Hand the root's values to all ranks of a group, in place."""
        ...

    def send(self, rows: Sequence[Tensor], peer: int, call: Call) -> Halves[None]:
        """Send tensors to one rank."""
        ...

    def receive(self, rows: Sequence[Tensor], peer: int, call: Call) -> Halves[None]:
        """Fill tensors with what one rank sends."""
        ...

    def swap(self, sent: Mapping[int, Tensor], came: Mapping[int, Tensor], call: Call) -> Halves[None]:
        """Send rows to some ranks and fill tensors with what some ranks send; neither has empty ones."""
        ...


class Channel(Protocol):
    """An EXCHANGE op of a rank: it gives rows in one half, takes those of others in the other, and keeps them."""

    send_rows: list[int]  # to each peer, where all instances have as many; else empty
    recv_rows: list[int]

    def give(self, epoch: int, rows: Tensor, picked: Tensor | None = None) -> Ready | None:
        """Send rows that lie grouped by peer, or those that are picked so; tells how to know that all has come."""
        ...

    def take(self, epoch: int) -> int:
        """Wait for this instance's messages; returns the bytes that were sent."""
        ...

    def read(self, instance: int) -> Tensor:
        """Rows of an instance that has been taken; before the first one, the initial zeros."""
        ...

    def drawn_rows(self, instance: int) -> list[int]:
        """Rows from each peer of an instance that can be read; empty unless sizes are drawn."""
        ...
