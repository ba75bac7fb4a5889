"""`halocast validate` under torchrun: its ranks run the scenarios, the first one compares and prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from halocast.exec.launch.emulate import Emulation, can_emulate

BIN = Path(sys.executable).parent
SMALL = ["--set", "graph.nodes=300", "--set", "graph.degree=6", "--set", "model.hidden=8"]
ONE = ["--models", "sage", "--graphs", "sparse", "--rounds", "1", "--epochs", "4", *SMALL]
WHY_NOT = can_emulate()


def command(*args: str, torchrun: tuple[str, ...] = ("--nproc-per-node", "2")) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", *torchrun, "--no-python"]
    return [*launcher, str(BIN / "halocast"), "validate", *args, *ONE]


def started(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command(*args), capture_output=True, text=True, check=False, timeout=180, env=environment)


def test_its_ranks_run_every_scenario_and_the_first_compares(tmp_path: Path) -> None:
    out = tmp_path / "v"
    done = started("--methods", "vanilla,digest", "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["method"], row["link"], row["ranks"], row["reason"]) for row in rows] == [
        ("vanilla", "own", 2, ""),
        ("digest", "own", 2, ""),
    ]
    assert all(row["measured_epoch_s"] > 0 for row in rows)
    assert all(row["predicted_bytes_total"] == row["measured_bytes_total"] > 0 for row in rows)
    kept = sorted(path.name for path in (out / "runs").iterdir())
    assert kept == ["own_x2_sage_sparse_digest", "own_x2_sage_sparse_vanilla"]  # and no job is left behind


def test_a_run_that_fails_is_a_row_with_the_failing_ranks_reason(tmp_path: Path) -> None:
    broken = ["--set", "run.store=redis://127.0.0.1:1/0"]  # nobody listens there
    done = started("--methods", "digest,vanilla", *broken, "--out", str(tmp_path / "v"), "--json")
    assert done.returncode == 0, done.stderr
    failed, fine = json.loads(done.stdout)["rows"]
    assert "redis://127.0.0.1:1/0" in failed["reason"]
    assert fine["measured_epoch_s"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ranks", "4"], "--ranks 4: torchrun has started 2, and all of them run"),
        (["--links", "200mbit"], "--links 200mbit: under torchrun nothing is emulated"),
    ],
)
def test_what_torchrun_cannot_do_is_refused_in_one_line(tmp_path: Path, args: list[str], message: str) -> None:
    done = started("--methods", "vanilla", *args, "--out", str(tmp_path / "v"))
    assert done.returncode != 0
    assert done.stderr.count(f"error: {message}") == 1


@pytest.mark.skipif(WHY_NOT != "", reason=f"no emulated hosts here: {WHY_NOT}")
def test_hosts_that_share_a_directory_run_together(tmp_path: Path) -> None:
    """Two namespaces stand for two hosts; a store in the memory of one of them is refused in its row."""
    args = ["--methods", "vanilla,digest", "--links", "cpu-2x1-200mbit", "--out", str(tmp_path / "v"), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    with Emulation((12.5e9, 12.5e9)) as hosts:
        running = []
        for rank, host in enumerate(hosts):
            place = ("--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank))
            first = ("--master-addr", hosts[0].address, "--master-port", "29400")
            inside = ["ip", "netns", "exec", host.namespace, *command(*args, torchrun=(*place, *first))]
            running.append(
                subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            )
        said = [process.communicate(timeout=180) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    ran, refused = json.loads(said[0][0])["rows"]
    assert ran["measured_epoch_s"] > 0
    assert refused["reason"].startswith("rows are kept in the memory of one host")
    assert said[1][0] == ""
