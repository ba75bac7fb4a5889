"""Messages of a pipeline: SEND and RECV between stages, exchanges among the ways of a stage.

A RECV has a lane, so a thread, of its own: it waits in the transport from the moment its turn comes, and a sender never
waits for a busy receiver. Both ends use the process group of the receiver's lane. Rows are sent from and received into
the tables they belong to; a gradient that has left is cleared, so that the next epoch can add to zeros.
"""

from torch import Tensor

from halocast.exec.chunks.stage import ChunkState, chunk_state
from halocast.exec.run.state import RankState
from halocast.exec.transport.dist_channel import message_tag
from halocast.exec.transport.link import Call, Halves
from halocast.schedule.ir import Exchange, Message, Op, Recv, Role

GRADIENTS = frozenset({Role.GRAD, Role.FIRST_GRAD})  # of tables to which rows are added
MOST_TABLES = 2  # in one message


def send(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Send the rows of a slot's chunk to the peer."""
    chunks = chunk_state(state)
    tables = [chunks.rows_of_slot(name, op, epoch) for name in op.reads]
    yield from state.link.send(tables, _peer(op), _call(chunks, op, epoch))
    for name, rows in zip(op.reads, tables, strict=True):
        if state.role_of(name) in GRADIENTS:
            rows.zero_()
    return sum(rows.numel() * rows.element_size() for rows in tables)


def receive(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Receive the rows of a slot's chunk from the peer, into their places."""
    chunks = chunk_state(state)
    tables = [chunks.rows_of_slot(name, op, epoch) for name in op.writes]
    yield from state.link.receive(tables, _peer(op), _call(chunks, op, epoch))
    return 0


def _call(state: ChunkState, op: Op, epoch: int) -> Call:
    """The message of a pair: both ends use the receiver's lane."""
    receiver = op if isinstance(op.work, Recv) else state.schedule.find(_peer(op), op.name)
    assert receiver is not None, "the checker has seen it"
    return Call(op.name, epoch, receiver.lane, tag=_tag(state, op, epoch))


def _peer(op: Op) -> int:
    assert isinstance(op.work, Message)
    return op.work.peer


def _tag(state: ChunkState, op: Op, epoch: int) -> int:
    """The tag of a message's first table; both ends number the messages of the schedule alike."""
    return message_tag(epoch, MOST_TABLES * state.messages[op.name], MOST_TABLES * len(state.messages))


def swap(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Send rows of a slot to the ways that need them, into their tables; or gradients to the owners, who add them."""
    assert isinstance(op.work, Exchange)
    here, table = chunk_state(state), chunk_state(state).tables[op.reads[0]]
    others = {way: here.ways_ranks[way] for way in range(here.num_ways) if way != here.way}
    own = {rank: _shared(here, op, epoch, here.way, way) for way, rank in others.items()}
    theirs = {rank: _shared(here, op, epoch, way, here.way) for way, rank in others.items()}
    leaving, coming = (theirs, own) if op.work.transposed else (own, theirs)
    sent = {rank: table[rows] for rank, rows in leaving.items() if len(rows)}
    for rows in leaving.values() if op.work.transposed else ():
        table[rows] = 0
    came = {rank: table.new_empty((len(rows), table.shape[1])) for rank, rows in coming.items() if len(rows)}
    yield from here.link.swap(sent, came, Call(op.name, epoch, op.lane, tag=_tag(here, op, epoch)))
    for rank, rows in came.items():
        table.index_put_((coming[rank],), rows, accumulate=op.work.transposed)
    return sum(rows.numel() * rows.element_size() for rows in sent.values())


def _shared(here: ChunkState, op: Op, epoch: int, owner: int, user: int) -> Tensor:
    """Places in a table of the rows that one way's chunk in the slot has and another way needs."""
    chunk = here.chunk_of(op, owner, epoch)
    rows: Tensor = here.needed[chunk.number][user] + chunk.rows.start
    return rows
