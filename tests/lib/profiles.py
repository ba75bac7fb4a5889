"""Profiles made by hand, for tests."""

from pathlib import Path

from halocast.base.kernels import KERNEL_DIMS, KERNEL_LIKE
from halocast.calibrate.profile import FitTable, Made, MessageCosts, Overhead, ProfileTable, write_profile


def made(device: str = "cpu", ranks: int = 2) -> Made:
    return Made(
        date="2026-01-02 03:04 UTC",
        host="here",
        device=device,
        hardware='a "core"',
        cores=2,
        threads=1,
        backend="gloo",
        ranks=ranks,
        quick=False,
        versions={"torch": "2.0"},
    )


def profile_table(device: str = "cpu", launch_s: float = 1e-3, high: int = 10**9, **messages: float) -> ProfileTable:
    """Every kernel takes `launch_s`, whatever its size."""
    kinds = [kind for kind in KERNEL_DIMS if kind not in KERNEL_LIKE]
    return ProfileTable(
        made=made(device),
        kernels={
            kind: FitTable(
                seconds={"launch": launch_s},
                range=dict.fromkeys(KERNEL_DIMS[kind], (1, high)),
                num_points=4,
                num_held_out=2,
                median_error=0.05,
                p90_error=0.1,
            )
            for kind in kinds
        },
        busy={"spmm": 1.5},
        overhead=Overhead(op_s=1e-4, communication_op_s=2e-4, launch_s=1e-5),
        messages=MessageCosts(
            **({"latency_s": 5e-5, "stream_bytes_per_s": 2e9, "host_bytes_per_s": 3e9, "high_bytes": 1e9} | messages)
        ),
    )


def write(path: Path, table: ProfileTable | None = None) -> Path:
    write_profile(path, table or profile_table())
    return path
