"""Scenarios per minute of a sweep on all cores, 8 GPUs each: python benchmarks/sweep.py [NUMBER OF SEEDS]."""

import sys
from time import perf_counter

from halocast.study.pool import num_cores
from halocast.study.scenario import Scenario
from halocast.study.sweep import sweep

SWEEPS: dict[str, dict[str, list[object]]] = {
    "bns over rates and networks": {
        "method.name": ["bns"],
        "cluster.network_gbps": [10, 25, 100],
        "method.rate": [0.01, 0.1, 0.5],
    },
    "one of each method": {
        "method.name": ["vanilla", "pipegcn", "bns", "psc", "digest", "digest-a", "gnnpipe"],
        "cluster.network_gbps": [10, 25, 100],
    },
}


def main() -> None:
    seeds = list(range(int(sys.argv[1]) if len(sys.argv) > 1 else 10))  # equal work that is not looked up
    scenario = Scenario.load("demo", "graph.dataset=reddit", "cluster.name=l4-8x1-25gbe", "cluster.gpus=8")
    for name, vary in SWEEPS.items():
        started = perf_counter()
        num = len(sweep(scenario, {**vary, "run.seed": seeds}).done)
        took = perf_counter() - started
        print(
            f"{name}: {num} scenarios of 8 GPUs in {took:.1f} s on {num_cores()} cores: {60 * num / took:.0f} a minute"
        )


if __name__ == "__main__":
    main()
