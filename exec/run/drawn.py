"""What a draw leaves on a rank: ids of the rows that travel, and the local graph of an epoch."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from halocast.graph.graph import Ints, Mask, Reals
from halocast.graph.parts import Part
from halocast.graph.sampling import Picked, keep_edges, picked
from halocast.models.aggregate import Aggregate, neighbour_sum
from halocast.models.attention import Edges
from halocast.models.modules import Block, make_block


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ids:
    """Rows that travel in an epoch, as seen by their owner (sent) or by the rank that gets them (halo)."""

    picked: Picked
    rows: Tensor  # their places: among the inner rows, or among the halo rows
    kept: Mask | None = None  # which local edges were drawn, where edges were
    weights: Reals | None = None  # of those edges; None: all 1
    cached: Mask | None = None  # which of the rows are here already
    to_cache: Mask | None = None  # which halo rows are to be kept here, of all

    @property
    def counts(self) -> list[int]:
        counts: list[int] = self.picked.counts.tolist()
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class LocalBlock:
    """A local graph over some of the halo rows, and what their rows are multiplied by, unless attention weighs them."""

    block: Block
    halo: Tensor  # which halo rows
    scale: Tensor | None = None


class Weighted:
    """Neighbour sums in which every edge has a weight; attention, which has weights of its own, sees the edges."""

    def __init__(self, plain: Aggregate, weights: Tensor) -> None:
        self._plain, self._weights = plain, weights.unsqueeze(1)

    def __call__(self, rows: Tensor) -> Tensor:
        return self._plain.edges.weighted_sum(rows.unsqueeze(1), self._weights).squeeze(1)

    @property
    def edges(self) -> Edges:
        return self._plain.edges


def all_ids(rows: Tensor, lists: Ints) -> Ids:
    """The ids of all rows, none left out; `lists` says where the rows of each peer begin."""
    return Ids(picked=picked(np.arange(lists[-1]), lists), rows=rows)


def build_block(part: Part, full: Block, kept: Mask, weights: Reals | None) -> LocalBlock:
    """The part with only the kept edges and the halo rows they need; degrees stay those of the whole graph."""
    graph = keep_edges(part, kept)
    degrees = full.in_degree
    indptr, indices = (torch.from_numpy(a).to(degrees.device) for a in (graph.indptr, graph.indices))
    halo = torch.from_numpy(graph.halo).to(degrees.device)
    aggregate = neighbour_sum(indptr, indices, part.num_inner + len(halo), at_once=True)
    if weights is not None:
        aggregate = Weighted(aggregate, torch.from_numpy(weights).to(degrees))
    columns = torch.cat([full.out_degree[: part.num_inner], full.out_degree[part.num_inner + halo]])
    return LocalBlock(make_block(aggregate, degrees, columns), halo)
