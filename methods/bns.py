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
from halocast.methods.sampled import DRAWN, SampledPart, drawn_matrices, smaller, unsampled
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Matrix, Numbers, Op, Schedule


class What(StrEnum):
    """What is drawn; the other two drop as many edges as go with the nodes."""

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
        made = vanilla.vanilla(halo, spec, vanilla.Options(), numbers)
        return replace(made, meta=(("method", "bns"), ("sizes", halo.source)))
    rows = drawn_counts(halo.matrix, options.rate)
    dropped = _dropped(halo, rows)
    matrices: tuple[Matrix, ...] = (Matrix(DRAWN, rows),)
    if options.what is not What.NODES:
        matrices = drawn_matrices(_kept_rows(halo, dropped, options.what), halo.matrix)
    some = smaller(halo, matrices[0].counts, halo.num_edges - dropped)
    parts = [_part(rank, halo, some, spec, options, numbers) for rank in range(halo.num_parts)]
    return Schedule(
        num_ranks=halo.num_parts,
        matrices=matrices,
        buffers=tuple(buffer for part in parts for buffer in part.buffers()),
        ops=tuple(op for part in parts for op in _rank_ops(part)),
        meta=(("method", "bns"), ("sizes", halo.source)),
    )


def _dropped(halo: Halo, rows: Ints) -> Reals:
    """Edges that a part loses on average with the rows that do not travel to it; to the nearest whole one."""
    lost = 1 - rows / np.maximum(halo.matrix, 1)
    return np.asarray(np.rint((lost * halo.cut_edges()).sum(axis=0)))


def _kept_rows(halo: Halo, dropped: Reals, what: What) -> Expected:
    candidates = {What.EDGES: halo.cut_edges().sum(axis=0), What.DROPEDGE: halo.num_edges - halo.num_inner}
    keep = 1 - dropped / np.maximum(candidates[what], 1)
    return halo.expected_rows([Even(share) for share in keep.tolist()])


def _part(rank: int, halo: Halo, some: Halo, spec: ModelSpec, options: Options, numbers: Numbers) -> SampledPart:
    words = {What.NODES: (), What.EDGES: (("of", "cut"),), What.DROPEDGE: (("of", "all"),)}
    return SampledPart(
        full=PartOps(rank=rank, halo=halo, spec=spec, numbers=numbers),
        part=PartOps(rank=rank, halo=some, spec=spec, numbers=numbers),
        draw="sample_rows" if options.what is What.NODES else "sample_drop",
        params=(("rate", repr(options.rate)), ("seed", str(options.seed)), *words[options.what]),
        by_receiver=options.what is not What.NODES,
        weighted=options.what is not What.NODES,
    )


def _rank_ops(sampled: SampledPart) -> list[Op]:
    """As vanilla, after the draw; the graph is rebuilt when a layer needs it first."""
    part, layers = sampled.part, range(sampled.part.spec.layers)
    ops = [sampled.sample(()), sampled.exchange_ids()]
    first = next(layer for layer in layers if part.exchanges(layer))
    for layer in layers:
        if part.exchanges(layer):
            ops.append(sampled.exchange(layer, ((f"forward.{layer - 1}", 0),) if layer else ()))
        if layer == first:
            ops.append(sampled.rebuild())
        ops.append(sampled.forward(layer))
    ops.append(part.loss())
    for layer in reversed(layers):
        ops.append(sampled.backward(layer))
        if part.returns(layer):
            ops.append(sampled.exchange_grad(layer))
    return [*ops, part.allreduce((("backward.0", 0),)), part.step((("allreduce", 0),))]
