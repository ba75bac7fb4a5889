"""What it is worth that ranks keep to their cores and bytes do not take them from each other (exec/launch/affinity.py).

Ranks of this machine exchange rows and sum gradients over gloo on loopback, with the system's own rules and with ours.

    python benchmarks/turns.py [--ranks 2 4] [--kilobytes 50 800]
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from halocast.exec.launch.affinity import keep_to_cores
from halocast.exec.launch.local import free_port

WARMUPS, REPEATS = 20, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--kilobytes", type=int, nargs="+", default=[50, 800])
    wanted = parser.parse_args()
    print(f"{'ranks':>5} {'what':10} {'kB':>5} {'rules':8} {'median':>9} {'p90':>9} {'mean':>9}   mean, usual / ours")
    for num in wanted.ranks:
        usual, ours = (_measured(num, settle, wanted.kilobytes) for settle in (False, True))
        for (what, size), samples in usual.items():
            means = [1e3 * float(np.mean(one[what, size])) for one in (usual, ours)]
            for rules, found in (("usual", samples), ("ours", ours[what, size])):
                middle, high = (1e3 * float(np.quantile(found, q)) for q in (0.5, 0.9))
                mean = 1e3 * float(np.mean(found))
                ratio = f"{means[0] / means[1]:.1f}" if rules == "ours" else ""
                print(f"{num:5} {what:10} {size:5} {rules:8} {middle:6.2f} ms {high:6.2f} ms {mean:6.2f} ms   {ratio}")


def _measured(num_ranks: int, settle: bool, kilobytes: list[int]) -> dict[tuple[str, int], list[float]]:
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    arguments = (num_ranks, free_port(0), settle, kilobytes, told)
    ranks = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(num_ranks)]
    for process in ranks:
        process.start()
    found: dict[tuple[str, int], list[float]] = told.get(timeout=120)
    for process in ranks:
        process.join()
    return found


def _rank(rank: int, num_ranks: int, port: int, settle: bool, kilobytes: list[int], told: Any) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({**place, "RANK": str(rank), "WORLD_SIZE": str(num_ranks)})
    if settle:
        keep_to_cores(rank, num_ranks)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {key: [_seconds(run) for _ in range(REPEATS)][WARMUPS:] for key, run in _runs(rank, num_ranks, kilobytes)}
    dist.barrier()
    if rank == 0:
        told.put(found)
    dist.destroy_process_group()


def _runs(rank: int, num_ranks: int, kilobytes: list[int]) -> Iterator[tuple[tuple[str, int], Callable[[], None]]]:
    peers = [peer for peer in range(num_ranks) if peer != rank]
    for size in kilobytes:
        yield ("exchange", size), lambda size=size: _exchange(peers, 250 * size // len(peers))  # type: ignore[misc]
        yield ("all-reduce", size), lambda size=size: dist.all_reduce(torch.zeros(250 * size))  # type: ignore[misc]


def _exchange(peers: list[int], numel: int) -> None:
    works = [dist.irecv(torch.empty(numel), peer) for peer in peers]
    works += [dist.isend(torch.zeros(numel), peer) for peer in peers]
    for work in works:
        assert work is not None
        work.wait()


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
