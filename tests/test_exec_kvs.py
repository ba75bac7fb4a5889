"""The store gives back every row as one push wrote it, whoever else pushes, pulls or dies; both backends alike.

Run as a script, this file is one of the other processes.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import F_WRLCK
from pathlib import Path

import numpy as np
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halocast.base.errors import InputError, RunError
from halocast.exec.store import blocks as kvs_blocks
from halocast.exec.store.blocks import Table, pieces
from halocast.exec.store.in_memory import SharedBackend
from halocast.exec.store.kvs import Store, create_store, open_store

NUM_ROWS, WIDTH = 5000, 64
HIDDEN = Table(name="1", num_rows=NUM_ROWS, width=WIDTH, dtype="float64")  # three blocks
WEIGHTS = Table(name="weights", num_rows=1, width=300)
NUM_ADDS = 50
HAMMER_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """(place, process id) of a real server on loopback that keeps nothing on disk."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian, Ubuntu: apt-get install redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = [
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        str(tmp_path_factory.mktemp("redis")),
    ]
    process = subprocess.Popen([program, "--port", port, *options], stdout=subprocess.DEVNULL)
    try:
        _until_it_answers(process, int(port))
        yield f"redis://127.0.0.1:{port}/0", process.pid
    finally:
        process.kill()
        process.wait()


def _until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 20
    with redis.Redis(port=port) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                time.sleep(0.05)
    raise AssertionError("redis-server did not start")


@pytest.fixture(params=["shared", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"shared:{tmp_path}" if request.param == "shared" else str(request.getfixturevalue("server")[0])


def left_behind(where: str) -> int:
    """How many directories or keys of stores there are."""
    if where.startswith("shared:"):
        return len(list(Path(where.removeprefix("shared:")).iterdir()))
    with redis.Redis.from_url(where) as client:
        return len(list(client.scan_iter()))


def rows_of_version(num_rows: int, version: int) -> NDArray[np.float64]:
    return np.tile(np.arange(WIDTH) + float(version), (num_rows, 1))


def start(what: str, address: str, numbers: tuple[int, ...] = (1,)) -> list[subprocess.Popen[str]]:
    """Other processes, which begin together once all of them have opened the store."""
    commands = [[sys.executable, __file__, what, address, str(number)] for number in numbers]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for command in commands]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def kill(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def finish(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0


class TestBothBackends:
    def test_pushed_rows_come_back_with_their_version_and_others_are_zeros_of_version_minus_1(self, where: str) -> None:
        with create_store([HIDDEN, WEIGHTS], where) as store, open_store(store.address) as other:
            store.push("1", slice(1, 3), rows_of_version(2, 7), 7)
            store.push("1", np.array([4998, 2]), np.stack([np.full(WIDTH, 8.0), np.full(WIDTH, 9.0)]), 8)
            values, versions = other.pull("1", np.array([2, 0, 4998, 1, 2]))
        assert versions.tolist() == [8, -1, 8, 7, 8]
        assert values[:, 3].tolist() == [9.0, 0.0, 8.0, 10.0, 9.0]

    def test_any_pushes_leave_what_plain_assignment_would(self, where: str) -> None:
        ids = st.lists(st.integers(0, 59), max_size=60).map(lambda rows: np.array(rows, np.int64))
        ranges = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda ends: slice(*sorted(ends)))

        @settings(max_examples=30)
        @given(st.lists(ids | ranges, max_size=6), ids | ranges)
        def check(pushes: list[kvs_blocks.Rows], pulled: kvs_blocks.Rows) -> None:
            expected, versions = np.zeros((60, 3), np.float32), np.full(60, -1)
            with create_store([Table(name="t", num_rows=60, width=3)], where) as store:
                for version, rows in enumerate(pushes):
                    values = np.random.default_rng(version).random(expected[rows].shape, np.float32)
                    store.push("t", rows, values, version)
                    expected[rows], versions[rows] = values, version
                for rows in (pulled, slice(0, 60), np.arange(59, -1, -1)):
                    found = store.pull("t", rows)
                    np.testing.assert_array_equal(found[0], expected[rows])
                    np.testing.assert_array_equal(found[1], versions[rows])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kvs_blocks, "BLOCK_BYTES", 40)  # three rows each, so 20 blocks
            check()

    def test_no_row_is_torn_while_two_processes_push_the_same_rows(self, where: str) -> None:
        rows = np.random.default_rng(0).permutation(NUM_ROWS)[:2000]
        with create_store([HIDDEN], where) as store:
            store.push("1", slice(0, NUM_ROWS), rows_of_version(NUM_ROWS, 0), 0)
            writers = start("push", store.address, (1, 2))
            seen: set[int] = set()
            while any(writer.poll() is None for writer in writers):
                for picked in (rows, slice(700, 3000)):
                    seen |= self.check_whole(store, picked)
            finish(writers)
        assert len(seen) > 4, "nothing was pushed while rows were pulled"

    def test_no_row_is_torn_while_a_thread_pushes_through_the_same_store(self, where: str) -> None:
        with create_store([HIDDEN], where) as store:
            store.push("1", slice(0, NUM_ROWS), rows_of_version(NUM_ROWS, 0), 0)
            thread = threading.Thread(target=push_for_a_while, args=(store, 1, HAMMER_S / 2))
            thread.start()
            seen: set[int] = set()
            while thread.is_alive():
                seen |= self.check_whole(store, slice(0, NUM_ROWS))
            thread.join()
        assert len(seen) > 2, "nothing was pushed while rows were pulled"

    @staticmethod
    def check_whole(store: Store, rows: kvs_blocks.Rows) -> set[int]:
        values, versions = store.pull("1", rows)
        np.testing.assert_array_equal(values, versions[:, None] + np.arange(WIDTH))
        return set(versions.tolist())

    def test_additions_of_four_processes_sum_exactly(self, where: str) -> None:
        with create_store([WEIGHTS], where) as store:
            store.push("weights", slice(0, 1), np.full((1, 300), 0.5, np.float32), 0)
            finish(start("add", store.address, (1, 2, 3, 4)))
            vector, version = store.read("weights")
            assert store.add("weights", np.zeros(300, np.float32)) == 4 * NUM_ADDS + 1
        assert version == 4 * NUM_ADDS
        assert vector.tolist() == [0.5 + NUM_ADDS * (1 + 2 + 3 + 4)] * 300

    def test_a_killed_process_leaves_nothing_behind_once_the_creator_closes(self, where: str) -> None:
        before = left_behind(where)
        with create_store([HIDDEN, WEIGHTS], where) as store:
            kill(start("push", store.address))
            assert left_behind(where) > before
        assert left_behind(where) == before

    def test_a_process_that_ends_takes_nothing_away(self, where: str) -> None:
        with create_store([WEIGHTS], where) as store:
            finish(start("add", store.address))
            with open_store(store.address) as other:
                assert other.read("weights")[1] == store.read("weights")[1] == NUM_ADDS - 1

    def test_a_store_that_was_closed_cannot_be_opened_or_used(self, where: str) -> None:
        with create_store([HIDDEN], where) as store, open_store(store.address) as other:
            address = store.address
        with pytest.raises(RunError, match=r"there is none \(or no longer\)"):
            open_store(address)
        with pytest.raises(RunError, match="table '1' was asked for after the store was closed"):
            other.pull("1", slice(0, 1))

    def test_wrong_requests_are_refused_with_what_would_be_right(self, where: str) -> None:
        right = np.zeros((1, WIDTH))
        with create_store([HIDDEN, WEIGHTS], where) as store:
            with pytest.raises(InputError, match=r"unknown table 'weight'; .* \(known: 1, weights\)"):
                store.read("weight")
            with pytest.raises(InputError, match="table '1' has rows 0 to 4999, not 5000"):
                store.pull("1", np.array([3, 5000]))
            with pytest.raises(InputError, match=r"slice\(0, 5001, None\) is no range of the 5000 rows of table '1'"):
                store.push("1", slice(0, 5001), right, 0)
            with pytest.raises(InputError, match=r"float32 of shape \(1, 64\); expected float64 of shape \(1, 64\)"):
                store.push("1", slice(0, 1), right.astype(np.float32), 0)
            with pytest.raises(InputError, match=r"float64 of shape \(1, 64\); expected float64 of shape \(2, 64\)"):
                store.push("1", np.array([0, 7]), right, 0)
            with pytest.raises(InputError, match="must be one-dimensional int64, not 1-D int32"):
                store.pull("1", np.array([0, 7], np.int32))
            with pytest.raises(InputError, match="push of table '1': version -1 is negative"):
                store.push("1", slice(0, 1), right, -1)
            with pytest.raises(InputError, match="table '1' has 5000 rows; only a table of one row is a vector"):
                store.add("1", right[0])


class TestSharedMemory:
    def test_a_lock_that_is_not_given_back_ends_in_an_error_that_names_rows_and_seconds(self, tmp_path: Path) -> None:
        with create_store([HIDDEN], f"shared:{tmp_path}", timeout_s=0.2) as store:
            holder = SharedBackend.attach(store.address, 1.0)
            with holder._hold(holder._mapped["1"], F_WRLCK, 1, "push"):
                store.pull("1", slice(0, 2048))  # the first block is free
                where = r"pull of table '1', rows 2048 to 4095: waited 0\.2 s for another process"
                with pytest.raises(RunError, match=where):
                    store.pull("1", slice(0, 2049))
            assert store.pull("1", slice(0, 2049))[1].tolist() == [-1] * 2049

    def test_rows_left_half_written_by_a_killed_process_are_an_error_and_not_a_value(self, tmp_path: Path) -> None:
        with create_store([HIDDEN], f"shared:{tmp_path}") as store:
            (process,) = start("die in push", store.address)
            process.communicate(timeout=60)
            assert process.returncode == -signal.SIGKILL
            for rows in (slice(0, 1), np.array([5, 2047])):
                with pytest.raises(RunError, match="rows 0 to 2047: left half written by a process that died"):
                    store.pull("1", rows)
            assert store.pull("1", slice(2048, NUM_ROWS))[1].max() == -1

    def test_the_next_store_removes_those_whose_creator_was_killed_and_no_others(self, tmp_path: Path) -> None:
        where = f"shared:{tmp_path}"
        with create_store([HIDDEN], where) as alive:
            creators = start("create", where)
            assert left_behind(where) == 2
            kill(creators)
            with create_store([HIDDEN], where), open_store(alive.address):
                assert left_behind(where) == 2
        assert left_behind(where) == 0

    @pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm here")
    def test_a_store_too_large_for_its_place_is_refused_when_it_is_made(self) -> None:
        before = sorted(Path("/dev/shm").glob("halocast-store-*"))
        huge = Table(name="huge", num_rows=2**40, width=2**18)
        with pytest.raises(RunError, match=r"store in /dev/shm: table 'huge' needs \d{19} bytes, \d+ are free"):
            create_store([huge], "shared:/dev/shm")
        assert [path for path in sorted(Path("/dev/shm").glob("halocast-store-*")) if path not in before] == []


class TestRedis:
    def test_a_server_that_does_not_answer_ends_in_an_error_that_names_address_operation_and_seconds(
        self, server: tuple[str, int]
    ) -> None:
        place, pid = server
        with create_store([HIDDEN, WEIGHTS], place, timeout_s=0.3) as store:
            asked: dict[str, Callable[[], object]] = {
                "pull of 3 rows of table '1'": lambda: store.pull("1", np.array([0, 5, 9])),
                "push of 1 rows of table '1'": lambda: store.push("1", slice(0, 1), rows_of_version(1, 0), 0),
                "add to table 'weights'": lambda: store.add("weights", np.zeros(300, np.float32)),
                "open": lambda: open_store(store.address, timeout_s=0.3),
            }
            with stopped(pid):
                for what, ask in asked.items():
                    with pytest.raises(RunError, match=rf"store {place}: {what} failed after .* \(limit 0\.3 s\)"):
                        ask()
            assert store.pull("1", slice(0, 3))[0].shape == (3, WIDTH)

    def test_rows_that_the_server_has_lost_are_an_error_and_a_push_does_not_hide_it(
        self, server: tuple[str, int]
    ) -> None:
        with create_store([HIDDEN], server[0]) as store:
            with redis.Redis.from_url(server[0]) as client:
                client.delete(f"{store.address.partition('#')[2]}:1:0")
            for rows in (slice(0, 2), np.array([0, 3])):
                with pytest.raises(RunError, match="table '1': rows are gone"):
                    store.push("1", rows, rows_of_version(2, 0), 0)
                with pytest.raises(RunError, match="table '1': rows are gone"):
                    store.pull("1", rows)
            assert store.pull("1", slice(2048, 2049))[1].tolist() == [-1]

    def test_a_server_without_room_refuses_the_store_and_keeps_none_of_it(self, server: tuple[str, int]) -> None:
        before = left_behind(server[0])
        with redis.Redis.from_url(server[0]) as client:
            client.config_set("maxmemory", "3mb")
            try:
                with pytest.raises(RunError, match=r"create failed after .* used memory > 'maxmemory'"):
                    create_store([Table(name="1", num_rows=20_000, width=64)], server[0])
            finally:
                client.config_set("maxmemory", "0")
        assert left_behind(server[0]) == before

    def test_nobody_listening_is_an_error_without_the_password(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            with pytest.raises(RunError, match=rf"store redis://127\.0\.0\.1:{port}/0: create failed") as raised:
                create_store([HIDDEN], f"redis://:secret@127.0.0.1:{port}/0", timeout_s=1.0)
        assert "secret" not in str(raised.value)


def test_a_kind_of_store_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown kind of store 'rediss'; did you mean 'redis'"):
        create_store([HIDDEN], "rediss://host")


def test_tables_are_checked_when_they_are_described() -> None:
    with pytest.raises(InputError, match=r"table 't': unknown dtype 'float16'.*known: bfloat16, float32, float64"):
        Table(name="t", num_rows=1, width=1, dtype="float16")
    with pytest.raises(InputError, match="table 't': 0 rows of width 1; both must be positive"):
        Table(name="t", num_rows=0, width=1)
    with pytest.raises(InputError, match="tables must differ in name, got 1, 1"):
        create_store([HIDDEN, HIDDEN])


@given(st.lists(st.integers(0, 9999), max_size=50).map(sorted))
def test_pieces_cover_the_rows_in_order_and_each_lies_in_its_block(ids: list[int]) -> None:
    table = Table(name="t", num_rows=10_000, width=1000)
    rows = np.array(ids, np.int64)
    cut = list(pieces(table, rows))
    assert [row for piece in cut for row in rows[piece.at].tolist()] == ids
    assert all(row in table.rows_of(piece.block) for piece in cut for row in rows[piece.at].tolist())
    assert len({piece.block for piece in cut}) == len(cut)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def push_for_a_while(store: Store, version: int, seconds: float = HAMMER_S) -> None:
    """Push versions 1, 3, 5, … or 2, 4, 6, … of the same rows."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        store.push("1", slice(0, NUM_ROWS), rows_of_version(NUM_ROWS, version), version)
        version += 2


def add_some(store: Store, value: int) -> None:
    for _ in range(NUM_ADDS):
        store.add("weights", np.full(300, value, np.float32))


def die_in_push(store: Store, value: int) -> None:
    """Killed while the first block is being written."""
    backend = SharedBackend.attach(store.address, 1.0)
    with backend._writing(backend._mapped["1"], 0, "push"):
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_end(store: Store, value: int) -> None:
    time.sleep(60)


ACTS: dict[str, Callable[[Store, int], None]] = {
    "push": push_for_a_while,
    "add": add_some,
    "die in push": die_in_push,
    "create": wait_for_the_end,
}


def other_process(what: str, address: str, number: int) -> None:
    store = create_store([HIDDEN], address) if what == "create" else open_store(address, 20.0)
    print("open", flush=True)
    sys.stdin.readline()
    ACTS[what](store, number)
    store.close()


if __name__ == "__main__":
    other_process(sys.argv[1], sys.argv[2], int(sys.argv[3]))
