"""Pipelines of layers: how many stages and ways there are, and which layers a stage holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

import numpy as np

from halocast.base.records import require
from halocast.graph.chunks import WayHalo
from halocast.graph.graph import Ints
from halocast.graph.halo import Halo
from halocast.methods.gnnpipe.slots import Order
from halocast.models import arithmetic
from halocast.models.arithmetic import PartSize
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Counted, Matrix

# A node with 50 neighbours, of which the cost of layers relative to each other hardly depends
TYPICAL = PartSize(num_inner=1000, num_halo=0, num_edges=50_000)


class Split(StrEnum):
    EVEN = "even"  # equally many layers, the first stages one more
    COST = "cost"  # so that the costliest stage is as cheap as possible


class Grouping(StrEnum):
    NEAR = "near"  # the ways of a stage are neighbouring ranks, on one host if they fit
    FAR = "far"  # the stages of a way are


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    stages: int | None = None  # default: as many as divide the ranks and do not exceed the layers
    ways: int | None = None  # ranks per stage; default: those that are left
    chunks: int | None = None  # in all; the ways of a stage share them; default: four per rank
    split: Split = Split.EVEN
    grouping: Grouping = Grouping.NEAR
    shuffle: bool = True  # draw the order of the chunks in every epoch
    freeze: int = 23  # epochs a snapshot serves; 1: always that of the epoch before
    late_gradients: bool = False  # users of snapshot rows give gradients back, an epoch late
    cross_factor: float | None = None  # of gradients that cross chunks; default: see `crossing`
    lockstep: bool = False  # all stages meet after every slot, as the released code does
    order: Order = Order.ALL
    choose: bool = False  # stages, ways and chunks that are not given: those of the shortest predicted epoch

    def __post_init__(self) -> None:
        for name in ("stages", "ways", "chunks"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} = {value}: needs to be at least 1")
        require(self.freeze >= 1, f"freeze = {self.freeze}: needs to be at least 1")
        require(self.crossing >= 0, f"cross_factor = {self.cross_factor}: needs to be at least 0")
        if self.order == Order.ONE:
            why = f"order = {self.order}: a chunk goes back before later ones have used its rows, which needs"
            require(self.crossing == 0, f"{why} cross_factor = 0, not {self.cross_factor}")
            require(not self.late_gradients, f"{why} late_gradients = false")
            require(not self.lockstep, f"order = {self.order}: lockstep is all forward, then all backward")
            require(self.ways in (None, 1), f"order = {self.order}: needs ways = 1, not {self.ways}")

    @property
    def crossing(self) -> float:
        """The factor of gradients that cross chunks.

        In a drawn order a chunk comes before another half of the time, and only then gets the other's gradient: it is
        doubled to be right on average. In a fixed order some get all and others nothing, which no factor mends. Late
        gradients give the other half, and one by one none crosses.
        """
        if self.cross_factor is not None:
            return self.cross_factor
        if self.order == Order.ONE:
            return 0.0
        return 2.0 if self.shuffle and not self.late_gradients else 1.0


@dataclass(frozen=True, slots=True)
class StageGrid:
    """A grid that says which rank is which way of which stage."""

    stages: int
    ways: int
    grouping: Grouping

    def rank(self, stage: int, way: int) -> int:
        return stage * self.ways + way if self.grouping == Grouping.NEAR else way * self.stages + stage


def way_matrices(halo: Halo, grid: StageGrid) -> tuple[Matrix, ...]:
    """Rows that the ways of every stage exchange in every slot: each travels once to every way that needs it."""
    num_slots, num_ranks = halo.num_parts // grid.ways, grid.stages * grid.ways
    shared = halo.shared if isinstance(halo, WayHalo) else at_most_shared(halo, grid.ways)
    matrices = []
    for slot in range(num_slots):
        counts = np.zeros((num_ranks, num_ranks), np.int64)
        for stage in range(grid.stages):
            ranks = [grid.rank(stage, way) for way in range(grid.ways)]
            counts[np.ix_(ranks, ranks)] = shared[slot::num_slots]
        matrices.append(Matrix(f"ways.{slot}", counts, rows=Counted.SLOT))
    return tuple(matrices)


def at_most_shared(halo: Halo, num_ways: int) -> Ints:
    """Rows of each chunk that each way needs, if no two chunks of the way need the same, up to all the chunk has."""
    by_way = halo.matrix.reshape(halo.num_parts, num_ways, -1).sum(axis=2)
    by_way[np.arange(halo.num_parts), np.arange(halo.num_parts) // (halo.num_parts // num_ways)] = 0
    most: Ints = np.minimum(by_way, halo.num_inner[:, None])
    return most


def fitting(stages: int | None, ways: int | None, num_ranks: int, num_layers: int) -> tuple[int, int]:
    """Stages and ways for a number of ranks; what is not said is chosen with as many stages as layers allow."""
    if stages is None:
        legal = [n for n in range(1, num_layers + 1) if num_ranks % n == 0]
        stages = num_ranks // ways if ways else max(legal)
    ways = ways or num_ranks // stages
    require(stages <= num_layers, f"stages = {stages}: more than layers = {num_layers}")
    require(
        stages * ways == num_ranks,
        f"stages = {stages}, ways = {ways}: {num_ranks} ranks cannot be divided so",
    )
    return stages, ways


def split_layers(spec: ModelSpec, num_stages: int, split: Split) -> list[int]:
    """The layers at which stages begin, and the end: stage s holds layers [s] to [s + 1]."""
    if split == Split.COST:
        return min_max([layer_cost(spec, layer) for layer in range(spec.layers)], num_stages)
    share, left = divmod(spec.layers, num_stages)
    return [0, *accumulate(share + (stage < left) for stage in range(num_stages))]


def layer_cost(spec: ModelSpec, layer: int) -> float:
    """Bytes a layer's kernels move, forward and backward: what a device's memory bounds."""
    kernels = (*arithmetic.forward(spec, layer, TYPICAL), *arithmetic.backward(spec, layer, TYPICAL))
    return float(sum(arithmetic.bytes_moved(kind, dims, 4) for kind, dims in kernels))


def min_max(costs: Sequence[float], num_groups: int) -> list[int]:
    """Bounds of consecutive non-empty groups whose largest sum is the least possible."""
    sums = [0.0, *accumulate(costs)]
    best = list(sums)  # of the first k costs in the groups so far: here, one
    starts: list[list[int]] = []
    for groups in range(2, num_groups + 1):
        cheapest = [
            min((max(best[cut], sums[k] - sums[cut]), cut) for cut in range(groups - 1, k))
            if k >= groups
            else (float("inf"), 0)
            for k in range(len(sums))
        ]
        best = [cost for cost, _ in cheapest]
        starts.append([cut for _, cut in cheapest])
    bounds = [len(costs)]
    for cuts in reversed(starts):
        bounds.append(cuts[bounds[-1]])
    return [*([0] if bounds[-1] else []), *reversed(bounds)]
