"""`halocast plan`: the best method, options, machines and number of GPUs for a scenario."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halocast.base.records import require
from halocast.cli.options import Json, ScenarioFile, Set
from halocast.cli.output import note, print_json
from halocast.cli.sweep import Dask, Jobs, Results
from halocast.reports.figures import TradeOff, draw_front, require_figure
from halocast.reports.table import aligned, seconds, size
from halocast.study.plan import Aim, Choice, Goal, RankedPlan, Tell, plan
from halocast.study.scenario import load_scenario

SHOWN = 15
HEAD = (
    "",
    "method",
    "options",
    "GPUs",
    "on",
    "epoch",
    "likely",
    "exposed",
    "head-room",
    "price/epoch",
    "stale",
    "sure",
)


def plan_command(
    scenario: ScenarioFile = None,
    overrides: Set = None,
    aim: Annotated[Aim, typer.Option("--aim", help="What is best.")] = Aim.FASTEST,
    limit_s: Annotated[float | None, typer.Option(help="Longest epoch allowed, in seconds.")] = None,
    clusters: Annotated[str, typer.Option(help="Comma-separated clusters or files, or all [as [plan] says].")] = "",
    pareto: Annotated[bool, typer.Option("--pareto", help="Also the best trade-offs of time and price.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw the trade-offs: .png or .svg.")] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Predict every choice that fits.")] = False,
    top: Annotated[int, typer.Option(help="Choices to print.")] = SHOWN,
    results: Results = None,
    jobs: Jobs = None,
    dask: Dask = None,
    json: Json = False,
) -> None:
    """Choose a method, its options, machines and number of GPUs; say what does not fit, and why."""
    if figure is not None:
        require_figure(figure)
    require(top >= 1, f"--top {top}: needs to be at least 1")
    chosen = load_scenario(scenario, overrides or ())
    if clusters:
        named = tuple(name.strip() for name in clusters.split(",") if name.strip())
        chosen = replace(chosen, plan=replace(chosen.plan, clusters=named))
    goal = Goal(aim=aim, limit_s=limit_s, pareto=pareto or figure is not None)
    with _bar() as tell:
        ranked = plan(chosen, goal, results=results, jobs=jobs, dask=dask, exhaustive=exhaustive, tell=tell)
    if json:
        print_json(as_json(ranked))
    else:
        print(plan_text(ranked, top, pareto=pareto))
    if figure is not None:
        _draw(ranked, figure)


@contextmanager
def _bar() -> Iterator[Tell]:
    """A bar with the best so far; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("choices", total=None)

        def tell(what: str, done: int, of: int, best: str) -> None:
            bar.update(task, completed=done, total=of, description=f"{what}{f'; best: {best}' if best else ''}")

        yield tell


def plan_text(plan: RankedPlan, top: int = SHOWN, *, pareto: bool = False) -> str:
    """The best of every method and cluster, what was dropped and not tried, and what the figures do not say."""
    best = plan.best_of_groups()
    lines = [_verdict(plan), "", _table(best[:top])]
    if len(best) > top:
        lines.append(f"... and {len(best) - top} more (--top)")
    if pareto:
        lines += ["", "Best trade-offs of time and price:", _table(plan.front())]
    return "\n".join([*lines, "", *_remarks(plan)])


def _verdict(plan: RankedPlan) -> str:
    words = {Aim.FASTEST: "Fastest", Aim.CHEAPEST: "Cheapest", Aim.FEWEST: "Fewest GPUs"}
    price = f", {_price(plan.best)} an epoch" if plan.best.price is not None else ""
    likely = _likely(plan.best)
    return f"{words[plan.goal.aim]}: {plan.best.candidate.label}: {seconds(plan.best.epoch_s)} (likely {likely}){price}"


def _table(choices: Sequence[Choice]) -> str:
    return aligned([HEAD, *(_cells(number, choice) for number, choice in enumerate(choices, 1))])


def _cells(number: int, choice: Choice) -> list[str]:
    candidate, ages = choice.candidate, choice.ages
    return [
        str(number),
        candidate.method,
        candidate.chosen or "-",
        str(choice.gpus),
        Path(candidate.cluster).stem,
        seconds(choice.epoch_s),
        _likely(choice),
        seconds(choice.predicted.exposed_comm_s),
        size(choice.headroom_bytes),
        _price(choice),
        "-" if not ages else str(ages[0]) if len(ages) == 1 else f"{ages[0]}..{ages[-1]}",
        str(choice.sure),
    ]


def _likely(choice: Choice) -> str:
    band = choice.predicted.known_band
    return "not known" if band is None else f"{seconds(band.low_s)} to {seconds(band.high_s)}"


def _price(choice: Choice) -> str:
    rented = choice.predicted.price
    return "-" if rented is None else f"{choice.price:.3g} {rented.currency}"


def _remarks(plan: RankedPlan) -> list[str]:
    said = [f"{len(plan.choices)} choices predicted, {len(plan.hopeless)} not: their bounds show they are not better."]
    if plan.dropped:
        said.append(f"{len(plan.dropped)} choices dropped:")
        for (method, cluster, what), num in _dropped(plan).most_common(6):
            said.append(f"  {num:4} {method} on {cluster}: {what}")
    priced = [(Path(choice.candidate.cluster).stem, choice.predicted.price) for choice in plan.choices]
    dates = sorted({f"{cluster} {price.price_date}" for cluster, price in priced if price})
    if dates:
        said.append(f"Prices are approximate list prices of whole hosts: {', '.join(dates)}.")
    said.append("likely: where eight of ten predictions of this kind were; some of those rows chose our constants.")
    if any((choice.ages and choice.ages[-1] > 0) or choice.candidate.options for choice in plan.choices):
        said.append(
            "Stale rows and sampling change accuracy and how many epochs training needs: that is not predicted here."
            " Bound them with [plan] max_staleness and min_rate."
        )
    return said


def _dropped(plan: RankedPlan) -> "Counter[tuple[str, str, str]]":
    """The number of dropped choices by method and cluster, with the reason of the first of each."""
    first: dict[tuple[str, str], str] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for candidate, reason in plan.dropped:
        group = candidate.method, Path(candidate.cluster).stem
        first.setdefault(group, f"{candidate.gpus} GPUs: {reason}")
        counts[*group, first[group]] += 1
    return counts


def as_json(plan: RankedPlan) -> dict[str, Any]:
    return {
        "aim": str(plan.goal.aim),
        "choices": [_as_dict(choice) for choice in plan.choices],
        "front": [choice.candidate.label for choice in plan.front()],
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
        **choice.predicted.plain_figures(),
    }


def _draw(plan: RankedPlan, path: Path) -> None:
    front = plan.front()
    require(bool(front), "--figure: none of the clusters has a price (a [price] table)")
    points = [
        TradeOff(epoch_s=c.epoch_s, price=c.price, label=c.candidate.label, on_front=c in front)
        for c in plan.choices
        if c.price is not None
    ]
    price = front[0].predicted.price
    assert price is not None
    draw_front(path, points, price.currency)
    note(f"figure: {path}")
