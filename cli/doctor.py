"""`halocast doctor`: what this machine can do, and what that means for each command."""

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from typing import Annotated

import typer

from halocast.cli.output import print_json
from halocast.exec.launch.emulate import can_emulate

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
GIB = 2**30
WITHOUT_TORCH = "needs torch, which is not installed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is here or is not; `value` is for people, `have` for programs."""

    name: str
    have: bool
    value: str


@dataclass(frozen=True, slots=True)
class Verdict:
    command: str
    works: bool
    how: str


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False) -> None:
    """Say what this machine can do, and what that means for each command."""
    machine = {finding.name: finding for finding in findings()}
    verdicts = list(judge(machine))
    if json:
        print_json(
            {
                "machine": {name: {"have": finding.have, "value": finding.value} for name, finding in machine.items()},
                "commands": {verdict.command: {"works": verdict.works, "how": verdict.how} for verdict in verdicts},
            }
        )
        return
    for finding in machine.values():
        print(f"{'yes' if finding.have else 'no':4} {finding.name:12} {finding.value}")
    print()
    for verdict in verdicts:
        print(f"{'ok' if verdict.works else 'no':4} {verdict.command:20} {verdict.how}")


def findings() -> Iterator[Finding]:
    for look in (_python, _cores, _memory, _torch, _cuda, _nccl, _gloo, _dgl, _metis, _redis_client, _redis_server):
        yield look()
    for look in (_namespaces, _browser, _dask):
        yield look()


def _python() -> Finding:
    return Finding("python", sys.version_info >= (3, 11), f"{platform.python_version()} on {platform.system()}")


def _cores() -> Finding:
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    return Finding("cores", True, f"{usable} usable" + (f" of {there}" if usable != there else ""))


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("memory", True, f"{total / GIB:.1f} GiB")


def _package(name: str, distribution: str, without: str) -> Finding:
    """Find whether a package is installed, without importing it."""
    if util.find_spec(name) is None:
        return Finding(name, False, without)
    try:
        return Finding(name, True, metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return Finding(name, True, "installed")


def _torch() -> Finding:
    return _package("torch", "torch", "not installed: nothing can be run or calibrated (pip install 'halocast[run]')")


def _has_torch() -> bool:
    return util.find_spec("torch") is not None


def _cuda() -> Finding:
    if not _has_torch():
        return Finding("cuda", False, WITHOUT_TORCH)
    import torch  # seconds that only this command, and those that run, need

    if not torch.cuda.is_available():
        why = "torch was built without CUDA" if torch.version.cuda is None else "torch sees no CUDA device"
        return Finding("cuda", False, why)
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return Finding("cuda", True, f"{len(names)} devices: {', '.join(names)}; CUDA {torch.version.cuda}")


def _nccl() -> Finding:
    if not _has_torch():
        return Finding("nccl", False, WITHOUT_TORCH)
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_nccl_available()):
        return Finding("nccl", False, "torch was built without it")
    if not torch.cuda.is_available():
        return Finding("nccl", False, "built in, but needs CUDA devices")
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return Finding("nccl", True, ".".join(map(str, version)))


def _gloo() -> Finding:
    if not _has_torch():
        return Finding("gloo", False, WITHOUT_TORCH)
    import torch.distributed as dist

    have = dist.is_available() and dist.is_gloo_available()
    return Finding("gloo", have, "built into torch" if have else "torch was built without it")


def _dgl() -> Finding:
    if not _has_torch():
        return Finding("dgl", False, WITHOUT_TORCH)
    from halocast.models.aggregate import kernels

    if "dgl" in kernels():
        return Finding("dgl", True, f"{metadata.version('dgl')}: its kernels sum neighbours on the CPU")
    return Finding("dgl", False, "not usable (needs Python 3.11): torch's sparse kernels are used")


def _metis() -> Finding:
    package = _package("pymetis", "pymetis", "not installed: only random partitions")
    return Finding("metis", package.have, f"pymetis {package.value}" if package.have else package.value)


def _redis_client() -> Finding:
    package = _package("redis", "redis", "not installed (pip install 'halocast[redis]')")
    return Finding("redis", package.have, f"client {package.value}" if package.have else package.value)


def _redis_server() -> Finding:
    path = shutil.which("redis-server")
    listening = _answers("127.0.0.1", 6379)
    where = path or "no redis-server in the path"
    return Finding(
        "redis-server", path is not None or listening, where + ("; one listens on 6379" if listening else "")
    )


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=0.3) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith((b"+PONG", b"-"))
    except OSError:
        return False


def _namespaces() -> Finding:
    why = can_emulate()
    return Finding("namespaces", not why, why or "network namespaces with tc: links can be emulated")


def _browser() -> Finding:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        return Finding("chromium", False, "no browser in the path")
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return Finding("chromium", False, f"{path} does not answer")
    return Finding("chromium", True, said.strip().splitlines()[0] if said.strip() else path)


def _dask() -> Finding:
    return _package("dask", "dask", "not installed: sweeps use processes of this machine")


def judge(machine: dict[str, Finding]) -> Iterator[Verdict]:
    """Verdicts, command by command: what the findings about this machine mean."""

    def have(name: str) -> bool:
        return machine[name].have

    gpus, cores = have("cuda"), machine["cores"].value.split()[0]
    metis = "" if have("metis") else "; graphs can only be partitioned at random"
    yield Verdict("simulate, compare", True, f"any described cluster{metis}")
    yield Verdict("sweep", True, f"in processes, {cores} at a time" + ("; dask is there, too" if have("dask") else ""))
    yield Verdict("published", True, "needs nothing else")
    yield Verdict("run", have("torch") and have("gloo"), _how_to_run(machine))
    yield Verdict("run --emulate", have("namespaces"), machine["namespaces"].value)
    stores = "its store can be Redis" if have("redis") and have("redis-server") else "its store is shared memory only"
    yield Verdict("run (digest)", have("torch"), stores)
    measured = "the GPUs, and nccl between them" if have("nccl") else "the GPU" if gpus else "one core, and gloo"
    yield Verdict("calibrate", have("torch"), f"measures {measured}; profiles are for devices of that kind")
    links = "emulated links" if have("namespaces") else "this machine's own links only (--links own)"
    yield Verdict("validate", have("torch"), f"{links}; more than {cores} ranks share cores" if not gpus else links)


def _how_to_run(machine: dict[str, Finding]) -> str:
    if not machine["torch"].have:
        return machine["torch"].value
    if machine["nccl"].have:
        return "on GPUs with nccl; gloo on the CPU with --set cluster.transport=gloo"
    if machine["cuda"].have:
        return "on the CPU with gloo, or --set run.device=cuda with gloo staged through pinned memory"
    kernel = "dgl's" if machine["dgl"].have else "torch's"
    return f"on the CPU with gloo and {kernel} kernels; more ranks than cores only for correctness"
