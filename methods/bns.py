"""BNS-GCN: in every epoch only a random share of the halo rows travels; received rows stand for those left out.

One draw serves all layers and both directions. Two baselines drop as many edges instead: edges from halo nodes, or any
(DropEdge); then a halo row travels if one of its edges is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np

from halocast.base.records import require
from halocast.graph.graph import Reals
from halocast.graph.halo import Halo
from halocast.graph.inclusion import Even, Expected, expected_boundary
from halocast.graph.sampling import Draw, Weighting, travel_share
from halocast.methods import vanilla
from halocast.methods.common import PartOps
from halocast.methods.sampled import DRAWN, SampledEpoch, drawn_matrices, smaller, unsampled
from halocast.methods.skeleton import After, assemble, meta_of, parts_of
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Matrix, Numbers, Op, Schedule


class What(StrEnum):
    """The things that are drawn: nodes; the other two drop as many edges as go with the nodes."""

    NODES = "nodes"
    EDGES = "edges"  # those from halo nodes
    DROPEDGE = "dropedge"  # any but self-loops


class Mean(StrEnum):
    """The number of neighbours that a mean over them divides by."""

    FULL = "full"  # all, also those left out; what came counts for more: right on average
    RENORMALISED = "renormalised"  # those that are there: less spread, but not right on average


WEIGHTING = MappingProxyType({Mean.FULL: Weighting.INVERSE, Mean.RENORMALISED: Weighting.SAMPLED_DEGREE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    rate: float = 0.1  # p, the probability that a halo row travels
    draw: Draw = Draw.ROUNDED
    mean: Mean = Mean.FULL
    seed: int = 0
    what: What = What.NODES

    def __post_init__(self) -> None:
        require(0 <= self.rate <= 1, f"rate = {self.rate}: needs 0 <= rate <= 1")
        require(self.seed >= 0, f"seed = {self.seed}: needs to be at least 0")


# the rule that the paper states, and that of the code its authors released
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": MappingProxyType({"what": "nodes", "draw": "bernoulli", "mean": "full"}),
        "code": MappingProxyType({"what": "nodes", "draw": "floor", "mean": "full"}),
    }
)


def bns(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    if unsampled(halo, spec):
        return replace(vanilla.vanilla(halo, spec, vanilla.Options(), numbers), meta=meta_of("bns", halo))
    dropped = _dropped(halo, options)
    matrices = _matrices(halo, options, dropped)
    some = smaller(halo, matrices[0].counts, halo.num_edges - dropped)
    epochs = [_epoch(full, some, options, announced=matrices[0].drawn) for full in parts_of(halo, spec, numbers)]
    return assemble(epochs, meta_of("bns", halo), matrices)


def _dropped(halo: Halo, options: Options) -> Reals:
    """Edges that a part loses on average with the rows that do not travel to it; to the nearest whole one."""
    lost = 1 - travel_share(halo.matrix, options.rate, options.draw)
    return np.asarray(np.rint((lost * halo.cut_edges()).sum(axis=0)))


def _matrices(halo: Halo, options: Options, dropped: Reals) -> tuple[Matrix, ...]:
    """The rows that travel and, where their number differs from epoch to epoch, their ids, which say how many."""
    if options.what is not What.NODES:
        return drawn_matrices(_kept_rows(halo, dropped, options.what), halo.matrix)
    expected = expected_boundary(halo.matrix, options.rate, options.draw)
    if expected.variance.any():
        return drawn_matrices(expected, halo.matrix)
    return (Matrix(DRAWN, np.rint(expected.mean).astype(np.int64)),)


def _kept_rows(halo: Halo, dropped: Reals, what: What) -> Expected:
    candidates = {What.EDGES: halo.cut_edges().sum(axis=0), What.DROPEDGE: halo.num_edges - halo.num_inner}
    keep = 1 - dropped / np.maximum(candidates[what], 1)
    return halo.expected_rows([Even(share) for share in keep.tolist()])


def _epoch(full: PartOps, some: Halo, options: Options, announced: bool) -> "_Sampled":
    nodes = options.what == What.NODES
    words: dict[str, object] = {"rate": repr(options.rate), "draw": options.draw, "seed": options.seed}
    words |= {"weighting": WEIGHTING[options.mean]}
    if not nodes:
        words |= {"of": "cut" if options.what == What.EDGES else "all"}
    return _Sampled(
        full=full,
        part=replace(full, halo=some),
        draw="sample_rows" if nodes else "sample_drop",
        params=tuple((key, str(word)) for key, word in words.items()),
        by_receiver=not nodes,
        announced=announced,
        weighted=not nodes or (options.mean == Mean.RENORMALISED and options.rate < 1),
    )


@dataclass(frozen=True, kw_only=True)
class _Sampled(SampledEpoch):
    """An epoch like vanilla's after the draw; the graph is rebuilt when a layer needs it first."""

    def begin(self) -> list[Op]:
        (layer,) = self.drawn_layers
        return [self.sample(layer, ()), self.exchange_ids(layer)]

    def rows_made(self, layer: int) -> After:
        """The waits of a layer's input rows; features wait for the draw alone, which is this epoch's."""
        return super().rows_made(layer) if layer else ()

    def fetch(self, layer: int) -> list[Op]:
        first = layer in self.drawn_layers
        return [*super().fetch(layer), self.rebuild(layer)] if first else super().fetch(layer)
