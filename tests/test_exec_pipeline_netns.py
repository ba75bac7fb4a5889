"""A pipeline on a slow network: messages move while ranks compute, and epochs are shorter for it.

Two ranks in network namespaces joined at 200 Mbit/s, where rows travel about as long as they take to compute. The
methods take turns, so that slow spells of the machine hit both; that epochs are shorter is what is under test here.
"""

import statistics
from itertools import pairwise

import pytest

from halocast.exec.launch.emulate import can_emulate
from halocast.exec.launch.local import execute
from halocast.graph.parts import iter_parts
from halocast.reports.intervals import intersect, length, merge
from halocast.reports.metrics import measure
from halocast.schedule.ir import Kind, Lane
from halocast.schedule.trace import Trace
from halocast.study.predict import scenario_cluster
from halocast.study.run import make_job, rank_hosts
from halocast.study.scenario import load_scenario
from halocast.study.workload import Workload, prepare

WHY_NOT = can_emulate()
pytestmark = pytest.mark.skipif(WHY_NOT != "", reason=f"no emulated hosts here: {WHY_NOT}")

METHODS = ("vanilla", "pipegcn")
GRAPH = ("graph.nodes=5000", "graph.degree=20", "graph.mixing=0.02", "graph.features=64", "model.hidden=256")
EPOCHS, WARMUP, TURNS = 9, 2, 3
Runs = dict[str, list[Trace]]


def workload_for(method: str) -> Workload:
    settings = [f"method.name={method}", "cluster.name=cpu-2x1-200mbit", "run.threads=1", f"run.epochs={EPOCHS}"]
    return prepare(load_scenario(None, [*GRAPH, *settings]), 2, data=True)


def run_once(workload: Workload) -> Trace:
    assert workload.graph is not None
    assert workload.assignment is not None
    with rank_hosts(scenario_cluster(workload.scenario)) as hosts:
        parts = iter_parts(workload.graph, workload.assignment)
        return execute(make_job(workload, "gloo"), parts, hosts=hosts).trace


@pytest.fixture(scope="module")
def workloads() -> dict[str, Workload]:
    return {method: workload_for(method) for method in METHODS}


@pytest.fixture(scope="module")
def runs(workloads: dict[str, Workload]) -> Runs:
    turns = [{method: run_once(workload) for method, workload in workloads.items()} for _ in range(TURNS)]
    return {method: [turn[method] for turn in turns] for method in METHODS}


def overlap_s(trace: Trace, rank: int) -> float:
    """Seconds in which a rank computed while an exchange of its own was under way."""
    spans = list(trace.of_rank(rank))
    exchanges = merge((span.start_s, span.end_s) for span in spans if span.kind is Kind.EXCHANGE)
    computes = merge((span.start_s, span.end_s) for span in spans if span.lane == Lane.COMPUTE)
    return length(intersect(exchanges, computes))


def epoch_seconds(trace: Trace) -> list[float]:
    ends = [span.end_s for span in trace.of_rank(0) if span.op == "step" and span.epoch >= WARMUP - 1]
    return [b - a for a, b in pairwise(sorted(ends))]


def test_exchanges_run_beside_computations_in_a_pipeline_and_never_in_vanilla(runs: Runs) -> None:
    for rank in range(2):
        assert [overlap_s(trace, rank) for trace in runs["vanilla"]] == [0.0] * TURNS
        assert all(overlap_s(trace, rank) > 0 for trace in runs["pipegcn"])


def test_communication_is_hidden_in_a_pipeline_and_exposed_in_vanilla(
    runs: Runs, workloads: dict[str, Workload]
) -> None:
    for vanilla, piped in zip(*(runs[method] for method in METHODS), strict=True):
        exposed = measure(vanilla, workloads["vanilla"].schedule, WARMUP)
        hidden = measure(piped, workloads["pipegcn"].schedule, WARMUP)
        for without, beside in zip(exposed.ranks, hidden.ranks, strict=True):
            assert without.hidden_comm_s == 0
            assert without.exposed_comm_s > 0
            assert beside.hidden_comm_s > 0


def test_both_send_the_same_bytes(runs: Runs) -> None:
    """What is hidden is not saved."""
    sent = {method: sum(span.num_bytes for span in runs[method][0].spans) for method in METHODS}
    assert sent["vanilla"] == sent["pipegcn"] > 0


def test_epochs_of_the_pipeline_are_shorter(runs: Runs) -> None:
    medians = {
        method: statistics.median(seconds for trace in traces for seconds in epoch_seconds(trace))
        for method, traces in runs.items()
    }
    assert medians["pipegcn"] / medians["vanilla"] < 1
