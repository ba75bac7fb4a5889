"""`halocast converge`: methods trained in virtual time; accuracy over predicted seconds, dollars and epochs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.base.records import require
from halocast.cli.options import Json, ScenarioFile, Set, at_least_1
from halocast.cli.output import note, print_json
from halocast.reports.curves import Curve
from halocast.reports.page.place import require_report_place
from halocast.reports.table import csv_table, seconds
from halocast.study.converge import converge
from halocast.study.convergence import Convergence
from halocast.study.converging import Phase
from halocast.study.run import require_torch
from halocast.study.scenario import load_tables
from halocast.study.sweep import parse_vary

Methods = Annotated[str, typer.Option(help="Methods, separated by commas [one of each family].")]
CaseText = Annotated[
    list[str] | None,
    typer.Option(help="A method and keys: --case 'bns rate=0.1 model.layers=2'; 'NAME: ...' names it; repeatable."),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(help="Values of a key: --vary method.gamma=0.5,0.95; of the machine: cluster.network_gbps=1,10."),
]
TargetText = Annotated[str, typer.Option(help="Validation score to reach: 0.88, or a share of exact training's best.")]
Budget = Annotated[str | None, typer.Option(help="Predicted time that training may take: 90s, 10min, 2h.")]
Seeds = Annotated[int, typer.Option(help="Trainings of every case.")]
Tune = Annotated[
    list[str] | None,
    typer.Option(help="Learning rates to try per case (3), or values of a key: run.lr=0.003,0.01; on validation."),
]
TuneSeeds = Annotated[int, typer.Option(help="Seeds that the search trains with.")]
Patience = Annotated[
    int | None,
    typer.Option(help="End after so many epochs without a better validation score [half of all; 0: never]."),
]
StandIn = Annotated[
    str | None, typer.Option(help="Graph with data that is trained in place of the scenario's: a file or a name.")
]
Baseline = Annotated[
    str | None, typer.Option(help="The case whose score others are compared with [vanilla, else the first].")
]
Kept = Annotated[
    Path | None, typer.Option("--results", help="File that keeps what is finished [one in the user's cache].")
]
Jobs = Annotated[int | None, typer.Option(help="Trainings side by side, one thread each [one per core].")]
Csv = Annotated[Path | None, typer.Option(help="Write a row per case to a CSV file.")]
Out = Annotated[Path | None, typer.Option(help="Directory for a report: page, tables, figures.")]


def converge_command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    methods: Methods = "",
    case: CaseText = None,
    vary: Vary = None,
    target: TargetText = "95%",
    budget: Budget = None,
    seeds: Seeds = 3,
    tune: Tune = None,
    tune_seeds: TuneSeeds = 1,
    patience: Patience = None,
    stand_in: StandIn = None,
    baseline: Baseline = None,
    results: Kept = None,
    jobs: Jobs = None,
    json: Json = False,
    csv: Csv = None,
    out: Out = None,
) -> None:
    """Train in virtual time: accuracy over predicted seconds and dollars, and what reaches a target first."""
    require_torch("halocast converge")
    for option, value in (("--jobs", jobs), ("--seeds", seeds), ("--tune-seeds", tune_seeds)):
        at_least_1(option, value)
    if out is not None:
        require_report_place(out)
    with phases() as tell:
        result = converge(
            load_tables(scenario, overrides or []),
            cases=case or (),
            methods=[name.strip() for name in methods.split(",") if name.strip()],
            vary=_values("--vary", vary or []),
            tune=_tune(tune or []),
            seeds=seeds,
            tune_seeds=tune_seeds,
            patience=patience,
            target=target,
            budget=budget,
            stand_in=stand_in,
            baseline=baseline,
            results=results,
            jobs=jobs,
            progress=tell,
            on_curve=_silent if json else tell_curve,
        )
    show_convergence(result, json=json, csv=csv, out=out)


@contextmanager
def phases() -> Iterator[Phase]:
    """A bar with the time left over what is done in several phases; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of)
            bar.update(tasks[what], completed=done, total=of)

        yield tell


def tell_curve(curve: Curve) -> None:
    """Tell of a curve as soon as it is trained, on a terminal."""
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(curve_line(curve), highlight=False, markup=False)


def _silent(curve: Curve) -> None:
    """Say nothing."""


def curve_line(curve: Curve) -> str:
    """A line on a curve that is trained: its setting, its best validation score, and what an epoch takes."""
    where = "".join(f" {key}={value}" for key, value in curve.setting.items())
    best = [max((point.val for point in seed.points), default=0.0) for seed in curve.seeds]
    if not best:
        return f"{curve.label}{where}: {curve.reason}"
    epoch = "" if curve.epoch_s is None else f", {seconds(curve.epoch_s)} an epoch"
    return f"{curve.label}{where}: best validation {min(best):.3f} to {max(best):.3f}{epoch}"


def _tune(texts: list[str]) -> int | dict[str, list[Any]]:
    """A number of learning rates, or values by key."""
    if len(texts) == 1 and "=" not in texts[0]:
        require(texts[0].isdecimal() and int(texts[0]) >= 1, f"--tune {texts[0]}: expected a number, or KEY=VALUES")
        return int(texts[0])
    return _values("--tune", texts) if texts else 1


def _values(option: str, texts: list[str]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for text in texts:
        key, some = parse_vary(text, option)
        if key in values:
            raise InputError(f"{option} {key}: given twice")
        values[key] = some
    return values


def show_convergence(result: Convergence, *, json: bool, csv: Path | None, out: Path | None) -> None:
    """Print the answer and the tables, or JSON; write what was asked for."""
    if csv is not None:
        with whole_file(csv) as path:
            path.write_text(csv_table(result.records()), encoding="utf-8")
        note(f"written: {csv}")
    if out is not None:
        result.write(out)
        note(f"report: {out / 'report.html'}")
    if json:
        print_json(result.as_json())
    else:
        print(result.text(shutil.get_terminal_size((80, 24)).columns))
