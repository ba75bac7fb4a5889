"""The file of results: claims, kills, and what is wrong with a file."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halocast.base.errors import InputError, RunError
from halocast.study.results import ResultFile, State

SCENARIOS = [(f"k{number}", {"run": {"seed": number}}) for number in range(4)]
KEYS = [key for key, _ in SCENARIOS]


def opened(path: Path) -> ResultFile:
    file = ResultFile(path)
    file.add(SCENARIOS)
    file.want(KEYS)
    return file


def claimed(file: ResultFile, num: int = 1) -> list[str]:
    return [key for key, _ in file.claim(num)]


def claim_and_die(path: Path) -> None:
    """Another process claims two scenarios and is gone."""
    code = (
        "import sys; from pathlib import Path; from halocast.study.results import ResultFile;"
        f"file = ResultFile(Path(sys.argv[1])); file.want({KEYS!r}); print([k for k, _ in file.claim(2)])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['k0', 'k1']"


def test_a_scenario_is_claimed_once_in_order_of_arrival(tmp_path: Path) -> None:
    with opened(tmp_path / "r.sqlite") as one, opened(tmp_path / "r.sqlite") as other:
        assert claimed(one, 2) == ["k0", "k1"]
        assert claimed(other) == ["k2"]
        assert claimed(one, 5) == ["k3"]
        assert claimed(other, 5) == []


def test_a_claim_that_is_not_renewed_runs_out(tmp_path: Path) -> None:
    with opened(tmp_path / "r.sqlite") as one, opened(tmp_path / "r.sqlite") as other:
        assert [key for key, _ in one.claim(4, lease_s=0.1)] == KEYS
        one.renew(["k0", "k1", "k2"])
        time.sleep(0.15)
        assert claimed(other, 4) == ["k3"]


def test_claims_of_a_process_that_is_gone_are_free_at_once(tmp_path: Path) -> None:
    with opened(tmp_path / "r.sqlite") as file:
        claim_and_die(tmp_path / "r.sqlite")
        assert claimed(file, 4) == KEYS


def test_claims_given_back_are_free_at_once(tmp_path: Path) -> None:
    with opened(tmp_path / "r.sqlite") as one, opened(tmp_path / "r.sqlite") as other:
        claimed(one, 4)
        one.release(["k2"])
        assert claimed(other, 4) == ["k2"]


def test_the_first_result_of_a_scenario_stays(tmp_path: Path) -> None:
    with opened(tmp_path / "r.sqlite") as file:
        file.finish("k1", State.DONE, {"epoch_s": 1.5}, 0.1)
        file.finish("k1", State.DONE, {"epoch_s": 2.5}, 0.1)
        file.finish("k2", State.REFUSED, "too large", 0.1)
        found = file.finished(KEYS)
        assert {key: (row.state, row.figures, row.reason) for key, row in found.items()} == {
            "k1": ("done", {"epoch_s": 1.5}, ""),
            "k2": ("refused", {}, "too large"),
        }
        assert file.num_waiting() == 2


def test_only_wanted_scenarios_are_claimed(tmp_path: Path) -> None:
    with opened(tmp_path / "r.sqlite") as file:
        file.want(["k3"])
        assert claimed(file, 9) == ["k3"]
        assert file.num_waiting() == 1


def test_many_keys_are_looked_up_at_once(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "r.sqlite") as file:
        file.add((f"n{number}", {}) for number in range(1203))
        for number in range(1203):
            file.finish(f"n{number}", State.DONE, {}, 0.0)
        assert len(file.finished([f"n{number}" for number in range(1203)])) == 1203


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not a database" * 100, "not a file of results, or is damaged"),
        (b"SQLite format 3\0" + b"\7" * 4096, "not a file of results, or is damaged"),
    ],
)
def test_a_corrupt_file_is_named_and_left_alone(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        ResultFile(path)
    assert path.read_bytes() == content


def claim_all(path: Path) -> None:
    with ResultFile(path) as file:
        file.want(f"n{number}" for number in range(400))
        file.claim(400)


def test_a_damaged_page_is_told_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with ResultFile(path) as file:
        file.add((f"n{number}", {"x": "y" * 200}) for number in range(400))
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 8192) + whole[-4096:])
    with pytest.raises(InputError, match="damaged"):
        claim_all(path)


def test_a_database_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (a)")
    db.close()
    with pytest.raises(InputError, match="something else"):
        ResultFile(path)


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    ResultFile(path).__exit__(None, None, None)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(InputError, match="format 9"):
        ResultFile(path)


def test_a_locked_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    opened(path).__exit__(None, None, None)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RunError, match="another process has locked the results"), ResultFile(path, busy_s=0.05) as file:
        file.add([("x", {})])
    db.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(file: ResultFile) -> None:
    for number in range(4000):
        file.add([(f"n{number}", {"x": "y" * 500})])


def test_a_full_disk_is_told_and_costs_nothing_finished(small_disk: Path) -> None:
    path = small_disk / "r.sqlite"
    with opened(path) as file:
        file.finish("k0", State.DONE, {"epoch_s": 1.0}, 0.1)
        with pytest.raises(RunError, match=r"r.sqlite: the disk is full.*run again to go on"):
            fill(file)
    with ResultFile(path) as file:
        assert file.finished(["k0"])["k0"].figures == {"epoch_s": 1.0}
