"""What the ops of sampling methods do: draw rows or edges, trade ids, build the local graph that remains."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from halocast.exec.run.drawn import Ids, LocalBlock, build_block
from halocast.exec.run.state import RankState
from halocast.exec.transport.channels import count_of
from halocast.exec.transport.link import Halves
from halocast.graph.graph import Ints, Mask, Reals
from halocast.graph.parts import Part
from halocast.graph.sampling import (
    Draw,
    Picked,
    Weighting,
    boundary_scale,
    draw_boundary,
    drop,
    drop_probabilities,
    dropped_by_boundary,
    edge_weights,
    edges_of_rows,
    inner_edges,
    joined,
    needed_halo,
    picked,
    self_loops,
)
from halocast.schedule.ir import Op, Rows

Handler = Callable[[RankState, Op, int], int]


def sample_rows(state: RankState, op: Op, epoch: int) -> int:
    """Draw the boundary rows that this rank, their owner, sends."""
    params = dict(op.work.params)
    drawn = draw_boundary(
        state.part.send_offsets, *_rule(params), seed=int(params["seed"]), rank=state.rank, epoch=epoch
    )
    state.put(op, op.writes[0], sent_ids(state, drawn), epoch)
    return 0


def _rule(params: Mapping[str, str]) -> tuple[float, Draw]:
    return float(params["rate"]), Draw(params["draw"])


def sample_drop(state: RankState, op: Op, epoch: int) -> int:
    """Drop as many edges as boundary sampling would, of those from halo nodes or of all but self-loops."""
    params, part = dict(op.work.params), state.part
    candidates = CANDIDATES[params["of"]](part)
    num_dropped = dropped_by_boundary(part, *_rule(params))
    kept = drop(candidates, num_dropped, seed=int(params["seed"]), rank=part.rank, epoch=epoch)
    p = drop_probabilities(candidates, num_dropped)
    weights = edge_weights(Weighting(params["weighting"]), part.indptr, p, kept) if num_dropped else None
    state.put(op, op.writes[0], edge_ids(state, kept, weights), epoch)
    return 0


CANDIDATES: Mapping[str, Callable[[Part], Mask]] = MappingProxyType(
    {"cut": lambda part: ~inner_edges(part), "all": lambda part: ~self_loops(part)}
)


def sent_ids(state: RankState, drawn: Picked) -> Ids:
    return Ids(picked=drawn, rows=state.send_rows[_tensor(state, drawn.places(state.part.send_offsets))])


def edge_ids(state: RankState, kept: Mask, weights: Reals | None) -> Ids:
    """The halo rows that the kept edges need."""
    halo = needed_halo(state.part, kept)
    lists = picked(halo, state.part.halo_offsets)
    return Ids(picked=lists, rows=_tensor(state, halo), kept=kept, weights=weights)


def exchange_ids(state: RankState, op: Op, epoch: int) -> Halves[int]:
    """Tell the other end which rows travel; if it cannot know how many, that comes first."""
    ids: Ids = state.value(op, op.reads[0], epoch)
    channel, num_bytes = state.channels[op.name], 0
    if count_of(op) in state.channels:
        num_bytes, state.announced[op.name][epoch] = _announce(state, op, epoch, ids)
    yield channel.give(epoch, _tensor(state, _marked(ids)).reshape(-1, 1))
    num_bytes += channel.take(epoch)
    state.announced[op.name].pop(epoch, None)
    counts = channel.drawn_rows(epoch) or channel.recv_rows
    came = channel.read(epoch).flatten().cpu().numpy()
    ids_by_peer = joined(np.split(np.where(came < 0, ~came, came), np.cumsum(counts)[:-1]))
    halo = state.rows_of(op.writes[0]) is Rows.HALO_IDS
    state.put(op, op.writes[0], halo_ids(state, ids_by_peer) if halo else sent_ids(state, ids_by_peer), epoch)
    if len(op.writes) > 1:
        places = ids_by_peer.places(state.part.send_offsets)[came >= 0]
        state.put(op, op.writes[1], sent_ids(state, picked(places, state.part.send_offsets)), epoch)
    return num_bytes


def _marked(ids: Ids) -> Ints:
    """Ids with those of cached rows as their complements: later layers need such a row, layer 0 has it."""
    return ids.picked.ids if ids.cached is None else np.where(ids.cached, ~ids.picked.ids, ids.picked.ids)


def _announce(state: RankState, op: Op, epoch: int, ids: Ids) -> tuple[int, list[int]]:
    """Tell the other ranks how many ids they get; returns the bytes sent and how many ids come from each rank."""
    channel = state.channels[count_of(op)]  # of a transport that has to be told sizes
    said = np.array(ids.counts)[np.array(channel.send_rows) > 0]
    channel.give(epoch, _tensor(state, said).reshape(-1, 1))
    num_bytes = channel.take(epoch)
    counts = np.zeros(len(channel.recv_rows), np.int64)
    counts[np.array(channel.recv_rows) > 0] = channel.read(epoch).flatten().cpu().numpy()
    ids_per_rank: list[int] = counts.tolist()
    return num_bytes, ids_per_rank


def tell_once(state: RankState, ids: Ids) -> Halves[Ids]:
    """The rows that others need of this rank, which tells them what it needs; outside the schedule, by all ranks."""
    asked, owned = np.array(state.recv_counts) > 0, np.array(state.send_counts) > 0
    said = _tensor(state, np.array(ids.counts)[asked])
    ones = asked.astype(int).tolist(), owned.astype(int).tolist()
    came = yield from state.link.trade(said, *ones, "numbers of ids")
    counts = np.zeros(len(owned), np.int64)
    counts[owned] = came.cpu().numpy()
    needed = _tensor(state, ids.picked.ids)
    asks = yield from state.link.trade(needed, ids.counts, counts.tolist(), "ids before the start")
    return sent_ids(state, joined(np.split(asks.cpu().numpy(), np.cumsum(counts)[:-1])))


def halo_ids(state: RankState, came: Picked) -> Ids:
    return Ids(picked=came, rows=_tensor(state, came.places(state.part.halo_offsets)))


def rebuild(state: RankState, op: Op, epoch: int) -> int:
    """The local graph of the drawn edges, or of the halo rows that arrive."""
    part = state.part
    ids: Ids = state.read(op, Rows.HALO_IDS, epoch)
    if ids.kept is not None:
        state.put(op, op.writes[0], build_block(part, state.block, ids.kept, ids.weights), epoch)
        return 0
    state.put(op, op.writes[0], _of_rows(state, dict(op.work.params), ids.picked), epoch)
    return 0


def _of_rows(state: RankState, params: Mapping[str, str], came: Picked) -> LocalBlock:
    """The local graph of all inner edges and those of the rows that came, with weights or with a scale of such rows."""
    part = state.part
    kept = edges_of_rows(part, came.places(part.halo_offsets))
    if Weighting(params["weighting"]) is Weighting.SAMPLED_DEGREE:
        weights = edge_weights(Weighting.SAMPLED_DEGREE, part.indptr, np.empty(0), kept)
        return build_block(part, state.block, kept, weights if (weights != 1).any() else None)
    graph = build_block(part, state.block, kept, None)
    scale = np.repeat(boundary_scale(came, part.halo_offsets, *_rule(params)), came.counts).reshape(-1, 1)
    return replace(graph, scale=torch.from_numpy(scale).to(state.block.in_degree)) if (scale != 1).any() else graph


def _tensor(state: RankState, array: Ints) -> Tensor:
    return torch.from_numpy(array).to(state.link.device)


SAMPLING: Mapping[str, Handler] = MappingProxyType(
    {"sample_rows": sample_rows, "sample_drop": sample_drop, "rebuild": rebuild}
)
