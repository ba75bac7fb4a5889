"""`halocast validate`: runs a grid of scenarios for real, simulates the same schedules, says how far apart they are.

Every run that ends is kept as a trace under --out and used again, so an interruption loses the run under way and no
more; predictions are made anew each time. Methods of a cell take turns in rounds: a slow spell of the machine hits all.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from halocast.base.errors import InputError, RunError
from halocast.base.records import require
from halocast.calibrate.measure.pace import Machine
from halocast.calibrate.profile import Profile
from halocast.cli.output import note, print_json, status
from halocast.cluster.catalogue import Cluster
from halocast.exec.launch.emulate import BURST_S
from halocast.exec.launch.torchrun import on_several_hosts, under_torchrun
from halocast.graph.parts import iter_parts
from halocast.reports.formats.perfetto import write_perfetto
from halocast.reports.validation import Row, blame_of, figures, summarise_rows
from halocast.reports.validation_report import text_blame, text_by, text_rows, verdict, write_validation
from halocast.schedule.ir import Schedule
from halocast.schedule.trace import Trace, load_trace, save_trace
from halocast.study.grid import (
    LINKS,
    OWN,
    Case,
    Grid,
    case_cluster,
    case_scenario,
    fingerprint,
    measured_epochs,
    with_epochs,
)
from halocast.study.predict import predict_on
from halocast.study.workload import Workload, prepare

if TYPE_CHECKING:
    from halocast.exec.launch.gang import Gang

RUNS, REPORT = "runs", "validate.md"

Run = Callable[[Workload, Cluster], Trace]
TwoTraces = list[tuple[Trace, Schedule]]  # predicted and measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    out: Path
    overrides: tuple[str, ...] = ()
    profile: Profile | None = None
    fresh: bool = False
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class Runs:
    """Traces of real runs, one file each."""

    directory: Path

    def path(self, case: Case, turn: int) -> Path:
        return self.directory / case.name / f"{turn}.parquet"

    def load(self, case: Case, turn: int, wanted: str) -> Trace | None:
        """The run's trace, unless it has not been run or was run with other settings."""
        if not self.path(case, turn).exists():
            return None
        try:
            found = load_trace(self.path(case, turn))
        except InputError:  # of another version of ours: to be run again
            return None
        return found if found.meta.get("fingerprint") == wanted else None

    def save(self, case: Case, turn: int, trace: Trace) -> None:
        self.path(case, turn).parent.mkdir(parents=True, exist_ok=True)
        save_trace(trace, self.path(case, turn))


@dataclass(slots=True, kw_only=True)
class Cell:
    """Cases that differ in the method only, as they are being run."""

    cases: Sequence[Case]
    grid: Grid
    runs: Runs
    profile: Profile | None = None
    workloads: dict[Case, Workload] = field(default_factory=dict)
    failed: dict[Case, str] = field(default_factory=dict)

    def prepare(self, overrides: Sequence[str]) -> None:
        for case in self.cases:
            try:
                made = prepare(case_scenario(case, overrides), case.ranks, data=True)
                self.workloads[case] = with_epochs(made, self.grid.epochs)
            except InputError as error:
                self.failed[case] = str(error)

    def stored(self, case: Case, turn: int) -> Trace | None:
        return self.runs.load(case, turn, fingerprint(self.workloads[case], self.cluster(case)))

    def cluster(self, case: Case) -> Cluster:
        found = case_cluster(case, None if on_several_hosts() else len(os.sched_getaffinity(0)), self.profile)
        if under_torchrun() or not emulates(found) or found.nic is None or found.nic.burst_s:
            return found
        return replace(found, nic=replace(found.nic, burst_s=BURST_S))  # what emulation gives to those that say nothing

    def todo(self) -> Iterator[tuple[Case, int]]:
        """What has not been run yet, in turns."""
        for turn in range(self.grid.rounds):
            for case in self.workloads:
                if case not in self.failed and self.stored(case, turn) is None:
                    yield case, turn

    def run(self, case: Case, turn: int, run: Run, machine: Machine) -> None:
        workload, cluster = self.workloads[case], self.cluster(case)
        try:
            trace, pace_s = machine.measure(lambda: run(workload, cluster))
        except RunError as error:
            self.failed[case] = str(error)
            return
        meta = {"fingerprint": fingerprint(workload, cluster), "reference_s": repr(pace_s), "case": case.name}
        self.runs.save(case, turn, replace(trace, meta={**trace.meta, **meta}))

    def compare(self, case: Case) -> tuple[Row, TwoTraces]:
        """The case's row, and a predicted and a measured trace if there are any."""
        if case in self.failed:
            return Row(case=asdict(case), reason=self.failed[case]), []
        found = [self.stored(case, turn) for turn in range(self.grid.rounds)]
        traces = [trace for trace in found if trace is not None]
        if not traces:
            return Row(case=asdict(case), reason="not run"), []
        schedule = self.workloads[case].schedule
        warmup, epochs = measured_epochs(schedule, self.grid.epochs)
        predicted = predict_on(self.workloads[case], self.cluster(case), num_epochs=epochs).trace
        row = Row(
            case=asdict(case),
            predicted=figures([predicted], schedule, warmup),
            measured=figures(traces, schedule, warmup),
            num_runs=len(traces),
            reference_s=median(float(trace.meta["reference_s"]) for trace in traces),
            blame=blame_of(predicted, traces, schedule, warmup),
        )
        return row, [(predicted, schedule), (traces[0], schedule)]


def train_on(workload: Workload, cluster: Cluster) -> Trace:
    """Run for real: on emulated hosts if the cluster has several of CPUs, else on this machine as it is."""
    from halocast.cli.execution import make_job, train  # torch: seconds that a report of earlier runs does not need

    emulated = cluster if emulates(cluster) else None
    return train(workload, make_job(workload, "gloo" if emulated else None), emulated=emulated).trace


def train_with(ranks: "Gang", place: Path, workload: Workload, cluster: Cluster) -> Trace:
    """Run for real with the ranks that torchrun has started."""
    from halocast.cli.execution import make_job
    from halocast.exec.launch.gang import own_backend

    assert workload.graph is not None
    assert workload.assignment is not None
    job = make_job(workload, workload.scenario.cluster.transport or own_backend())
    return ranks.train(job, iter_parts(workload.graph, workload.assignment), place).trace


def emulates(cluster: Cluster) -> bool:
    return cluster.num_hosts > 1 and not cluster.staged


def require_runnable(cells: Sequence[Cell]) -> None:
    """Refuse before any work what this machine may not do."""
    from halocast.exec.launch.emulate import can_emulate

    if under_torchrun():
        return  # nothing is emulated
    link = next((cell.cases[0].link for cell in cells if emulates(cell.cluster(cell.cases[0]))), None)
    reason = can_emulate() if link is not None else ""
    if reason:
        raise RunError(f"--links {link}: {reason}; --links own takes this machine's own links")


def validate_grid(grid: Grid, options: Options, *, json: bool) -> None:
    """Run what has not been run, compare everything, print and write the report; under torchrun, with its ranks."""
    if not under_torchrun():
        _validate(grid, options, train_on, json=json)
        return
    from halocast.exec.launch.gang import gang, own_backend  # torch

    with gang() as ranks:
        if not ranks.leads:
            ranks.follow()
            return
        try:
            ranks.require_grid(grid.ranks)
            _require_own_links(grid, own_backend())
            _validate(grid, options, partial(train_with, ranks, options.out / RUNS), json=json)
        except (InputError, RunError):  # between two runs; what interrupts one is torchrun's to tell the others
            ranks.dismiss()
            raise
        ranks.dismiss()


def _require_own_links(grid: Grid, backend: str) -> None:
    for link in grid.links:
        require(
            link == OWN or link not in LINKS,
            f"--links {link}: under torchrun nothing is emulated; give a file that describes this cluster, or own",
        )
        require(
            link != OWN or (backend != "nccl" and not on_several_hosts()),
            f"--links {OWN}: describes the cores of one machine; give a file that describes its GPUs or hosts",
        )


def _validate(grid: Grid, options: Options, run: Run, *, json: bool) -> None:
    _require_place(options.out)
    if options.fresh:
        shutil.rmtree(options.out / RUNS, ignore_errors=True)
    rows, traces = _all_rows(grid, options, run)
    summary = summarise_rows(rows, options.profile.source if options.profile else None)
    write_validation(options.out, rows, summary)
    if options.trace is not None:
        require(bool(traces), f"--trace {options.trace}: no scenario was compared")
        write_perfetto(traces, options.trace)
    if json:
        print_json({"rows": [row.as_dict() for row in rows], "summary": summary})
        return
    print(text_rows(rows))
    print(f"\n{text_by(summary)}\n\n{text_blame(summary)}\n")
    for sentence in verdict(summary):
        print(sentence)
    note(f"report: {options.out / REPORT}")


def _require_place(out: Path) -> None:
    ours = not out.exists() or (out.is_dir() and (not any(out.iterdir()) or (out / RUNS).is_dir()))
    require(ours, f"{out}: exists and holds no runs of ours; choose another --out")


def _all_rows(grid: Grid, options: Options, run: Run) -> tuple[list[Row], TwoTraces]:
    """Cell by cell, so that graphs of one cell only are in memory."""
    rows: list[Row] = []
    first: TwoTraces = []
    runs = Runs(options.out / RUNS)
    cells = [Cell(cases=cases, grid=grid, runs=runs, profile=options.profile) for cases in grid.cells() if cases]
    machine = Machine()
    may_run = False
    with status() as say:
        for k, cell in enumerate(cells):
            say(f"cell {k + 1} of {len(cells)}: preparing")
            cell.prepare(options.overrides)
            for case, turn in cell.todo():
                if not may_run:
                    require_runnable(cells[k:])
                    may_run = True
                say(f"cell {k + 1} of {len(cells)}, round {turn + 1} of {grid.rounds}: {case.name}")
                cell.run(case, turn, run, machine)
            found = [cell.compare(case) for case in cell.cases]
            rows += [row for row, _ in found]
            first = first or next((traces for _, traces in found if traces), [])
            cell.workloads.clear()
    return rows, first
