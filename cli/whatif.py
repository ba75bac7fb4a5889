"""`halocast whatif` and `halocast breakeven`: what would help, and where one method overtakes another."""

from pathlib import Path
from typing import Annotated, Any

import typer

from halocast.base.errors import unknown
from halocast.base.records import require
from halocast.cli.options import Json, ScenarioFile, Set
from halocast.cli.output import note, print_json
from halocast.cli.sweep import Jobs, Results, scenario_bar
from halocast.methods import METHODS
from halocast.reports.figures import Panel, draw_panels, require_figure
from halocast.reports.table import aligned, seconds, used_of
from halocast.study.scenario import load_scenario, parse_override
from halocast.study.whatif import BreakEven, Gain, WhatIf, break_even, whatif


def whatif_command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    results: Results = None,
    jobs: Jobs = None,
    json: Json = False,
) -> None:
    """Double each resource in turn: what helps most is the bottleneck."""
    chosen = load_scenario(scenario, overrides or ())
    with scenario_bar("predicting") as tell:
        answer = whatif(chosen, results=results, jobs=jobs, progress=tell)
    if json:
        print_json({"epoch_s": answer.figures.epoch_s, "gains": [gain.as_dict() for gain in answer.gains]})
        return
    print(whatif_text(answer))


def whatif_text(answer: WhatIf) -> str:
    figures, best = answer.figures, answer.bottleneck
    now = f"{figures.method} on {figures.ranks} x {figures.cluster}: {seconds(figures.epoch_s)} an epoch"
    helps = best.speedup is not None and best.speedup > 1.005
    verdict = f"Your bottleneck: {best.resource}." if helps else "Doubling any one resource hardly helps."
    rows = [[gain.resource, *_cells(gain)] for gain in answer.gains]
    return "\n".join([f"{now}. {verdict}", "", aligned([["twice the", "epoch", "faster", "memory", ""], *rows])])


def _cells(gain: Gain) -> list[str]:
    figures = gain.figures
    if figures is None:
        return ["-", "-", "-", gain.reason]
    fits = "" if figures.fits else "DOES NOT FIT"
    return [seconds(figures.epoch_s), f"{gain.speedup:.2f}x", used_of(figures.device_memory), fits]


def breakeven_command(
    first: Annotated[str, typer.Argument(metavar="one", help="A method, with options if wanted: bns,rate=0.1")],
    other: Annotated[str, typer.Argument(help="Another one.")],
    vary: Annotated[str, typer.Option(help="The variable and its bounds: --vary cluster.network_gbps=1:100")],
    scenario: Annotated[
        str | None, typer.Option(help="Scenario file (TOML) or the name of an embedded one [demo].")
    ] = None,
    overrides: Set = None,
    figure: Annotated[Path | None, typer.Option(help="Draw both curves: .png or .svg.")] = None,
    results: Results = None,
    jobs: Jobs = None,
    json: Json = False,
) -> None:
    """Find where one method becomes faster than another as a key grows."""
    if figure is not None:
        require_figure(figure)
    key, low, high = _bounds(vary)
    chosen = load_scenario(scenario, overrides or ())
    curves = break_even(chosen, (_method(first), _method(other)), key, (low, high), results=results, jobs=jobs)
    if json:
        print_json({"key": curves.key, "x": curves.xs, "epochs_s": curves.epochs_s, "crossings": curves.crossings})
    else:
        print(breakeven_text(curves))
    if figure is not None:
        draw_panels(figure, [breakeven_panel(curves)])
        note(f"figure: {figure}")


def breakeven_panel(curves: BreakEven) -> Panel:
    """A panel with the curves of both methods and where they cross."""
    names = (
        curves.names
        if curves.names[0] != curves.names[1]
        else [f"{name} ({k})" for k, name in enumerate(curves.names, 1)]
    )
    return Panel(
        x_label=curves.key,
        y_label="time of an epoch, s",
        xs=curves.xs,
        curves=dict(zip(names, curves.epochs_s, strict=True)),
        crossings=curves.crossings,
        y_range=(0, None),
        log=curves.is_log,
    )


def breakeven_text(curves: BreakEven) -> str:
    a, b = curves.names
    rows = [
        [f"{x:g}", seconds(ya), seconds(yb), a if ya < yb else b if yb < ya else "equal"]
        for x, ya, yb in zip(curves.xs, *curves.epochs_s, strict=True)
    ]
    where = ", ".join(f"{x:.4g}" for x in curves.crossings)
    verdict = f"Break-even at {curves.key} = {where}." if where else f"{rows[0][3]} is the faster one everywhere."
    return "\n".join([aligned([[curves.key, a, b, "faster"], *rows]), "", verdict])


def _bounds(text: str) -> tuple[str, float, float]:
    key, equals, values = text.partition("=")
    low, colon, high = values.partition(":")
    require(
        bool(equals and colon),
        f"--vary {text!r}: expected section.key=low:high, for example cluster.network_gbps=1:100",
    )
    bounds = [parse_override(f"{key}={value}")[2] for value in (low, high)]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in bounds)
    require(numbers, f"--vary {text!r}: the bounds need to be numbers")
    return key.strip(), bounds[0], bounds[1]


def _method(text: str) -> dict[str, Any]:
    """Parse `bns,rate=0.1` as a [method] table."""
    name, *options = text.split(",")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return {"name": name, **{key: value for _, key, value in (parse_override(f"method.{one}") for one in options)}}
