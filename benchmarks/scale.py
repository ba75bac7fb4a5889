"""Prints wall seconds per simulated epoch and peak memory: vanilla on ogbn-papers100M's card, V100 hosts of six.

Each size runs in a process of its own, so that its peak memory is its own; making the schedule and the routes is
counted apart from the epochs.
"""

import argparse
import multiprocessing
import resource
import time

from halocast.cluster.catalogue import enlarged, load_cluster
from halocast.sim.engine import simulate
from halocast.study.scenario import load_scenario
from halocast.study.workload import prepare


def run(num_ranks: int) -> None:
    start = time.perf_counter()
    cluster = enlarged(load_cluster("v100-32x6"), num_ranks)
    schedule = prepare(load_scenario("demo", ["graph.dataset=ogbn-papers100M"]), num_ranks).schedule
    made = time.perf_counter()
    links = simulate(schedule, cluster, 1).meta["links"]
    first = time.perf_counter()
    simulate(schedule, cluster, 1)  # again, without what only a first one does
    again = time.perf_counter()
    simulate(schedule, cluster, 2)
    epoch_s = (time.perf_counter() - again) - (again - first)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{num_ranks:5} GPUs, {links:6} links: schedule {made - start:6.2f} s, first epoch with routes "
        f"{first - made:6.2f} s, further epochs {epoch_s:6.2f} s each, peak {memory:.2f} GB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="*", default=[8, 32, 192, 1024])
    for num_ranks in parser.parse_args().gpus:
        process = multiprocessing.get_context("spawn").Process(target=run, args=(num_ranks,))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
