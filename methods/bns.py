"""BNS-GCN: in every epoch only a random share of the halo rows travels; received rows stand for those left out.

One draw serves all layers and both directions. Two baselines drop as many edges instead: edges from halo nodes, or any
(DropEdge); then a halo row travels if one of its edges is left.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from halocast.base.records import require
from halocast.graph.graph import Ints, Reals
from halocast.graph.halo import Halo
from halocast.graph.inclusion import Even, Expected
from halocast.graph.sampling import drawn_counts
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    rate: float = 0.1  # p, the share of halo rows that travel
    seed: int = 0
    what: What = What.NODES

    def __post_init__(self) -> None:
        require(0 <= self.rate <= 1, f"rate = {self.rate}: needs 0 <= rate <= 1")
        require(self.seed >= 0, f"seed = {self.seed}: needs to be at least 0")


def bns(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    if unsampled(halo, spec):
        return replace(vanilla.vanilla(halo, spec, vanilla.Options(), numbers), meta=meta_of("bns", halo))
    rows = drawn_counts(halo.matrix, options.rate)
    dropped = _dropped(halo, rows)
    matrices: tuple[Matrix, ...] = (Matrix(DRAWN, rows),)
    if options.what is not What.NODES:
        matrices = drawn_matrices(_kept_rows(halo, dropped, options.what), halo.matrix)
    some = smaller(halo, matrices[0].counts, halo.num_edges - dropped)
    epochs = [_epoch(full, some, options) for full in parts_of(halo, spec, numbers)]
    return assemble(epochs, meta_of("bns", halo), matrices)


def _dropped(halo: Halo, rows: Ints) -> Reals:
    """Edges that a part loses on average with the rows that do not travel to it; to the nearest whole one."""
    lost = 1 - rows / np.maximum(halo.matrix, 1)
    return np.asarray(np.rint((lost * halo.cut_edges()).sum(axis=0)))


def _kept_rows(halo: Halo, dropped: Reals, what: What) -> Expected:
    candidates = {What.EDGES: halo.cut_edges().sum(axis=0), What.DROPEDGE: halo.num_edges - halo.num_inner}
    keep = 1 - dropped / np.maximum(candidates[what], 1)
    return halo.expected_rows([Even(share) for share in keep.tolist()])


def _epoch(full: PartOps, some: Halo, options: Options) -> "_Sampled":
    words = {What.NODES: (), What.EDGES: (("of", "cut"),), What.DROPEDGE: (("of", "all"),)}
    return _Sampled(
        full=full,
        part=replace(full, halo=some),
        draw="sample_rows" if options.what is What.NODES else "sample_drop",
        params=(("rate", repr(options.rate)), ("seed", str(options.seed)), *words[options.what]),
        by_receiver=options.what is not What.NODES,
        weighted=options.what is not What.NODES,
    )


@dataclass(frozen=True, kw_only=True)
class _Sampled(SampledEpoch):
    """An epoch like vanilla's after the draw; the graph is rebuilt when a layer needs it first."""

    def begin(self) -> list[Op]:
        return [self.sample(()), self.exchange_ids()]

    def rows_made(self, layer: int) -> After:
        """The waits of a layer's input rows; features wait for the draw alone, which is this epoch's."""
        return super().rows_made(layer) if layer else ()

    def fetch(self, layer: int) -> list[Op]:
        first = layer == self.part.spec.exchanged_layers[0]
        return [*super().fetch(layer), self.rebuild()] if first else super().fetch(layer)
