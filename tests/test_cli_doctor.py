"""What the doctor finds, and what it makes of it."""

import json
import os
import socket
import threading
from typing import Any

import pytest
from typer.testing import CliRunner

from halocast.cli import doctor
from halocast.cli.app import app
from halocast.cli.doctor import Finding, judge

NAMES = ["python", "cores", "memory", "torch", "cuda", "nccl", "gloo", "dgl", "metis"]
NAMES += ["redis", "redis-server", "namespaces", "chromium", "dask"]


def machine(*have: str) -> dict[str, Finding]:
    return {name: Finding(name, name in have, "4 usable" if name == "cores" else f"about {name}") for name in NAMES}


def how(*have: str) -> dict[str, tuple[bool, str]]:
    return {verdict.command: (verdict.works, verdict.how) for verdict in judge(machine(*have))}


def test_every_finding_and_every_command_is_one_line_and_the_json_says_the_same() -> None:
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    told = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert list(told["machine"]) == NAMES
    assert len(lines) == len(told["machine"]) + 1 + len(told["commands"])
    assert told["machine"]["cores"]["value"].startswith(str(len(os.sched_getaffinity(0))))
    for line, (name, finding) in zip(lines, told["machine"].items(), strict=False):
        assert line.split()[:2] == ["yes" if finding["have"] else "no", name]
    named = " ".join(told["commands"])
    for command in ("simulate", "compare", "run", "calibrate", "validate", "published", "sweep"):
        assert command in named


def test_what_a_bare_machine_can_do() -> None:
    verdicts = how("python", "cores", "memory")
    assert verdicts["simulate, compare"] == (True, "any described cluster; graphs can only be partitioned at random")
    assert not verdicts["run"][0]
    assert not verdicts["calibrate"][0]
    assert verdicts["run --emulate"] == (False, "about namespaces")


def test_gpus_change_what_is_measured_and_how_runs_go() -> None:
    plain = ("python", "cores", "memory", "torch", "gloo", "metis", "dgl")
    assert how(*plain)["calibrate"][1].startswith("measures one core, and gloo")
    assert how(*plain, "cuda")["calibrate"][1].startswith("measures the GPU;")
    assert how(*plain, "cuda", "nccl")["calibrate"][1].startswith("measures the GPUs, and nccl between them")
    assert how(*plain, "cuda", "nccl")["run"][1].startswith("on GPUs with nccl")
    assert "staged through pinned memory" in how(*plain, "cuda")["run"][1]
    assert how(*plain)["validate"][1].startswith("this machine's own links only (--links own)")
    assert how(*plain, "namespaces")["validate"][1] == "emulated links; more than 4 ranks share cores"


@pytest.mark.parametrize(("answer", "is_redis"), [(b"+PONG\r\n", True), (b"-NOAUTH\r\n", True), (b"HTTP/1.1", False)])
def test_a_redis_server_is_one_that_answers_like_one(answer: bytes, is_redis: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(16)
                connection.sendall(answer)

        thread, port = threading.Thread(target=serve), server.getsockname()[1]
        thread.start()
        assert doctor._answers("127.0.0.1", port) is is_redis
        thread.join()
    assert not doctor._answers("127.0.0.1", port)


def test_a_package_that_is_missing_says_what_that_means(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        return None

    monkeypatch.setattr("halocast.cli.doctor.util.find_spec", find)
    assert doctor._metis() == Finding("metis", False, "not installed: only random partitions")
    assert doctor._redis_client() == Finding("redis", False, "not installed (pip install 'halocast[redis]')")
