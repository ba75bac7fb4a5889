"""Calibration: measure this machine, fit, say how good the fit is, and write the profile.

Kernels and messages are measured by `calibrate.measure`; here are the order of things, what is kept of an earlier run,
and the ops of real runs, which show what the executor adds to their kernels.
"""

import json
import os
import platform
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.base.records import record, require
from halocast.calibrate.constants import FitQuality, make_profile
from halocast.calibrate.points import CPU, MeasuredPoint
from halocast.calibrate.profile import Made, load_profile, write_profile
from halocast.cluster.catalogue import list_devices
from halocast.exec.launch.emulate import UNLIMITED_BYTES_PER_S, Emulation, can_emulate
from halocast.exec.launch.torchrun import is_first, under_torchrun
from halocast.reports.blame import TimeUse, account, op_seconds
from halocast.schedule.ir import COLLECTIVE, Kind
from halocast.schedule.trace import Trace
from halocast.sim.cost import footprint, num_ends
from halocast.study.run import make_job, require_torch, train
from halocast.study.scenario import load_scenario
from halocast.study.showable import Showable
from halocast.study.workload import Say, Workload, prepare, silent

USUAL = Path("profile.toml")
OnGroup = Callable[[str, list[dict[str, Any]]], None]
WARMUP = 3
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
GROUP_OF_OPS = "ops"
MOST_RANKS = 8  # processes that stream at once; hosts with more cores have more than one socket to saturate
Points = dict[str, list[MeasuredPoint]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Calibration(Showable):
    """A profile that was written, what it was made with, and how well each kind of work is predicted by it."""

    profile: Path
    points: Path  # all that was measured, a line per group
    made: Made
    rows: tuple[FitQuality, ...]

    def line(self) -> str:
        return f"{self.made.device} of {self.made.host}, {len(self.rows)} kinds of work measured: {self.profile}"

    def records(self) -> list[dict[str, Any]]:
        return [_plain(row) for row in self.rows]


def calibrate(
    out: str | Path = USUAL,
    *,
    quick: bool = False,
    fresh: bool = False,
    device: str = "auto",
    transport: str = "auto",
    name: str = "",
    num_ranks: int | None = None,
    say: Say = silent,
    tell: Say = silent,
) -> Calibration | None:
    """Measure this machine, fit, and write a profile that `cluster.profile` takes; its points are written beside it.

    `quick` measures fewer and smaller points. Groups that an earlier run has measured are kept unless `fresh`.
    `device` is cpu or cuda [cuda where there is a GPU], `transport` gloo or nccl [nccl where every rank has a GPU],
    `name` the device's in the catalogue, `num_ranks` the processes that communicate. `say` is told what is measured,
    `tell` what was kept. Under torchrun the first rank returns the calibration, the others nothing.
    """
    require_torch("calibrating")
    path = Path(out)
    require(path.suffix == ".toml", f"--out {path}: a profile is a .toml file")
    require(num_ranks is None or num_ranks >= 1, f"--ranks {num_ranks}: needs to be at least 1")
    machine = describe_machine(quick=quick, device=device, transport=transport, name=name, num_ranks=num_ranks)
    points_file = path.with_suffix(".points.jsonl")
    kept = {} if fresh else kept_groups(points_file, machine)
    if kept:
        tell(f"kept from {points_file}: {', '.join(kept)} (--fresh measures them again)")
    points = measure_groups(machine, kept, points_file, say)
    if points is None:
        return None
    table, rows = make_profile(machine, points)
    write_profile(path, table)
    return Calibration(profile=path, points=points_file, made=machine, rows=tuple(rows))


def machine_profile(given: Path | None, tell: Say = silent) -> Path | None:
    """The profile that this machine is predicted with: the given one, or the one that calibrating has left here."""
    if given is not None or not USUAL.exists():
        return given
    profile = load_profile(USUAL)
    host = profile.table.made.host
    if host != socket.gethostname():
        tell(f"{USUAL}: measured on {host}, not here, so it is not used (--profile {USUAL} uses it)")
        return None
    tell(f"profile: {profile.source}; --profile takes another")
    return USUAL


def describe_machine(
    *, quick: bool = False, device: str = "auto", transport: str = "auto", name: str = "", num_ranks: int | None = None
) -> Made:
    """The circumstances of a calibration: what is measured, where and with which software."""
    from halocast.calibrate.measure.choice import choose  # torch

    chosen = choose(device, transport, num_ranks, MOST_RANKS)
    called = name or _catalogue_name(chosen.hardware, chosen.device)
    return Made(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        host=socket.gethostname(),
        device=called,
        hardware=chosen.hardware,
        cores=len(os.sched_getaffinity(0)),
        threads=1,
        backend=chosen.backend,
        ranks=chosen.num_ranks,
        quick=quick,
        versions={
            "halocast": metadata.version("halocast"),
            "python": platform.python_version(),
            "torch": chosen.torch,
            "aggregation": chosen.kernel,
        },
        last_cache_bytes=last_cache_bytes() if called == CPU else 0,
    )


def last_cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache of a core, as Linux tells it; 0 where it does not."""
    sizes = [path.read_text(encoding="utf-8").strip() for path in caches.glob("index*/size")]
    return max((int(size[:-1]) * UNITS[size[-1]] for size in sizes if size[-1:] in UNITS), default=0)


def _catalogue_name(hardware: str, device: str) -> str:
    """The device's name in the catalogue: cpu, or the longest one all of whose words are in the GPU's own."""
    if device == CPU:
        return CPU
    plain = "".join(letter for letter in hardware.lower() if letter.isalnum())
    names = [name for name in list_devices() if all(word in plain for word in name.split("-"))]
    if not names:
        raise InputError(
            f"no device of the catalogue is a {hardware!r}: say which with --name ({', '.join(list_devices())})"
        )
    return max(names, key=len)


def kept_groups(path: Path, machine: Made) -> Points:
    """The groups of an earlier run on this machine with the same choices and software."""
    if not path.exists():
        return {}
    lines = list(_lines(path))
    if not lines or lines[0].get("identity") != _identity(machine):
        return {}
    return {line["group"]: [_point(one) for one in line["points"]] for line in lines[1:]}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The tables of a JSON-lines file that was perhaps cut off in its last line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _identity(machine: Made) -> dict[str, Any]:
    return {key: value for key, value in asdict(machine).items() if key != "date"}


def _point(table: dict[str, Any]) -> MeasuredPoint:
    return record(MeasuredPoint, table, "points")


def measure_groups(machine: Made, kept: Points, path: Path, say: Say) -> list[MeasuredPoint] | None:
    """Measure the groups that are not kept; return all points, or None on ranks under torchrun that are not the first.
    Every finished group is in the file at once."""
    measured: Points = dict(kept)

    def keep(group: str, points: list[dict[str, Any]]) -> None:
        measured[group] = [_point(one) for one in points]
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"group": group, "points": points}) + "\n")

    if is_first():
        begin_points(path, machine, kept)
    _measure(machine, tuple(kept), keep, say)
    if not is_first():
        return None
    if GROUP_OF_OPS not in measured:
        keep(GROUP_OF_OPS, list(executed_ops(machine, say)))
    return [point for points in measured.values() for point in points]


def begin_points(path: Path, machine: Made, kept: Points) -> None:
    """Begin the file of points with the groups that are kept, whole lines only; finished ones are added to it."""
    lines: list[dict[str, Any]] = [{"identity": _identity(machine)}]
    lines += [{"group": group, "points": [asdict(point) for point in points]} for group, points in kept.items()]
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _plain(row: FitQuality) -> dict[str, Any]:
    worst = None if row.worst is None else {"dims": row.worst.point.dims, "error": row.worst.error}
    return {
        "what": row.what,
        "num_points": row.num_points,
        "num_held_out": row.num_held_out,
        "median_error": row.median_error,
        "p90_error": row.p90_error,
        "worst": worst,
    }


def _measure(machine: Made, done: tuple[str, ...], on_group: OnGroup, say: Say) -> None:
    """Measure the groups that are not done yet; between emulated hosts, too, where this machine may have some."""
    from halocast.calibrate.measure.machine import HOSTS, OWN, Wanted, measure_here, measure_rank  # torch

    wanted = Wanted(
        num_ranks=machine.ranks,
        backend=machine.backend,
        device="cpu" if machine.device == CPU else "cuda",
        quick=machine.quick,
        groups=_left(OWN, done),
    )
    if under_torchrun():
        measure_rank(wanted, on_group, say)
        return
    measure_here(wanted, on_group, say)
    if machine.device != CPU or machine.ranks < 2:
        return
    apart = replace(wanted, groups=_left(HOSTS, done))
    if apart.groups and not can_emulate():
        with Emulation([UNLIMITED_BYTES_PER_S] * machine.ranks) as hosts:
            measure_here(apart, on_group, say, hosts)


def _left(groups: tuple[str, ...], done: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in groups if name not in done)


@dataclass(frozen=True, slots=True)
class TimedRun:
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
    TimedRun("sage", 6000, 20, 64),
    TimedRun("gcn", 1500, 10, 32),
    TimedRun("sage", 1500, 10, 32),
    TimedRun("gcn", 15000, 15, 64),
    TimedRun("gcn", 8000, 16, 48, CHUNKS, alone=True),
    TimedRun("sage", 4000, 25, 32, DRAWS),
    TimedRun("gcn", 9000, 15, 64, DRAWS),
    TimedRun("gat", 6000, 20, 64),
    TimedRun("gcnii", 6000, 20, 64),
    TimedRun("sage", 20000, 20, 128),
    TimedRun("sage", 3000, 60, 32, CHUNKS, alone=True),
    TimedRun("gcn", 4000, 60, 96),
)
QUICK_SAMPLES = 7
# Ranks that hardly ever wait for each other, two on each core.
IN_TURNS = tuple(
    TimedRun(model, nodes, degree, 64, ("method.name=digest", "method.interval=1000"))
    for model, nodes, degree in (("sage", 4000, 12), ("gcn", 1500, 60), ("gcn", 6000, 15))
)
MOST_CORES = 8  # for whose double number of ranks there is memory
TIMED = {
    Kind.COMPUTE: "executed",
    Kind.SAMPLE: "executed",
    Kind.EXCHANGE: "executed_exchange",
    Kind.ALLREDUCE: "executed_allreduce",
}


def executed_ops(machine: Made, say: Say) -> Iterator[dict[str, Any]]:
    """The ops of real runs, with their kernels; the executor itself is what is timed."""
    from halocast.calibrate.measure.choice import num_gpus  # torch

    on_cpu = machine.device == CPU
    num_here = len(os.sched_getaffinity(0)) if on_cpu else num_gpus()  # else ranks would share one
    for sample in SAMPLES[: QUICK_SAMPLES if machine.quick else None]:
        ranks = 1 if sample.alone else min(2, machine.ranks, num_here)
        workload = _workload(machine, sample, ranks, say)
        yield from _op_points(workload, sample.model, machine.backend if ranks > 1 else "gloo")
    if on_cpu and machine.cores <= MOST_CORES:
        for sample in IN_TURNS:
            yield _in_turns(_workload(machine, sample, 2 * machine.cores, say), machine.cores)


def _workload(machine: Made, sample: TimedRun, ranks: int, say: Say) -> Workload:
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
        f"run.epochs={8 if machine.quick else 12}",
        "cluster.name=cpu-local",
        f"cluster.gpus={ranks}",
        f"run.device={'cpu' if machine.device == CPU else 'cuda'}",
    ]
    return prepare(load_scenario("demo", chosen), ranks, data=True)


def _in_turns(workload: Workload, cores: int) -> dict[str, Any]:
    """A point of ranks that take turns on cores: an epoch without bytes that move, and the kernels of all their ops."""
    trace, schedule = _trace(workload, "gloo"), workload.schedule
    parts = account(trace, schedule, WARMUP)
    ops = [op for op in schedule.ops if op.kind is Kind.COMPUTE]
    return {
        "group": "ops",
        "kind": "executed_in_turns",
        "dims": [len(ops)],
        "seconds": sum(seconds for (_, part), seconds in parts.items() if part is not TimeUse.MOVES),
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
    return train(workload, make_job(workload, backend)).trace


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
