"""A rank that raises, dies or hangs ends the whole job with a message that names it; never a hang."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from training import metis_parts, schedule_for, small_graph, spec_for

from halocast.base.errors import InputError, RunError
from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import execute
from halocast.graph import Part, build_parts
from halocast.schedule.ir import Compute, Kernel, Lane, Op, Schedule


def job_and_parts(ranks: int = 3, **settings: object) -> tuple[Job, tuple[Part, ...]]:
    graph = small_graph()
    parts, spec = build_parts(graph, metis_parts(graph, ranks)), spec_for(graph)
    chosen = Settings(**{"epochs": 100_000, "timeout_s": 60.0, **settings})  # type: ignore[arg-type]
    return Job(schedule=schedule_for(parts, spec, "float32"), spec=spec, settings=chosen), parts


def rank_pid(name: str) -> int:
    """The process of a rank of the job that this process has started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in multiprocessing.active_children():
            if child.name == name and child.pid:
                return child.pid
        time.sleep(0.02)
    raise AssertionError(f"{name} never started")


@pytest.fixture
def when_training(tmp_path: Path) -> Iterator[list[threading.Thread]]:
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join(30)


def signal_rank(directory: Path, rank: int, what: signal.Signals) -> threading.Thread:
    """Once epochs are being finished, send a signal to one rank."""

    def act() -> None:
        deadline = time.monotonic() + 60
        while not (directory / "progress").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(rank_pid(f"rank-{rank}"), what)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_killed_rank_ends_the_job_within_ten_seconds(tmp_path: Path, when_training: list[threading.Thread]) -> None:
    job, parts = job_and_parts()
    when_training.append(signal_rank(tmp_path, 1, signal.SIGKILL))
    with pytest.raises(RunError, match="rank 1 was killed by SIGKILL"):
        execute(job, parts, keep=tmp_path)
    assert time.time() - (tmp_path / "progress").stat().st_mtime < 10  # it trained until it was killed
    assert multiprocessing.active_children() == []


def test_a_stopped_rank_is_named_by_those_who_wait_for_it(
    tmp_path: Path, when_training: list[threading.Thread]
) -> None:
    job, parts = job_and_parts(ranks=2, timeout_s=2.0)
    when_training.append(signal_rank(tmp_path, 1, signal.SIGSTOP))
    with pytest.raises(RunError, match=r"rank 0: \w+(\.\d)? of epoch \d+ .* waiting for (rank 1|another rank)"):
        execute(job, parts, keep=tmp_path)
    assert multiprocessing.active_children() == []


def test_a_rank_that_raises_ends_the_job_with_its_own_message(tmp_path: Path) -> None:
    job, parts = job_and_parts()
    broken = parts[2]
    # a label beyond the classes: torch's loss raises on that rank only, its peers merely lose it
    object.__setattr__(broken, "labels", np.where(broken.train_mask, 99, broken.labels))
    with pytest.raises(RunError, match=r"rank 2: IndexError: Target 99 is out of bounds"):
        execute(job, parts, keep=tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    job, parts = job_and_parts()
    with pytest.raises(RunError, match=r"rank 2: .*part-2\.npz"):
        execute(job, parts[:2], keep=tmp_path)


def test_a_schedule_with_an_op_nobody_can_handle_is_refused(tmp_path: Path) -> None:
    job, parts = job_and_parts(ranks=1)
    dance = Op(name="dance.1", rank=0, lane=Lane.COMPUTE, work=Compute(kernels=(Kernel("gather", (1, 1)),)))
    odd = Schedule(num_ranks=1, ops=(*job.schedule.ops, dance), buffers=job.schedule.buffers)
    with pytest.raises(RunError, match=r"op 0/dance\.1: the executor has no handler for 'dance'"):
        execute(Job(schedule=odd, spec=job.spec, settings=job.settings), parts, keep=tmp_path)


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    job, parts = job_and_parts()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} cannot be used"):
            execute(job, parts, port=port)


def test_nccl_without_a_gpu_is_refused_in_one_line(tmp_path: Path) -> None:
    job, parts = job_and_parts(backend="nccl")
    with pytest.raises(RunError, match="backend nccl needs CUDA devices"):
        execute(job, parts, keep=tmp_path)


def test_a_rank_whose_launcher_was_killed_ends() -> None:
    """Under torchrun a run's process is a child of the rank that torchrun watches."""
    rank = "import os; up = os.getppid(); from halocast.exec.worker import end_with_parent; end_with_parent(up)"
    launcher = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {rank!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", launcher]) as parent:
        child = first_child(parent.pid)
        parent.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and "State:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.05)


def first_child(pid: int) -> int:
    """Of a process, once it has one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        if found:
            time.sleep(0.5)  # until it has asked for its parent
            return int(found[0])
        time.sleep(0.05)
    raise AssertionError("no child")
