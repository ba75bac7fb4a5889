"""Messages among ranks that live in one process: what is given lies in a post until it is taken.

Nobody waits here. Who takes what has not been given made a mistake, and is told so: it never finds zeros. A tensor is
copied when it is taken, not when it is given, unless its giver may change it before that.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from halocast.base.errors import RunError
from halocast.exec.transport.comm import segments
from halocast.exec.transport.device import Cpu, Seam
from halocast.exec.transport.link import OUTSIDE, Call, Halves

Key = tuple[str, int]  # a communication and its instance


class Post:
    """What ranks of one process have given and not all have taken, by communication and giver."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._given: dict[Key, dict[int, Any]] = defaultdict(dict)
        self._left: dict[tuple[Key, int], int] = {}  # how often what a rank has given is still to be taken
        self.sums: dict[Key, tuple[Tensor, int]] = {}  # over a group, and how many are still to take it

    def give(self, key: Key, rank: int, value: Any, num_takers: int) -> None:
        if num_takers:
            self._given[key][rank] = value
            self._left[key, rank] = num_takers

    def has(self, key: Key, ranks: Sequence[int]) -> bool:
        given = self._given.get(key, {})
        return all(rank in given for rank in ranks)

    def look(self, key: Key, rank: int, taker: int) -> Any:
        """What a rank has given, which stays there."""
        given = self._given.get(key, {})
        if rank not in given:
            name, instance = key
            of = f" of epoch {instance}" if instance >= 0 else ""
            raise RunError(f"rank {taker} takes {name}{of} from rank {rank}, which has not given it yet")
        return given[rank]

    def take(self, key: Key, rank: int, taker: int) -> Any:
        """What a rank has given; it is let go of when all who need it have taken it."""
        value = self.look(key, rank, taker)
        self._left[key, rank] -= 1
        if self._left[key, rank] == 0:
            del self._left[key, rank], self._given[key][rank]
            if not self._given[key]:
                del self._given[key]
        return value

    @property
    def num_open(self) -> int:
        """How many gifts somebody has yet to take."""
        return len(self._left)


@dataclass(slots=True, kw_only=True, eq=False)
class Inside:
    """The link of one of several ranks in a process."""

    rank: int
    post: Post
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seam: Seam = field(default_factory=Cpu)
    _turns: Counter[str] = field(default_factory=Counter)  # of communications outside the schedule, by name

    def _key(self, call: Call) -> Key:
        if call.epoch != OUTSIDE:
            return call.name, call.epoch
        self._turns[call.name] += 1
        return call.name, -self._turns[call.name]  # instances of ops are not negative

    def _group(self, call: Call) -> tuple[int, ...]:
        return call.ranks or tuple(range(self.post.num_ranks))

    def trade(self, packed: Tensor, send_rows: list[int], recv_rows: list[int], what: str) -> Halves[Tensor]:
        received = packed.new_empty((sum(recv_rows), *packed.shape[1:]))
        sent, came = dict(segments(packed, send_rows)), dict(segments(received, recv_rows))
        yield from self.swap(sent, came, Call(what))
        return received

    def swap(self, sent: Mapping[int, Tensor], came: Mapping[int, Tensor], call: Call) -> Halves[None]:
        key, givers = self._key(call), list(came)
        for peer, rows in sent.items():
            self.post.give(_to(key, peer), self.rank, rows, 1)
        mine = _to(key, self.rank)
        yield lambda: self.post.has(mine, givers)
        for peer, rows in came.items():
            rows.copy_(self.post.take(mine, peer, self.rank))

    def send(self, rows: Sequence[Tensor], peer: int, call: Call) -> Halves[None]:
        self.post.give(self._key(call), self.rank, [one.clone() for one in rows], 1)  # a table: its owner goes on
        yield None

    def receive(self, rows: Sequence[Tensor], peer: int, call: Call) -> Halves[None]:
        key = self._key(call)
        yield lambda: self.post.has(key, [peer])
        for target, source in zip(rows, self.post.take(key, peer, self.rank), strict=True):
            target.copy_(source)

    def meet(self, call: Call) -> Halves[None]:
        yield from self._together(None, call)

    def sum(self, values: Tensor, call: Call) -> Halves[None]:
        key = yield from self._together(values, call)
        values.copy_(self._summed(key, self._group(call)))

    def share_out(self, whole: Tensor, piece: Tensor, call: Call) -> Halves[None]:
        key = yield from self._together(whole, call)
        group = self._group(call)
        piece.copy_(self._summed(key, group).chunk(len(group))[group.index(self.rank)])

    def join(self, piece: Tensor, whole: Tensor, call: Call) -> Halves[None]:
        group = self._group(call)
        key = self._key(call)
        self.post.give(key, self.rank, piece.clone(), len(group))
        yield lambda: self.post.has(key, group)
        torch.cat([self.post.take(key, rank, self.rank) for rank in group], out=whole)

    def pass_on(self, values: Tensor, root: int, call: Call) -> Halves[None]:
        key, others = self._key(call), len(self._group(call)) - 1
        if self.rank == root:
            self.post.give(key, root, values.clone(), others)
            yield None
            return
        yield lambda: self.post.has(key, [root])
        values.copy_(self.post.take(key, root, self.rank))

    def _together(self, values: Tensor | None, call: Call) -> Halves[Key]:
        """Give something to a whole group; goes on when all have."""
        key, group = self._key(call), self._group(call)
        self.post.give(key, self.rank, values, len(group))
        yield lambda: self.post.has(key, group)
        if values is None:
            for rank in group:
                self.post.take(key, rank, self.rank)
        return key

    def _summed(self, key: Key, group: tuple[int, ...]) -> Tensor:
        """The sum in the order of ranks, made by the first who takes it: after that, what was given may change."""
        if key not in self.post.sums:
            given = [self.post.look(key, rank, self.rank) for rank in group]
            total = given[0].clone()
            for values in given[1:]:
                total += values
            self.post.sums[key] = total, len(group)
        total, left = self.post.sums.pop(key)
        if left > 1:
            self.post.sums[key] = total, left - 1
        for rank in group:
            self.post.take(key, rank, self.rank)
        return total


def _to(key: Key, peer: int) -> Key:
    return f"{key[0]} to {peer}", key[1]
