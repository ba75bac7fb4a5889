"""Prints how fast a store takes and gives rows, in shared memory and in Redis, alone and beside a process that pushes.

Ranges are what a rank pushes, scattered rows (every second one, on average) what it pulls. The best of all repetitions
counts: other work on a shared machine only ever adds time. Redis runs on loopback, so its figures are the server's and
the client's, not a network's.
"""

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from halocast.base.errors import RunError
from halocast.exec.store.blocks import Table
from halocast.exec.store.kvs import Store, create_store, open_store


@contextmanager
def redis_server() -> Iterator[str]:
    """A server on loopback that keeps nothing on disk."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL)
        try:
            wait_for(f"redis://127.0.0.1:{port}/0")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


def wait_for(where: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            create_store([Table(name="t", num_rows=1, width=1)], where).close()
            return
        except RunError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def best_s(work: Callable[[], object], repeat: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(once() for _ in range(repeat))


@contextmanager
def pusher(address: str) -> Iterator[None]:
    """Another process that pushes all rows again and again."""
    process = subprocess.Popen([sys.executable, __file__, "--push", address], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def push_for_ever(address: str) -> None:
    with open_store(address) as store:
        values = store.pull("1", slice(None))[0]
        print("open", flush=True)
        while True:
            store.push("1", slice(None), values, 0)


def measure(store: Store, num_rows: int, width: int, repeat: int) -> None:
    random = np.random.default_rng(0)
    values = random.random((num_rows, width), np.float32)
    scattered = np.sort(random.permutation(num_rows)[: num_rows // 2])
    some = values[scattered]

    def line(what: str, count: int, work: Callable[[], object]) -> None:
        taken_s = best_s(work, repeat)
        rates = f"{count * width * 4 / taken_s / 1e9:6.2f} GB/s {count / taken_s / 1e6:6.2f} million rows/s"
        print(f"  {what:30} {count:7} rows {taken_s * 1e3:8.1f} ms {rates}")

    line("push, a range", num_rows, lambda: store.push("1", slice(None), values, 0))
    line("push, scattered", len(scattered), lambda: store.push("1", scattered, some, 0))
    line("pull, a range", num_rows, lambda: store.pull("1", slice(None)))
    line("pull, scattered", len(scattered), lambda: store.pull("1", scattered))
    with pusher(store.address):
        line("pull, scattered, beside a push", len(scattered), lambda: store.pull("1", scattered))
    line("add to a vector", 1, lambda: store.add("weights", values[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--push", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.push:
        push_for_ever(args.push)
    sizes = {"1": args.rows, "weights": 1}
    tables = [Table(name=name, num_rows=num_rows, width=args.width) for name, num_rows in sizes.items()]
    print("shared memory")
    with create_store(tables) as store:
        measure(store, args.rows, args.width, args.repeat)
    if shutil.which("redis-server") is None:
        print("redis: redis-server is not installed")
        return
    print("redis")
    with redis_server() as where, create_store(tables, where) as store:
        measure(store, args.rows, args.width, args.repeat)


if __name__ == "__main__":
    main()
