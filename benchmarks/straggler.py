"""Prints what one rank of a third of the speed does to the others, simulated and executed, for every kind of method.

Two ranks of one thread each; rank 1 is the straggler. Seconds are medians over steady epochs, of executed runs over all
repetitions, which take turns so that slow spells of a shared machine hit all of them.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from halocast.exec.launch.local import execute
from halocast.graph.parts import iter_parts
from halocast.reports.metrics import default_warmup, pacing
from halocast.schedule.passes import steady_epochs
from halocast.schedule.trace import Trace
from halocast.study.predict import predict_on, scenario_cluster
from halocast.study.run import make_job
from halocast.study.scenario import load_scenario
from halocast.study.workload import Workload, prepare

RANKS, STRAGGLER = 2, 1
METHODS = ("vanilla", "pipegcn", "digest", "digest-a")
WORLDS = {"even": "{}", "straggler": f"{{{STRAGGLER}=0.333}}"}
Pace = tuple[float, ...]  # seconds per epoch, by rank


def workload_for(method: str, world: str, settings: Sequence[str]) -> Workload:
    own = [f"method.name={method}", f"world.speed={WORLDS[world]}", "run.threads=1", "cluster.name=cpu-local"]
    return prepare(load_scenario(None, [*settings, *own, f"cluster.gpus={RANKS}"]), RANKS, data=True)


def epoch_seconds(trace: Trace, rank: int, warmup_epochs: int) -> list[float]:
    """From the end of each steady epoch's computations to the end of the next one's."""
    ends: dict[int, float] = defaultdict(float)
    for span in pacing(list(trace.of_rank(rank))):
        ends[span.epoch] = max(ends[span.epoch], span.end_s)
    return [ends[b] - ends[a] for a, b in pairwise(range(max(warmup_epochs - 1, 0), trace.num_epochs))]


def simulated(workload: Workload) -> Pace:
    trace = predict_on(workload, scenario_cluster(workload.scenario)).trace
    warmup, _ = steady_epochs(workload.schedule)
    return tuple(statistics.median(epoch_seconds(trace, rank, warmup)) for rank in range(RANKS))


def run_once(workload: Workload) -> list[list[float]]:
    assert workload.graph is not None
    assert workload.assignment is not None
    trace = execute(make_job(workload, "gloo"), iter_parts(workload.graph, workload.assignment)).trace
    return [epoch_seconds(trace, rank, default_warmup(trace.num_epochs)) for rank in range(RANKS)]


def executed(workloads: dict[tuple[str, str], Workload], repeat: int) -> dict[tuple[str, str], Pace]:
    found: dict[tuple[str, str], list[list[float]]] = {key: [[] for _ in range(RANKS)] for key in workloads}
    for _ in range(repeat):
        for key, workload in workloads.items():
            for seconds, more in zip(found[key], run_once(workload), strict=True):
                seconds += more
    return {key: tuple(map(statistics.median, ranks)) for key, ranks in found.items()}


def print_table(title: str, paces: dict[tuple[str, str], Pace]) -> None:
    print(f"{title}, ms per epoch")
    print(f"  {'method':10}{'even: other':>13}{'rank 1':>9}{'straggler: other':>19}{'rank 1':>9}{'other rank':>13}")
    for method in METHODS:
        even, slow = (paces[method, world] for world in WORLDS)
        times = f"{1e3 * even[0]:13.1f}{1e3 * even[1]:9.1f}{1e3 * slow[0]:19.1f}{1e3 * slow[1]:9.1f}"
        print(f"  {method:10}{times}{slow[0] / even[0]:12.2f}×")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    settings = [f"graph.nodes={args.nodes}", f"run.epochs={args.epochs}"]
    workloads = {(method, world): workload_for(method, world, settings) for method in METHODS for world in WORLDS}
    print_table("simulated (cpu-local)", {key: simulated(workload) for key, workload in workloads.items()})
    print_table(f"executed here, median of {args.repeat} runs", executed(workloads, args.repeat))


if __name__ == "__main__":
    main()
