"""The side of `halocast calibrate` that needs torch: which device and transport, and the measuring itself."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from halocast.base.records import require
from halocast.calibrate.measure.machine import HOSTS, OWN, Wanted, measure_here, measure_rank
from halocast.calibrate.points import CPU
from halocast.calibrate.profile import Made
from halocast.cli.execution import make_job
from halocast.exec.launch.emulate import UNLIMITED_BYTES_PER_S, Emulation, can_emulate
from halocast.exec.launch.local import execute
from halocast.exec.launch.torchrun import num_started, under_torchrun
from halocast.graph.parts import iter_parts
from halocast.models.aggregate import kernels
from halocast.reports.blame import Part, account, op_seconds
from halocast.schedule.ir import COLLECTIVE, Kind
from halocast.schedule.trace import Trace
from halocast.sim.cost import footprint, num_ends
from halocast.study.scenario import load_scenario
from halocast.study.workload import Workload, prepare

Say = Callable[[str], None]
OnGroup = Callable[[str, list[dict[str, Any]]], None]
WARMUP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    device: str
    backend: str
    num_ranks: int
    hardware: str
    torch: str
    kernel: str


def choose(device: str, transport: str, ranks: int | None, most: int) -> Chosen:
    """A GPU where there is one, nccl where there are as many as ranks."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require(device in ("auto", "cpu", "cuda"), f"--device {device}: needs to be cpu or cuda")
    require(transport in ("auto", "gloo", "nccl"), f"--transport {transport}: needs to be gloo or nccl")
    require(device != "cuda" or gpus > 0, "--device cuda: torch sees no GPU here")
    where = ("cuda" if gpus else "cpu") if device == "auto" else device
    if under_torchrun():
        num = num_started()
        backend = ("nccl" if where == "cuda" else "gloo") if transport == "auto" else transport
    else:
        num = ranks or (min(most, gpus) if where == "cuda" else max(2, min(most, len(os.sched_getaffinity(0)))))
        backend = ("nccl" if where == "cuda" and gpus >= num else "gloo") if transport == "auto" else transport
    hardware = torch.cuda.get_device_name() if where == "cuda" else _processor()
    return Chosen(
        device=where,
        backend=backend,
        num_ranks=num,
        hardware=hardware,
        torch=torch.__version__,
        kernel=kernels()[0] if where == "cpu" else "torch",
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"


def measure(made: Made, done: tuple[str, ...], on_group: OnGroup, say: Say) -> None:
    """What is not done yet; between emulated hosts, too, where this machine may have some."""
    wanted = Wanted(
        num_ranks=made.ranks,
        backend=made.backend,
        device="cpu" if made.device == CPU else "cuda",
        quick=made.quick,
        groups=_left(OWN, done),
    )
    if under_torchrun():
        measure_rank(wanted, on_group, say)
        return
    measure_here(wanted, on_group, say)
    if made.device != CPU or made.ranks < 2:
        return
    apart = replace(wanted, groups=_left(HOSTS, done))
    if apart.groups and not can_emulate():
        with Emulation([UNLIMITED_BYTES_PER_S] * made.ranks) as hosts:
            measure_here(apart, on_group, say, hosts)


def _left(groups: tuple[str, ...], done: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in groups if name not in done)


@dataclass(frozen=True, slots=True)
class Sample:
    """A scenario whose ops are timed; lanes take turns, so that nothing else has their core. Small graphs show what
    handlers cost, large ones what caches do."""

    model: str
    nodes: int  # of each rank
    degree: int
    hidden: int
    method: tuple[str, ...] = ()
    alone: bool = False  # on one rank, however many there are


CHUNKS = ("method.name=gnnpipe", "method.chunks=6", "method.freeze=3")
DRAWS = ("method.name=bns", "method.rate=0.3")  # graphs built anew
SAMPLES = (
    Sample("sage", 6000, 20, 64),
    Sample("gcn", 1500, 10, 32),
    Sample("sage", 1500, 10, 32),
    Sample("gcn", 15000, 15, 64),
    Sample("gcn", 8000, 16, 48, CHUNKS, alone=True),
    Sample("sage", 4000, 25, 32, DRAWS),
    Sample("gcn", 9000, 15, 64, DRAWS),
    Sample("gat", 6000, 20, 64),
    Sample("gcnii", 6000, 20, 64),
    Sample("sage", 20000, 20, 128),
    Sample("sage", 3000, 60, 32, CHUNKS, alone=True),
    Sample("gcn", 4000, 60, 96),
)
QUICK_SAMPLES = 7
# Ranks that hardly ever wait for each other, two on each core.
IN_TURNS = tuple(
    Sample(model, nodes, degree, 64, ("method.name=digest", "method.interval=1000"))
    for model, nodes, degree in (("sage", 4000, 12), ("gcn", 1500, 60), ("gcn", 6000, 15))
)
MOST_CORES = 8  # for whose double number of ranks there is memory
TIMED = {
    Kind.COMPUTE: "executed",
    Kind.SAMPLE: "executed",
    Kind.EXCHANGE: "executed_exchange",
    Kind.ALLREDUCE: "executed_allreduce",
}


def executed_ops(made: Made, say: Say) -> Iterator[dict[str, Any]]:
    """The ops of real runs, with their kernels; the executor itself is what is timed."""
    on_cpu = made.device == CPU
    num_here = len(os.sched_getaffinity(0)) if on_cpu else torch.cuda.device_count()  # else ranks would share one
    for sample in SAMPLES[: QUICK_SAMPLES if made.quick else None]:
        ranks = 1 if sample.alone else min(2, made.ranks, num_here)
        workload = _workload(made, sample, ranks, say)
        yield from _op_points(workload, sample.model, made.backend if ranks > 1 else "gloo")
    if on_cpu and made.cores <= MOST_CORES:
        for sample in IN_TURNS:
            yield _in_turns(_workload(made, sample, 2 * made.cores, say), made.cores)


def _workload(made: Made, sample: Sample, ranks: int, say: Say) -> Workload:
    say(f"ops: {sample.model} on {sample.nodes:,} nodes, {ranks} rank{'s' * (ranks > 1)}")
    chosen = [
        f"graph.nodes={sample.nodes * ranks}",
        "graph.mixing=0.05",
        f"graph.degree={sample.degree}",
        "graph.features=64",
        f"model.kind={sample.model}",
        "model.layers=3",
        f"model.hidden={sample.hidden}",
        "run.threads=1",
        *sample.method,
        f"run.epochs={8 if made.quick else 12}",
        "cluster.name=cpu-local",
        f"cluster.gpus={ranks}",
        f"run.device={'cpu' if made.device == CPU else 'cuda'}",
    ]
    return prepare(load_scenario("demo", chosen), ranks, data=True)


def _in_turns(workload: Workload, cores: int) -> dict[str, Any]:
    """An epoch of ranks that take turns on cores, without bytes that move, and the kernels of all their ops."""
    trace, schedule = _trace(workload, "gloo"), workload.schedule
    parts = account(trace, schedule, WARMUP)
    ops = [op for op in schedule.ops if op.kind is Kind.COMPUTE]
    return {
        "group": "ops",
        "kind": "executed_in_turns",
        "dims": [len(ops)],
        "seconds": sum(seconds for (_, part), seconds in parts.items() if part is not Part.MOVES),
        "spread": 0.0,
        "repeats": trace.num_epochs - WARMUP,
        "note": {
            "ranks": schedule.num_ranks,
            "cores": cores,
            "footprint": footprint(schedule, 0),
            "ops": [[[kernel.kind, list(kernel.dims)] for kernel in op.work.kernels] for op in ops],
        },
    }


def _trace(workload: Workload, backend: str) -> Trace:
    assert workload.graph is not None
    assert workload.assignment is not None
    return execute(make_job(workload, backend), iter_parts(workload.graph, workload.assignment)).trace


def _op_points(workload: Workload, model: str, backend: str) -> Iterator[dict[str, Any]]:
    trace, schedule = _trace(workload, backend), workload.schedule
    seconds = op_seconds(trace, schedule, 0, WARMUP)
    whole_s = sum(sum(samples) for samples in seconds.values())
    for op in schedule.by_rank[0]:
        if op.kind not in TIMED or not seconds[op.name] or not (op.work.kernels or op.kind in COLLECTIVE):
            continue
        low, middle, high = np.quantile(seconds[op.name], [0.25, 0.5, 0.9])
        yield {
            "group": "ops",
            "kind": TIMED[op.kind],
            "dims": [len(op.work.kernels)],
            # of most, the mean: an epoch is the sum of its ops as they come, not of the fastest of each
            "seconds": float(np.mean([one for one in seconds[op.name] if one <= high])),
            "spread": round(float(middle / low - 1), 4),
            "repeats": len(seconds[op.name]),
            "note": {
                "what": f"{op.verb} ({model})",
                "op": op.name,
                "footprint": footprint(schedule, 0),
                "share": sum(seconds[op.name]) / whole_s,
                "ends": num_ends(schedule, op),
                "bytes": int(schedule.sent(op).sum()),
                "ranks": schedule.num_ranks,
                "kernels": [[kernel.kind, list(kernel.dims)] for kernel in op.work.kernels],
            },
        }
