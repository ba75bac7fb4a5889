"""Prints flow completions per second of the links model: all-to-all among hosts of 8 GPUs, random sizes.

Beside it the figures of SimGrid 4.1 (C++) for the same numbers of flows on a similar core, for scale.
"""

import argparse
import time

import numpy as np
import simpy

from halocast.sim.flows import Flows

SIMGRID = {56: 7_600, 240: 6_800, 992: 4_000, 4_032: 1_500}
GPUS_PER_HOST = 8


def all_to_all(num_gpus: int) -> tuple[np.ndarray, np.ndarray]:
    """Capacities and routes: GPU up and down, a root complex per host, NIC up and down."""
    num_hosts = -(-num_gpus // GPUS_PER_HOST)
    capacity = np.concatenate([np.full(2 * num_gpus, 24e9), np.full(num_hosts, 40e9), np.full(2 * num_hosts, 12.5e9)])
    source, target = np.nonzero(~np.eye(num_gpus, dtype=np.bool_))
    here, there = source // GPUS_PER_HOST, target // GPUS_PER_HOST
    host, up, down = 2 * num_gpus, 2 * num_gpus + num_hosts, 2 * num_gpus + 2 * num_hosts
    far = here != there
    columns = [2 * source, host + here, 2 * target + 1]
    columns += [np.where(far, link, -1) for link in (up + here, down + there, host + there)]
    return capacity, np.stack(columns, axis=1)


def completions_per_second(num_gpus: int, slack: float, seed: int = 0) -> tuple[int, float, float]:
    capacity, routes = all_to_all(num_gpus)
    env = simpy.Environment()
    flows = Flows(env, capacity, slack=slack)
    sizes = np.random.default_rng(seed).uniform(1e5, 1e7, len(routes))
    flows.start(routes, sizes, np.arange(len(routes)), lambda names: None)
    start = time.perf_counter()
    env.run()
    return len(routes), len(routes) / (time.perf_counter() - start), flows.forgiven_bytes / flows.num_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="*", default=[8, 16, 32, 64, 192])
    parser.add_argument("--slack", type=float, nargs="*", default=[0.0, 1e-3])
    args = parser.parse_args()
    completions_per_second(16, 0.0)  # compile
    print("flows   slack   completions/s   SimGrid   ratio   bytes forgiven")
    for slack in args.slack:
        for num_gpus in args.gpus:
            flows, rate, forgiven = completions_per_second(num_gpus, slack)
            known = SIMGRID.get(flows)
            ratio = f"{rate / known:5.1f}" if known else "    -"
            print(f"{flows:6}  {slack:6g}  {rate:13,.0f}  {known or '-':>8}  {ratio}   {forgiven:.1e}")


if __name__ == "__main__":
    main()
