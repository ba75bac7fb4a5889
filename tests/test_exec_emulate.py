"""Emulated hosts: links no faster than their rate, numbers as without them, nothing left behind however a run ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from training import metis_parts, schedule_for, small_graph, spec_for

from halocast.base.errors import RunError
from halocast.cli import run
from halocast.cluster.catalogue import Per, load_cluster
from halocast.exec.launch.emulate import INTERFACE, NAMESPACES, Emulation, Host, can_emulate
from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import execute
from halocast.graph import Part, build_parts
from halocast.study.run import machine, nic_rates

WHY_NOT = can_emulate()
needs_rights = pytest.mark.skipif(WHY_NOT != "", reason=f"no emulated hosts here: {WHY_NOT}")

SLOW, FAST = 25e6, 1.25e9  # 200 Mbit/s, 10 Gbit/s
SMALL = ["--set", "cluster.name=cpu-2x1-200mbit", "--set", "graph.nodes=400", "--set", "model.hidden=16"]
ENDLESS = [str(Path(sys.executable).parent / "halocast"), "run", *SMALL, "--emulate", "--set", "run.epochs=1000000"]

# Rank 1 asks, rank 0 answers with 8 MB, and then the other way round; prints the seconds of the answer it received.
# The clock starts before the question leaves, so no byte of the answer is on its way yet.
ASK = """
import os, sys, time
import torch, torch.distributed as dist
from halocast.exec.launch.emulate import Host, enter

rank = int(os.environ["RANK"])
enter(Host(sys.argv[1], ""))
dist.init_process_group("gloo")
question, answer = torch.zeros(1), torch.ones(2_000_000)
for asker in (1, 0):
    if rank == asker:
        start = time.perf_counter()
        dist.send(question, 1 - rank)
        dist.recv(answer, 1 - rank)
        print(time.perf_counter() - start)
    else:
        dist.recv(question, 1 - rank)
        dist.send(answer, 1 - rank)
dist.barrier()
"""
HOLD = """
import time
from halocast.exec.launch.emulate import Emulation

with Emulation((1e6, 1e6)):
    print("ready", flush=True)
    time.sleep(60)
"""


def namespaces_of(pid: int) -> list[str]:
    return sorted(path.name for path in NAMESPACES.glob(f"halocast-{pid}-*"))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert namespaces_of(os.getpid()) == []


def until(done: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def processes_in(namespace: str) -> list[str]:
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return done.stdout.split()


def answers(hosts: tuple[Host, ...]) -> list[float]:
    """Seconds that ranks 0 and 1 each waited for 8 MB of the other."""
    ranks = []
    for rank, host in enumerate(hosts):
        settings = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": hosts[0].address, "MASTER_PORT": 29500}
        environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
        environment |= {"GLOO_SOCKET_IFNAME": INTERFACE}
        command = [sys.executable, "-c", ASK, host.namespace]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    return [float(rank.communicate(timeout=60)[0]) for rank in ranks]


def job_and_parts(**settings: object) -> tuple[Job, tuple[Part, ...]]:
    graph = small_graph()
    parts, spec = build_parts(graph, metis_parts(graph, 2)), spec_for(graph, dropout=0.5)
    chosen = Settings(**{"epochs": 4, "timeout_s": 60.0, "audit": True, **settings})  # type: ignore[arg-type]
    return Job(schedule=schedule_for(parts, spec, "float32"), spec=spec, settings=chosen), parts


def sent_bytes(host: Host) -> int:
    """What the host's NIC has sent, headers included."""
    command = ["ip", "-j", "-s", "-n", host.namespace, "link", "show", INTERFACE]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return int(found[0]["stats64"]["tx"]["bytes"])


@needs_rights
def test_a_slow_nic_limits_what_its_host_sends_and_what_it_receives() -> None:
    with Emulation((SLOW, FAST)) as hosts:
        for seconds in answers(hosts):
            assert seconds >= 0.9 * 8e6 / SLOW  # "not faster than its link" is what is tested; there is no upper limit


@needs_rights
def test_training_on_emulated_hosts_gives_the_same_bits_through_their_nics() -> None:
    job, parts = job_and_parts()
    expected = execute(job, parts)
    with Emulation((SLOW, SLOW)) as hosts:
        found = execute(job, parts, hosts=hosts)
        for rank, host in enumerate(hosts):
            assert sent_bytes(host) > sum(span.num_bytes for span in found.trace.spans if span.rank == rank)
    assert found.losses == expected.losses
    assert found.weight_hashes == expected.weight_hashes


@needs_rights
def test_ranks_of_one_host_share_its_namespace_and_spare_its_nic() -> None:
    job, parts = job_and_parts()
    with Emulation((SLOW,)) as (host,):
        found = execute(job, parts, hosts=(host, host))
        assert sent_bytes(host) < sum(span.num_bytes for span in found.trace.spans)
    assert len(found.losses) == 4


@needs_rights
def test_a_rank_that_fails_leaves_its_message_and_nothing_else() -> None:
    job, parts = job_and_parts()
    with pytest.raises(RunError, match=r"rank 1: .*part-1\.npz"), Emulation((SLOW, SLOW)) as hosts:
        execute(job, parts[:1], hosts=hosts)


@needs_rights
def test_a_rate_that_tc_refuses_is_told_with_the_command_and_leaves_nothing() -> None:
    with pytest.raises(RunError, match=r"`tc -n halocast-\S+-1 qdisc add dev eth0 root tbf .*` failed: \S"):
        Emulation((SLOW, 0.0)).__enter__()


@needs_rights
def test_ctrl_c_while_hosts_are_being_made_leaves_none() -> None:
    process = subprocess.Popen(ENDLESS, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: namespaces_of(process.pid), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.endswith("error: interrupted\n")
    assert namespaces_of(process.pid) == []


@needs_rights
def test_a_second_run_works_beside_a_first_which_a_signal_then_ends_without_traces() -> None:
    process = subprocess.Popen(ENDLESS, stderr=subprocess.PIPE, text=True)
    until(lambda: len(namespaces_of(process.pid)) == 3, process)
    first = namespaces_of(process.pid)
    until(lambda: len([name for name in first if processes_in(name)]) == 2, process)  # not the bridge's
    job, parts = job_and_parts()
    with Emulation((SLOW, SLOW)) as hosts:
        assert len(execute(job, parts, hosts=hosts).losses) == 4
    assert process.poll() is None
    assert namespaces_of(process.pid) == first
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert namespaces_of(process.pid) == []


@needs_rights
def test_the_next_run_removes_what_a_killed_one_left_and_nothing_of_the_living() -> None:
    command = [sys.executable, "-c", HOLD]
    killed, alive = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    for process in (killed, alive):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    killed.kill()
    killed.communicate()
    assert len(namespaces_of(killed.pid)) == 3
    with Emulation((SLOW,)):
        assert namespaces_of(killed.pid) == []
        assert len(namespaces_of(alive.pid)) == 3
    alive.send_signal(signal.SIGINT)
    alive.communicate(timeout=60)
    assert namespaces_of(alive.pid) == []


@needs_rights
def test_run_emulates_the_hosts_of_its_cluster_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "demo", "--emulate", *SMALL, "--set", "run.epochs=4", "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert found["cluster"] == "this machine, 2 emulated hosts at 0.2 Gbit/s"
    assert (found["ranks"], found["transport"], len(found["loss"])) == (2, "gloo", 4)
    assert "emulated is the rate of every host's NIC, not latency" in out.err


def test_a_host_with_a_nic_per_device_has_the_rate_of_all_of_them() -> None:
    cluster = load_cluster("mixed-4-hosts-leaf-spine")  # 4, 4, 2 and 2 devices, 100 Gbit/s
    assert cluster.nic is not None
    each = replace(cluster, nic=replace(cluster.nic, per=Per.DEVICE))
    assert nic_rates(cluster) == (12.5e9, 12.5e9, 12.5e9, 12.5e9)
    assert nic_rates(each) == (50e9, 50e9, 25e9, 25e9)
    assert machine(each) == "this machine, 4 emulated hosts at 400 or 200 Gbit/s"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 1, "cluster rtx2080ti-x10-pcie3 has its first 2 ranks on one host"),
        ([*SMALL, "--set", "cluster.gpus=1"], 1, "cluster cpu-2x1-200mbit has its first rank on one host"),
        ([*SMALL, "--ranks", "3"], 2, "--ranks 3: --emulate runs all 2 ranks of the cluster"),
        ([*SMALL, "--prepare", "job"], 2, "--prepare: torchrun starts the job"),
        (["--set", "cluster.name=l4-8x1-25gbe", "--set", "cluster.transport=nccl"], 2, "are joined by gloo"),
    ],
)
def test_what_cannot_be_emulated_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], args: list[str], code: int, message: str
) -> None:
    assert run(["run", "--emulate", *args]) == code
    out = capsys.readouterr()
    assert (out.out, out.err.count("\n")) == ("", 1)
    assert message in out.err


@needs_rights
def test_without_iproute2_the_missing_command_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(["run", "--emulate", *SMALL]) == 1
    assert capsys.readouterr().err == "error: --emulate: the command `ip` is not here (install iproute2)\n"


@needs_rights
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv takes the rights away")
def test_without_the_rights_they_are_named() -> None:
    ask = [sys.executable, "-c", "from halocast.exec.launch.emulate import can_emulate; print(can_emulate())"]
    done = subprocess.run(["setpriv", "--bounding-set", "-net_admin", *ask], capture_output=True, text=True, check=True)
    assert done.stdout == "it needs root (CAP_NET_ADMIN missing)\n"
