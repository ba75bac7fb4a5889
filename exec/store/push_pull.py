"""The store as a rank uses it: the tables behind a schedule's shared buffers, and its PUSH and PULL ops.

A shared buffer that takes rows is a table keyed by node; one that takes weights is a vector to which every rank adds
its step, and so the parameter server. Beside a vector lies a table of who has added how often, for bounded pulls.
"""

import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from halocast.base.errors import RunError
from halocast.exec.run.state import RankState
from halocast.exec.store.blocks import Table
from halocast.exec.store.kvs import Store, create_store, open_store
from halocast.exec.transport.device import as_array
from halocast.exec.transport.link import Halves
from halocast.schedule.ir import SHARED, Kind, Numbers, Op, Payload, Role

POLL_S = 0.001
DONE = "done"  # the table of how many epochs every rank has finished, where ranks run freely


def join_store(state: RankState) -> None:
    """Open the job's store, which rank 0 makes, if the schedule needs one."""
    tables = tables_of(state)
    if not tables:
        return
    settings = state.job.settings
    address: list[Any] = [None]
    if state.rank == 0:
        state.store = make_store(state)
        address = [state.store.address]
    dist.broadcast_object_list(address, src=0)
    if state.rank != 0:
        state.store = open_store(address[0], settings.timeout_s)


def make_store(state: RankState) -> Store:
    """An empty store with the initial weights in its vectors."""
    store = create_store(tables_of(state), state.job.settings.store, state.job.settings.timeout_s)
    for op in state.schedule.by_rank[state.rank]:
        if op.kind is Kind.PUSH and _is_vector(state, op.reads[0]):
            store.push(op.writes[0], slice(0, 1), as_array(state.weights)[None], 0)
    return store


def tables_of(state: RankState) -> list[Table]:
    rows = Numbers(state.job.settings.dtype)
    tables = []
    for op in state.schedule.by_rank[state.rank]:
        if op.kind is Kind.PUSH:
            buffer = state.schedule.buffer(SHARED, op.writes[0])
            assert buffer is not None, "the checker has seen it"
            is_vector = _is_vector(state, op.reads[0])
            numbers = rows.master if is_vector else rows
            width = _payload(op) // numbers.itemsize // (1 if is_vector else state.part.num_inner)
            num_rows = buffer.num_bytes // numbers.itemsize // width  # of all slots
            tables.append(Table(name=buffer.name, num_rows=num_rows, width=width, dtype=str(numbers)))
            if _is_bounding(state, op):
                tables.append(Table(name=_turns(buffer.name), num_rows=state.schedule.num_ranks, width=1))
    if state.schedule.free:
        tables.append(Table(name=DONE, num_rows=state.schedule.num_ranks, width=1))
    return tables


def _is_vector(state: RankState, name: str) -> bool:
    """Whether a buffer holds weights: then all ranks add to one vector in the store."""
    return state.role_of(name) is Role.WEIGHTS


def _is_bounding(state: RankState, push: Op) -> bool:
    """Whether a PULL of some rank may not run too far ahead of what this op pushes."""
    reads = (op for op in state.schedule.ops if push.writes[0] in op.reads)
    return any(state.schedule.bounded_by(op) for op in reads)


def _payload(op: Op) -> int:
    assert isinstance(op.work, Payload)
    return op.work.num_bytes


def push(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Read at the beginning what others see at the end."""
    table, store = op.writes[0], _store(state)
    if _is_vector(state, op.reads[0]):
        step = as_array((state.weights.detach() - state.fetched) * op.work.scale)
        yield None
        store.add(table, step)
    else:
        rows = as_array(state.value(op, op.reads[0], epoch))
        yield None
        store.push(table, state.part.inner + _slot(state, op, epoch), rows, epoch)
    if _is_bounding(state, op):
        mine = slice(state.rank, state.rank + 1)
        store.push(_turns(table), mine, np.zeros((1, 1), np.float32), epoch)
    return _payload(op)


def pull(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Read at the beginning what is there; this rank has it at the end."""
    table, store = op.reads[0], _store(state)
    if _is_vector(state, op.writes[0]):
        weights, _ = store.read(table)
        yield None
        have_weights(state, weights)
    else:
        writer, lag = state.sources[op.name, table]
        slot = _slot(state, writer, writer.latest(epoch - lag))  # before the first instance: a slot not yet written
        values, versions = store.pull(table, state.part.halo + slot)
        yield None
        state.put(op, op.writes[0], _tensor(state, values), epoch)
        state.versions[op.writes[0]][epoch] = versions
    return _payload(op)


def _slot(state: RankState, writer: Op, instance: int) -> int:
    """The row of its table at which the rows of an instance begin."""
    pushes = state.schedule.writers(state.rank, writer.writes[0])
    own = next(op for op in pushes if op.rank == state.rank)
    buffer = state.schedule.buffer(SHARED, writer.writes[0])
    assert buffer is not None
    all_bytes = sum(map(_payload, pushes))
    num_slots = buffer.num_bytes // all_bytes
    row_bytes = _payload(own) // state.part.num_inner
    return instance // writer.every % num_slots * (all_bytes // row_bytes)


def have_weights(state: RankState, values: np.ndarray) -> None:
    state.weights.detach().copy_(torch.from_numpy(values))
    state.fetched = state.weights.detach().clone()


def settle(state: RankState) -> None:
    """Take the newest weights, where they are in the store: what a run that ended would go on with."""
    for op in state.schedule.by_rank[state.rank]:
        if _is_weight_pull(state, op):
            have_weights(state, _store(state).read(op.reads[0])[0])


def tell_done(state: RankState, epoch: int) -> None:
    """Tell the other ranks that this one has finished an epoch."""
    _store(state).push(DONE, slice(state.rank, state.rank + 1), np.zeros((1, 1), np.float32), epoch)


def slowest_other(state: RankState) -> int:
    """The number of epochs that every other rank has finished."""
    _, newest = _store(state).pull(DONE, slice(0, state.schedule.num_ranks))
    return int(np.delete(newest, state.rank).min()) + 1


def shared_weights(state: RankState) -> np.ndarray:
    """The weights in the store as they are now."""
    (table,) = {op.reads[0] for op in state.schedule.by_rank[state.rank] if _is_weight_pull(state, op)}
    values, _ = _store(state).read(table)
    return values


def _is_weight_pull(state: RankState, op: Op) -> bool:
    return op.kind is Kind.PULL and _is_vector(state, op.writes[0])


def wait_for_pushes(state: RankState, op: Op, epoch: int, waits: list[tuple[Op, int]]) -> None:
    """Wait until other ranks have pushed the instances that a bounded PULL may not run ahead of."""
    limit_s = state.job.settings.timeout_s
    until = time.monotonic() + limit_s
    for push, instance in waits:
        turns = _turns(push.writes[0])
        while (at := _store(state).pull(turns, slice(push.rank, push.rank + 1))[1][0]) < instance:
            if time.monotonic() > until:
                raise RunError(
                    f"rank {state.rank}: {op.name} of epoch {epoch} timed out after {limit_s:g} s waiting for rank "
                    f"{push.rank}, which is at epoch {at}"
                )
            time.sleep(POLL_S)


def _turns(table: str) -> str:
    return f"{table}.turns"


def _tensor(state: RankState, rows: np.ndarray) -> torch.Tensor:
    """A tensor of rows as the store kept them."""
    return torch.from_numpy(rows).view(state.features.dtype).to(state.link.device)


def _store(state: RankState) -> Store:
    assert state.store is not None, "opened before the first op runs"
    return state.store
