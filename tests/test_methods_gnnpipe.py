"""GNNPipe's schedules: bytes, slots, stages, ages and memory are what the method says, and bad options are refused."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import small_graph, spec_for

from halocast.base.errors import InputError
from halocast.cluster.catalogue import load_cluster
from halocast.exec.run.null import execute_null
from halocast.graph import assign
from halocast.graph.card import card_volume, load_card
from halocast.graph.chunks import chunks_from_card
from halocast.graph.halo import Halo, from_assignment
from halocast.methods.gnnpipe import Options, choices, fit, gnnpipe
from halocast.methods.gnnpipe.options import Grouping, Split, min_max, split_layers
from halocast.methods.gnnpipe.slots import Order, turns
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.reports.metrics import measure
from halocast.reports.summary import ReadAges, staleness_table
from halocast.schedule.check import check, staleness
from halocast.schedule.ir import Kind, Numbers, Schedule
from halocast.schedule.passes import memory
from halocast.schedule.text import format_schedule, parse_schedule
from halocast.sim.engine import simulate
from halocast.sim.network.links import UnlimitedLinks

GRAPH = small_graph()


def halo_of(num_chunks: int) -> Halo:
    return from_assignment(GRAPH, assign(GRAPH, num_chunks, balance="cost", seed=1, cache=False))


def spec_of(layers: int = 6, **changes: Any) -> ModelSpec:
    return spec_for(GRAPH, **{"kind": ModelKind.GCN, "layers": layers, **changes})


def schedule_of(num_chunks: int = 5, model: dict[str, Any] | None = None, **options: Any) -> Schedule:
    return check(gnnpipe(halo_of(num_chunks), spec_of(**(model or {})), Options(**options), Numbers.FLOAT32))


def bytes_of(schedule: Schedule) -> int:
    return sum(schedule.num_bytes(op) for op in schedule.ops)


@pytest.mark.parametrize("stages", [1, 2, 3, 6])
def test_an_epoch_sends_every_node_forth_and_back_between_stages(stages: int) -> None:
    assert bytes_of(schedule_of(stages=stages)) == 2 * (stages - 1) * 300 * 16 * 4
    deep = {"kind": ModelKind.GCNII, "norm": Norm.NONE}
    assert bytes_of(schedule_of(stages=stages, model=deep)) == 2 * (stages - 1) * 300 * 2 * 16 * 4


@pytest.mark.parametrize("lockstep", [False, True])
def test_schedules_survive_their_text_and_run_without_deadlock(lockstep: bool) -> None:
    schedule = schedule_of(stages=3, lockstep=lockstep, model={"kind": ModelKind.GCNII, "norm": Norm.NONE})
    assert parse_schedule(format_schedule(schedule)).ops == schedule.ops
    trace = execute_null(schedule, num_epochs=3)
    assert len(trace.spans) == sum(op.exists(epoch) for op in schedule.ops for epoch in range(3))


def test_lockstep_meets_after_each_slot_of_fill_flow_and_drain() -> None:
    schedule = schedule_of(stages=3, lockstep=True)
    meetings = [op.name for op in schedule.by_rank[1] if op.kind is Kind.BARRIER]
    assert meetings == [f"meet.{turn}" for turn in range(2 * (5 + 3 - 1))]
    names = [op.name for op in schedule.by_rank[1] if op.verb in ("forward_chunk", "backward_chunk", "meet")]
    assert names[:4] == ["meet.0", "forward_chunk.2.0", "forward_chunk.3.0", "meet.1"]
    assert names[-5:] == ["meet.11", "backward_chunk.3.0", "backward_chunk.2.0", "meet.12", "meet.13"]


def test_lockstep_keeps_no_joined_rows() -> None:
    """The released code, which it stands for, sums rows where they lie."""
    kept = {
        lockstep: {
            buffer.name: buffer.num_bytes
            for buffer in schedule_of(stages=3, lockstep=lockstep, model={"dropout": 0.0, "norm": Norm.NONE}).buffers
            if buffer.name.startswith("keep.2.")
        }
        for lockstep in (False, True)
    }
    sizes = zip(halo_of(5).num_inner.tolist(), halo_of(5).num_halo.tolist(), strict=True)
    for slot, (inner, halo) in enumerate(sizes):
        name = f"keep.2.{slot}"
        assert kept[True][name] == 2 * inner * 16 * 4  # the aggregate, and what the activation made
        assert kept[False][name] == kept[True][name] + (inner + halo) * 16 * 4


def test_lockstep_is_slower_by_what_it_does_not_overlap() -> None:
    cluster = load_cluster("cpu-local", gpus=3)
    times = [
        measure(simulate(schedule, cluster, 3), schedule, 1).epoch_s
        for schedule in (schedule_of(stages=3, freeze=1, lockstep=lockstep) for lockstep in (False, True))
    ]
    assert times[0] < times[1]


def even_schedule(options: Options) -> Schedule:
    spec = ModelSpec(
        kind=ModelKind.GCN, layers=34, hidden=64, num_features=64, num_classes=64, norm=Norm.NONE, dropout=0.0
    )
    even = Halo(
        num_inner=np.full(8, 1000),
        num_edges=np.full(8, 50_000),
        num_train=np.full(8, 10),
        matrix=np.where(np.eye(8, dtype=bool), 0, 100),
        num_features=64,
        num_classes=64,
        source="partition",
    )
    return check(gnnpipe(even, spec, options, Numbers.FLOAT32))


def test_the_bubble_of_even_chunks_is_that_of_a_pipeline() -> None:
    """Fill and drain cost (S - 1) / K of the work, if stages and chunks are alike and nothing is sent, in any order."""
    orders = (even_schedule(Options(stages=4, split=Split.COST, freeze=1, cross_factor=0.0, order=o)) for o in Order)
    for schedule in orders:
        trace = simulate(schedule, load_cluster("a5000-2x4-pcie4-ib200"), 3, network=UnlimitedLinks)
        found = measure(trace, schedule, 1)
        busiest = found.max("compute_s")
        assert found.epoch_s == pytest.approx(busiest * (1 + 3 / 8), rel=0.04)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 9))
def test_the_min_max_split_is_the_best_there_is(costs: list[int], groups: int) -> None:
    if groups > len(costs):
        return
    bounds = min_max([float(cost) for cost in costs], groups)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(costs), groups + 1)
    assert all(a < b for a, b in pairwise(bounds))
    cuts = combinations(range(1, len(costs)), groups - 1)
    best = min(max(sum(costs[a:b]) for a, b in pairwise((0, *cut, len(costs)))) for cut in cuts)
    assert max(sum(costs[a:b]) for a, b in pairwise(bounds)) == best


def test_layers_split_evenly_with_the_first_stages_one_more() -> None:
    assert split_layers(spec_of(layers=6), 4, Split.EVEN) == [0, 2, 4, 5, 6]
    wide = ModelSpec(kind=ModelKind.GCN, layers=6, hidden=8, num_features=500, num_classes=4)
    assert split_layers(wide, 2, Split.COST) == [0, 1, 6]  # the first layer is as costly as all others


def test_snapshots_are_as_old_as_frozen() -> None:
    ages = {read.buffer: read.ages for read in staleness(schedule_of(stages=2, freeze=3)) if "hist" in read.buffer}
    assert ages == {f"hist.{layer}": (1, 2, 3) for layer in range(1, 6)}
    assert not [r for r in staleness(schedule_of(1, stages=2)) if "hist" in r.buffer]  # one chunk needs none


def test_a_snapshot_is_taken_at_the_end_of_the_epochs_that_the_one_before_served() -> None:
    taken = [op for op in schedule_of(stages=2, freeze=3).ops if op.name == "refresh.2"]
    assert [[epoch for epoch in range(9) if op.exists(epoch)] for op in taken] == [[2, 5, 8]]


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({}, 2.0),
        ({"shuffle": False}, 1.0),
        ({"late_gradients": True}, 1.0),
        ({"order": Order.ONE}, 0.0),
        ({"cross_factor": 1.0}, 1.0),
        ({"cross_factor": 2.0, "late_gradients": True}, 2.0),
    ],
)
def test_gradients_that_cross_chunks_are_doubled_unless_all_or_none_come(
    options: dict[str, Any], factor: float
) -> None:
    scales = {op.work.scale for op in schedule_of(stages=2, **options).ops if op.verb == "backward_chunk"}
    assert scales == {factor}


def test_summaries_tell_how_old_snapshots_are_once_per_layer() -> None:
    assert staleness_table(schedule_of(stages=2, freeze=2)) == tuple(
        ReadAges(op=f"forward_chunk.{layer}.*", reads=f"hist.{layer}", ages=(1, 2)) for layer in range(1, 6)
    )


def test_every_stage_holds_the_whole_topology_and_three_tables_per_layer() -> None:
    schedule = schedule_of(stages=3)
    for rank in range(3):
        alive = dict(memory(schedule, rank).alive)
        assert alive["topology"] > 16 * GRAPH.num_edges
        tables = [name for name in alive if name.split(".")[0] in ("h", "hist", "gh") and name[-2:] in (".2", ".3")]
        assert rank != 1 or sorted(tables) == ["gh.2", "gh.3", "h.2", "h.3", "hist.2", "hist.3"]
        assert rank != 1 or {alive[name] for name in tables} == {300 * 16 * 4}


def test_recomputing_keeps_less_between_forward_and_backward() -> None:
    peaks = [memory(schedule_of(stages=2, model={"recompute": again}), 0).peak_bytes for again in (False, True)]
    assert peaks[1] < peaks[0]


def test_fewer_chunks_than_stages_are_allowed_with_a_warning() -> None:
    warned = [text for key, text in schedule_of(2, stages=3).meta if key == "warning"]
    assert warned == ["chunks = 2 per way, stages = 3: some stage always stands still"]
    assert not [text for key, text in schedule_of(3, stages=3).meta if key == "warning"]


def test_options_are_settled_by_the_ranks_and_layers() -> None:
    assert fit(Options(), 8, 32) == Options(stages=8, ways=1, chunks=32)
    assert fit(Options(chunks=5, stages=4), 4, 32) == Options(stages=4, ways=1, chunks=5)


def test_chunks_of_a_card_are_even() -> None:
    halo = chunks_from_card(load_card("reddit"), 32)
    assert np.ptp(halo.num_edges) <= 32
    assert np.ptp(halo.num_halo) <= 32
    assert int(halo.num_edges.sum()) == 114_848_857


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stages": 7}, "stages = 7: more than layers = 6"),
        ({"stages": 0}, "stages = 0"),
        ({"freeze": 0}, "freeze = 0"),
        ({"cross_factor": -1.0}, "cross_factor = -1.0"),
        ({"stages": 2, "ways": 2}, "chunks = 5: needs to be a multiple of ways = 2"),
        ({"order": Order.ONE, "cross_factor": 1.0}, "cross_factor = 0, not 1.0"),
        ({"order": Order.ONE, "ways": 2}, "order = 1f1b: needs ways = 1"),
        ({"order": Order.ONE, "lockstep": True}, "order = 1f1b: lockstep"),
        ({"choose": True}, "choose = true"),
    ],
)
def test_options_that_make_no_pipeline_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        schedule_of(**options)


def test_one_by_one_takes_a_slot_back_as_soon_as_it_is_through() -> None:
    assert turns(Order.ONE, 0, 3, 4) == [
        *((True, 0), (True, 1), (True, 2), (False, 0)),
        *((True, 3), (False, 1), (False, 2), (False, 3)),
    ]
    assert turns(Order.ONE, 2, 3, 2) == [(True, 0), (False, 0), (True, 1), (False, 1)]
    assert turns(Order.ONE, 0, 4, 2) == [(True, 0), (True, 1), (False, 0), (False, 1)]  # fewer slots than stages


def test_one_by_one_keeps_less_and_runs_without_deadlock() -> None:
    """All that is kept between forward and backward of a slot is kept of fewer slots at a time."""
    found = [schedule_of(8, stages=3, freeze=1, cross_factor=0.0, order=order) for order in Order]
    peaks = [sum(memory(schedule, rank).peak_bytes for rank in range(3)) for schedule in found]
    assert peaks[1] < peaks[0]
    assert len(execute_null(found[1], num_epochs=2).spans) == 2 * len(found[1].ops)


def test_ranks_that_stages_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="stages = 3, ways = 2: 8 ranks cannot be divided so"):
        fit(Options(stages=3), 8, 32)


def test_ways_far_apart_are_predicted_slower_than_ways_of_one_host() -> None:
    halo = chunks_from_card(load_card("flickr"), 8, num_ways=2)
    spec = ModelSpec(kind=ModelKind.GCN, layers=8, hidden=100, num_features=500, num_classes=7, norm=Norm.NONE)
    epochs = []
    for grouping in (Grouping.NEAR, Grouping.FAR):
        schedule = check(gnnpipe(halo, spec, Options(stages=4, ways=2, freeze=1, grouping=grouping), Numbers.FLOAT32))
        swapped, passed = 14 * card_volume(load_card("flickr").full, 2) * 400, 6 * 89_250 * 400
        reduced = 4 * 2 * spec.num_weights  # of four bytes, by two ways, each half of it twice
        assert bytes_of(schedule) == swapped + passed + reduced
        epochs.append(measure(simulate(schedule, load_cluster("a5000-2x4-pcie4-ib200"), 3), schedule, 1).epoch_s)
    assert epochs[0] < epochs[1]


def test_all_choices_of_stages_ways_and_chunks_are_pipelines() -> None:
    found = list(choices(Options(), 4, 6))
    assert {(c.stages, c.ways) for c in found} == {(1, 4), (2, 2), (4, 1)}
    assert {(c.stages, c.chunks) for c in choices(Options(stages=2, chunks=6), 4, 6)} == {(2, 6)}
    assert {c.ways for c in choices(Options(order=Order.ONE), 4, 6)} == {1}
    for choice in found:
        assert choice.chunks is not None
        assert check(gnnpipe(halo_of(choice.chunks), spec_of(), choice, Numbers.FLOAT32)).num_ranks == 4


@pytest.mark.parametrize(("stages", "ways"), [(2, 1), (2, 2), (1, 4)])
def test_snapshots_are_as_old_as_they_serve_however_many_ways_there_are(stages: int, ways: int) -> None:
    """With ways the rows of a snapshot came through exchanges that change their table in place."""
    schedule = schedule_of(8, stages=stages, ways=ways, freeze=3)
    ages = {read.ages for read in staleness_table(schedule) if read.reads.startswith("hist")}
    assert ages == {(1, 2, 3)}
