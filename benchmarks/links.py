"""Prints flow completions per second of the links model: all-to-all among hosts of 8 GPUs, random sizes.

Beside it the figures of SimGrid 4.1 (C++) for the same numbers of flows on a similar core, for scale.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import simpy

from halocast.sim.fairshare import Floats, Ints, compiled, raise_rates
from halocast.sim.flows import Flows

SIMGRID = {56: 7_600, 240: 6_800, 992: 4_000, 4_032: 1_500}
GPUS_PER_HOST = 8


def all_to_all(num_gpus: int) -> tuple[Floats, Ints]:
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


def numpy_rates(routes: Ints, capacity: Floats) -> Floats:
    """Progressive filling with one round of numpy calls per level: what compiling is compared with."""
    rates, left, todo = np.zeros(len(routes)), capacity.copy(), np.ones(len(routes), dtype=np.bool_)
    padded, num = np.where(routes < 0, len(capacity), routes), len(capacity)
    while todo.any():
        users = np.bincount(padded[todo].ravel(), minlength=num + 1)[:num]
        share = np.where(users > 0, np.maximum(left, 0) / np.maximum(users, 1), np.inf)
        full = np.append(share <= share.min() * (1 + 1e-12), False)
        frozen = todo & full[padded].any(axis=1)
        rates[frozen] = share.min()
        left -= share.min() * np.bincount(padded[frozen].ravel(), minlength=num + 1)[:num]
        todo &= ~frozen
    return rates


def compiled_rates(routes: Ints, capacity: Floats) -> Floats:
    rates, num = np.zeros(len(routes)), len(routes)
    users = np.bincount(routes[routes >= 0], minlength=len(capacity))
    again = np.ones(num, dtype=np.bool_)
    compiled(raise_rates)(num, routes, rates, capacity, len(capacity), again, capacity.copy(), users, num)
    return rates


def seconds(rates: Callable[[Ints, Floats], Floats], routes: Ints, capacity: Floats) -> float:
    start = time.perf_counter()
    for _ in range(20):
        rates(routes, capacity)
    return (time.perf_counter() - start) / 20


def compare_solvers(num_gpus: int, kept: float) -> None:
    """One filling of an all-to-all of which a share of the flows is left: fewer flows have more different levels."""
    capacity, routes = all_to_all(num_gpus)
    routes = np.ascontiguousarray(routes[np.random.default_rng(0).random(len(routes)) < kept])
    assert np.allclose(numpy_rates(routes, capacity), compiled_rates(routes, capacity), rtol=1e-9)
    fast, slow = (seconds(solver, routes, capacity) for solver in (compiled_rates, numpy_rates))
    print(f"{len(routes):6} flows: numba {1e6 * fast:6.0f} us, numpy {1e6 * slow:6.0f} us, ratio {slow / fast:5.1f}")


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
    print("one filling of all rates, compiled and by numpy calls")
    for num_gpus in (16, 32, 64):
        for kept in (1.0, 0.5, 0.1):
            compare_solvers(num_gpus, kept)


if __name__ == "__main__":
    main()
