"""Pools that predict or train: processes of this machine, or a Dask cluster. Both take scenarios and give futures."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from halocast.base.errors import InputError, RunError
from halocast.study.predictor import Answer, answer_as, doing, failure
from halocast.study.results import Tables
from halocast.study.version import prediction_version

SLOTS_PER_WORKER = 2  # one scenario in work, one ready
DASK_TIMEOUT_S = 10
PATIENCE_S = 5  # that a process which is told to end may take


class Pool(Protocol):
    num_slots: int  # scenarios to keep under way

    def submit(self, tables: Tables) -> "Future[Answer]": ...


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def open_pool(jobs: int | None = None, dask: str | None = None) -> Iterator[Pool]:
    """Open a pool of `jobs` local processes [as many as cores], or the Dask cluster at the address `dask`."""
    if dask is not None:
        with _dask_pool(dask) as pool:
            yield pool
        return
    local = LocalPool(jobs or num_cores())
    try:
        yield local
    finally:
        local.close()


class LocalPool:
    """A pool of local processes: a thread for each asks it one scenario at a time; one that dies is replaced."""

    def __init__(self, num_workers: int) -> None:
        self.num_slots = SLOTS_PER_WORKER * num_workers
        self._mine = threading.local()
        self._workers: list[subprocess.Popen[str]] = []
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="worker")

    def submit(self, tables: Tables) -> "Future[Answer]":
        return self._threads.submit(self._ask, tables)

    def close(self) -> None:
        """End all worker processes and give up what is under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.terminate()  # a training removes its files and ends its ranks
        for worker in self._workers:
            _end(worker)
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            _reap(worker)

    def _ask(self, tables: Tables) -> Answer:
        worker = self._worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(tables) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return dict(json.loads(line))
        del self._mine.worker
        return failure(tables, f"the process that {doing(tables)} it died ({_end_of(worker)})")

    def _worker(self) -> "subprocess.Popen[str]":
        if not hasattr(self._mine, "worker"):
            command = [sys.executable, "-c", "from halocast.study.predictor import main; main()"]
            started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._mine.worker = started
            self._workers.append(started)
        worker: subprocess.Popen[str] = self._mine.worker
        return worker


def _end(worker: "subprocess.Popen[str]") -> None:
    try:
        worker.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        worker.kill()


def _reap(worker: "subprocess.Popen[str]") -> int:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    return worker.wait()


def _end_of(worker: "subprocess.Popen[str]") -> str:
    code = _reap(worker)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class _DaskPool:
    def __init__(self, client: Any) -> None:
        self.num_slots = SLOTS_PER_WORKER * max(1, sum(client.nthreads().values()))
        self._executor = client.get_executor(pure=False)

    def submit(self, tables: Tables) -> "Future[Answer]":
        future: Future[Answer] = self._executor.submit(answer_as, prediction_version(), tables)
        return future


@contextmanager
def _dask_pool(address: str) -> Iterator[Pool]:
    try:
        from distributed import Client, KilledWorker
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError
    except ImportError:
        raise InputError("--dask needs the optional extra: pip install 'halocast[dask]'") from None
    try:
        client: Any = Client(address, timeout=DASK_TIMEOUT_S)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise RunError(f"--dask {address}: no Dask scheduler answers there ({error})") from None
    with client:
        try:
            yield _DaskPool(client)
        except (KilledWorker, FutureCancelledError, CommClosedError, ModuleNotFoundError) as error:
            raise RunError(f"--dask {address}: {error}") from None
