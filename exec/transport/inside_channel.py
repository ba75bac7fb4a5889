"""The channel of an EXCHANGE op among ranks that live in one process: rows are picked once and joined once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from halocast.exec.transport.channels import given_counts, is_drawn
from halocast.exec.transport.device import as_array
from halocast.exec.transport.dist_channel import rows_per_peer
from halocast.exec.transport.inside import Post
from halocast.exec.transport.link import Ready
from halocast.schedule.ir import IDS, Exchange, Kind, Op, Rows

if TYPE_CHECKING:
    from halocast.exec.run.state import RankState


@dataclass(slots=True)
class Given:
    """Rows for all peers: those of a tensor, or of it those that are picked, grouped by peer.

    They are picked when the first peer takes some, and never if nobody does, as of rows that are known already. Pieces
    are slices of arrays, which cost a tenth of slices of tensors.
    """

    rows: Tensor
    picked: Tensor | None
    counts: list[int]
    version: int  # of the tensor: it may not change before its rows are picked
    _grouped: np.ndarray | None = None
    _starts: list[int] = field(default_factory=list)

    def part(self, peer: int) -> np.ndarray:
        if self._grouped is None:
            rows = self.rows
            if self.picked is not None:  # else a part of a gradient, whose other part may be added to
                assert rows._version == self.version, "rows that were given have changed before they were taken"
                rows = rows.index_select(0, self.picked)
            self._grouped, self._starts = as_array(rows), list(accumulate(self.counts, initial=0))
        return self._grouped[self._starts[peer] : self._starts[peer + 1]]


@dataclass(slots=True, kw_only=True, eq=False)
class InsideChannel:
    """One EXCHANGE op of a rank. How many rows come, where that is drawn, is seen when they come."""

    name: str
    rank: int
    post: Post
    send_rows: list[int]
    recv_rows: list[int]
    takers: int  # ranks that take something, if only to see that it is nothing
    givers: tuple[int, ...]
    width: int
    like: Tensor  # of the same numbers
    sizes: Callable[[int], list[int]] | None  # of drawn rows: instance -> rows to each rank
    constant: bool  # rows that nobody writes are the same in every epoch
    is_read: Callable[[int], bool]  # whether nobody will read an instance again
    _kept: dict[int, Tensor] = field(default_factory=dict)  # received rows by instance
    _counts: dict[int, list[int]] = field(default_factory=dict)  # likewise, rows from each peer, where drawn
    _sent_bytes: dict[int, int] = field(default_factory=dict)

    def give(self, epoch: int, rows: Tensor, picked: Tensor | None = None) -> Ready:
        """Give rows that lie grouped by peer, or those that are picked so."""
        counts = self.send_rows if self.sizes is None else self.sizes(epoch)
        self.post.give((self.name, epoch), self.rank, Given(rows, picked, counts, rows._version), self.takers)
        self._sent_bytes[epoch] = sum(counts) * self.width * rows.element_size()
        return lambda: self.post.has((self.name, epoch), self.givers)

    def take(self, epoch: int) -> int:
        """Take the rows of all givers; returns the bytes that this rank has sent."""
        given = self.post.take((self.name, epoch), self.givers, self.rank)
        for old in [instance for instance in self._kept if self.is_read(instance)]:
            rows = self._kept.pop(old)
            self._counts.pop(old, None)
            if self.constant:
                self._kept[epoch] = rows
        if epoch not in self._kept:
            self._kept[epoch] = self._joined(epoch, given)
        return self._sent_bytes.pop(epoch)

    def _joined(self, epoch: int, given: list[Given]) -> Tensor:
        if self.sizes is not None:
            counts = dict(zip(self.givers, (rows.counts[self.rank] for rows in given), strict=True))
            self._counts[epoch] = [counts.get(peer, 0) for peer in range(len(self.recv_rows))]
        parts = [rows.part(self.rank) for rows in given]
        received = self.like.new_empty((sum(map(len, parts)), self.width))
        if parts:
            np.concatenate(parts, out=as_array(received))
        return received

    def read(self, instance: int) -> Tensor:
        """Rows of an instance that has been taken."""
        return self._kept[instance]

    def drawn_rows(self, instance: int) -> list[int]:
        """Rows from each peer of an instance that can be read; empty unless sizes are drawn."""
        return self._counts.get(instance, [])


def inside_channels(state: "RankState", post: Post) -> dict[str, InsideChannel]:
    """The channels of a rank whose peers are in the same process."""
    exchanges = [op for op in state.schedule.by_rank[state.rank] if op.kind is Kind.EXCHANGE]
    return {op.name: _channel(state, op, post) for op in exchanges if state.rows_of(op.reads[0]) is not Rows.ALL}


def _channel(state: "RankState", op: Op, post: Post) -> InsideChannel:
    assert isinstance(op.work, Exchange)
    drawn, name = is_drawn(state, op), op.writes[0]
    send_rows, recv_rows = ([], [0] * state.schedule.num_ranks) if drawn else rows_per_peer(state.schedule, op)
    # with drawn sizes everybody meets with whom this rank has rows in common, if only to learn that none travel
    lists = (state.send_counts, state.recv_counts)[:: -1 if op.work.transposed else 1]
    to, come = lists if drawn else (send_rows, recv_rows)
    like = state.features.new_empty(0, dtype=torch.int64) if state.rows_of(op.reads[0]) in IDS else state.features
    return InsideChannel(
        name=op.name,
        rank=state.rank,
        post=post,
        send_rows=send_rows,
        recv_rows=recv_rows,
        takers=sum(rows > 0 for rows in to),
        givers=tuple(peer for peer, rows in enumerate(come) if rows > 0),
        width=op.work.row_bytes // like.element_size(),
        like=like,
        sizes=(lambda epoch: given_counts(state, op, epoch)) if drawn else None,
        constant=not drawn and (op.name, op.reads[0]) not in state.sources,
        is_read=lambda instance: state.is_read(op, name, instance),
    )
