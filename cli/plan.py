"""`halocast plan`: the best method, options, machines and number of GPUs for a scenario."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halocast.base.records import require
from halocast.cli.options import Json, ScenarioFile, Set, StandIn
from halocast.cli.output import columns, note, print_json
from halocast.cli.planned import APPROXIMATE, EXACT, PlanView, lists, plan_text
from halocast.cli.sweep import Dask, Jobs, Results
from halocast.reports.figures import TradeOff, draw_front, require_figure
from halocast.study.asked_accuracy import Accuracy
from halocast.study.choices import AIMS, Aim, Choice, Goal, RankedPlan, pareto
from halocast.study.plan import Tell, plan
from halocast.study.scenario import load_scenario

SHOWN = 10


def plan_command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    aim: Annotated[Aim, typer.Option("--aim", help="The figure of an epoch that is to be small.")] = Aim.FASTEST,
    limit_s: Annotated[float | None, typer.Option(help="Longest epoch allowed, in seconds.")] = None,
    clusters: Annotated[str, typer.Option(help="Comma-separated clusters or files, or all [as [plan] says].")] = "",
    pareto: Annotated[bool, typer.Option("--pareto", help="Also the best trade-offs of time and price.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw the trade-offs: .png or .svg.")] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="Rank by time or price to a validation score: 0.88, or 95% of exact training's."),
    ] = None,
    stand_in: StandIn = None,
    train: Annotated[bool, typer.Option("--train", help="With --target: also train what is not trained yet.")] = False,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Predict every choice that fits.")] = False,
    top: Annotated[int, typer.Option(help="Choices to print of each list.")] = SHOWN,
    results: Results = None,
    jobs: Jobs = None,
    dask: Dask = None,
    json: Json = False,
) -> None:
    """Choose a method, its options, machines and number of GPUs; say what does not fit, and why."""
    if figure is not None:
        require_figure(figure)
    require(target is not None or not (stand_in or train), "--stand-in, --train: need --target")
    require(top >= 1, f"--top {top}: needs to be at least 1")
    chosen = load_scenario(scenario, overrides or ())
    if clusters:
        named = tuple(name.strip() for name in clusters.split(",") if name.strip())
        chosen = replace(chosen, plan=replace(chosen.plan, clusters=named))
    goal = Goal(aim=aim, limit_s=limit_s, pareto=pareto or figure is not None)
    with _bar() as tell:
        ranked = plan(
            chosen,
            goal,
            results=results,
            jobs=jobs,
            dask=dask,
            exhaustive=exhaustive,
            accuracy=None if target is None else Accuracy(target=target, stand_in=stand_in, progress=_silently(tell)),
            train=train,
            tell=tell,
        )
    if json:
        print_json(as_json(ranked))
    else:
        view = PlanView(asked=_asked(scenario, overrides), top=top, pareto=pareto, width=columns())
        print(plan_text(ranked, view))
    if figure is not None:
        _draw(ranked, figure)


def _asked(scenario: str | None, overrides: Sequence[str] | None) -> str:
    """The scenario as it was typed, for another command: all but what only plans read."""
    given, changed = [scenario] if scenario else [], [key for key in overrides or () if not key.startswith("plan.")]
    return shlex.join([*given, *(word for key in changed for word in ("--set", key))])


@contextmanager
def _bar() -> Iterator[Tell]:
    """A bar with the best so far; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*shown, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("choices", total=None)

        def tell(what: str, done: int, of: int, best: str) -> None:
            bar.update(task, completed=done, total=of, description=f"{what}{f'; best: {best}' if best else ''}")

        yield tell


def _silently(tell: Tell) -> Callable[[str, int, int], None]:
    """A bar's teller for work without a best so far."""
    return lambda what, done, of: tell(what, done, of, "")


def as_json(plan: RankedPlan) -> dict[str, Any]:
    return {
        "aim": str(plan.goal.aim),
        "ranks": AIMS[plan.goal.aim],
        "target": None if plan.target is None else asdict(plan.target),
        "reached": [choice.candidate.label for choice in plan.reached],
        "exact": [_as_dict(choice) for choice in plan.exact],
        "approximate": [_as_dict(choice) for choice in plan.approximate],
        "one_gpu": plan.single.candidate.label if plan.single else None,
        "front": {name: [choice.candidate.label for choice in pareto(choices)] for name, choices in lists(plan)},
        "dropped": [{"label": candidate.label, "reason": reason} for candidate, reason in plan.dropped],
        "not_tried": [{"label": c.candidate.label, "at_least_s": c.screened.bound_s} for c in plan.hopeless],
    }


def _as_dict(choice: Choice) -> dict[str, Any]:
    band, candidate = choice.predicted.known_band, choice.candidate
    return {
        "label": candidate.label,
        "options": dict(candidate.options),
        "partitioner": candidate.partitioner,
        "likely_low_s": band.low_s if band else None,
        "likely_high_s": band.high_s if band else None,
        "likely_from": band.basis if band else None,
        "sure": str(choice.sure),
        "headroom_bytes": choice.headroom_bytes,
        "ages": choice.ages,
        **choice.to_target,
        **choice.predicted.plain_figures(),
    }


def _draw(plan: RankedPlan, path: Path) -> None:
    front = [choice for _, choices in lists(plan) for choice in pareto(choices)]
    currencies = [c.predicted.price.currency for c in plan.choices if c.predicted.price is not None]
    require(bool(currencies), "--figure: none of the clusters has a price (a [price] table)")
    points = [
        TradeOff(
            epoch_s=choice.epoch_s,
            price=choice.price,
            label=choice.candidate.label,
            group=EXACT if choice.exact else APPROXIMATE,
            on_front=choice in front,
        )
        for choice in plan.choices
        if choice.price is not None
    ]
    draw_front(path, points, currencies[0])
    note(f"figure: {path}")
