"""A rank or a store that is killed while the job trains ends it with a message that names it; nothing is left behind.

The parameter server of DIGEST-A is the job's store. In Redis that is a process, and killed here; in shared memory it
has none: it lives as long as the ranks do, so there is only its memory to look after.

No wait of these jobs may end by its time limit, which would give another message: what is dead is noticed.
"""

import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from training import metis_parts, schedule_for, small_graph, spec_for

from halocast.base.errors import RunError
from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import execute
from halocast.graph import Part, build_parts

RANKS = 3
LIMIT_S = 9.0  # of every wait of a rank
GIVE_UP_S = 60.0  # then the test ends the job itself, and fails
IN_MEMORY = re.compile(r"/dev/shm/halocast-[^/]+")  # what a process has mapped of stores


def job_and_parts(method: str, store: str = "shared:", **options: Any) -> tuple[Job, tuple[Part, ...]]:
    graph = small_graph()
    parts, spec = build_parts(graph, metis_parts(graph, RANKS)), spec_for(graph)
    settings = Settings(epochs=10_000_000, timeout_s=LIMIT_S, store=store, threads=1)
    return Job(schedule=schedule_for(parts, spec, "float32", method, **options), spec=spec, settings=settings), parts


def rank_pids() -> dict[str, int]:
    """Processes of the job that this process has started, by name."""
    return {child.name: child.pid for child in multiprocessing.active_children() if child.pid}


def memory_of(pids: list[int]) -> set[Path]:
    """Directories of the stores in memory that these processes use."""
    return {Path(found) for pid in pids for found in IN_MEMORY.findall(Path(f"/proc/{pid}/maps").read_text())}


@contextmanager
def when_training(directory: Path, act: Callable[[], None]) -> Iterator[None]:
    """Act as soon as epochs are finished; end all ranks should the job not end by itself."""
    ended = threading.Event()

    def wait_and_act() -> None:
        while not (directory / "progress").exists():
            if ended.wait(0.02):
                return  # it failed before it trained
        act()
        if not ended.wait(GIVE_UP_S):
            for pid in rank_pids().values():
                os.kill(pid, signal.SIGTERM)

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * GIVE_UP_S)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """(place, process id) of a real Redis server on loopback that keeps nothing on disk."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian, Ubuntu: apt-get install redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(tmp_path)]
    process = subprocess.Popen([program, "--port", str(port), *options], stdout=subprocess.DEVNULL)
    try:
        until_it_answers(process, port)
        yield f"redis://127.0.0.1:{port}/0", process.pid
    finally:
        process.kill()
        process.wait()


def until_it_answers(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)


@pytest.mark.parametrize(("method", "num_stores"), [("pipegcn", 0), ("digest", 1), ("digest-a", 1)])
def test_a_killed_rank_ends_the_job_by_name_and_its_store_goes_with_it(
    tmp_path: Path, method: str, num_stores: int
) -> None:
    """In DIGEST-A nobody waits for the dead rank in any op: the launcher notices."""
    job, parts = job_and_parts(method)
    stores: set[Path] = set()

    def kill() -> None:
        stores.update(memory_of(list(rank_pids().values())))
        os.kill(rank_pids()["rank-1"], signal.SIGKILL)

    with pytest.raises(RunError, match=r"^rank 1 was killed by SIGKILL$"), when_training(tmp_path, kill):
        execute(job, parts, keep=tmp_path)
    assert multiprocessing.active_children() == []
    assert len(stores) == num_stores
    assert not any(store.exists() for store in stores)


@pytest.mark.parametrize("method", ["digest", "digest-a"])
def test_a_killed_redis_server_ends_the_job_by_its_address(
    tmp_path: Path, server: tuple[str, int], method: str
) -> None:
    place, pid = server
    job, parts = job_and_parts(method, place, interval=2)
    message = rf"^rank \d: store {re.escape(place)}: (push|pull|add)\b.* failed after \d"
    with (
        pytest.raises(RunError, match=message) as raised,
        when_training(tmp_path, lambda: os.kill(pid, signal.SIGKILL)),
    ):
        execute(job, parts, keep=tmp_path)
    assert "timed out" not in str(raised.value).lower()
    assert multiprocessing.active_children() == []


def test_a_rank_killed_beside_redis_is_named_and_the_server_goes_on(tmp_path: Path, server: tuple[str, int]) -> None:
    place, pid = server
    job, parts = job_and_parts("digest-a", place)
    with (
        pytest.raises(RunError, match=r"^rank 2 was killed by SIGKILL$"),
        when_training(tmp_path, lambda: os.kill(rank_pids()["rank-2"], signal.SIGKILL)),
    ):
        execute(job, parts, keep=tmp_path)
    os.kill(pid, 0)  # it is there
    assert multiprocessing.active_children() == []
