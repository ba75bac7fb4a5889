"""`halocast compare`: all methods on one scenario, as a table and a report directory."""

from pathlib import Path
from typing import Annotated

import typer

from halocast.base.records import require
from halocast.cli.options import Json, ProfileFile, ScenarioFile, Set
from halocast.cli.output import columns, note, print_json, status
from halocast.reports.table import filled, text_table
from halocast.study.calibrate import machine_profile
from halocast.study.compare import compare
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
) -> None:
    """Compare all methods on one scenario: a table, and a report directory."""
    require(scaling >= 0, f"--scaling {scaling}: needs to be at least 0 (0: no scaling)")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    used = machine_profile(profile, note) if execute else profile
    if execute and used is None:
        note(
            "this machine is predicted with another CPU's constants: `halocast calibrate` measures it (1 to 3 minutes)"
        )
    chosen = load_scenario(scenario, overrides or ())
    with status() as say:
        comparison = compare(chosen, methods=names, execute=execute, profile=used, scaling_s=scaling, out=out, say=say)
    for warning in comparison.warnings:
        note(f"warning: {warning}")
    if json:
        print_json(comparison.as_dict())
        return
    width = columns()
    verdict = "\n".join(filled(line, width, 2) for line in comparison.verdict)
    print(f"{text_table(comparison.content.lines, width)}\n\n{verdict}\n\nreport: {out / 'report.html'}")
