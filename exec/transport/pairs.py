"""Messages of a pipeline over torch.distributed: SEND and RECV between stages, exchanges among the ways of a stage.

A RECV has a lane, so a thread, of its own: it waits in the transport from the moment its turn comes, and a sender never
waits for a busy receiver. Both ends use the process group of the receiver's lane. Rows are sent from and received into
the tables they belong to; a gradient that has left is cleared, so that the next epoch can add to zeros.
"""

import torch.distributed as dist
from torch import Tensor

from halocast.exec.chunks.stage import ChunkState, chunk_state
from halocast.exec.run.state import RankState
from halocast.exec.transport.comm import message_tag
from halocast.schedule.ir import Exchange, Lane, Message, Op, Role

GRADIENTS = frozenset({Role.GRAD, Role.FIRST_GRAD})  # of tables to which rows are added
MOST_TABLES = 2  # in one message


def send(state: RankState, op: Op, epoch: int) -> int:
    """Send the rows of a slot's chunk to the peer."""
    chunks, num_bytes, works, peer = chunk_state(state), 0, [], _peer(op)
    tables = [chunks.rows_of_slot(name, op, epoch) for name in op.reads]
    for k, rows in enumerate(tables):
        room = state.link.down(rows)
        works.append(dist.isend(room, peer, group=state.link.group(_lane(chunks, op)), tag=_tag(chunks, op, epoch, k)))
        num_bytes += rows.numel() * rows.element_size()
    for name, rows, work in zip(op.reads, tables, works, strict=True):
        state.link.wait(work, f"{op.name} of epoch {epoch}", f"rank {peer}")
        if state.role_of(name) in GRADIENTS:
            rows.zero_()
    return num_bytes


def receive(state: RankState, op: Op, epoch: int) -> int:
    """Receive the rows of a slot's chunk from the peer, into their places."""
    chunks, posted, peer = chunk_state(state), [], _peer(op)
    for k, name in enumerate(op.writes):
        rows = chunks.rows_of_slot(name, op, epoch)
        room = state.link.room(rows)
        work = dist.irecv(room, peer, group=state.link.group(op.lane), tag=_tag(chunks, op, epoch, k))
        posted.append((work, room, rows))
    for work, room, rows in posted:
        state.link.wait(work, f"{op.name} of epoch {epoch}", f"rank {peer}")
        state.link.move(room, rows)
    return 0


def _peer(op: Op) -> int:
    assert isinstance(op.work, Message)
    return op.work.peer


def _lane(state: ChunkState, op: Op) -> Lane:
    receiver = state.schedule.find(_peer(op), op.name)
    assert receiver is not None, "the checker has seen it"
    return receiver.lane


def _tag(state: ChunkState, op: Op, epoch: int, table: int) -> int:
    """The tag of a message, one per instance and table; both ends number the messages of the schedule alike."""
    return message_tag(epoch, MOST_TABLES * state.messages[op.name] + table, MOST_TABLES * len(state.messages))


def swap(state: RankState, op: Op, epoch: int) -> int:
    """Send rows of a slot to the ways that need them, into their tables; or gradients to the owners, who add them."""
    assert isinstance(op.work, Exchange)
    here, table = chunk_state(state), chunk_state(state).tables[op.reads[0]]
    others = [way for way in range(here.num_ways) if way != here.way]
    own = {way: _shared(here, op, epoch, here.way, way) for way in others}
    theirs = {way: _shared(here, op, epoch, way, here.way) for way in others}
    leaving, coming = (theirs, own) if op.work.transposed else (own, theirs)
    sent = {way: table[rows] for way, rows in leaving.items()}
    for rows in leaving.values() if op.work.transposed else ():
        table[rows] = 0
    for way, rows in _swapped(here, op, epoch, sent, {way: len(rows) for way, rows in coming.items()}).items():
        table.index_put_((coming[way],), rows, accumulate=op.work.transposed)
    return sum(rows.numel() * rows.element_size() for rows in sent.values())


def _shared(here: ChunkState, op: Op, epoch: int, owner: int, user: int) -> Tensor:
    """Places in a table of the rows that one way's chunk in the slot has and another way needs."""
    chunk = here.chunk_of(op, owner, epoch)
    rows: Tensor = here.needed[chunk.number][user] + chunk.rows.start
    return rows


def _swapped(
    here: ChunkState, op: Op, epoch: int, sent: dict[int, Tensor], num_rows: dict[int, int]
) -> dict[int, Tensor]:
    """Trade rows with the other ways; returns what each sends, as many rows as said."""
    link, group, tag = here.link, here.link.group(op.lane), _tag(here, op, epoch, 0)
    width = here.tables[op.reads[0]].shape[1]
    got = {way: here.features.new_empty((num, width)) for way, num in num_rows.items() if num}
    rooms = {way: link.room(rows) for way, rows in got.items()}
    works = [(way, dist.irecv(room, here.ways_ranks[way], group=group, tag=tag)) for way, room in rooms.items()]
    downs = {way: link.down(rows) for way, rows in sent.items() if len(rows)}
    works += [(way, dist.isend(rows, here.ways_ranks[way], group=group, tag=tag)) for way, rows in downs.items()]
    for way, work in works:
        link.wait(work, f"{op.name} of epoch {epoch}", f"rank {here.ways_ranks[way]}")
    for way, rows in got.items():
        link.move(rooms[way], rows)
    return got
