"""`halocast validate`: errors of predictions against real runs, as a table or JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from halocast.base.records import require
from halocast.calibrate.profile import load_profile
from halocast.cli.options import Json, ProfileFile, Set
from halocast.cli.output import note, print_json, status
from halocast.exec.launch.torchrun import is_first, num_started, under_torchrun
from halocast.reports.formats.perfetto import write_perfetto
from halocast.reports.validation_report import text_blame, text_by, text_rows, verdict
from halocast.schedule.trace import require_trace_name
from halocast.study.calibrate import machine_profile
from halocast.study.validate import OWN, QUICK, REPORT, Validation, ValidationGrid, chosen_from, validate


def validate_command(
    json: Json = False,
    out: Annotated[Path, typer.Option(help="Directory of the runs and the report.")] = Path("reports-out/validate"),
    quick: Annotated[bool, typer.Option("--quick", help="A part of the grid, in under 3 minutes.")] = False,
    methods: Annotated[str, typer.Option(help="Comma-separated methods and variants [all].")] = "",
    links: Annotated[str, typer.Option(help="200mbit, 1gbit, unlimited, own, or clusters [the first three].")] = "",
    ranks: Annotated[str, typer.Option(help="Comma-separated numbers of ranks [2,4].")] = "",
    models: Annotated[str, typer.Option(help="sage, gcn, gat [sage,gcn].")] = "",
    graphs: Annotated[str, typer.Option(help="sparse, dense, or names or paths of datasets [sparse,dense].")] = "",
    epochs: Annotated[int | None, typer.Option(help="Epochs of a run, warm-up included [12].")] = None,
    rounds: Annotated[int | None, typer.Option(help="How often every scenario is run [3].")] = None,
    overrides: Set = None,
    profile: ProfileFile = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Forget the runs that are kept in --out / use them [resume].")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Also write the first scenario, predicted and measured, for Perfetto."),
    ] = None,
) -> None:
    """Run a grid of scenarios and predict it: errors, the order of methods, and which ops are to blame."""
    chosen = {"methods": methods, "links": links, "ranks": ranks, "models": models, "graphs": graphs}
    grid = _grid(chosen, quick=quick, epochs=epochs, rounds=rounds)
    if trace is not None:
        require_trace_name(trace, (".json",))
    used = machine_profile(profile, note) if is_first() else None  # others do not predict
    measured = None if used is None else load_profile(used)
    with status() as say:
        validation = validate(grid, out=out, overrides=overrides or (), profile=measured, fresh=fresh, say=say)
    if validation is None:
        return  # a rank under torchrun that is not the first
    if trace is not None:
        require(bool(validation.traces), f"--trace {trace}: no scenario was compared")
        write_perfetto(validation.traces, trace)
    _show(validation, out, json=json)


def _grid(chosen: Mapping[str, str], *, quick: bool, epochs: int | None, rounds: int | None) -> ValidationGrid:
    if under_torchrun():  # nothing is emulated, and all of its ranks run
        chosen = {**chosen, "links": chosen["links"] or OWN, "ranks": chosen["ranks"] or str(num_started())}
    return chosen_from(QUICK if quick else ValidationGrid(), chosen, epochs=epochs, rounds=rounds)


def _show(validation: Validation, out: Path, *, json: bool) -> None:
    rows, summary = validation.rows, validation.summary
    if json:
        print_json({"rows": validation.records(), "summary": summary})
        return
    print(text_rows(rows))
    print(f"\n{text_by(summary)}\n\n{text_blame(summary)}\n")
    for sentence in verdict(summary):
        print(sentence)
    note(f"report: {out / REPORT}")
