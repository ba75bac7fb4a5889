"""Messages among ranks that live in one process: what is given lies in a post until it is taken.

Nobody waits here. Who takes what has not been given made a mistake, and is told so: it never finds zeros. A tensor is
copied when it is taken, not when it is given, unless its giver may change it before that.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from halocast.base.errors import RunError
from halocast.exec.transport.comm import segments
from halocast.exec.transport.device import Cpu, Seam
from halocast.exec.transport.link import OUTSIDE, Call, Halves

T = TypeVar("T")
Key = tuple[str, int]  # a communication and its instance


@dataclass(slots=True)
class Gift:
    """What a rank has given, and how often it is still to be taken."""

    value: Any
    left: int


class Post:
    """What ranks of one process have given and not all have taken, by communication and giver."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._given: dict[Key, dict[int, Gift]] = defaultdict(dict)
        self._results: dict[Key, Gift] = {}  # what a group has made of all its gifts, for those who have not taken it

    def give(self, key: Key, rank: int, value: Any, num_takers: int) -> None:
        if num_takers:
            self._given[key][rank] = Gift(value, num_takers)

    def has(self, key: Key, ranks: Sequence[int]) -> bool:
        given = self._given.get(key, {})
        return all(rank in given for rank in ranks)

    def take(self, key: Key, ranks: Sequence[int], taker: int) -> list[Any]:
        """What ranks have given; it is let go of when all who need it have taken it."""
        given, values = self._given.get(key, {}), []
        for rank in ranks:
            if rank not in given:
                name, instance = key
                of = f" of epoch {instance}" if instance >= 0 else ""
                raise RunError(f"rank {taker} takes {name}{of} from rank {rank}, which has not given it yet")
            gift = given[rank]
            values.append(gift.value)
            gift.left -= 1
            if gift.left == 0:
                del given[rank]
        if not given:
            self._given.pop(key, None)
        return values

    def result(self, key: Key, group: Sequence[int], taker: int, make: Callable[[list[Any]], T]) -> T:
        """What a group makes of what each of it has given, in the order of ranks. The first who takes it makes it:
        after that, what was given may change."""
        if key not in self._results:
            self._results[key] = Gift(make(self.take(key, group, taker)), len(group))
        gift = self._results[key]
        gift.left -= 1
        if gift.left == 0:
            del self._results[key]
        value: T = gift.value
        return value

    def is_made(self, key: Key) -> bool:
        """Whether the result of a group is there for those who have not taken it."""
        return key in self._results

    @property
    def num_open(self) -> int:
        """How many gifts somebody has yet to take."""
        return len(self._results) + sum(map(len, self._given.values()))


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
            rows.copy_(self.post.take(mine, [peer], self.rank)[0])

    def send(self, rows: Sequence[Tensor], peer: int, call: Call) -> Halves[None]:
        self.post.give(self._key(call), self.rank, [one.clone() for one in rows], 1)  # a table: its owner goes on
        yield None

    def receive(self, rows: Sequence[Tensor], peer: int, call: Call) -> Halves[None]:
        key = self._key(call)
        yield lambda: self.post.has(key, [peer])
        for target, source in zip(rows, self.post.take(key, [peer], self.rank)[0], strict=True):
            target.copy_(source)

    def meet(self, call: Call) -> Halves[None]:
        yield from self._together(None, call, lambda given: None)

    def sum(self, values: Tensor, call: Call) -> Halves[None]:
        values.copy_((yield from self._together(values, call, _summed)))

    def share_out(self, whole: Tensor, piece: Tensor, call: Call) -> Halves[None]:
        group = self._group(call)
        total = yield from self._together(whole, call, _summed)
        piece.copy_(total.chunk(len(group))[group.index(self.rank)])

    def join(self, piece: Tensor, whole: Tensor, call: Call) -> Halves[None]:
        whole.copy_((yield from self._together(piece, call, torch.cat)))

    def pass_on(self, values: Tensor, root: int, call: Call) -> Halves[None]:
        key, others = self._key(call), len(self._group(call)) - 1
        if self.rank == root:
            self.post.give(key, root, values.clone(), others)
            yield None
            return
        yield lambda: self.post.has(key, [root])
        values.copy_(self.post.take(key, [root], self.rank)[0])

    def _together(self, value: Any, call: Call, make: Callable[[list[Any]], T]) -> Halves[T]:
        """Give something to a whole group; when all have, take what becomes of it."""
        key, group = self._key(call), self._group(call)
        self.post.give(key, self.rank, value, 1)
        yield lambda: self.post.has(key, group) or self.post.is_made(key)
        return self.post.result(key, group, self.rank, make)


def _summed(given: list[Tensor]) -> Tensor:
    """The sum in the order of ranks."""
    total = given[0].clone()
    for values in given[1:]:
        total += values
    return total


def _to(key: Key, peer: int) -> Key:
    return f"{key[0]} to {peer}", key[1]
