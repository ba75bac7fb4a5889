"""Which device and transport of this machine to measure."""

import os
from dataclasses import dataclass

import torch

from halocast.base.records import require
from halocast.exec.launch.torchrun import num_here, num_started, under_torchrun
from halocast.exec.transport.device import usual_backend
from halocast.models.aggregate import kernels

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A device and a transport, what they are called, and the software that drives them."""

    device: str
    backend: str
    num_ranks: int
    hardware: str
    torch: str
    kernel: str


def num_gpus() -> int:
    """GPUs that torch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose(device: str, transport: str, num_ranks: int | None, most: int) -> Chosen:
    """A GPU where there is one, nccl where every rank has one; under torchrun, as many ranks as it has started."""
    gpus = num_gpus()
    require(device in (AUTO, "cpu", "cuda"), f"--device {device}: needs to be cpu or cuda")
    require(transport in (AUTO, "gloo", "nccl"), f"--transport {transport}: needs to be gloo or nccl")
    require(device != "cuda" or gpus > 0, "--device cuda: torch sees no GPU here")
    where = ("cuda" if gpus else "cpu") if device == AUTO else device
    if under_torchrun():
        num, here = num_started(), num_here()
    else:
        usual = min(most, gpus) if where == "cuda" else max(2, min(most, len(os.sched_getaffinity(0))))
        num = here = num_ranks or usual
    backend = (usual_backend(here) if where == "cuda" else "gloo") if transport == AUTO else transport
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
