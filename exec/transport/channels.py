"""The channels of a rank's exchanges: their sizes, from the schedule or from ids that were drawn, and their buffers."""

from typing import TYPE_CHECKING

import torch

from halocast.exec.transport.comm import Endpoint
from halocast.exec.transport.dist_channel import DistChannel, Sizes, rows_per_peer
from halocast.schedule.ir import IDS, Exchange, Kind, Op, Rows
from halocast.schedule.passes import num_slots

if TYPE_CHECKING:
    from halocast.exec.run.state import RankState


def make_channels(state: "RankState") -> dict[str, DistChannel]:
    """Make a channel per exchange, and one more where the number of ids has to be said first."""
    names = sorted({op.name for op in state.schedule.ops if op.kind is Kind.EXCHANGE})
    channels: dict[str, DistChannel] = {}
    for op in state.schedule.by_rank[state.rank]:
        if op.kind is Kind.EXCHANGE and state.rows_of(op.reads[0]) is not Rows.ALL:  # tables are swapped in place
            tag = names.index(op.name)
            channels[op.name] = _channel(state, op, tag, 2 * len(names))
            if is_drawn(state, op) and state.rows_of(op.reads[0]) in IDS:
                channels[count_of(op)] = _channel(state, op, tag + len(names), 2 * len(names), counts=True)
    return channels


def count_of(op: Op) -> str:
    """The channel on which an exchange of ids says how many there are."""
    return f"{op.name}.count"


def _channel(state: "RankState", op: Op, tag: int, num_tags: int, counts: bool = False) -> DistChannel:
    assert isinstance(op.work, Exchange)
    assert isinstance(state.link, Endpoint)
    moves, drawn = state.rows_of(op.reads[0]), is_drawn(state, op) and not counts
    send_rows, recv_rows = ([], []) if drawn else rows_per_peer(state.schedule, op)
    if counts:  # a number to and from everybody with whom this rank has rows in common
        lists = (state.send_counts, state.recv_counts)[:: -1 if op.work.transposed else 1]
        send_rows, recv_rows = ([int(n > 0) for n in rows] for rows in lists)
    like = state.features.new_empty(0, dtype=torch.int64) if moves in IDS else state.features
    width = op.work.row_bytes // like.element_size()
    # halo rows lie grouped by owner already and are sent from where they are
    num_packed = sum(send_rows) if moves is Rows.INNER else 0
    slots = num_slots(state.schedule, state.rank, op.writes[0])
    return DistChannel(
        op=op,
        tag=tag,
        num_tags=num_tags,
        link=state.link,
        send_rows=send_rows,
        recv_rows=recv_rows,
        packed=like.new_empty((num_packed, width)),
        ring=[like.new_zeros((sum(recv_rows), width)) for _ in range(slots)],
        last_epoch=op.latest(state.job.settings.epochs - 1),
        # ids are taken out of their slot at once
        is_free=lambda epoch, wait: moves in IDS or _is_free(state, op, epoch, slots, wait),
        drawn=(lambda epoch: _drawn_sizes(state, op, epoch)) if drawn else None,
        stretch=state.stretch,
    )


def is_drawn(state: "RankState", op: Op) -> bool:
    """Whether the sizes of an EXCHANGE follow from ids that are drawn in every epoch."""
    assert isinstance(op.work, Exchange)
    matrix = state.schedule.matrix(op.work.matrix)
    return matrix is not None and matrix.drawn


def _is_free(state: "RankState", op: Op, epoch: int, slots: int, wait: bool) -> bool:
    """Whether everybody has read the instance whose slot the one of `epoch` will overwrite."""
    old = epoch - slots * op.every
    if wait:
        for name, last in state.last_reads(op, op.writes[0], old):
            state.running().wait_for(name, last, op, epoch)
    return wait or state.is_read(op, op.writes[0], old)


def _drawn_sizes(state: "RankState", op: Op, epoch: int) -> Sizes | None:
    """Rows an instance sends and receives, if its ids are there already; of ids, their number has to be said."""
    ids = _ids(state, op)
    if not all(_is_made(state, op, name, epoch) for name in ids):
        return None
    sent = given_counts(state, op, epoch)
    if ids[0] == op.reads[0]:
        announced = state.announced[op.name].get(epoch)
        return None if announced is None else (sent, announced)
    back = next(name for name in ids if state.rows_of(name) is not _sending(op))
    return sent, state.value(op, back, epoch).counts


def given_counts(state: "RankState", op: Op, epoch: int) -> list[int]:
    """Rows that an instance of an EXCHANGE sends to each rank, by the ids that were drawn for it."""
    ids = _ids(state, op)
    name = ids[0] if ids[0] == op.reads[0] else next(name for name in ids if state.rows_of(name) is _sending(op))
    counts: list[int] = state.value(op, name, epoch).counts
    return counts


def _ids(state: "RankState", op: Op) -> list[str]:
    return [name for name in op.reads if state.rows_of(name) in IDS]


def _sending(op: Op) -> Rows:
    """The ids of the rows that a rank sends in an EXCHANGE: gradients of halo rows go back to their owners."""
    assert isinstance(op.work, Exchange)
    return Rows.HALO_IDS if op.work.transposed else Rows.SENT_IDS


def _is_made(state: "RankState", op: Op, name: str, epoch: int) -> bool:
    writer, lag = state.sources[op.name, name]
    return state.running().is_done(writer.name, writer.latest(epoch - lag))
