"""`halocast validate` as a user meets it: rows, resuming, failures in their row, one file with both timelines."""

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import profiles
import pytest

from halocast.base.errors import RunError
from halocast.calibrate.measure.pace import Machine
from halocast.cli import run
from halocast.cluster.catalogue import Cluster
from halocast.exec.launch.emulate import can_emulate
from halocast.schedule.trace import Trace, load_trace
from halocast.sim.engine import simulate
from halocast.sim.lower import lower
from halocast.study import validate
from halocast.study.codes import scenario_code
from halocast.study.validate import Case, ValidationGrid
from halocast.study.workload import Workload

SMALL = ["--set", "graph.nodes=300", "--set", "graph.degree=6", "--set", "model.hidden=8"]
ONE = ["--ranks", "2", "--models", "sage", "--graphs", "sparse", "--rounds", "1", "--epochs", "4", *SMALL]


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does."""
    monkeypatch.setattr(validate, "Machine", lambda: Machine(reference=lambda: 1.0))


def said(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert run(("validate", *args, "--json")) == 0
    return json.loads(capsys.readouterr().out)


def pretend(calls: list[str]) -> Any:
    """A run that is a simulation: the comparison is then exact."""

    def train(workload: Workload, cluster: Cluster) -> Trace:
        calls.append(workload.scenario.method.name)
        if calls[-1] == "bns":
            raise RunError("rank 1 ended with exit code 9")
        code = scenario_code(workload.scenario)
        lowered = lower(workload.schedule, code, workload.spec)
        trace = simulate(lowered, cluster, workload.scenario.run.epochs, code=code)
        return Trace(source="executed", num_ranks=2, num_epochs=trace.num_epochs, spans=trace.spans)

    return train


def test_a_real_run_is_compared_kept_and_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--links", "own", "--methods", "vanilla", *ONE, "--out", str(tmp_path / "v")]
    first = said(capsys, *args, "--trace", str(tmp_path / "both.json"))
    (row,) = first["rows"]
    assert row["measured_epoch_s"] > 0
    assert row["predicted_bytes_total"] == row["measured_bytes_total"] > 0
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"rank 0 (vanilla, predicted)", "rank 1 (vanilla, measured)"} <= names
    (kept,) = (tmp_path / "v" / "runs").rglob("*.parquet")
    before = kept.stat().st_mtime_ns
    again = said(capsys, *args)
    assert again["rows"] == first["rows"]
    assert kept.stat().st_mtime_ns == before


def test_methods_take_turns_and_a_failure_is_told_in_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(validate, "train_on", pretend(calls))
    args = ["--links", "own", "--methods", "vanilla,bns,digest", *ONE, "--rounds", "2", "--out", str(tmp_path / "v")]
    found = said(capsys, *args)
    assert calls == ["vanilla", "bns", "digest", "vanilla", "digest"]
    assert [row["reason"] for row in found["rows"]] == ["", "rank 1 ended with exit code 9", ""]
    errors = [row["error"] for row in found["rows"]]
    assert errors == [pytest.approx(0, abs=1e-9), None, pytest.approx(0, abs=1e-9)]
    assert found["summary"]["compared"] == 2
    calls.clear()
    said(capsys, *args)
    assert calls == ["bns"]  # what failed is tried again, what is done is not
    calls.clear()
    said(capsys, *args, "--fresh")
    assert calls == ["vanilla", "bns", "digest", "vanilla", "digest"]


def test_other_settings_are_run_anew_and_a_damaged_file_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(validate, "train_on", pretend(calls))
    args = ["--links", "own", "--methods", "vanilla", *ONE, "--out", str(tmp_path / "v")]
    said(capsys, *args)
    said(capsys, *args, "--set", "run.seed=5")
    assert calls == ["vanilla", "vanilla"]
    (kept,) = (tmp_path / "v" / "runs").rglob("*.parquet")
    assert load_trace(kept).meta["case"] == "own_x2_sage_sparse_vanilla"
    kept.write_bytes(b"half a file")
    said(capsys, *args)
    assert len(calls) == 3


def test_a_scenario_that_cannot_be_made_is_told_in_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "train_on", pretend([]))
    places = ["--links", "own", "--methods", "vanilla", *ONE, "--graphs", "sparse,no-such-graph"]
    found = said(capsys, *places, "--out", str(tmp_path / "v"))
    assert found["rows"][0]["reason"] == ""
    assert "no-such-graph" in found["rows"][1]["reason"]


@pytest.mark.parametrize(
    ("host", "used", "told"),
    [
        (socket.gethostname(), "profile.toml (2026-01-02 03:04 UTC, {host})", "profile: profile.toml"),
        ("elsewhere", None, "profile.toml: measured on elsewhere, not here"),
    ],
)
def test_a_profile_that_calibrate_has_left_here_is_used_if_it_is_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: str, used: str, told: str
) -> None:
    monkeypatch.setattr(validate, "train_on", pretend([]))
    monkeypatch.chdir(tmp_path)
    table = profiles.profile_table()
    profiles.write(tmp_path / "profile.toml", replace(table, made=replace(table.made, host=host)))
    assert run(("validate", "--links", "own", "--methods", "vanilla", *ONE, "--out", "v", "--json")) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["summary"]["profile"] == (used and used.format(host=host))
    assert told in captured.err


def test_the_table_ends_with_what_it_comes_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "train_on", pretend([]))
    assert run(("validate", "--links", "own", "--methods", "vanilla", *ONE, "--out", str(tmp_path / "v"))) == 0
    out = capsys.readouterr().out
    assert "1 of 1 scenarios were compared." in out
    assert "mean 0.0% (aim 8%)" in out
    assert "run `halocast calibrate` and then this again" in out
    assert (tmp_path / "v" / "validate.md").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--methods", "vanila"], "vanila"),
        (["--epochs", "1"], "--epochs 1"),
        (["--rounds", "0"], "--rounds 0"),
        (["--trace", "both.txt"], "both.txt"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert run(("validate", *args)) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert run(("validate", "--quick", "--out", str(tmp_path))) in (1, 2)
    assert "choose another --out" in capsys.readouterr().err


def test_without_the_rights_links_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halocast.study.validate.can_emulate", lambda: "it needs root")
    assert run(("validate", "--links", "200mbit", *ONE, "--out", str(tmp_path / "v"))) == 1
    assert "--links 200mbit: it needs root; --links own" in capsys.readouterr().err


@pytest.mark.skipif(bool(can_emulate()), reason=f"no emulated hosts here: {can_emulate()}")
def test_links_between_emulated_hosts_are_run_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--links", "1gbit,unlimited", "--methods", "vanilla", *ONE, "--out", str(tmp_path / "v")]
    found = said(capsys, *args)
    assert [row["reason"] for row in found["rows"]] == ["", ""]
    assert [row["runs"] for row in found["rows"]] == [1, 1]
    names = [path.name for path in Path("/var/run/netns").glob(f"halocast-{os.getpid()}-*")]
    assert names == []


def test_several_hosts_under_torchrun_need_no_rights_to_emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halocast.study.validate.can_emulate", lambda: "it needs root")
    case = Case(link="cpu-2x1-200mbit", ranks=2, model="sage", graph="sparse", method="vanilla")
    cell = validate.Cell(cases=[case], grid=ValidationGrid(), runs=validate.Runs(Path("none")))
    with pytest.raises(RunError, match="it needs root"):
        validate.require_runnable([cell])
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    validate.require_runnable([cell])
