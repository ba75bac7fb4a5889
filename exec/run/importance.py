"""Neighbours drawn by importance: what every edge is worth, the draw, and a cache of rows that are needed often.

The draw plans the cache: it knows which rows will be there when its epoch comes, since rows enter the cache in the
order of the draws that ask for them. What it plans, `recall` does when the rows arrive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from halocast.exec.run.drawn import Ids
from halocast.exec.run.draws import edge_ids, halo_ids, rebuild, tell_once
from halocast.exec.run.state import RankState
from halocast.exec.transport.link import Halves
from halocast.graph.graph import Mask, Reals
from halocast.graph.inclusion import CachePolicy, Important, choose_cache, halo_inclusion, hit_rate
from halocast.graph.sampling import Weighting, draw_edges, edge_weights, picked
from halocast.models.modules import widened
from halocast.schedule.ir import Exchange, Kind, Op, Rows

Handler = Callable[[RankState, Op, int], int]
HITS = "cache hits"  # of the rows that layer 0 needs


@dataclass(slots=True)
class CachePlan:
    """The cache as the draws see it: which halo rows belong in it, and which of them have been asked for."""

    version: int  # of the probabilities
    chosen: Mask
    asked: Mask
    rate: float  # the expected share of needed rows that are in it, once all that belong in it are


@dataclass(slots=True)
class Cache:
    """The cache as it is: rows, and where among them a halo row is (-1: nowhere)."""

    rows: Tensor
    place: Tensor


def sample_edges(state: RankState, op: Op, epoch: int) -> int:
    """Draw the edges of a coming epoch, each with its own probability, and the halo rows they need."""
    params = dict(op.work.params)
    version, p = _odds(state, op, epoch)
    ids = _drawn(state, op, p, epoch)
    if len(op.writes) > 1:
        ids = _planned(state, params, version, p, ids)
        state.put(op, op.writes[1], _without_cached(state, ids), epoch)
    state.put(op, op.writes[0], ids, epoch)
    return 0


def _drawn(state: RankState, op: Op, p: Reals, epoch: int) -> Ids:
    params, part = dict(op.work.params), state.part
    layer = op.index[0] if op.index else 0
    kept = draw_edges(p, seed=int(params["seed"]), rank=part.rank, epoch=epoch + int(params["ahead"]), layer=layer)
    weights = edge_weights(Weighting(params["weighting"]), part.indptr, p, kept)
    return edge_ids(state, kept, weights if (weights != 1).any() else None)


def draw_ahead(state: RankState) -> Halves[None]:
    """Make the draws for the epochs before the first that is drawn for in the run; all ranks call it.

    Their graphs are as sampled as later ones, and gradients travel by their ids; the halo rows in them are zeros, since
    none have travelled, and count as neighbours.
    """
    for op in state.schedule.by_rank[state.rank]:
        ahead = int(dict(op.work.params).get("ahead", 0)) if op.kind is Kind.SAMPLE else 0
        for instance in range(-ahead, 0):
            yield from _draw_before(state, op, instance)


def _draw_before(state: RankState, op: Op, instance: int) -> Halves[None]:
    """Put the results of a draw, and of the ops that follow from it, in the place of an instance before the first."""
    ids = _drawn(state, op, _odds(state, op, -1)[1], instance)
    sent = yield from tell_once(state, ids)
    for name in op.writes:  # nothing is in a cache yet
        state.values[name][instance] = ids
    for reader in (reader for name in op.writes for reader in state.readers[name]):
        if reader.verb == "rebuild":
            rebuild(state, reader, instance)
        elif isinstance(reader.work, Exchange):
            width = reader.work.row_bytes // state.features.element_size()
            for name in state.names(reader.writes, Rows.HALO):
                state.values[name][instance] = state.features.new_zeros(1, width).expand(len(ids.rows), -1)
            for name in state.names(reader.writes, Rows.SENT_IDS):
                state.values[name][instance] = sent


def _odds(state: RankState, op: Op, epoch: int) -> tuple[int, Reals]:
    """The newest probabilities and their epoch; before the first, all rows count as equally long."""
    instance = state.instance(op, op.reads[0], epoch) if op.reads else -1
    if instance is None or instance < 0:
        if "odds" not in state.notes:
            state.notes["odds"] = _rule(op).of(state.part)
        return -1, state.notes["odds"]
    odds: Reals = state.value(op, op.reads[0], epoch).astype(np.float64)
    return instance, odds


def _planned(state: RankState, params: dict[str, str], version: int, p: Reals, ids: Ids) -> Ids:
    plan: CachePlan | None = state.notes.get("plan")
    if plan is None or plan.version != version:
        inclusion, policy = halo_inclusion(state.part, p), CachePolicy(params["policy"])
        chosen = choose_cache(policy, float(params["cache"]), state.part, inclusion, seed=int(params["seed"]))
        asked = np.zeros_like(chosen) if plan is None else plan.asked & chosen
        plan = state.notes["plan"] = CachePlan(version, chosen, asked, hit_rate(inclusion, chosen))
    needed = ids.rows.cpu().numpy()
    cached = plan.asked[needed]
    state.tallies[HITS].add(int(cached.sum()), len(needed), plan.rate * len(needed))
    plan.asked[needed] |= plan.chosen[needed]
    return replace(ids, cached=cached, to_cache=plan.chosen)


def _without_cached(state: RankState, ids: Ids) -> Ids:
    assert ids.cached is not None
    return halo_ids(state, picked(ids.rows.cpu().numpy()[~ids.cached], state.part.halo_offsets))


def recall(state: RankState, op: Op, epoch: int) -> int:
    """Join received and cached rows in one tensor; then the cache takes what it should have and drops the rest."""
    received = state.read(op, Rows.HALO, epoch)
    ids: Ids = state.read(op, Rows.HALO_IDS, epoch)
    if ids.cached is None or ids.to_cache is None:  # nothing has been drawn by then
        state.write(op, Rows.HALO, received, epoch)
        return 0
    cache = _cache(state, op, received)
    cached, chosen = (torch.from_numpy(mask).to(received.device) for mask in (ids.cached, ids.to_cache))
    rows = received.new_empty((len(ids.rows), received.shape[1]))
    rows[~cached] = received
    rows[cached] = cache.rows[cache.place[ids.rows[cached]]]
    cache.place[~chosen] = -1
    new = ids.rows[~cached & chosen[ids.rows]]
    free = torch.ones(len(cache.rows), dtype=torch.bool, device=rows.device)
    free[cache.place[cache.place >= 0]] = False
    cache.place[new] = free.nonzero().flatten()[: len(new)]
    cache.rows[cache.place[new]] = rows[~cached & chosen[ids.rows]]
    state.write(op, Rows.HALO, rows, epoch)
    return 0


def _cache(state: RankState, op: Op, like: Tensor) -> Cache:
    if "cache" not in state.notes:
        buffer = state.schedule.buffer(op.rank, op.writes[1])
        assert buffer is not None
        size = buffer.num_bytes // (like.shape[1] * like.element_size())
        place = torch.full((state.part.num_halo,), -1, dtype=torch.int64, device=like.device)
        state.notes["cache"] = Cache(like.new_zeros((size, like.shape[1])), place)
    cache: Cache = state.notes["cache"]
    return cache


@torch.no_grad()
def weigh(state: RankState, op: Op, epoch: int) -> int:
    """Probabilities from the lengths of rows after a layer's matrix: own rows, and halo rows as last received."""
    part, spec = state.part, state.job.spec
    layers = spec.exchanged_layers
    norms = state.notes.setdefault("norms", np.full((spec.layers, part.num_inner + part.num_halo), np.nan))
    inner, halo, drawn = (state.names(op.reads, rows) for rows in (Rows.INNER, Rows.HALO, Rows.HALO_IDS))
    drawn = drawn if len(drawn) > 1 else drawn * len(layers)  # one draw serves all layers, or each has its own
    plain = dict(op.work.params)["lengths"] == "rows"
    for layer, own, others, ids in zip(layers, inner, halo, drawn, strict=True):
        matrix = None if plain else _neighbour_matrix(state.model.linears[layer])
        norms[layer, : part.num_inner] = _squares(state.value(op, own, epoch), matrix)
        if state.instance(op, ids, epoch) != -1:  # before, halo rows are zeros and say nothing
            here = state.value(op, ids, epoch).rows.cpu().numpy() + part.num_inner
            norms[layer, here] = _squares(state.value(op, others, epoch), matrix)
    length = _joined(norms[list(spec.exchanged_layers)])
    state.put(op, op.writes[0], _rule(op).given(part, length).astype(np.float32), epoch)
    return 0


def _rule(op: Op) -> Important:
    params = dict(op.work.params)
    return Important(eps=float(params["eps"]), least=int(params["least"]), symmetric=params["symmetric"] == "1")


def _squares(rows: Tensor, matrix: Tensor | None) -> Reals:
    exact = widened(rows)
    product = exact if matrix is None else exact @ matrix.T
    squares: Reals = product.square().sum(1).cpu().numpy().astype(np.float64)
    return squares


def _neighbour_matrix(linear: nn.Module) -> Tensor | None:
    """The matrix with which a layer multiplies its neighbours' rows."""
    for name in ("neighbours", "rows"):
        module = getattr(linear, name, None)
        if isinstance(module, nn.Linear):
            return module.weight
    return None


def _joined(squares: Reals) -> Reals:
    """Lengths of rows over all layers; a row that never came counts as the mean of those that did."""
    known = ~np.isnan(squares)
    means = np.where(known, squares, 0).sum(1) / np.maximum(known.sum(1), 1)
    return np.asarray(np.sqrt(np.where(known, squares, means[:, None]).sum(0)))


IMPORTANCE: Mapping[str, Handler] = MappingProxyType({"sample_edges": sample_edges, "weigh": weigh, "recall": recall})
