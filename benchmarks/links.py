"""Prints flow completions per second of processor time of the links model: all-to-all among hosts of 8 GPUs, random
sizes; what slack does to the times, and what bundles of flows with one route gain.

Beside it the figures of SimGrid 4.1 (C++) for the same numbers of flows on a similar core, for scale.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy

from halocast.sim.network.fairshare import NO_LINK, Floats, Ints, compiled, raise_rates
from halocast.sim.network.flows import Flows

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


def streams(num_gpus: int) -> tuple[Floats, Floats, Ints]:
    """Capacities, caps and routes of streams between hosts: CPU, NIC up and down, CPU, and what one stream can do."""
    num_hosts = -(-num_gpus // GPUS_PER_HOST)
    capacity = np.concatenate([np.full(num_hosts, 20e9), np.full(2 * num_hosts, 12.5e9)])
    source, target = np.nonzero(~np.eye(num_gpus, dtype=np.bool_))
    here, there = source // GPUS_PER_HOST, target // GPUS_PER_HOST
    far, cap = here != there, len(capacity)
    columns = [here, np.full(len(here), cap)]
    columns += [np.where(far, link, NO_LINK) for link in (num_hosts + here, 2 * num_hosts + there, there)]
    return capacity, np.array([2e9]), np.stack(columns, axis=1)


def marked(routes: Ints, num_links: int) -> Ints:
    """The same routes, no two alike: what follows NO_LINK in a row is not looked at."""
    marks = num_links + np.arange(len(routes))
    return np.column_stack([routes, np.full(len(routes), NO_LINK), marks])


@dataclass(frozen=True, slots=True)
class Run:
    flows: Flows
    ends_s: Floats
    per_s: float


def run(routes: Ints, capacity: Floats, caps: Floats | None = None, *, slack: float = 0.0) -> Run:
    """All flows start at once, with random sizes."""
    env, ends_s = simpy.Environment(), np.zeros(len(routes))
    flows = Flows(env, capacity, caps, slack)
    sizes = np.random.default_rng(0).uniform(1e5, 1e7, len(routes))
    flows.start(routes, sizes, np.arange(len(routes)), lambda names: np.put(ends_s, names, env.now))
    start = time.process_time()
    env.run()
    return Run(flows, ends_s, len(routes) / (time.process_time() - start))


def all_to_all_table(gpus: list[int], slacks: list[float]) -> None:
    print("flows   slack   completions/s   SimGrid   ratio   bytes forgiven   most of a duration cut off")
    for slack in slacks:
        for num_gpus in gpus:
            capacity, routes = all_to_all(num_gpus)
            found, known = run(routes, capacity, slack=slack), SIMGRID.get(len(routes))
            ratio = f"{found.per_s / known:5.1f}" if known else "    -"
            forgiven, cut = found.flows.forgiven_bytes / found.flows.num_bytes, found.flows.error_bound()
            print(
                f"{len(routes):6}  {slack:6g}  {found.per_s:13,.0f}  {known or '-':>8}  {ratio}   "
                f"{forgiven:14.1e}   {cut:.1e}"
            )


def slack_errors(num_gpus: int, slack: float) -> None:
    """What slack does to the times at which flows end, beside what a run with slack knows about itself."""
    capacity, routes = all_to_all(num_gpus)
    exact, early = (run(routes, capacity, slack=value) for value in (0.0, slack))
    errors = np.abs(early.ends_s / exact.ends_s - 1)
    last = abs(early.ends_s.max() / exact.ends_s.max() - 1)
    print(
        f"{len(routes):6} flows, slack {slack:g}: ends differ by {errors.max():.1e} at worst, {errors.mean():.1e} on "
        f"average, the last by {last:.1e}; reported: a duration cut by {early.flows.error_bound():.1e} at most, "
        f"{early.flows.forgiven_bytes / early.flows.num_bytes:.1e} of bytes forgiven"
    )


def compare_bundles(num_gpus: int) -> None:
    capacity, caps, routes = streams(num_gpus)
    together, apart = run(routes, capacity, caps), run(marked(routes, len(capacity) + 1), capacity, caps)
    assert np.allclose(together.ends_s, apart.ends_s, rtol=1e-9)
    rows = len(np.unique(routes, axis=0))
    print(
        f"{len(routes):6} flows on {rows:4} routes: in bundles {together.per_s:7,.0f} completions/s, "
        f"one by one {apart.per_s:7,.0f}, ratio {together.per_s / apart.per_s:5.1f}"
    )


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
    weights, again = np.ones(num, dtype=np.int32), np.ones(num, dtype=np.bool_)
    compiled(raise_rates)(num, routes, weights, rates, capacity, len(capacity), again, capacity.copy(), users, num)
    return rates


def seconds(rates: Callable[[Ints, Floats], Floats], routes: Ints, capacity: Floats) -> float:
    start = time.process_time()
    for _ in range(20):
        rates(routes, capacity)
    return (time.process_time() - start) / 20


def compare_solvers(num_gpus: int, kept: float) -> None:
    """One filling of an all-to-all of which a share of the flows is left: fewer flows have more different levels."""
    capacity, routes = all_to_all(num_gpus)
    routes = routes[np.random.default_rng(0).random(len(routes)) < kept].astype(np.int32)
    assert np.allclose(numpy_rates(routes, capacity), compiled_rates(routes, capacity), rtol=1e-9)
    fast, slow = (seconds(solver, routes, capacity) for solver in (compiled_rates, numpy_rates))
    print(f"{len(routes):6} flows: numba {1e6 * fast:6.0f} us, numpy {1e6 * slow:6.0f} us, ratio {slow / fast:5.1f}")


def load_compiled() -> None:
    """From the first flow on, and not after the visits that small simulations do without it."""
    compiled(raise_rates)  # one is enough: all that start afterwards use compiled ones
    run(*all_to_all(2)[::-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="*", default=[8, 16, 32, 64, 192])
    parser.add_argument("--slack", type=float, nargs="*", default=[0.0, 1e-3])
    args = parser.parse_args()
    load_compiled()
    all_to_all_table(args.gpus, args.slack)
    print("what slack does to the ends")
    for num_gpus in (32, 64):
        slack_errors(num_gpus, 1e-3)
    print("streams between all GPUs, one route per pair of hosts")
    for num_gpus in (16, 32, 64):
        compare_bundles(num_gpus)
    print("one filling of all rates, compiled and by numpy calls")
    for num_gpus in (16, 32, 64):
        for kept in (1.0, 0.5, 0.1):
            compare_solvers(num_gpus, kept)


if __name__ == "__main__":
    main()
