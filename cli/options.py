"""Options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

from halocast.base.records import require

ScenarioFile = Annotated[str | None, typer.Argument(help="Scenario file (TOML) or the name of an embedded one [demo].")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set graph.dataset=cora; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Also write the trace: .parquet, .jsonl, or .json for Perfetto.")
]
ProfileFile = Annotated[
    Path | None, typer.Option("--profile", help="What `halocast calibrate` measured of the cluster's devices.")
]
Target = Annotated[
    str, typer.Option("--target", help="Validation score to reach: 0.88, or a share of exact training's best.")
]
StandIn = Annotated[
    str | None, typer.Option("--stand-in", help="Graph with data that is trained in place of the scenario's.")
]


def at_least_1(option: str, value: int | None) -> None:
    """Refuse a number of an option that is below 1."""
    require(value is None or value >= 1, f"{option} {value}: needs to be at least 1")
