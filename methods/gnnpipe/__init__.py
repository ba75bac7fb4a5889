"""GNNPipe: stages hold consecutive layers of the whole graph, and chunks of it flow through them.

All chunks go forward, then all go backward in reverse order, or one by one (slots.py). A neighbour in a chunk that went
before gives its fresh row, any other the row of a snapshot. With several ways per stage, each takes a part of every
chunk and they exchange the rows that the others need. The chunk in a slot is drawn anew in every epoch; the sizes of
slot k are chunk k's, which is one order of many: sums over slots are exact, and slots wait for others as in any order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from halocast.base.records import require
from halocast.graph.halo import Halo
from halocast.methods.gnnpipe.options import Options as Options
from halocast.methods.gnnpipe.options import StageGrid, fitting, split_layers, way_matrices
from halocast.methods.gnnpipe.slots import Order
from halocast.methods.gnnpipe.stage import Stage
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Numbers, Schedule

CHUNKS_PER_RANK = 4  # as published
TRIED_CHUNKS_PER_RANK = (1, 2, 4, 8)
# `chunks` is in neither: both have CHUNKS_PER_RANK, which is what it means where nothing is said
_PAPER: Mapping[str, Any] = MappingProxyType({"shuffle": True, "freeze": 23, "cross_factor": 1.0, "lockstep": False})
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"paper": _PAPER, "code": {**_PAPER, "cross_factor": 2.0, "lockstep": True}}
)


def fit(options: Options, num_ranks: int, num_layers: int) -> Options:
    """The options with everything filled in that depends on the number of ranks."""
    require(not options.choose, "choose = true: stages, ways and chunks have to be chosen first (plan.pipelines)")
    stages, ways = fitting(options.stages, options.ways, num_ranks, num_layers)
    return replace(options, stages=stages, ways=ways, chunks=options.chunks or CHUNKS_PER_RANK * num_ranks)


def choices(options: Options, num_ranks: int, num_layers: int) -> Iterator[Options]:
    """All stages and ways that make up the ranks, with fewer and more chunks: what a planner may choose from.

    What the options say stays as it is said.
    """
    for stages in (n for n in range(1, min(num_ranks, num_layers) + 1) if num_ranks % n == 0):
        ways = num_ranks // stages
        if options.stages not in (None, stages) or options.ways not in (None, ways):
            continue
        if ways > 1 and (options.late_gradients or options.order == Order.ONE):
            continue
        for chunks in [options.chunks] if options.chunks else [n * num_ranks for n in TRIED_CHUNKS_PER_RANK]:
            if chunks % ways == 0:
                yield replace(options, stages=stages, ways=ways, chunks=chunks, choose=False)


def gnnpipe(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    """The schedule of chunks, the parts of `halo`; stages and ways that are left open mean one chunk per rank."""
    asked = halo.num_parts if options.stages is None else options.stages * (options.ways or 1)
    options = replace(fit(options, asked, spec.layers), chunks=halo.num_parts)
    assert options.stages is not None
    assert options.ways is not None
    require(
        halo.num_parts % options.ways == 0,
        f"chunks = {halo.num_parts}: needs to be a multiple of ways = {options.ways}",
    )
    require(options.ways == 1 or not options.late_gradients, f"late_gradients: needs ways = 1, not {options.ways}")
    bounds = split_layers(spec, options.stages, options.split)
    grid = StageGrid(options.stages, options.ways, options.grouping)
    stages = [
        Stage(
            stage=stage,
            way=way,
            grid=grid,
            halo=halo,
            spec=spec,
            options=options,
            layers=range(*bound),
            numbers=numbers,
        )
        for stage, bound in enumerate(pairwise(bounds))
        for way in range(options.ways)
    ]
    return Schedule(
        num_ranks=len(stages),
        matrices=way_matrices(halo, grid) if options.ways > 1 else (),
        buffers=tuple(buffer for stage in stages for buffer in stage.buffers()),
        ops=tuple(op for stage in stages for op in stage.ops()),
        degree_sigma=halo.degree_sigma,
        meta=(
            ("method", "gnnpipe"),
            ("sizes", halo.source),
            *_warnings(options.stages, halo.num_parts // options.ways),
        ),
    )


def _warnings(num_stages: int, num_slots: int) -> tuple[tuple[str, str], ...]:
    if num_slots >= num_stages:
        return ()
    return (("warning", f"chunks = {num_slots} per way, stages = {num_stages}: some stage always stands still"),)
