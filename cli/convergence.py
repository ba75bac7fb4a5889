"""`halocast convergence`: methods trained with several seeds, their scores as a table, JSON, CSV or a report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.base.records import require
from halocast.cli.options import Json, ScenarioFile, Set, at_least_1
from halocast.cli.output import note, print_json
from halocast.cli.sweep import Results, scenario_bar
from halocast.reports.convergence import answer, score_table
from halocast.reports.table import csv_table
from halocast.study.convergence import WITHIN, Convergence, convergence
from halocast.study.run import require_torch
from halocast.study.scenario import load_tables
from halocast.study.sweep import parse_vary


def convergence_command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="A method and keys: --case 'bns rate=0.1 model.layers=2'; 'NAME: ...' names it; repeatable."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas [vanilla and the scenario's].")] = "",
    vary: Annotated[
        list[str] | None,
        typer.Option(help="Values of a key for all methods that have it: --vary method.gamma=0.5,0.95."),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(help="Values of which each case gets the best on validation: --tune run.lr=0.003,0.01."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of every case.")] = 5,
    tune_seeds: Annotated[int, typer.Option(help="Seeds that the search trains with.")] = 2,
    baseline: Annotated[
        str | None, typer.Option(help="The case to compare with [vanilla in the same setting, else the first].")
    ] = None,
    within: Annotated[float, typer.Option(help="Points below the baseline that count as as good.")] = WITHIN,
    results: Results = None,
    jobs: Annotated[
        int | None, typer.Option(help="Trainings side by side, one thread per rank [one per core].")
    ] = None,
    json: Json = False,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for report.md, tables and curves.")] = None,
) -> None:
    """Train methods for real with several seeds and compare their scores; what is finished survives a kill."""
    require_torch("halocast convergence")
    for option, value in (("--jobs", jobs), ("--seeds", seeds), ("--tune-seeds", tune_seeds)):
        at_least_1(option, value)
    require(out is None or out.is_dir() or not out.exists(), f"--out {out}: is a file, not a directory")
    with scenario_bar("training") as tell:
        trained = convergence(
            load_tables(scenario, overrides or []),
            cases=case or (),
            methods=[name.strip() for name in methods.split(",") if name.strip()],
            vary=_values("--vary", vary),
            tune=_values("--tune", tune),
            seeds=seeds,
            tune_seeds=tune_seeds,
            baseline=baseline,
            within=within,
            results=results,
            jobs=jobs,
            progress=tell,
        )
    show_convergence(trained, json=json, csv=csv, out=out)


def _values(option: str, texts: list[str] | None) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for text in texts or ():
        key, some = parse_vary(text, option)
        if key in values:
            raise InputError(f"{option} {key}: given twice")
        values[key] = some
    return values


def show_convergence(study: Convergence, *, json: bool, csv: Path | None, out: Path | None) -> None:
    """Print the answer and the table, or JSON; write what was asked for."""
    if csv is not None:
        with whole_file(csv) as path:
            path.write_text(csv_table(study.records()), encoding="utf-8")
        note(f"written: {csv}")
    if out is not None:
        study.write(out)
        note(f"report: {out / 'report.md'}")
    if json:
        print_json({"answer": study.line(), "cases": study.records(), "evaluations": study.evaluations()})
    elif csv is None:
        print(f"{answer(study.rows, study.within)}\n\n{score_table(study.rows)}")
