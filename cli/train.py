"""`halocast run`: trains, and prints what a real run says about itself; writes jobs for torchrun."""

from pathlib import Path
from typing import Annotated

import typer

from halocast.base.records import require
from halocast.cli.options import Json, ScenarioFile, Set, TraceFile, at_least_1
from halocast.cli.output import epoch_bar, note, print_json, require_trace, status, write_trace
from halocast.reports.summary import FoundAges, ReadAges, StaleError, Summary
from halocast.reports.table import age_range, text_table
from halocast.study.clusters import scenario_cluster
from halocast.study.run import (
    RunResult,
    prepare_run,
    require_emulation,
    require_torch,
    run_workload,
    write_torchrun_job,
)
from halocast.study.scenario import load_scenario
from halocast.study.workload import Workload

MOST_AGES = 10  # that are told one by one


def run_command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    json: Json = False,
    trace: TraceFile = None,
    ranks: Annotated[int | None, typer.Option(help="Processes [graph.parts, cluster.gpus or 2].")] = None,
    port: Annotated[int, typer.Option(help="Rendezvous port [any free one].")] = 0,
    prepare_only: Annotated[
        Path | None, typer.Option("--prepare", help="Write a job for torchrun here instead of running it.")
    ] = None,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Give every host of the cluster a network of its NIC's rate (as root).")
    ] = False,
) -> None:
    """Train a scenario for real on this machine."""
    require_torch("halocast run")
    at_least_1("--ranks", ranks)
    require_trace(trace)
    require(not (emulate and prepare_only), "--prepare: torchrun starts the job, so there are no hosts to --emulate")
    chosen = load_scenario(scenario, overrides or ())
    cluster = scenario_cluster(chosen)  # checked even where only --emulate needs it: a misspelt one is a mistake
    for warning in require_emulation(chosen, cluster, ranks) if emulate else ():
        note(warning)
    with status() as say:
        workload = prepare_run(chosen, cluster.num_ranks if emulate else ranks, say=say)
    if prepare_only is not None:
        _write_job(workload, prepare_only)
        return
    label = f"{workload.scenario.method.name}, {workload.schedule.num_ranks} ranks"
    with epoch_bar(workload.scenario.run.epochs, label) as bar:
        result = run_workload(workload, port=port, emulated=cluster if emulate else None, on_epoch=bar)
    write_trace(result.trace, workload.schedule, trace)
    _show(result, json=json)


def _write_job(workload: Workload, directory: Path) -> None:
    command = write_torchrun_job(workload, directory)
    note(f"job of {workload.schedule.num_ranks} ranks in {directory}; start it with:")
    print(command)
    note(f"then: halocast show job {directory}")


def _show(result: RunResult, *, json: bool) -> None:
    if json:
        print_json(result.summary.as_dict())
        return
    print(text_table([result.summary]))
    for warning in result.warnings:
        note(f"warning: {warning}")
    for line in (*describe_ages(result.summary), *describe_errors(result.summary), *describe_shares(result.summary)):
        print(line)
    first, last, num = result.losses[0], result.losses[-1], len(result.losses)
    scores = ", ".join(f"{name} {value:.4f}" for name, value in result.accuracy.items())
    print(f"\nloss {first:.4f} -> {last:.4f} in {num} epochs; accuracy: {scores}")


def describe_ages(summary: Summary) -> list[str]:
    """Lines on how old stale rows really were, beside what the checker says; nothing where nothing is stale."""
    predicted = {(read.op, read.reads): read for read in summary.staleness}
    lines = []
    for read in summary.training.ages if summary.training else ():
        scheduled = predicted.get((read.op, read.reads))
        if scheduled is None or scheduled.ages != (0,):
            lines.append(f"{read.op} read {read.reads}: {_counted(read)} epochs old ({_expected(scheduled)})")
    return lines


def _counted(read: FoundAges) -> str:
    """Rows by age; of many different ages the youngest, the middle and the oldest."""
    rows = read.rows_by_age
    if len(rows) <= MOST_AGES:
        return ", ".join(f"{num:,} rows {age}" for age, num in rows.items())
    total, passed = sum(rows.values()), 0
    for middle in sorted(rows):
        passed += rows[middle]
        if 2 * passed >= total:
            break
    return f"{total:,} rows {min(rows)} to {max(rows)}, half of them at most {middle}"


def _expected(read: ReadAges | None) -> str:
    if read is None:
        return "schedule: nothing of the kind"
    return f"{'at equal speeds' if read.free else 'schedule'}: {age_range(read.ages)}"


def describe_shares(summary: Summary) -> list[str]:
    """Lines on shares that were counted in the run, each beside the expected one."""
    counted = [share for share in (summary.training.shares if summary.training else ()) if share.total]
    return [
        f"{share.what}: {share.count / share.total:.1%} of {share.total:,} "
        f"(expected {share.expected / share.total:.1%})"
        for share in counted
    ]


def describe_errors(summary: Summary) -> list[str]:
    """Lines on how far stale rows were from fresh ones in the last epoch, relative to them."""
    errors = summary.training.errors if summary.training else ()
    last = max((error.epoch for error in errors), default=None)
    return [
        f"{_erring(error)} in epoch {last}: {error.relative:.2%} off fresh ones"
        for error in errors
        if error.epoch == last
    ]


def _erring(error: StaleError) -> str:
    return f"{error.what} of layer {error.layer}" if error.layer >= 0 else f"gradients of all {error.what}"
