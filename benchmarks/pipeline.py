"""Prints what a pipeline gains where communication takes longer than computing: vanilla and pipegcn on emulated hosts.

Two ranks of one thread each, in network namespaces joined at 200 Mbit/s (needs root). The methods take turns, so that
slow spells of a shared machine hit both; epochs are medians over all repetitions. Beside them stands what the simulator
predicts for the cluster.
"""

import argparse
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from halocast.exec.launch.emulate import can_emulate
from halocast.exec.launch.local import execute
from halocast.graph.parts import iter_parts
from halocast.reports.metrics import default_warmup, measure, pacing
from halocast.schedule.trace import Trace
from halocast.study.predict import predict_on, scenario_cluster
from halocast.study.run import make_job, rank_hosts
from halocast.study.scenario import load_scenario
from halocast.study.workload import Workload, prepare

CLUSTER = "cpu-2x1-200mbit"
METHODS = ("vanilla", "pipegcn")
# edges between communities so few that rows travel about as long as they take to compute, or up to twice as long
GRAPH = ("graph.nodes=20000", "graph.degree=20", "graph.mixing=0.03", "graph.features=64", "model.hidden=128")
AIM = 0.75
PARTS = ("compute_s", "exposed_comm_s", "hidden_comm_s")


@dataclass(frozen=True, slots=True)
class Measured:
    epochs_s: list[list[float]] = field(default_factory=list)  # of rank 0, by run
    parts_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # mean rank, by run

    @property
    def epoch_s(self) -> float:
        return statistics.median(seconds for run in self.epochs_s for seconds in run)


def workload_for(method: str, num_epochs: int) -> Workload:
    settings = [f"method.name={method}", f"cluster.name={CLUSTER}", "run.threads=1", f"run.epochs={num_epochs}"]
    return prepare(load_scenario(None, [*GRAPH, *settings]), 2, data=True)


def epoch_seconds(trace: Trace, warmup_epochs: int) -> list[float]:
    """From the end of each steady epoch of rank 0 to the end of the next one."""
    ends: dict[int, float] = defaultdict(float)
    for span in pacing(list(trace.of_rank(0))):
        ends[span.epoch] = max(ends[span.epoch], span.end_s)
    return [ends[b] - ends[a] for a, b in pairwise(range(warmup_epochs - 1, trace.num_epochs))]


def run_once(workload: Workload, measured: Measured) -> Trace:
    """Run a workload on emulated hosts and add what it took to what was measured."""
    assert workload.graph is not None
    assert workload.assignment is not None
    with rank_hosts(scenario_cluster(workload.scenario)) as hosts:
        parts = iter_parts(workload.graph, workload.assignment)
        trace = execute(make_job(workload, "gloo"), parts, hosts=hosts).trace
    warmup = default_warmup(trace.num_epochs)
    measured.epochs_s.append(epoch_seconds(trace, warmup))
    metrics = measure(trace, workload.schedule, warmup)
    for part in PARTS:
        measured.parts_s[part].append(metrics.mean(part))
    return trace


def compare(num_epochs: int, repeat: int) -> dict[str, Measured]:
    workloads = {method: workload_for(method, num_epochs) for method in METHODS}
    found = {method: Measured() for method in METHODS}
    for _ in range(repeat):
        for method, workload in workloads.items():
            run_once(workload, found[method])
    return found


def print_predicted() -> None:
    epochs = {}
    print(f"  {'predicted':10}{'epoch':>9}{'compute':>9}{'exposed':>9}{'hidden':>9}   ms, mean rank")
    for method in METHODS:
        workload = workload_for(method, num_epochs=1)
        summary = predict_on(workload, scenario_cluster(workload.scenario)).summary
        epochs[method] = summary.epoch_s
        print(
            f"  {method:10}{1e3 * summary.epoch_s:9.1f}" + "".join(f"{1e3 * summary.seconds_of(p):9.1f}" for p in PARTS)
        )
    print(f"  pipegcn / vanilla: {epochs['pipegcn'] / epochs['vanilla']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    print(f"{CLUSTER}, {' '.join(GRAPH)}")
    print_predicted()
    if reason := can_emulate():
        print(f"  not measured: no emulated hosts here: {reason}")
        return
    found = compare(args.epochs, args.repeat)
    print(f"  {'measured':10}{'epoch':>9}{'compute':>9}{'exposed':>9}{'hidden':>9}   ms, medians of {args.repeat} runs")
    for method, measured in found.items():
        parts = "".join(f"{1e3 * statistics.median(measured.parts_s[part]):9.1f}" for part in PARTS)
        print(f"  {method:10}{1e3 * measured.epoch_s:9.1f}{parts}")
    vanilla, piped = (found[method] for method in METHODS)
    pairs = zip(piped.epochs_s, vanilla.epochs_s, strict=True)
    turns = " ".join(f"{statistics.median(a) / statistics.median(b):.2f}" for a, b in pairs)
    print(f"  pipegcn / vanilla: {piped.epoch_s / vanilla.epoch_s:.2f} (aim: below {AIM}; turn by turn {turns})")


if __name__ == "__main__":
    main()
