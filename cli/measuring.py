"""The side of `halocast calibrate` that needs torch: which device and transport, and the measuring itself."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from halocast.base.records import require
from halocast.cli.execution import make_job
from halocast.exec.calibrate import Wanted, measure_here, measure_rank
from halocast.exec.launch import execute
from halocast.graph.parts import iter_parts
from halocast.models.aggregate import kernels
from halocast.plan.scenario import load_scenario
from halocast.plan.workload import Workload, prepare
from halocast.sim.cost import footprint
from halocast.sim.profile import Made

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


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first() -> bool:
    return not under_torchrun() or os.environ["RANK"] == "0"


def choose(device: str, transport: str, ranks: int | None, most: int) -> Chosen:
    """A GPU where there is one, nccl where there are as many as ranks."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    require(device in ("auto", "cpu", "cuda"), f"--device {device}: needs to be cpu or cuda")
    require(transport in ("auto", "gloo", "nccl"), f"--transport {transport}: needs to be gloo or nccl")
    require(device != "cuda" or gpus > 0, "--device cuda: torch sees no GPU here")
    where = ("cuda" if gpus else "cpu") if device == "auto" else device
    if under_torchrun():
        num = int(os.environ["WORLD_SIZE"])
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
    wanted = Wanted(
        num_ranks=made.ranks,
        backend=made.backend,
        device="cpu" if made.device == "cpu" else "cuda",
        quick=made.quick,
        done=done,
    )
    if under_torchrun():
        measure_rank(wanted, on_group, say)
    else:
        measure_here(wanted, on_group, say)


# (model, nodes, degree, hidden): ops of a small graph show what handlers cost, those of a large one what caches do.
WORKLOADS: tuple[tuple[str, int, int, int], ...] = (
    ("sage", 6000, 20, 64),
    ("gcn", 1500, 10, 32),
    ("sage", 1500, 10, 32),
    ("gcn", 20000, 12, 64),
    ("gat", 6000, 20, 64),
    ("gcnii", 6000, 20, 64),
    ("sage", 20000, 20, 128),
)
QUICK_WORKLOADS = 4


def executed_ops(made: Made, say: Say) -> Iterator[dict[str, Any]]:
    """Medians of the ops of real runs of one rank, with their kernels; the executor itself is what is timed."""
    for kind, nodes, degree, hidden in WORKLOADS[: QUICK_WORKLOADS if made.quick else None]:
        say(f"ops: {kind} on {nodes:,} nodes")
        chosen = [
            f"graph.nodes={nodes}",
            f"graph.degree={degree}",
            "graph.features=64",
            f"model.kind={kind}",
            "model.layers=3",
            f"model.hidden={hidden}",
            "run.threads=1",
            f"run.epochs={8 if made.quick else 12}",
            "cluster.name=cpu-local",
            "cluster.gpus=1",
            f"run.device={'cpu' if made.device == 'cpu' else 'cuda'}",
        ]
        workload = prepare(load_scenario("demo", chosen), 1, data=True)
        yield from _op_points(workload, kind)


def _op_points(workload: Workload, model: str) -> Iterator[dict[str, Any]]:
    assert workload.graph is not None
    assert workload.assignment is not None
    done = execute(make_job(workload, "gloo"), iter_parts(workload.graph, workload.assignment))
    seconds: dict[str, list[float]] = defaultdict(list)
    for span in done.trace.spans:
        if span.epoch >= WARMUP:
            seconds[span.op].append(span.end_s - span.start_s)
    for op in workload.schedule.by_rank[0]:
        low, middle = np.quantile(seconds[op.name], [0.25, 0.5])
        yield {
            "group": "ops",
            "kind": "executed",
            "dims": [len(op.work.kernels)],
            "seconds": float(low),
            "spread": round(float(middle / low - 1), 4),
            "repeats": len(seconds[op.name]),
            "note": {
                "what": f"{op.verb} ({model})",
                "op": op.name,
                "footprint": footprint(workload.schedule, 0),
                "kernels": [[kernel.kind, list(kernel.dims)] for kernel in op.work.kernels],
            },
        }
