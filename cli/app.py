"""The commands."""

from importlib import metadata
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.calibrate.profile import load_profile
from halocast.cli.calibrate import calibrate
from halocast.cli.compare import CompareOptions, compare_methods, method_names, show_comparison
from halocast.cli.doctor import doctor
from halocast.cli.options import Json, ScenarioFile, Set
from halocast.cli.output import note, print_json, status
from halocast.cli.plan import plan_command
from halocast.cli.profiles import machine_profile
from halocast.cli.published import compare_with_published
from halocast.cli.show import list_names, show_thing
from halocast.cli.sweep import sweep_command
from halocast.cli.validate import Options, validate_grid
from halocast.cli.whatif import breakeven_command, whatif_command
from halocast.exec.launch.torchrun import is_first, num_started, under_torchrun
from halocast.reports.formats.perfetto import write_perfetto
from halocast.reports.table import constants, size, text_table, used_of
from halocast.schedule.ir import Schedule
from halocast.schedule.trace import Trace, require_trace_name, save_trace
from halocast.sim.world import StoppedError
from halocast.study.grid import OWN, QUICK, Grid, chosen_from
from halocast.study.pipelines import settled
from halocast.study.predict import Prediction, predict, scenario_cluster
from halocast.study.scenario import load_scenario
from halocast.study.workload import prepare

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(calibrate)
app.command()(doctor)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    """Compare and plan distributed full-graph GNN training: one schedule, simulated and executed."""
    if version:
        print(metadata.version("halocast"))
        raise typer.Exit


TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Also write the trace: .parquet, .jsonl, or .json for Perfetto.")
]

ProfileFile = Annotated[
    Path | None, typer.Option("--profile", help="What `halocast calibrate` measured of the cluster's devices.")
]


@app.command()
def simulate(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    json: Json = False,
    trace: TraceFile = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs to simulate [as steady state needs].")] = None,
    profile: ProfileFile = None,
) -> None:
    """Predict a scenario on its cluster."""
    _at_least_1("--epochs", epochs)
    _require_trace(trace)
    chosen = load_scenario(scenario, _with_profile(overrides, profile))
    try:
        with status() as say:
            prediction = predict(settled(chosen, say=say), num_epochs=epochs, say=say)
    except StoppedError as stopped:
        _write_trace(stopped.trace, stopped.schedule, trace)
        raise
    _write_trace(prediction.trace, prediction.workload.schedule, trace)
    if json:
        print_json(prediction.summary.as_dict())
        return
    print(text_table([prediction.summary]))
    print(f"\nsizes: {prediction.workload.halo.source}; {_memory_verdict(prediction)}")
    basis = prediction.summary.basis
    assert basis is not None
    print(f"links: {basis.links}; {constants(basis)}")
    for line in basis.outside_range:
        note(f"warning: {line}")


def _with_profile(overrides: list[str] | None, profile: Path | None) -> list[str]:
    return [*(overrides or ()), *([] if profile is None else [f"cluster.profile={str(profile)!r}"])]


def _at_least_1(option: str, value: int | None) -> None:
    require(value is None or value >= 1, f"{option} {value}: needs to be at least 1")


def _require_trace(path: Path | None) -> None:
    """Before hours of work, not after."""
    if path is not None:
        require_trace_name(path, (".parquet", ".jsonl", ".json"))


def _write_trace(trace: Trace, schedule: Schedule, path: Path | None) -> None:
    if path is None:
        return
    if path.suffix == ".json":
        write_perfetto([(trace, schedule)], path)
    else:
        save_trace(trace, path)


def _memory_verdict(prediction: Prediction) -> str:
    memory = prediction.summary.device_memory
    largest = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in memory.largest_buffers[:3])
    fits = "fits" if memory.fits else "DOES NOT FIT"
    return f"{used_of(memory)} device memory on rank {memory.memory_rank}: {fits} (largest: {largest})"


@app.command()
def run(
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
    from halocast.cli import execution

    _at_least_1("--ranks", ranks)
    _require_trace(trace)
    require(not (emulate and prepare_only), "--prepare: torchrun starts the job, so there are no hosts to --emulate")
    chosen = load_scenario(scenario, overrides or ())
    cluster = scenario_cluster(chosen)  # checked even where only --emulate needs it: a misspelt one is a mistake
    if emulate:
        execution.require_emulation(chosen, cluster, ranks)
        ranks = cluster.num_ranks
    with status() as say:
        num_ranks = execution.num_ranks(chosen, ranks)
        workload = prepare(settled(chosen, num_ranks, say=say), num_ranks, data=True, say=say)
    if prepare_only is not None:
        execution.prepare_job(workload, prepare_only)
        return
    done, summary = execution.run_workload(workload, port=port, emulated=cluster if emulate else None)
    _write_trace(done.trace, workload.schedule, trace)
    if json:
        print_json(summary.as_dict())
        return
    print(text_table([summary]))
    if not isfinite(done.losses[-1]):
        note(f"warning: the loss is {done.losses[-1]} after {len(done.losses)} epochs; a smaller run.lr may help")
    scores = ", ".join(f"{name} {value:.4f}" for name, value in done.evaluated[max(done.evaluated)].items())
    for line in (*execution.describe_ages(summary), *execution.describe_errors(summary)):
        print(line)
    print(f"\nloss {done.losses[0]:.4f} -> {done.losses[-1]:.4f} in {len(done.losses)} epochs; accuracy: {scores}")


@app.command()
def compare(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    json: Json = False,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = Path("reports-out/compare"),
    methods: Annotated[str, typer.Option(help="Comma-separated methods [all].")] = "",
    execute: Annotated[bool, typer.Option("--execute", help="Also run every method for real on this machine.")] = False,
    profile: ProfileFile = None,
    scaling: Annotated[float, typer.Option(help="Seconds for predictions at other numbers of GPUs; 0: none.")] = 60,
) -> None:
    """All methods on one scenario: a table, and a report directory."""
    require(scaling >= 0, f"--scaling {scaling}: needs to be at least 0 (0: no scaling)")
    names = method_names(methods)
    used = machine_profile(profile) if execute else profile
    if execute and used is None:
        note(
            "this machine is predicted with another CPU's constants: `halocast calibrate` measures it (1 to 3 minutes)"
        )
    options = CompareOptions(out=out, execute=execute, limit_s=scaling, profile=used)
    show_comparison(compare_methods(load_scenario(scenario, overrides or ()), names, options), out, json)


@app.command()
def published(
    data: Annotated[Path | None, typer.Option(help="Rows of figures as CSV [those that come with halocast].")] = None,
    json: Json = False,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = Path("reports-out/published"),
) -> None:
    """Predict published figures: errors by source and method, the order of methods, and a report directory."""
    compare_with_published(data, out, json)


@app.command()
def validate(
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
    if under_torchrun():  # nothing is emulated, and all of its ranks run
        chosen |= {"links": links or OWN, "ranks": ranks or str(num_started())}
    grid = chosen_from(QUICK if quick else Grid(), chosen, epochs=epochs, rounds=rounds)
    if trace is not None:
        require_trace_name(trace, (".json",))
    found = machine_profile(profile) if is_first() else None  # others do not predict
    measured = None if found is None else load_profile(found)
    options = Options(out=out, overrides=tuple(overrides or ()), profile=measured, fresh=fresh, trace=trace)
    validate_grid(grid, options, json=json)


@app.command("list")
def list_things(
    what: Annotated[str, typer.Argument(help="methods, clusters, devices, datasets, models or scenarios [all].")] = "",
    json: Json = False,
) -> None:
    """What there is to choose from."""
    found = list_names(what)
    if json:
        print_json(found)
        return
    for kind, names in found.items():
        print(f"{kind}: {', '.join(names)}")


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="cluster, device, dataset, job, scenario, schedule, staleness, memory.")],
    name: Annotated[
        str | None, typer.Argument(help="Which one: a name, a job's directory, or a scenario file [demo].")
    ] = None,
    overrides: Set = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw a cluster: .png or .svg.")] = None,
) -> None:
    """One thing in full: a description, or what a scenario turns into."""
    if what in ("cluster", "device", "dataset", "job") and name is None:
        raise InputError(f"show {what}: which one? (see halocast list {what}s)")
    print(show_thing(what, name, overrides or [], figure))


app.command("sweep")(sweep_command)
app.command("plan")(plan_command)
app.command("whatif")(whatif_command)
app.command("breakeven")(breakeven_command)
