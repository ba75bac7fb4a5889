"""Starts all ranks of a job on this machine, watches them, and gathers what they leave behind.

Ranks are forked from a server process that has imported torch once (multiprocessing's forkserver), so eight ranks
cost one import. The first rank that dies or raises ends the job: the others are killed and its message is raised.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from halocast.base.errors import InputError, RunError
from halocast.exec.launch.emulate import INTERFACE, Host, enter
from halocast.exec.launch.job import Job, write_job
from halocast.exec.run.outcome import Outcome, joined
from halocast.graph.parts import Part
from halocast.schedule.ir import SHARED
from halocast.schedule.trace import Span, Trace, load_trace

POLL_S = 0.02
BLAME_S = 1.5  # how long to wait for the failing rank's own message once a peer has complained


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Outcome):
    """The outcome of a run on processes: also its trace, and the peak memory of every rank."""

    trace: Trace
    peak_memory_bytes: tuple[int, ...]


def execute(
    job: Job,
    parts: Iterable[Part],
    *,
    scored: Iterable[Part] = (),
    port: int = 0,
    keep: Path | None = None,
    on_progress: Callable[[int], None] = lambda epochs: None,
    hosts: Sequence[Host] = (),
) -> Run:
    """Train for real on this machine, one process per rank; `keep` is a directory for the job's files.

    `scored`: parts of the graph that scores are of, if it is another. `hosts`: the emulated host of every rank; none
    for the machine's own loopback.
    """
    assert len(hosts) in (0, job.schedule.num_ranks)
    port = free_port(port)
    with _job_directory(keep) as directory, store_place(job) as job:
        write_job(directory, job, parts, scored)
        _watch(_start(directory, job.schedule.num_ranks, port, hosts), directory, on_progress)
        return gather(directory, job)


def free_port(port: int) -> int:
    """The port itself if it can be bound, any free one for 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise InputError(f"port {port} cannot be used: {error}") from None
        return int(probe.getsockname()[1])


@contextmanager
def store_place(job: Job) -> Iterator[Job]:
    """A directory in memory for the job's store, so that nothing of it stays however the ranks end."""
    needs = any(buffer.rank == SHARED for buffer in job.schedule.buffers)
    if not needs or job.settings.store != "shared:":
        yield job
        return
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="halocast-", dir=memory if memory.is_dir() else None) as place:
        yield replace(job, settings=replace(job.settings, store=f"shared:{place}"))


@contextmanager
def _job_directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    directory = Path(tempfile.mkdtemp(prefix="halocast-job-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _start(directory: Path, num_ranks: int, port: int, hosts: Sequence[Host]) -> list[BaseProcess]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["halocast.exec.launch.preload"])
    start_server()
    ranks: list[BaseProcess] = []
    for rank in range(num_ranks):
        environment = rank_environment(rank, port, hosts, num_ranks)
        host = hosts[rank] if hosts else None
        process = context.Process(target=_enter, args=(directory, host, environment), name=f"rank-{rank}")
        process.daemon = True
        process.start()
        ranks.append(process)
    return ranks


def rank_environment(rank: int, port: int, hosts: Sequence[Host], num_ranks: int) -> dict[str, str]:
    """The environment variables that torchrun would set, for ranks that are all on this machine."""
    return {
        "HALOCAST_LAUNCHED": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # torchrun, if it started us, serves its own ranks only
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": hosts[0].address if hosts else "127.0.0.1",
        "MASTER_PORT": str(port),
        # gloo would look up the host's name, which need not resolve
        "GLOO_SOCKET_IFNAME": INTERFACE if hosts else os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }


def start_server() -> None:
    """Start the server with SIGINT blocked: Ctrl-C reaches every process, and one importing torch would tell."""
    resource_tracker.ensure_running()  # the server would start it, and that unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _enter(directory: Path, host: Host | None, environment: dict[str, str]) -> None:
    settle_rank(host, environment)
    from halocast.exec.worker import run_rank  # torch, in the ranks only

    run_rank(directory, int(environment["RANK"]), int(environment["WORLD_SIZE"]))


def settle_rank(host: Host | None, environment: dict[str, str]) -> None:
    """Settle a rank's process: enter its host, never outlive the launcher, leave Ctrl-C to it."""
    if host is not None:  # first: threads that run already would stay outside
        try:
            enter(host)
        except FileNotFoundError:  # removed: the launcher was interrupted while it asked for this rank
            os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    os.environ.update(environment)


def end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _watch(ranks: list[BaseProcess], directory: Path, on_progress: Callable[[int], None]) -> None:
    try:
        while any(process.exitcode is None for process in ranks):
            failed = [rank for rank, process in enumerate(ranks) if process.exitcode]
            if failed:
                raise RunError(_blame(ranks, directory))
            with contextlib.suppress(OSError, ValueError):
                on_progress(int((directory / "progress").read_text(encoding="utf-8")))
            time.sleep(POLL_S)
        if any(process.exitcode for process in ranks):
            raise RunError(_blame(ranks, directory))
    finally:
        for process in ranks:
            if process.exitcode is None:
                process.kill()
        for process in ranks:
            process.join()


def _blame(ranks: list[BaseProcess], directory: Path) -> str:
    """The message of the rank that failed by itself; a rank that only lost its peer is the second choice."""
    deadline = time.monotonic() + BLAME_S
    while True:
        codes = [process.exitcode or 0 for process in ranks]
        reports = {rank: _reason(code, directory, rank) for rank, code in enumerate(codes) if code}
        own = [reason["message"] for reason in reports.values() if not reason["peer"]]
        if own:
            return str(own[0])
        if time.monotonic() > deadline:
            return str(next(iter(reports.values()))["message"])
        time.sleep(POLL_S)


def failure_of(directory: Path, codes: Sequence[int]) -> str:
    """The reason why a run failed all of whose ranks have ended, as `_blame` chooses."""
    reports = [_reason(code, directory, rank) for rank, code in enumerate(codes) if code]
    return str(next((one for one in reports if not one["peer"]), reports[0])["message"])


def _reason(code: int, directory: Path, rank: int) -> dict[str, Any]:
    path = directory / f"error-{rank}.json"
    if path.exists():
        reason: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return reason
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return {"message": f"rank {rank} {how}", "peer": False}


def gather(directory: Path, job: Job) -> Run:
    """Join the files the ranks wrote into one Run; times count from the first span of any rank."""
    ranks = range(job.schedule.num_ranks)
    results = [json.loads((directory / f"result-{rank}.json").read_text(encoding="utf-8")) for rank in ranks]
    spans = [span for rank in ranks for span in load_trace(directory / f"trace-{rank}.jsonl").all_spans]
    trace = Trace.of(
        _from_zero(spans),
        source="executed",
        num_ranks=len(ranks),
        num_epochs=job.settings.epochs,
        meta={**dict(job.schedule.meta), "transport": job.settings.backend, "dtype": job.settings.dtype},
    )
    peaks = tuple(result["peak_memory_bytes"] for result in results)
    return Run(trace=trace, peak_memory_bytes=peaks, **joined(results, job.settings.epochs))


def _from_zero(spans: list[Span]) -> tuple[Span, ...]:
    zero = min((span.start_s for span in spans), default=0.0)
    moved = (
        Span(
            rank=s.rank,
            lane=s.lane,
            op=s.op,
            kind=s.kind,
            epoch=s.epoch,
            start_s=s.start_s - zero,
            end_s=s.end_s - zero,
            num_bytes=s.num_bytes,
        )
        for s in spans
    )
    return tuple(sorted(moved, key=lambda span: (span.end_s, span.rank)))
