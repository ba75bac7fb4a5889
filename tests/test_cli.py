"""The command line as a user meets it: tables, JSON, and one clear line for every mistake."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schedules import PROMISED

from halocast.cli import run
from halocast.methods import METHODS

SMALL = ["--set", "graph.nodes=400", "--set", "graph.degree=8", "--set", "model.hidden=16", "--set", "run.epochs=6"]
TINY = ["--set", "graph.nodes=5", "--set", "graph.degree=2", "--set", "graph.classes=2"]


def said(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert run(args) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line a failing command leaves on stderr; nothing on stdout."""
    assert run(args) in (1, 2)
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("error: ")
    assert out.err.count("\n") == 1
    return out.err


def test_simulate_prints_the_promised_object(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "simulate", *SMALL, "--json")
    assert set(found) >= PROMISED
    assert found["method"] == "vanilla"
    assert found["epoch_s"] > found["compute_s"] > 0
    assert found["bytes_total"] == sum(found["bytes_per_epoch_by_op"].values())
    assert [row["ages"] for row in found["staleness"]] == [[0]] * 5


def test_run_prints_the_same_object_and_what_was_learnt(capsys: pytest.CaptureFixture[str]) -> None:
    predicted = said(capsys, "simulate", *SMALL, "--json")
    found = said(capsys, "run", *SMALL, "--ranks", "2", "--json")
    assert set(found) >= PROMISED
    assert found["bytes_per_epoch_by_op"] == predicted["bytes_per_epoch_by_op"]
    assert found["staleness"] == predicted["staleness"]
    assert len(found["loss"]) == len(found["accuracy"]) == found["epochs"] == 6
    assert found["loss"][-1] < found["loss"][0]
    assert set(found["accuracy"][0]) == set(found["final_accuracy"]) == {"train", "val", "test"}


def test_run_can_evaluate_exactly_on_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "run", *SMALL, "--ranks", "2", "--set", "run.eval_every=2", "--json")
    assert sorted(map(int, found["evaluated"])) == [1, 3, 5]


def test_a_card_is_enough_to_simulate_a_graph_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--set", "graph.dataset=reddit", "--set", "cluster.gpus=8", "--set", "model.precompute=true"]
    found = said(capsys, "simulate", *args, "--json")
    assert (found["ranks"], found["sizes"]) == (8, "from card")
    assert found["bytes_per_epoch_by_op"]["exchange.1"] == 607_000 * 128 * 4


def test_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:4] == ["method", "kind", "how", "on"]
    assert "fits" in out


def test_compare_writes_a_report_and_says_where(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    methods = ["--methods", "vanilla,pipegcn-gf", "--scaling", "0"]
    assert run(["compare", *SMALL, *methods, "--execute", "--out", str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    assert f"report: {tmp_path / 'r' / 'report.html'}" in out
    rows = json.loads((tmp_path / "r" / "results.json").read_text())
    assert [(row["method"], row["source"], row["cluster"]) for row in rows] == [
        (method, source, cluster)
        for method in ("vanilla", "pipegcn-gf")
        for source, cluster in (
            ("simulated", "rtx2080ti-x10-pcie3"),
            ("simulated", "cpu-local"),
            ("executed", "this machine"),
        )
    ]
    # the scenario in the report is complete: it reproduces the prediction
    again = said(capsys, "simulate", str(tmp_path / "r" / "scenario.toml"), "--json")
    assert again["epoch_s"] == rows[0]["epoch_s"]


def test_traces_are_written_and_identical_from_run_to_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        assert run(["simulate", *SMALL, "--trace", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "list", "--json")
    assert found["methods"] == list(METHODS)
    assert {"vanilla", "pipegcn", "pipegcn-gf", "digest", "digest-a"} <= set(METHODS)
    assert {"rtx2080ti-x10-pcie3", "a5000-2x4-pcie4-ib200"} <= set(found["clusters"])
    assert {"reddit", "ogbn-papers100M"} <= set(found["datasets"])
    assert {"a100-80", "cpu", "mi60"} <= set(found["devices"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["cluster", "t4-3x2-15gbe"], ["6 × t4", "gloo"]),
        (["device", "a5000"], ["a5000", "memory_bytes"]),
        (["dataset", "reddit"], ["232965"]),
        (["schedule", "demo", *SMALL], ["schedule ranks=2", "op 1 halo exchange exchange.2"]),
        (["staleness", "demo", *SMALL], ["forward.1 reads halo.1: [0] epochs old"]),
        (["memory", "demo", *SMALL], ["rank 1:"]),
        (["scenario"], ["[cluster]", 'name = "rtx2080ti-x10-pcie3"']),
    ],
)
def test_show_describes_one_thing(capsys: pytest.CaptureFixture[str], args: list[str], words: list[str]) -> None:
    assert run(["show", *args]) == 0
    out = capsys.readouterr().out
    for word in words:
        assert word in out


def test_a_job_for_torchrun_is_prepared_with_its_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["run", *SMALL, "--ranks", "2", "--prepare", str(tmp_path / "job")]) == 0
    assert capsys.readouterr().out.startswith("torchrun --nproc-per-node 2 -m halocast.exec.worker ")
    names = {path.name for path in (tmp_path / "job").iterdir()}
    assert names == {"schedule.txt", "job.json", "part-0.npz", "part-1.npz"}


MISTAKES = {
    "no such command": (["simulat"], "No such command 'simulat'"),
    "no such option": (["simulate", "--jsno"], "No such option"),
    "missing scenario": (["simulate", "nowhere.toml"], "no such file: nowhere.toml (embedded scenarios: demo, "),
    "unknown section": (["simulate", "--set", "grap.nodes=3"], "unknown section 'grap'; did you mean 'graph'?"),
    "unknown key": (["simulate", "--set", "graph.node=3"], "unknown key 'node'; did you mean 'nodes'?"),
    "no key": (["simulate", "--set", "graph=3"], "expected section.key=value"),
    "wrong type": (["simulate", "--set", "model.hidden=wide"], "hidden: expected a whole number, got 'wide'"),
    "fraction for a count": (["simulate", "--set", "model.layers=2.5"], "layers: expected a whole number, got 2.5"),
    "unknown model": (["simulate", "--set", "model.kind=sago"], "unknown value 'sago'; did you mean 'sage'?"),
    "unknown method": (["simulate", "--set", "method.name=vanila"], "unknown method 'vanila'; did you mean 'vanilla'?"),
    "an option of no method": (["simulate", "--set", "method.p=0.1"], "unknown key 'p'"),
    "unknown cluster": (["simulate", "--set", "cluster.name=rtx"], "unknown cluster 'rtx'"),
    "unknown transport": (["simulate", "--set", "cluster.transport=mpi"], "unknown transport 'mpi'"),
    "too many GPUs": (["simulate", "--set", "cluster.gpus=99"], "gpus = 99"),
    "no GPUs": (["simulate", "--set", "cluster.gpus=0"], "gpus = 0: needs to be at least 1"),
    "unknown dataset": (["simulate", "--set", "graph.dataset=redit"], "did you mean 'reddit'?"),
    "no card": (["simulate", "--set", "graph.dataset=ppi", "--set", "graph.source=card"], "unknown card 'ppi'"),
    "more parts than nodes": (["simulate", *TINY, "--set", "cluster.gpus=8"], "8 parts"),
    "more ranks than parts": (["run", "--ranks", "4", "--set", "graph.parts=2"], "4 ranks but graph.parts = 2"),
    "more parts than ranks": (["run", "--ranks", "2", "--set", "graph.parts=4"], "graph.parts = 4 but 2 ranks"),
    "no ranks": (["run", "--ranks", "0"], "--ranks 0: needs to be at least 1"),
    "bad precision": (["run", "--set", "run.dtype=int8"], "dtype = 'int8'"),
    "negative learning rate": (["run", "--set", "run.lr=-1"], "lr = -1"),
    "no epochs": (["run", "--set", "run.epochs=0"], "epochs = 0"),
    "too few epochs to be steady": (["simulate", *SMALL, "--epochs", "1"], "1 epochs: steady state needs more"),
    "no epochs to simulate": (["simulate", *SMALL, "--epochs", "-1"], "--epochs -1: needs to be at least 1"),
    "a port that is none": (["run", *SMALL, "--port", "70000"], "port 70000"),
    "which cluster": (["show", "cluster"], "which one?"),
    "show what": (["show", "clutser", "x"], "unknown thing to show 'clutser'; did you mean 'cluster'?"),
    "list what": (["list", "methos"], "unknown list 'methos'; did you mean 'methods'?"),
    "compare what": (["compare", "--methods", "vanilla,bsn"], "--methods: unknown method 'bsn'"),
    "wide beyond reason": (["simulate", "--set", "model.hidden=1000000000000"], "hidden = 1000000000000"),
    "more nodes than numbers": (["simulate", "--set", "graph.nodes=100000000000"], "nodes = 100000000000"),
    "no place for a trace": (["run", *SMALL, "--trace", "/nowhere/t.jsonl"], "/nowhere is not a directory"),
    "a run of a card": (["run", "--set", "graph.source=card", "--set", "graph.dataset=reddit"], "the data itself"),
    "a run of a graph that is not here": (["run", "--set", "graph.dataset=ogbn-papers100M"], "only the card is here"),
    "a job that is none": (["show", "job", "nothing"], "nothing is not a job"),
    "trace format of a run": (["run", *SMALL, "--trace", "t.xml"], "a trace file ends in .parquet or .jsonl or .json"),
    "huge number": (["simulate", "--set", "model.hidden=100000000000000000000"], "is too large"),
    "huge seed": (["simulate", "--set", "graph.seed=9999999999"], "seed = 9999999999"),
    "infinite rate": (["run", "--set", "run.lr=inf"], "expected a finite number, got inf"),
    "a run on an unknown cluster": (["run", "--set", "cluster.name=nonsense"], "unknown cluster 'nonsense'"),
    "trace format": (["simulate", *SMALL, "--trace", "t.xml"], "a trace file ends in .parquet or .jsonl or .json"),
}  # fmt: skip


@pytest.mark.parametrize(("args", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in failure(capsys, *args)
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_scenario_names_file_and_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("[graph\n")
    assert f"{path}: not valid TOML" in failure(capsys, "simulate", str(path))
    path.write_text("[graph]\nnodes = 'many'\n")
    assert f"{path} [graph].nodes: expected a whole number, got 'many'" in failure(capsys, "simulate", str(path))
    path.write_text("graph = 3\n")
    assert "graph is a section" in failure(capsys, "simulate", str(path))


def test_a_cluster_file_with_a_negative_bandwidth(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = Path(str(files("halocast.cluster.machines"))) / "t4-x8-g4dn.toml"
    lines = good.read_text().splitlines()
    place = next(k for k, line in enumerate(lines) if line.startswith("gbytes_per_s"))
    lines[place] = "gbytes_per_s = -3"
    (tmp_path / "c.toml").write_text("\n".join(lines))
    (tmp_path / "both.toml").write_text('[cluster]\nname = "t4-x8-g4dn"\nfile = "c.toml"\n')
    assert "either name or file" in failure(capsys, "simulate", str(tmp_path / "both.toml"))
    assert run(["simulate", "--set", f"cluster.file={tmp_path / 'c.toml'}"]) == 1
    assert "gbytes_per_s = -3.0: needs to be a number above 0" in capsys.readouterr().err
    scenario = tmp_path / "s.toml"
    scenario.write_text(f'[cluster]\nfile = "{tmp_path / "c.toml"}"\n')
    message = failure(capsys, "simulate", str(scenario))
    assert "gbytes_per_s" in message
    assert "-3" in message


def plain_graph(directory: Path, **changes: Any) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "edges": rng.integers(0, 50, size=(2, 200)),
        "features": rng.normal(size=(50, 4)).astype(np.float32),
        "labels": rng.integers(0, 3, size=50),
    } | changes
    directory.mkdir()
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
    return directory


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"features": np.zeros((49, 4), dtype=np.float32)}, "49"),
        ({"labels": np.zeros(51, dtype=np.int64)}, "51"),
        ({"edges": np.array([[0, 50], [1, 2]])}, "50"),
        ({"features": np.full((50, 4), np.nan, dtype=np.float32)}, "NaN"),
    ],
)
def test_a_graph_that_contradicts_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    path = plain_graph(tmp_path / "g", **changes)
    assert word.lower() in failure(capsys, "run", "--ranks", "2", "--set", f"graph.dataset={path}").lower()


def test_a_consistent_graph_of_the_same_layout_trains(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = plain_graph(tmp_path / "g")
    found = said(capsys, "run", *SMALL, "--ranks", "2", "--set", f"graph.dataset={path}", "--json")
    assert len(found["loss"]) == 6


def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} cannot be used" in failure(capsys, "run", *SMALL, "--ranks", "2", "--port", port)


def test_the_installed_command_gives_exit_codes_and_no_traceback() -> None:
    command = [str(Path(sys.executable).parent / "halocast")]
    good = subprocess.run([*command, "list", "methods"], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout) == (0, f"methods: {', '.join(METHODS)}\n")
    bad = subprocess.run([*command, "simulate", "x.toml"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout, bad.stderr) == (
        2,
        "",
        "error: no such file: x.toml (embedded scenarios: demo, products)\n",
    )


def test_without_a_command_there_is_help_and_a_version(capsys: pytest.CaptureFixture[str]) -> None:
    command = str(Path(sys.executable).parent / "halocast")
    done = subprocess.run([command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert {"simulate", "run", "compare", "list", "show"} <= set(done.stdout.split())
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == metadata.version("halocast")


def test_a_cluster_file_is_found_beside_its_scenario(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = Path(str(files("halocast.cluster.machines"))) / "t4-3x2-15gbe.toml"
    (tmp_path / "mine.toml").write_text(source.read_text())
    (tmp_path / "s.toml").write_text('[cluster]\nfile = "mine.toml"\ngpus = 4\n[graph]\nnodes = 400\ndegree = 5\n')
    monkeypatch.chdir("/")
    assert said(capsys, "simulate", str(tmp_path / "s.toml"), "--json")["cluster"] == "mine"


def test_a_loss_that_is_no_number_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", *SMALL, "--ranks", "1", "--set", "run.lr=1e30"]) == 0
    assert "warning: the loss is nan" in capsys.readouterr().err


def test_a_prepared_job_can_be_run_and_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = tmp_path / "job"
    assert run(["run", *SMALL, "--ranks", "1", "--prepare", str(job)]) == 0
    capsys.readouterr()
    assert "the job has no results yet" in failure(capsys, "show", "job", str(job))
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    done = subprocess.run(
        [*command, "-m", "halocast.exec.worker", str(job)], env=environment, capture_output=True, text=True, check=False
    )
    assert f"halocast show job {job}" in done.stdout
    assert run(["show", "job", str(job)]) == 0
    assert "executed" in capsys.readouterr().out
    assert "needs a directory of its own" in failure(capsys, "run", *SMALL, "--ranks", "1", "--prepare", str(job))


def test_a_worker_without_a_job_says_so_and_makes_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "halocast.exec.worker", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not a job" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delay_s", [0.15, 0.4, 0.8])
def test_an_interrupt_while_it_starts_is_no_traceback(delay_s: float) -> None:
    command = [str(Path(sys.executable).parent / "halocast"), "run", *SMALL, "--ranks", "2"]
    process = subprocess.Popen(
        [*command, "--set", "run.epochs=1000000"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    finally:
        with contextlib.suppress(ProcessLookupError):  # whatever went wrong, nothing trains on
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 130:
        assert stderr == "error: interrupted\n"
    else:  # before our first line, Python's own
        assert process.returncode in (1, -signal.SIGINT)
        assert "halocast.cli" not in stderr


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_no_file(tmp_path: Path, what: signal.Signals) -> None:
    command = [str(Path(sys.executable).parent / "halocast"), "run", *SMALL, "--ranks", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*command, "--set", "run.epochs=1000000"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("halocast-job-*/progress")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(what)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert stderr.endswith("error: interrupted\n")
    assert list(tmp_path.glob("halocast-job-*")) == []
