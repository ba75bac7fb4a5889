"""`halocast sweep`: a scenario with keys varied, as a table, JSON or CSV."""

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
from halocast.cli.options import Json, ScenarioFile, Set
from halocast.cli.output import note, print_json
from halocast.reports.table import ages, aligned, csv_table, seconds, size
from halocast.study.queries import Progress as Tell
from halocast.study.scenario import load_tables
from halocast.study.sweep import Sweep, SweepRow, parse_vary, sweep

Results = Annotated[
    Path | None,
    typer.Option(help="SQLite file that keeps what is finished; run again to go on. Processes may share it."),
]
Jobs = Annotated[int | None, typer.Option(help="Processes [one per core].")]
Dask = Annotated[str | None, typer.Option(help="Address of a Dask scheduler: predict there instead.")]


def sweep_command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="Values of a key: --vary cluster.gpus=2,4,8; repeatable: all combinations.")
    ] = None,
    results: Results = None,
    jobs: Jobs = None,
    dask: Dask = None,
    json: Json = False,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file.")] = None,
) -> None:
    """Predict a scenario with keys varied: all combinations, in parallel; what is finished survives a kill."""
    swept = run_sweep(scenario, overrides or [], vary or [], results=results, jobs=jobs, dask=dask)
    print_sweep(swept, json=json, csv=csv)


def run_sweep(
    scenario: str | None,
    overrides: list[str],
    vary: list[str],
    *,
    results: Path | None,
    jobs: int | None,
    dask: str | None,
) -> Sweep:
    require(bool(vary), "sweep: what varies? for example --vary cluster.gpus=2,4,8")
    require(jobs is None or jobs >= 1, f"--jobs {jobs}: needs to be at least 1")
    wanted: dict[str, list[Any]] = {}
    for text in vary:
        key, values = parse_vary(text)
        if key in wanted:
            raise InputError(f"--vary {key}: given twice")
        wanted[key] = values
    tables = load_tables(scenario, overrides)
    with scenario_bar("predicting") as tell:
        return sweep(tables, wanted, results=results, jobs=jobs, dask=dask, progress=tell)


@contextmanager
def scenario_bar(label: str) -> Iterator[Tell]:
    """A bar over scenarios; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def print_sweep(swept: Sweep, *, json: bool, csv: Path | None) -> None:
    if csv is not None:
        with whole_file(csv) as path:
            path.write_text(csv_table([row.flat() for row in swept.rows]), encoding="utf-8")
        note(f"written: {csv}")
    if json:
        print_json([row.flat() for row in swept.rows])
    elif csv is None:
        print(sweep_table(swept))


def sweep_table(swept: Sweep) -> str:
    """A line per combination; what could not be predicted says why."""
    names = list(swept.rows[0].values)
    columns = ["epoch", "compute", "exposed comm", "traffic", "memory", "stale", ""]
    return aligned([[*names, *columns], *([*map(_plain, row.values.values()), *_cells(row)] for row in swept.rows)])


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cells(row: SweepRow) -> list[str]:
    figures = row.figures
    if figures is None:
        return ["-"] * 6 + [row.reason]
    memory = figures.device_memory
    return [
        *(seconds(part_s) for part_s in (figures.epoch_s, figures.compute_s, figures.exposed_comm_s)),
        *(size(num_bytes) for num_bytes in (figures.bytes_total, memory.memory_bytes)),
        ages(figures.staleness),
        "" if figures.fits else f"does not fit in {size(memory.device_memory_bytes)}",
    ]
