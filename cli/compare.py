"""`halocast compare`: all methods on one scenario, as a table and a report directory."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from halocast.base.records import require
from halocast.cli.options import Json, ProfileFile, ScenarioFile, Set, StandIn, Target
from halocast.cli.output import Say, columns, note, print_json, status
from halocast.reports.table import filled, text_table
from halocast.reports.to_target import target_columns
from halocast.study.asked_accuracy import SEEDS, TARGET, Accuracy
from halocast.study.calibrate import machine_profile
from halocast.study.compare import MethodComparison, compare
from halocast.study.scenario import load_scenario


def compare_command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    json: Json = False,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = Path("reports-out/compare"),
    methods: Annotated[str, typer.Option(help="Comma-separated methods [all].")] = "",
    execute: Annotated[bool, typer.Option("--execute", help="Also run every method for real on this machine.")] = False,
    profile: ProfileFile = None,
    scaling: Annotated[float, typer.Option(help="Seconds for predictions at other numbers of GPUs; 0: none.")] = 60,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Also train every method in virtual time: time and price to the target.")
    ] = False,
    target: Target = TARGET,
    seeds: Annotated[int, typer.Option(help="Trainings of every method, with --accuracy.")] = SEEDS,
    stand_in: StandIn = None,
) -> None:
    """Compare all methods on one scenario: a verdict, a table, and a report directory."""
    usual = (target, seeds, stand_in) == (TARGET, SEEDS, None)
    require(accuracy or usual, "--target, --seeds, --stand-in: need --accuracy")
    require(scaling >= 0, f"--scaling {scaling}: needs to be at least 0 (0: no scaling)")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    used = machine_profile(profile, note) if execute else profile
    if execute and used is None:
        note(
            "this machine is predicted with another CPU's constants: `halocast calibrate` measures it (1 to 3 minutes)"
        )
    chosen = load_scenario(scenario, overrides or ())
    with status() as say:
        trained = Accuracy(target=target, seeds=seeds, stand_in=stand_in, progress=partial(_tell, say))
        comparison = compare(
            chosen,
            methods=names,
            execute=execute,
            profile=used,
            scaling_s=scaling,
            accuracy=trained if accuracy else None,
            out=out,
            say=say,
        )
    for warning in comparison.warnings:
        note(f"warning: {warning}")
    if json:
        print_json(comparison.as_dict())
    else:
        print(f"{_text(comparison, columns())}\n\nreport: {out / 'report.html'}")


def _text(comparison: MethodComparison, width: int) -> str:
    content = comparison.content
    verdict = "\n".join(filled(line, width, 2) for line in comparison.verdict)
    return f"{text_table(content.lines, width, target_columns(content.converged))}\n\n{verdict}"


def _tell(say: Say, what: str, done: int, of: int) -> None:
    say(f"{what}: {done} of {of}")
