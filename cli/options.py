"""Options that commands share."""

from typing import Annotated

import typer

ScenarioFile = Annotated[str | None, typer.Argument(help="Scenario file (TOML) or the name of an embedded one [demo].")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set graph.dataset=cora; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
