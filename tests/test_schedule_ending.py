"""The end of a run: ranks that meet do their epochs, ranks that run freely go on until the slowest has done its own."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from training import metis_parts, small_graph, spec_for, train

from halocast.exec.run.null import execute_null
from halocast.methods import METHODS
from halocast.schedule.ending import MOST_LAPS, Ending
from halocast.schedule.ir import Schedule
from halocast.schedule.trace import Trace, load_trace, save_trace
from halocast.sim.engine import simulate
from halocast.sim.world import Failure
from halocast.study.clusters import scenario_cluster
from halocast.study.scenario import Scenario, load_scenario
from halocast.study.workload import prepare

EPOCHS, SLOW = 12, 2


def scenario_of(method: str, *settings: str) -> Scenario:
    chosen = [f"method.name={method}", "graph.nodes=2000", "cluster.name=rtx2080ti-x10-pcie3", "cluster.gpus=4"]
    return load_scenario(None, [*chosen, *settings])


def schedule_of(method: str, *settings: str) -> Schedule:
    return prepare(scenario_of(method, *settings), 4).schedule


def simulated(method: str, *settings: str, speed: float = 1 / 3, num_epochs: int = EPOCHS) -> Trace:
    scenario = scenario_of(method, *settings, f"world.speed={{{SLOW}={speed}}}")
    cluster = scenario_cluster(scenario)
    return simulate(prepare(scenario, 4).schedule, cluster, num_epochs, world=scenario.world.world)


def epochs_of(trace: Trace) -> list[int]:
    done = Counter(span.rank for span in trace.all_spans if span.op == "step")
    return [done[rank] for rank in range(trace.num_ranks)]


def ends_of(trace: Trace, op: str) -> dict[tuple[int, int], float]:
    return {(span.rank, span.epoch): span.end_s for span in trace.all_spans if span.op == op}


def assert_ends_together(trace: Trace) -> None:
    """Every rank has done its epochs, and stopped only when all had: its last epoch ends after everybody's N-th."""
    assert min(epochs_of(trace)) == trace.num_epochs
    ends = ends_of(trace, "deliver")
    all_done_s = max(ends[rank, trace.num_epochs - 1] for rank in range(trace.num_ranks))
    for rank, num in enumerate(epochs_of(trace)):
        if num > trace.num_epochs:
            assert ends[rank, num - 1] >= all_done_s
            assert ends[rank, num - 2] < all_done_s, "it began an epoch after all had done theirs"


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"digest-a"}))
def test_ranks_that_meet_do_their_epochs_and_no_more(method: str) -> None:
    schedule = schedule_of(method, "graph.nodes=400", "model.layers=4")
    assert not schedule.free
    assert schedule.bounded
    assert execute_null(schedule, 3).beyond == ()


def test_simulated_ranks_that_run_freely_go_on_until_the_slowest_is_done() -> None:
    trace = simulated("digest-a", "cluster.tolerance=0")
    assert_ends_together(trace)
    assert epochs_of(trace)[SLOW] == EPOCHS
    others = [num for rank, num in enumerate(epochs_of(trace)) if rank != SLOW]
    assert min(others) > 1.5 * EPOCHS


def test_what_is_beyond_the_epochs_of_all_is_kept_apart() -> None:
    trace = simulated("digest-a")
    assert {span.epoch for span in trace.spans} == set(range(EPOCHS))
    assert min(span.epoch for span in trace.beyond) == EPOCHS
    assert trace.mean_epochs == sum(epochs_of(trace)) / 4


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_files_of_traces_keep_what_is_beyond(tmp_path: Path, suffix: str) -> None:
    trace = replace(simulated("digest-a", num_epochs=3), links=())
    save_trace(trace, tmp_path / f"trace{suffix}")
    read = load_trace(tmp_path / f"trace{suffix}")
    assert len(trace.beyond) > 0
    assert (read.spans, read.beyond) == (trace.spans, trace.beyond)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_bound_does_not_make_a_rank_wait_for_epochs_that_never_come(bound: int) -> None:
    """Beyond its epochs a rank would wait for one that the slowest does not do any more."""
    trace = simulated("digest-a", f"method.bound={bound}", speed=1 / 10)
    assert_ends_together(trace)
    assert epochs_of(trace)[SLOW] == EPOCHS
    null = execute_null(schedule_of("digest-a", f"method.bound={bound}"), 4, timeout_s=20)
    assert min(epochs_of(null)) == 4


def test_nobody_waits_for_an_epoch_that_another_rank_need_not_do() -> None:
    """Else a rank that learns too late that all are done would wait, in a further epoch, for one that has stopped."""
    schedule = schedule_of("digest-a", "method.bound=1")
    ending = Ending(schedule=schedule, rank=0, num_epochs=5)
    fetch = schedule.find(0, "fetch")
    assert fetch is not None
    others = {epoch: {n for op, n in ending.awaits(fetch, epoch) if op.rank != 0} for epoch in (4, 5, 6, 7, 9)}
    assert others == {4: {2}, 5: {3}, 6: {4}, 7: {4}, 9: {4}}
    assert {n for op, n in ending.awaits(fetch, 9) if op.rank == 0} == {8}


def test_without_hardware_it_ends_together_too() -> None:
    trace = execute_null(schedule_of("digest-a"), 5)
    assert min(epochs_of(trace)) == 5


def test_nobody_goes_on_for_a_rank_whose_host_has_failed() -> None:
    scenario = scenario_of("digest-a", "cluster.name=a5000-2x4-pcie4-ib200", "cluster.gpus=8")
    world = replace(scenario.world.world, failure=Failure(host=1, at_s=0.004))
    done = epochs_of(simulate(prepare(scenario, 8).schedule, scenario_cluster(scenario), 40, world=world))
    assert max(done[4:]) < 40 <= min(done[:4])
    assert max(done[:4]) < 60


def test_a_rank_that_needs_no_time_ends_as_well() -> None:
    ending = Ending(schedule=schedule_of("digest-a"), rank=0, num_epochs=3, slowest=lambda: 2)
    assert ending.goes_on(3 * MOST_LAPS - 1)
    assert not ending.goes_on(3 * MOST_LAPS)


def test_all_lanes_of_a_rank_are_told_the_same() -> None:
    done = iter([2, 3])
    ending = Ending(schedule=schedule_of("digest-a"), rank=0, num_epochs=3, slowest=lambda: next(done))
    assert [ending.goes_on(3), ending.goes_on(3), ending.goes_on(4), ending.goes_on(4)] == [True, True, False, False]


def test_a_rank_has_finished_an_epoch_when_all_its_lanes_have() -> None:
    schedule, finished = schedule_of("digest-a"), list[int]()
    ending = Ending(schedule=schedule, rank=0, num_epochs=3, finished=finished.append)
    for lane in range(len(schedule.lanes(0))):
        assert finished == []
        ending.lane_ended(0)
        if lane == 0:
            ending.lane_ended(1)
    assert finished == [0]


def test_executed_ranks_end_together_and_do_not_meet_to_be_scored(tmp_path: Path) -> None:
    """Of two ranks one sleeps nine times as long as it computes; the other is ahead by more than they are scored."""
    graph, every = small_graph(nodes=1500), 2
    trained = train(
        graph,
        metis_parts(graph, 2),
        spec_for(graph, hidden=32),
        tmp_path,
        method="digest-a",
        epochs=EPOCHS,
        eval_every=every,
        threads=1,
        speed={"1": 1 / 10},
    )
    trace = trained.run.trace
    assert min(epochs_of(trace)) == EPOCHS
    ends = ends_of(trace, "deliver")
    all_done_s = max(ends[rank, EPOCHS - 1] for rank in range(2))
    for rank, num in enumerate(epochs_of(trace)):
        assert num == EPOCHS or ends[rank, num - 1] >= all_done_s
    assert list(trained.run.evaluated) == list(range(every - 1, EPOCHS, every))
    assert len(trained.run.losses) == EPOCHS
    starts = [s.start_s for s in trace.all_spans if s.op == "step" and s.rank == 1 and s.epoch == every]
    ahead = sum(s.op == "step" and s.rank == 0 and s.end_s < starts[0] for s in trace.all_spans)
    assert ahead > 2 * every, "the fast rank waited for the slow one at the first evaluation"
