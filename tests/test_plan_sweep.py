"""Sweeps: all combinations, each predicted once, whoever is killed."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from halocast.base.errors import InputError
from halocast.cli import run
from halocast.study.predict import predict
from halocast.study.queries import query_of
from halocast.study.results import State
from halocast.study.scenario import load_scenario, load_tables
from halocast.study.sweep import combine, parse_vary, sweep

SMALL = ["graph.dataset=reddit", "cluster.name=l4-8x1-25gbe", "model.hidden=16", "model.layers=2"]
COMMAND = [sys.executable, "-c", "import halocast.cli; halocast.cli.main()", "sweep"]


def command(path: Path, *more: str, num: int = 40) -> list[str]:
    """A sweep of so many rows."""
    sets = [part for text in SMALL for part in ("--set", text)]
    seeds = "run.seed=" + ",".join(map(str, range(num // 2)))
    return [
        *COMMAND,
        "--vary",
        "method.name=vanilla,bns",
        "--vary",
        seeds,
        *sets,
        "--set",
        "cluster.gpus=2",
        "--results",
        str(path),
        *more,
    ]


def rows_of(path: Path) -> list[tuple[str, str, int]]:
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT state, key || result, num_claims FROM results ORDER BY key").fetchall()
    db.close()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cluster.gpus=2,4,8", ("cluster.gpus", [2, 4, 8])),
        ("method.rate=0.01,1", ("method.rate", [0.01, 1])),
        ("method.name=vanilla,bns", ("method.name", ["vanilla", "bns"])),
        ("model.precompute=true,false", ("model.precompute", [True, False])),
        ("world.speed={1=0.5},{}", ("world.speed", [{"1": 0.5}, {}])),
        (' graph.dataset = "a,b", "c"', ("graph.dataset", ["a,b", "c"])),
    ],
)
def test_values_are_toml_or_words(text: str, expected: tuple[str, list[Any]]) -> None:
    assert parse_vary(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus=2", "expected section.key"),
        ("cluster.gpu=2", "did you mean 'gpus'"),
        ("clutser.gpus=2", "did you mean 'cluster'"),
        ("method.rat=0.1", "did you mean 'rate'"),
        ("plan.gpus=2", "unknown section 'plan'"),
        ("cluster.gpus=", "expected section.key=value,value"),
    ],
)
def test_a_key_that_no_scenario_has_is_a_mistake(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_vary(text)


def test_all_combinations_are_rows_and_illegal_ones_say_why(tmp_path: Path) -> None:
    vary: dict[str, list[Any]] = {"method.rate": [0.1, 1], "method.name": ["bns", "vanilla"], "cluster.gpus": [2, 9]}
    found = sweep(load_scenario("demo", SMALL), vary, results=tmp_path / "r.sqlite", jobs=1)
    assert [tuple(row.values.values()) for row in found.rows] == [
        (rate, name, gpus) for rate in (0.1, 1) for name in ("bns", "vanilla") for gpus in (2, 9)
    ]
    assert [row.state for row in found.rows] == [State.DONE, *[State.REFUSED] * 3] * 2
    assert found.rows[1].reason.startswith("gpus = 9: cluster l4-8x1-25gbe has 1 to 8")
    assert found.rows[2].reason == "[method] vanilla: unknown key 'rate' (known: none)"
    lean = predict(load_scenario("demo", [*SMALL, "method.name=bns", "method.rate=1", "cluster.gpus=2"]), lean=True)
    assert found.rows[4].figures == lean.summary
    frame = found.frame()
    assert list(frame["epoch_s"].notna()) == [True, False, False, False] * 2


def test_options_of_the_scenarios_method_do_not_follow_another_method() -> None:
    tables = load_tables("demo", ["method.name=bns", "method.rate=0.5"])
    jobs = [job for _, job in combine(tables, {"method.name": ["vanilla", "bns"]})]
    assert [job.tables["method"].get("rate") for job in jobs] == [None, 0.5]
    assert not any(job.reason for job in jobs)


def test_equal_scenarios_are_one_job_and_a_changed_cluster_file_is_another(tmp_path: Path) -> None:
    assert query_of({}).key == query_of({"method": {"name": "vanilla"}, "run": {"seed": 0}}).key
    assert query_of({}).key != query_of({"run": {"seed": 1}}).key
    machines = Path(__file__).parents[1] / "cluster" / "machines"
    file = tmp_path / "mine.toml"
    file.write_text((machines / "cpu-local.toml").read_text(encoding="utf-8"), encoding="utf-8")
    before = query_of({"cluster": {"file": str(file)}}).key
    file.write_text(file.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert query_of({"cluster": {"file": str(file)}}).key != before


def test_another_version_of_the_predicting_code_has_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    before = query_of({}).key
    monkeypatch.setattr("halocast.study.version.prediction_version", lambda: "0.1.0+other")
    assert query_of({}).key != before


def killed_after(path: Path, num: int, num_done: int, moment_s: float) -> None:
    """Start a sweep, and kill it a moment after so many rows are done."""
    process = subprocess.Popen(command(path, num=num), stdout=subprocess.DEVNULL)
    while done_in(path) < num_done:
        assert process.poll() is None, "the sweep ended before it was killed"
        time.sleep(0.01)
    time.sleep(moment_s)
    process.send_signal(signal.SIGKILL)
    process.wait()


def done_in(path: Path) -> int:
    try:
        return sum(state == "done" for state, _, _ in rows_of(path))
    except sqlite3.OperationalError:
        return 0  # no table yet


@pytest.mark.parametrize("num", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_sweep_killed_at_random_moments_ends_with_every_row_once(num: int, tmp_path: Path) -> None:
    path, chance = tmp_path / "r.sqlite", random.Random(8)
    for least in (1, num // 4, num // 2):
        killed_after(path, num, least + chance.randrange(num // 6), chance.uniform(0, 0.03))
        before = {row for row in rows_of(path) if row[0] == "done"}
        assert least <= len(before) < num
    subprocess.run(command(path, num=num), check=True, capture_output=True)
    rows = rows_of(path)
    assert len(rows) == num
    assert {state for state, _, _ in rows} == {"done"}
    assert before < set(rows)  # nothing finished was lost or made again
    again = subprocess.run(command(path, "--json", num=num), check=True, capture_output=True, text=True)
    assert len(json.loads(again.stdout)) == num
    assert rows_of(path) == rows


def test_two_processes_share_a_file_without_doing_the_same_work(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    both = [subprocess.Popen(command(path, "--jobs", "1", "--json"), stdout=subprocess.PIPE) for _ in range(2)]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert told[0] == told[1]
    assert [num_claims for _, _, num_claims in rows_of(path)] == [1] * 40


def test_a_worker_that_dies_costs_its_scenario_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is out of memory is killed by the system: the row says so, the sweep goes on."""
    from halocast.study import pool

    real, asked = pool.LocalPool._ask, []

    def ask(self: Any, tables: Any) -> Any:
        asked.append(tables)
        if len(asked) == 2:
            self._worker().kill()
        return real(self, tables)

    monkeypatch.setattr(pool.LocalPool, "_ask", ask)
    found = sweep(load_scenario("demo", [*SMALL, "cluster.gpus=2"]), {"run.seed": [1, 2, 3]}, jobs=1)
    assert [row.state for row in found.rows] == [State.DONE, State.REFUSED, State.DONE]
    assert found.rows[1].reason == "the process that predicted it died (signal 9)"


def test_csv_has_a_line_per_combination(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s.csv"
    sets = [part for text in SMALL for part in ("--set", text)]
    assert run(["sweep", *sets, "--vary", "cluster.gpus=2,3", "--jobs", "1", "--csv", str(out)]) == 0
    assert [line.split(",")[:2] for line in out.read_text(encoding="utf-8").splitlines()] == [
        ["cluster.gpus", "state"],
        ["2", "done"],
        ["3", "done"],
    ]


def test_a_dask_cluster_predicts_the_same(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    scenario, vary = (
        load_scenario("demo", [*SMALL, "cluster.gpus=2"]),
        {"method.name": ["vanilla", "pipegcn", "digest"]},
    )
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        there = sweep(scenario, vary, results=tmp_path / "dask.sqlite", dask=cluster.scheduler_address)
    assert there == sweep(scenario, vary, jobs=1)
    assert len(there.done) == 3


def test_a_dask_address_where_nobody_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("halocast.study.pool.DASK_TIMEOUT_S", 0.3)
    with pytest.raises(Exception, match="no Dask scheduler answers there"):
        sweep(load_scenario("demo"), {"run.seed": [1]}, dask="tcp://127.0.0.1:1")
