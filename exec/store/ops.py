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
from halocast.schedule.ir import NO_BOUND, SHARED, Kind, Op

WEIGHTS = "weights"
POLL_S = 0.001


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
        if op.kind is Kind.PUSH and op.reads[0] == WEIGHTS:
            store.push(op.writes[0], slice(0, 1), _array(state.weights)[None], 0)
    return store


def tables_of(state: RankState) -> list[Table]:
    dtype, itemsize = state.job.settings.dtype, state.features.element_size()
    tables = []
    for op in state.schedule.by_rank[state.rank]:
        if op.kind is Kind.PUSH:
            buffer = state.schedule.buffer(SHARED, op.writes[0])
            assert buffer is not None, "the checker has seen it"
            is_vector = op.reads[0] == WEIGHTS
            width = op.work.num_bytes // itemsize // (1 if is_vector else state.part.num_inner)
            num_rows = buffer.num_bytes // itemsize // width  # of all slots
            tables.append(Table(name=buffer.name, num_rows=num_rows, width=width, dtype=dtype))
            if is_vector:
                tables.append(Table(name=_turns(buffer.name), num_rows=state.schedule.num_ranks, width=1))
    return tables


def push(state: RankState, op: Op, epoch: int) -> int:
    table, store = op.writes[0], _store(state)
    if op.reads[0] == WEIGHTS:
        step = (state.weights.detach() - state.fetched) * op.work.scale
        store.add(table, _array(step))
        mine = slice(state.rank, state.rank + 1)
        store.push(_turns(table), mine, np.zeros((1, 1), np.float32), epoch)
    else:
        rows = _array(state.value(op, op.reads[0], epoch))
        store.push(table, state.part.inner + _slot(state, op, epoch), rows, epoch)
    return op.work.num_bytes


def pull(state: RankState, op: Op, epoch: int) -> int:
    table, store = op.reads[0], _store(state)
    if op.writes[0] == WEIGHTS:
        _keep_bound(state, op, epoch)
        take_weights(state, table)
    else:
        writer, lag = state.sources[op.name, table]
        slot = _slot(state, writer, writer.latest(epoch - lag))  # before the first instance: a slot not yet written
        values, versions = store.pull(table, state.part.halo + slot)
        state.put(op, op.writes[0], torch.from_numpy(values).to(state.link.device), epoch)
        state.versions[op.writes[0]][epoch] = versions
    return op.work.num_bytes


def _slot(state: RankState, writer: Op, instance: int) -> int:
    """Where in its table the rows of an instance begin."""
    pushes = state.schedule.writers(state.rank, writer.writes[0])
    own = next(op for op in pushes if op.rank == state.rank)
    buffer = state.schedule.buffer(SHARED, writer.writes[0])
    assert buffer is not None
    all_bytes = sum(op.work.num_bytes for op in pushes)
    num_slots = buffer.num_bytes // all_bytes
    row_bytes = own.work.num_bytes // state.part.num_inner
    return instance // writer.every % num_slots * (all_bytes // row_bytes)


def take_weights(state: RankState, table: str) -> None:
    values, _ = _store(state).read(table)
    state.weights.detach().copy_(torch.from_numpy(values))
    state.fetched = state.weights.detach().clone()


def settle(state: RankState) -> None:
    """Take the newest weights, where they are in the store: what a run that ended would go on with."""
    for op in state.schedule.by_rank[state.rank]:
        if op.kind is Kind.PULL and op.writes[0] == WEIGHTS:
            take_weights(state, op.reads[0])


def _keep_bound(state: RankState, op: Op, epoch: int) -> None:
    """Wait until every rank has pushed often enough."""
    if op.work.bound == NO_BOUND:
        return
    needed, limit_s = epoch - op.work.bound - 1, state.job.settings.timeout_s
    until = time.monotonic() + limit_s
    while True:
        _, versions = _store(state).pull(_turns(op.reads[0]), slice(0, state.schedule.num_ranks))
        late = np.flatnonzero(versions < needed)
        if len(late) == 0:
            return
        if time.monotonic() > until:
            raise RunError(
                f"rank {state.rank}: {op.name} of epoch {epoch} timed out after {limit_s:g} s waiting for rank "
                f"{late[0]}, which is at epoch {versions[late[0]]}"
            )
        time.sleep(POLL_S)


def _turns(table: str) -> str:
    return f"{table}.turns"


def _array(values: torch.Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def _store(state: RankState) -> Store:
    assert state.store is not None, "opened before the first op runs"
    return state.store
