"""The commands."""

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from halocast.base.errors import InputError
from halocast.cli.calibrate import calibrate_command
from halocast.cli.compare import compare_command
from halocast.cli.converge import converge_command
from halocast.cli.doctor import doctor
from halocast.cli.options import Json, ProfileFile, ScenarioFile, Set, TraceFile, at_least_1
from halocast.cli.output import note, print_json, require_trace, status, write_trace
from halocast.cli.plan import plan_command
from halocast.cli.published import published_command
from halocast.cli.show import constants_table, list_names, show_thing
from halocast.cli.sweep import sweep_command
from halocast.cli.train import run_command
from halocast.cli.validate import validate_command
from halocast.cli.whatif import breakeven_command, whatif_command
from halocast.reports.table import constants, size, text_table, used_of
from halocast.sim.world import StoppedError
from halocast.study.constants import list_constants
from halocast.study.pipelines import settled
from halocast.study.predict import Prediction, predict
from halocast.study.scenario import load_scenario

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("calibrate")(calibrate_command)
app.command()(doctor)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    """Compare and plan distributed full-graph GNN training: one schedule, simulated and executed."""
    if version:
        print(metadata.version("halocast"))
        raise typer.Exit


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
    at_least_1("--epochs", epochs)
    require_trace(trace)
    chosen = load_scenario(scenario, _with_profile(overrides, profile))
    try:
        with status() as say:
            prediction = predict(settled(chosen, say=say), num_epochs=epochs, say=say)
    except StoppedError as stopped:
        write_trace(stopped.trace, stopped.schedule, trace)
        raise
    write_trace(prediction.trace, prediction.workload.schedule, trace)
    if json:
        print_json(prediction.summary.as_dict())
        return
    print(text_table([prediction.summary]))
    print(f"\nsizes: {prediction.workload.halo.source}; {_memory_verdict(prediction)}")
    basis = prediction.summary.basis
    assert basis is not None
    print(f"implementation: {basis.code}; links: {basis.links}; {constants(basis)}")
    if (band := prediction.summary.known_band) is not None:
        print(f"error band: holds eight of ten such epochs; {band.basis}")
    for line in basis.outside_range:
        note(f"warning: {line}")


def _with_profile(overrides: list[str] | None, profile: Path | None) -> list[str]:
    return [*(overrides or ()), *([] if profile is None else [f"cluster.profile={str(profile)!r}"])]


def _memory_verdict(prediction: Prediction) -> str:
    memory = prediction.summary.device_memory
    largest = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in memory.largest_buffers[:3])
    fits = "fits" if memory.fits else "DOES NOT FIT"
    return f"{used_of(memory)} device memory on rank {memory.memory_rank}: {fits} (largest: {largest})"


@app.command("list")
def list_things(
    what: Annotated[
        str, typer.Argument(help="methods, clusters, devices, codes, datasets, models, scenarios or constants [all].")
    ] = "",
    json: Json = False,
) -> None:
    """List what there is to choose from; constants with their provenance and the figures that chose them."""
    if what == "constants":
        constants = list_constants()
        print_json([one.as_dict() for one in constants]) if json else print(constants_table(constants))
        return
    listed = list_names(what)
    if json:
        print_json(listed)
        return
    for kind, names in listed.items():
        print(f"{kind}: {', '.join(names)}")


@app.command()
def show(
    what: Annotated[
        str, typer.Argument(help="cluster, device, code, dataset, job, scenario, schedule, staleness, memory.")
    ],
    name: Annotated[
        str | None, typer.Argument(help="Which one: a name, a job's directory, or a scenario file [demo].")
    ] = None,
    overrides: Set = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw a cluster: .png or .svg.")] = None,
) -> None:
    """Show one thing in full: a description, or what a scenario turns into."""
    if what in ("cluster", "device", "code", "dataset", "job") and name is None:
        raise InputError(f"show {what}: which one? (see halocast list {what}s)")
    print(show_thing(what, name, overrides or [], figure))


app.command("run")(run_command)
app.command("compare")(compare_command)
app.command("converge")(converge_command)
app.command("published")(published_command)
app.command("validate")(validate_command)
app.command("sweep")(sweep_command)
app.command("plan")(plan_command)
app.command("whatif")(whatif_command)
app.command("breakeven")(breakeven_command)
