"""A plan as text: what it ranks, the best exact and the best approximate choice, whether one GPU is enough, two tables.

Nothing is called best or fastest without saying of what: an epoch of an approximate method is not worth one of an exact
one, so the two are never in one order.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from halocast.reports.converge.words import dollars, duration, plus_minus
from halocast.reports.table import age_range, filled, fitted, seconds, size
from halocast.study.candidates import Candidate
from halocast.study.choices import Aim, Choice, RankedPlan, best_of_groups, pareto
from halocast.study.plan import SAME

INDENT = 2  # of lines that go on
REASON_INDENT = 7
RANKS: Mapping[Aim, str] = MappingProxyType(
    {
        Aim.FASTEST: "seconds per epoch",
        Aim.CHEAPEST: "the price of an epoch",
        Aim.FEWEST: "numbers of GPUs whose epoch keeps the limit",
    }
)
EXACT, APPROXIMATE = "exact", "approximate"
TITLES: Mapping[str, str] = MappingProxyType(
    {
        EXACT: "Exact methods compute what one GPU computes",
        APPROXIMATE: "Approximate methods read stale rows or leave some out, and may need more epochs",
    }
)
REACHED = "To the target, where all are equally accurate:"
UNKNOWN = "; not trained, by epoch alone"
TO_RANKS: Mapping[Aim, str] = MappingProxyType(
    {Aim.FASTEST: "predicted seconds", Aim.CHEAPEST: "the predicted price", Aim.FEWEST: "numbers of GPUs on the way"}
)
MOST_REASONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """How much of a plan is shown, and of which question."""

    asked: str  # the scenario, as it was typed
    top: int  # choices of each list
    pareto: bool  # also the best trade-offs of time and price
    width: int  # letters of a line


def plan_text(plan: RankedPlan, view: PlanView) -> str:
    """The answer, the best of every method and cluster, what was dropped and not tried, what figures do not say."""
    lines = [filled(line, view.width, INDENT) for line in answers(plan, view)]
    if plan.reached:
        best = best_of_groups(plan.reached)
        lines += ["", filled(REACHED, view.width), *_listed(best, view, TO_TARGET)]
    for name, choices in lists(plan):
        rest = [choice for choice in choices if choice.epochs is None]
        if rest:
            title = f"{TITLES[name]}{UNKNOWN if plan.reached else ''}:"
            lines += ["", filled(title, view.width), *_listed(best_of_groups(rest), view, COLUMNS)]
    for name, choices in lists(plan) if view.pareto else ():
        columns = TO_TARGET if plan.reached else COLUMNS
        front = _table(pareto(choices), view.width, columns)
        lines += ["", f"Best trade-offs of time and price, {name}:", front]
    return "\n".join([*lines, "", *_remarks(plan, view.width)])


def lists(plan: RankedPlan) -> Iterator[tuple[str, Sequence[Choice]]]:
    """The lists of a plan that are not empty, by name."""
    yield from ((name, some) for name, some in ((EXACT, plan.exact), (APPROXIMATE, plan.approximate)) if some)


def answers(plan: RankedPlan, view: PlanView) -> Iterator[str]:
    """What is ranked, the best of each list, and whether one GPU is enough."""
    yield from _ranked(plan, view)
    exact, approximate = plan.best_exact, plan.best_approximate
    yield f"Best exact: {_told(exact)}." if exact else "Best exact: none that is legal and fits."
    if approximate is not None:
        how = "by epoch alone" if approximate.epochs is None else "at the same accuracy"
        yield f"Best approximate, {how}: {_told(approximate)}; {_does(approximate)}."
    yield _one_gpu(plan)


def _ranked(plan: RankedPlan, view: PlanView) -> Iterator[str]:
    """What the choices are ranked by: time or price to a target where trainings tell, else an epoch."""
    command = " ".join(["halocast converge", view.asked]).rstrip()
    target = plan.target
    if target is None:
        yield f"Ranks {RANKS[plan.goal.aim]}, not results: accuracy is not known; run `{command}`."
    elif not plan.reached:
        why = f" ({target.reason})" if target.reason else ""
        yield f"Ranks {RANKS[plan.goal.aim]}, not results: accuracy is not known{why}; add --train, or run `{command}`."
    else:
        known = f"{len(plan.reached)} of {len(plan.choices)} choices"
        yield f"Ranks {TO_RANKS[plan.goal.aim]} to {target.goal}, as far as trainings tell it: {known}."
        if target.stands_in:
            yield f"Scores are of {target.trained}, which stands in for {target.timed}: none is one of {target.timed}."


def _told(choice: Choice) -> str:
    if choice.epochs is not None:
        return f"{choice.candidate.label}: {_to_target(choice)}"
    price = f", {_price(choice)}" if choice.price is not None else ""
    return f"{choice.candidate.label}: {seconds(choice.epoch_s)} an epoch (likely {_likely(choice)}){price}"


def _to_target(choice: Choice) -> str:
    """Time, epochs, price and test score at the target."""
    paid = f", {dollars(choice.cost)}" if choice.cost is not None else ""
    return f"{duration(choice.time_s)} to the target ({choice.epochs:.0f} epochs){paid}, test {_test(choice)}"


def _does(choice: Choice) -> str:
    """What an approximate choice does to the numbers."""
    old = f"rows up to {choice.ages[-1]} epochs old" if choice.ages and choice.ages[-1] else ""
    age = "rows of any age" if choice.any_age else old.replace(" 1 epochs", " 1 epoch")
    return " and ".join(["some rows are left out"] * (choice.approximation == "sampled") + [age] * bool(age))


def _one_gpu(plan: RankedPlan) -> str:
    single, best = plan.single, plan.best_exact
    if single is None:
        return f"One GPU {_without_one(plan)}."
    if single is best:
        return "One GPU is enough: the best exact choice has one."
    own = _to_target(single) if single.epochs is not None else f"{seconds(single.epoch_s)} an epoch{_paid(single)}"
    aside = "" if single.exact else f", but not exact: {_does(single)}"
    return f"One GPU is enough: {single.candidate.label}: {own}{_against(single, best) if best else ''}{aside}."


def _paid(choice: Choice) -> str:
    return f" for {_price(choice)}" if choice.price is not None else ""


def _against(single: Choice, best: Choice) -> str:
    """What one GPU takes beside the best exact choice: to the target if that is known of both, else for an epoch."""
    if (single.epochs is None) is not (best.epochs is None) or not best.time_s:
        return ""
    times = f", {single.time_s / best.time_s:.3g} times that of the best exact one"
    return (
        times if single.cost is None or not best.cost else f"{times} at {single.cost / best.cost:.3g} times its price"
    )


def _without_one(plan: RankedPlan) -> str:
    """The reason why no choice of one GPU is in a plan."""
    slow = [choice for choice in plan.hopeless if choice.gpus == 1]
    if slow:
        least = min(choice.epoch_s for choice in slow)
        return f"is not enough: an epoch takes at least {seconds(least)}"
    reasons = [f"{one.label}: {why}" for one, why in plan.dropped if one.gpus == 1 and not why.startswith(SAME)]
    return f"is not enough: {reasons[0]}" if reasons else "is none of the choices ([plan] gpus)"


def _listed(best: Sequence[Choice], view: PlanView, columns: "Sequence[_Column]") -> Iterator[str]:
    yield _table(best[: view.top], view.width, columns)
    if len(best) > view.top:
        yield f"... and {len(best) - view.top} more (--top)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column of the table; the higher its rank, the sooner a narrow terminal goes without it."""

    name: str
    rank: int
    cell: Callable[[Choice], str]


PLACE = (
    _Column(name="method", rank=0, cell=lambda choice: choice.candidate.method),
    _Column(name="options", rank=0, cell=lambda choice: choice.candidate.chosen or "-"),
    _Column(name="GPUs", rank=0, cell=lambda choice: str(choice.gpus)),
    _Column(name="on", rank=0, cell=lambda choice: Path(choice.candidate.cluster).stem),
)
STALE = _Column(name="stale", rank=2, cell=lambda choice: "-" if choice.exact else age_range(choice.ages))
SURE = _Column(name="sure", rank=6, cell=lambda choice: str(choice.sure))
COLUMNS = (
    *PLACE,
    _Column(name="epoch", rank=0, cell=lambda choice: seconds(choice.epoch_s)),
    _Column(name="likely", rank=4, cell=lambda choice: _likely(choice)),
    _Column(name="exposed", rank=5, cell=lambda choice: seconds(choice.predicted.exposed_comm_s)),
    _Column(name="head-room", rank=3, cell=lambda choice: size(choice.headroom_bytes)),
    _Column(name="price/epoch", rank=1, cell=lambda choice: _price(choice)),
    _Column(name="kind", rank=1, cell=lambda choice: "-" if choice.exact else str(choice.approximation)),
    STALE,
    SURE,
)
TO_TARGET = (
    *PLACE,
    _Column(name="kind", rank=0, cell=lambda choice: str(choice.approximation)),
    _Column(name="time", rank=0, cell=lambda choice: duration(choice.time_s)),
    _Column(name="epochs", rank=2, cell=lambda choice: f"{choice.epochs:.0f}"),
    _Column(name="epoch", rank=3, cell=lambda choice: seconds(choice.epoch_s)),
    _Column(name="cost", rank=1, cell=lambda choice: dollars(choice.cost)),
    _Column(name="test", rank=1, cell=lambda choice: _test(choice)),
    STALE,
    SURE,
)


def _table(choices: Sequence[Choice], width: int, columns: Sequence[_Column]) -> str:
    rows = [[str(k), *(column.cell(choice) for column in columns)] for k, choice in enumerate(choices, 1)]
    return fitted([["", *(c.name for c in columns)], *rows], [0, *(c.rank for c in columns)], width)


def _test(choice: Choice) -> str:
    """The test score at the target, over seeds."""
    test = None if choice.reached is None else choice.reached.test
    return plus_minus(test.mean, test.std) if test else "-"


def _likely(choice: Choice) -> str:
    band = choice.predicted.known_band
    return "not known" if band is None else f"{seconds(band.low_s)} to {seconds(band.high_s)}"


def _price(choice: Choice) -> str:
    rented = choice.predicted.price
    return "-" if rented is None else f"{choice.price:.3g} {rented.currency}"


def _remarks(plan: RankedPlan, width: int) -> list[str]:
    dropped = [(candidate, reason) for candidate, reason in plan.dropped if not reason.startswith(SAME)]
    said = [f"{len(plan.choices)} choices predicted, {len(plan.hopeless)} not: their bounds show they are not better."]
    if num_same := len(plan.dropped) - len(dropped):
        said.append(f"{num_same} choices left out that do the same as another: one GPU has nobody to exchange with.")
    if dropped:
        said += [f"{len(dropped)} choices dropped:", *_reasons(dropped)]
    priced = [(Path(choice.candidate.cluster).stem, choice.predicted.price) for choice in plan.choices]
    dates = sorted({f"{cluster} {price.price_date}" for cluster, price in priced if price})
    if dates:
        said.append(f"Prices are approximate list prices of whole hosts: {', '.join(dates)}.")
    said.append("likely: where eight of ten predictions of this kind were; some of those rows chose our constants.")
    if plan.approximate:
        said.append("[plan] max_staleness and min_rate bound how stale rows may be and how few are left.")
    return [filled(line, width, REASON_INDENT if line.startswith(" ") else INDENT) for line in said]


def _reasons(dropped: Sequence[tuple[Candidate, str]]) -> Iterator[str]:
    """The number of dropped choices by method and cluster, with the reason of the first of each."""
    first: dict[tuple[str, str], str] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for candidate, reason in dropped:
        group = candidate.method, Path(candidate.cluster).stem
        first.setdefault(group, f"{_gpus(candidate.gpus)}: {reason}")
        counts[group] += 1
    for (method, cluster), num in counts.most_common(MOST_REASONS):
        yield f"  {num:4} {method} on {cluster}: {first[method, cluster]}"


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
