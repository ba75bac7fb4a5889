"""`halocast calibrate`: measure this machine, fit, say how good the fit is, and write the profile."""

import json
import os
import platform
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.base.records import record, require
from halocast.calibrate.constants import FitQuality, make_profile
from halocast.calibrate.points import CPU, MeasuredPoint
from halocast.calibrate.profile import Made, write_profile
from halocast.cli.output import note, print_json, status
from halocast.cli.profiles import USUAL
from halocast.cluster.catalogue import list_devices
from halocast.exec.launch.torchrun import is_first

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
GROUP_OF_OPS = "ops"
MOST_RANKS = 8  # processes that stream at once; hosts with more cores have more than one socket to saturate
Points = dict[str, list[MeasuredPoint]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    out: Path
    quick: bool
    fresh: bool
    device: str
    transport: str
    name: str
    ranks: int | None


def calibrate(
    out: Annotated[Path, typer.Option(help="The profile; its points are written beside it.")] = USUAL,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller points: under 90 s.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Measure all again / keep the groups that are measured [resume].")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda [cuda where there is a GPU].")] = "auto",
    transport: Annotated[str, typer.Option(help="gloo or nccl [nccl where every rank has a GPU].")] = "auto",
    name: Annotated[str, typer.Option(help="The device's name in the catalogue [cpu, or found by the GPU's].")] = "",
    ranks: Annotated[int | None, typer.Option(help="Processes that communicate [cores or GPUs, 2 to 8].")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure this machine and write a profile that `--profile` and `cluster.profile` take."""
    require(out.suffix == ".toml", f"--out {out}: a profile is a .toml file")
    require(ranks is None or ranks >= 1, f"--ranks {ranks}: needs to be at least 1")
    choices = Choices(out=out, quick=quick, fresh=fresh, device=device, transport=transport, name=name, ranks=ranks)
    made = _made(choices)
    points_file = out.with_suffix(".points.jsonl")
    kept = {} if fresh else _kept(points_file, made)
    if kept:
        note(f"kept from {points_file}: {', '.join(kept)} (--fresh measures them again)")
    points = _measure(made, kept, points_file)
    if points is None:
        return  # a rank under torchrun that is not the first
    table, rows = make_profile(made, points)
    write_profile(out, table)
    if json:
        print_json({"profile": str(out), "made": asdict(made), "rows": [_plain(row) for row in rows]})
        return
    for line in _report(rows):
        print(line)
    print(f"\nprofile: {out}   points: {points_file}")


def _made(choices: Choices) -> Made:
    from halocast.cli import measuring

    chosen = measuring.choose(choices.device, choices.transport, choices.ranks, MOST_RANKS)
    name = choices.name or _catalogue_name(chosen.hardware, chosen.device)
    return Made(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        host=socket.gethostname(),
        device=name,
        hardware=chosen.hardware,
        cores=len(os.sched_getaffinity(0)),
        threads=1,
        backend=chosen.backend,
        ranks=chosen.num_ranks,
        quick=choices.quick,
        versions={
            "halocast": metadata.version("halocast"),
            "python": platform.python_version(),
            "torch": chosen.torch,
            "aggregation": chosen.kernel,
        },
        last_cache_bytes=last_cache_bytes() if name == CPU else 0,
    )


def last_cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache of a core, as Linux tells it; 0 where it does not."""
    sizes = [path.read_text(encoding="utf-8").strip() for path in caches.glob("index*/size")]
    return max((int(size[:-1]) * UNITS[size[-1]] for size in sizes if size[-1:] in UNITS), default=0)


def _catalogue_name(hardware: str, device: str) -> str:
    """cpu, or the longest name of the catalogue all of whose words are in the GPU's own."""
    if device == CPU:
        return CPU
    plain = "".join(letter for letter in hardware.lower() if letter.isalnum())
    found = [name for name in list_devices() if all(word in plain for word in name.split("-"))]
    if not found:
        raise InputError(
            f"no device of the catalogue is a {hardware!r}: say which with --name ({', '.join(list_devices())})"
        )
    return max(found, key=len)


def _kept(path: Path, made: Made) -> Points:
    """The groups of an earlier run on this machine with the same choices and software."""
    if not path.exists():
        return {}
    lines = list(_lines(path))
    if not lines or lines[0].get("identity") != _identity(made):
        return {}
    return {line["group"]: [_point(one) for one in line["points"]] for line in lines[1:]}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Those of a file that was perhaps cut off in its last line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _identity(made: Made) -> dict[str, Any]:
    return {key: value for key, value in asdict(made).items() if key != "date"}


def _point(table: dict[str, Any]) -> MeasuredPoint:
    return record(MeasuredPoint, table, "points")


def _measure(made: Made, kept: Points, path: Path) -> list[MeasuredPoint] | None:
    """All points, those kept and those measured now; every finished group is in the file at once."""
    from halocast.cli import measuring

    found: Points = dict(kept)

    def keep(group: str, points: list[dict[str, Any]]) -> None:
        found[group] = [_point(one) for one in points]
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"group": group, "points": points}) + "\n")

    if is_first():
        _begin(path, made, kept)
    with _progress() as say:
        measuring.measure(made, tuple(kept), keep, say)
        if not is_first():
            return None
        if GROUP_OF_OPS not in found:
            keep(GROUP_OF_OPS, list(measuring.executed_ops(made, say)))
    return [point for points in found.values() for point in points]


def _begin(path: Path, made: Made, kept: Points) -> None:
    """The file with what is kept, whole lines only; finished groups are added to it."""
    lines: list[dict[str, Any]] = [{"identity": _identity(made)}]
    lines += [{"group": group, "points": [asdict(point) for point in points]} for group, points in kept.items()]
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@contextmanager
def _progress() -> Iterator[Any]:
    """On a terminal a line that changes; elsewhere a line per group."""
    last = [""]
    with status() as say:

        def tell(text: str) -> None:
            say(text)
            group = text.partition(":")[0]
            if group != last[0]:
                last[0] = group
                note(f"measuring {group}")

        yield tell


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


def _report(rows: list[FitQuality]) -> Iterator[str]:
    yield f"{'what':24} {'fitted':>6} {'held out':>8} {'median':>7} {'p90':>7}  worst"
    for row in rows:
        worst = "" if row.worst is None else f"{row.worst.error:+.0%} {row.worst.point.dims}"
        counts = f"{row.num_points:6} {row.num_held_out:8}"
        yield f"{row.what:24} {counts} {row.median_error:7.1%} {row.p90_error:7.1%}  {worst}"
    yield "errors are those of points that were held out; ops are real ones, predicted by the sum of their kernels"
