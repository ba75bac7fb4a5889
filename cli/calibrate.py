"""`halocast calibrate`: measure this machine and say how good the fit is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from halocast.calibrate.constants import FitQuality
from halocast.cli.output import Say, note, print_json, status
from halocast.study.calibrate import USUAL, calibrate


def calibrate_command(
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
    with _progress() as say:
        calibration = calibrate(
            out,
            quick=quick,
            fresh=fresh,
            device=device,
            transport=transport,
            name=name,
            num_ranks=ranks,
            say=say,
            tell=note,
        )
    if calibration is None:
        return  # a rank under torchrun that is not the first
    if json:
        machine = asdict(calibration.made)
        print_json({"profile": str(calibration.profile), "made": machine, "rows": calibration.records()})
        return
    for line in _report(calibration.rows):
        print(line)
    print(f"\nprofile: {calibration.profile}   points: {calibration.points}")


@contextmanager
def _progress() -> Iterator[Say]:
    """Report progress: on a terminal by a line that changes, elsewhere by a line per group."""
    last = [""]
    with status() as say:

        def tell(text: str) -> None:
            say(text)
            group = text.partition(":")[0]
            if group != last[0]:
                last[0] = group
                note(f"measuring {group}")

        yield tell


def _report(rows: Sequence[FitQuality]) -> Iterator[str]:
    yield f"{'what':24} {'fitted':>6} {'held out':>8} {'median':>7} {'p90':>7}  worst"
    for row in rows:
        worst = "" if row.worst is None else f"{row.worst.error:+.0%} {row.worst.point.dims}"
        counts = f"{row.num_points:6} {row.num_held_out:8}"
        yield f"{row.what:24} {counts} {row.median_error:7.1%} {row.p90_error:7.1%}  {worst}"
    yield "errors are those of points that were held out; ops are real ones, predicted by the sum of their kernels"
