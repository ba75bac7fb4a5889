"""Prints what boundary sampling gains on a slow link: vanilla and bns at rate 0.1 on two emulated hosts at 100 Mbit/s.

Needs root. The methods take turns, so that slow spells of a shared machine hit both. The ratio of their epochs is also
predicted: with nothing measured, and with the medians of each run's own compute ops, so that only the network, which is
never calibrated, is left to predict.
"""

import argparse
import statistics
from collections import defaultdict

from pipeline import PARTS, Measured, run_once

from halocast.exec.launch.emulate import can_emulate
from halocast.reports.metrics import default_warmup, measured_seconds
from halocast.study.predict import predict_on, scenario_cluster
from halocast.study.scenario import load_scenario
from halocast.study.workload import Workload, prepare

METHODS = {"vanilla": ("method.name=vanilla",), "bns": ("method.name=bns", "method.rate=0.1")}
CLUSTER = ("cluster.name=cpu-2x1-200mbit", "cluster.network_gbps=0.1", "run.threads=1")
# so many edges between the parts that rows travel several times as long as they take to compute
GRAPH = ("graph.nodes=20000", "graph.degree=12", "graph.mixing=0.1", "graph.features=64", "model.hidden=128")
AIM_RATIO, AIM_ERROR = 0.4, 0.2
Seconds = dict[tuple[int, str], float]


def workload_for(method: str, num_epochs: int) -> Workload:
    settings = (*GRAPH, *CLUSTER, *METHODS[method], f"run.epochs={num_epochs}")
    return prepare(load_scenario(None, settings), 2, data=True)


def run_in_turns(workloads: dict[str, Workload], repeat: int) -> tuple[dict[str, Measured], dict[str, Seconds]]:
    """What was measured of every method, and the median seconds of its ops."""
    found = {method: Measured() for method in METHODS}
    ops: dict[str, dict[tuple[int, str], list[float]]] = {method: defaultdict(list) for method in METHODS}
    for _ in range(repeat):
        for method, workload in workloads.items():
            trace = run_once(workload, found[method])
            for key, seconds in measured_seconds(trace, default_warmup(trace.num_epochs)).items():
                ops[method][key].append(seconds)
    medians = {method: {key: statistics.median(some) for key, some in table.items()} for method, table in ops.items()}
    return found, medians


def print_predicted(label: str, workloads: dict[str, Workload], ops: dict[str, Seconds]) -> float:
    """A row per method; the ratio of the epochs."""
    epochs: dict[str, float] = {}
    for method, workload in workloads.items():
        cluster = scenario_cluster(workload.scenario)
        summary = predict_on(workload, cluster, measured_s=ops.get(method, {})).summary
        epochs[method] = summary.epoch_s
        print_row(label, method, summary.epoch_s, [summary.seconds_of(part) for part in PARTS])
    return epochs["bns"] / epochs["vanilla"]


def print_row(label: str, method: str, epoch_s: float, parts_s: list[float]) -> None:
    print(f"  {label:32}{method:9}" + "".join(f"{1e3 * seconds:9.1f}" for seconds in (epoch_s, *parts_s)), flush=True)


def print_measured(found: dict[str, Measured]) -> float:
    for method, measured in found.items():
        parts_s = [statistics.median(measured.parts_s[part]) for part in PARTS]
        print_row("measured", method, measured.epoch_s, parts_s)
    return found["bns"].epoch_s / found["vanilla"].epoch_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    workloads = {method: workload_for(method, args.epochs) for method in METHODS}
    print(f"{' '.join((*GRAPH, *CLUSTER))}; ms, mean rank")
    print(f"  {'':32}{'':9}{'epoch':>9}{'compute':>9}{'exposed':>9}{'hidden':>9}")
    blind = print_predicted("predicted, nothing measured", workloads, {})
    if reason := can_emulate():
        print(f"  not measured: no emulated hosts here: {reason}")
        return
    found, ops = run_in_turns(workloads, args.repeat)
    measured = print_measured(found)
    informed = print_predicted("predicted with measured compute", workloads, ops)
    print(f"  bns / vanilla: measured {measured:.3f} (aim: below {AIM_RATIO})")
    for label, ratio in (("nothing measured", blind), ("measured compute", informed)):
        off = ratio / measured - 1
        print(f"    predicted, {label}: {ratio:.3f}, {off:+.1%} (aim for measured compute: within {AIM_ERROR:.0%})")


if __name__ == "__main__":
    main()
