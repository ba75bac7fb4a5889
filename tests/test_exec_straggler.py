"""A straggler holds up those who wait for it and nobody else: the same schedules, simulated and executed."""

from bisect import bisect_right
from pathlib import Path

import pytest
from training import metis_parts, small_graph, spec_for, train

from halocast.reports.metrics import RankTimes, measure
from halocast.schedule.passes import steady_epochs
from halocast.schedule.trace import Trace
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario

SYNCHRONOUS = ("vanilla", "pipegcn", "digest")
SLOW, SPEED = 1, 1 / 3
STRAGGLER = f"world.speed={{{SLOW}={SPEED}}}"
EPOCHS = 40
CRAWL = 1 / 10  # of an executed straggler: the other rank may have to share its core with the whole machine


def simulated(method: str, *settings: str) -> tuple[RankTimes, ...]:
    """Steady epochs of four ranks on one host."""
    chosen = [f"method.name={method}", "graph.nodes=4000", "cluster.name=cpu-local", "cluster.gpus=4"]
    found = predict(load_scenario(None, [*chosen, *settings]))
    warmup, _ = steady_epochs(found.workload.schedule)
    return measure(found.trace, found.workload.schedule, warmup).ranks


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_simulated_ranks_that_meet_all_slow_to_the_straggler(method: str) -> None:
    even, slow = simulated(method), [rank.epoch_s for rank in simulated(method, STRAGGLER)]
    assert slow == pytest.approx([slow[SLOW]] * 4, rel=1e-6)
    assert slow[SLOW] >= even[SLOW].compute_s / SPEED


def test_simulated_ranks_that_run_freely_keep_their_pace_beside_a_straggler() -> None:
    even, slow = ([rank.epoch_s for rank in simulated("digest-a", *world)] for world in ((), (STRAGGLER,)))
    even[SLOW] /= SPEED
    assert slow == pytest.approx(even, rel=0.05)


def test_simulated_ranks_with_a_bound_wait_for_the_straggler() -> None:
    slow = [rank.epoch_s for rank in simulated("digest-a", "method.bound=1", STRAGGLER)]
    assert slow == pytest.approx([slow[SLOW]] * 4, rel=0.05)


def ends_of_epochs(trace: Trace, rank: int) -> list[float]:
    return sorted(span.end_s for span in trace.of_rank(rank) if span.op == "step")


def leads(trace: Trace) -> list[int]:
    """How many epochs more rank 0 has finished than the straggler, at the end of each of its own."""
    own, slow = ends_of_epochs(trace, 0), ends_of_epochs(trace, SLOW)
    return [done - bisect_right(slow, end) for done, end in enumerate(own, start=1)]


def run_with_straggler(directory: Path, method: str, **options: int) -> Trace:
    graph = small_graph(nodes=1500)
    return train(
        graph,
        metis_parts(graph, 2),
        spec_for(graph, hidden=32),
        directory,
        method=method,
        options=options,
        epochs=EPOCHS,
        threads=1,
        speed={str(SLOW): CRAWL},
    ).run.trace


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_executed_ranks_that_meet_are_never_an_epoch_apart(tmp_path: Path, method: str) -> None:
    """Both steps of an epoch follow one meeting, so whoever steps first is one epoch ahead for a moment, no more."""
    assert set(leads(run_with_straggler(tmp_path, method))) <= {-1, 0, 1}


def test_an_executed_rank_that_runs_freely_leaves_the_straggler_behind(tmp_path: Path) -> None:
    """Ten times slower, the straggler should have done a tenth when the other has finished; a busy machine varies."""
    assert leads(run_with_straggler(tmp_path, "digest-a"))[-1] >= EPOCHS / 4


def test_an_executed_rank_is_ahead_by_no_more_than_its_bound(tmp_path: Path) -> None:
    bound = 3
    assert max(leads(run_with_straggler(tmp_path, "digest-a", bound=bound))) == bound + 1
