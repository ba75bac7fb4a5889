"""How far predictions can be trusted, from published rows: errors in sample and left out, orders, bands, memory."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

from halocast.reports.published import PublishedResult, errors_of, order_of, pairs
from halocast.study.bands import INSIDE, Band, Evidence
from halocast.study.evidence import case_of, situation_of

GROUPS = ("dataset", "model", "testbed", "code")  # what is left out in turn
MEMORY = ("memory_gb", "memory_gb_max")
RAN = ("epoch_s", *MEMORY)  # what only a run that fits can show
# Parts that an epoch is divided into, by sources' timers; their sum is compared with the epoch's own error.
PARTS = (
    "compute_s",
    "comm_s",
    "graph_comm_s",
    "layer_comm_s",
    "reduce_s",
    "optim_s",
    "bubble_s",
    "imbalance_s",
    "other_s",
)
AGREES, DISAGREE = 0.1, 0.25  # an epoch within so much of the measured, whose parts are so much of it off in sum


def accuracy(results: Sequence[PublishedResult], evidence: Evidence) -> dict[str, Any]:
    """What the errors of published rows come to; constants chosen from a row's run make it in sample."""
    epochs = [result for result in results if result.row["metric"] == "epoch_s" and result.error is not None]
    memory = once([result for result in results if result.row["metric"] in MEMORY and result.error is not None])
    settings = once(epochs)
    return {
        "rows": len(epochs),
        "epoch_s": _apart(settings),
        "left_out_by": {axis: errors_of(_untouched(settings, axis)) for axis in GROUPS},
        "order": {name: _order(group) for name, group in _halves(results).items()},
        "coverage": coverage(epochs, evidence),
        "memory": _apart(memory),
        "oom": verdicts(results),
        "cancels": cancelled(results),
    }


def once(results: Iterable[PublishedResult]) -> list[PublishedResult]:
    """A source's settings, each once: repeated measurements count as their mean."""
    groups: dict[tuple[str, str, str], list[PublishedResult]] = defaultdict(list)
    for result in results:
        groups[result.row["source"], result.row["metric"], result.setting].append(result)
    return [
        replace(repeated[0], published=mean(result.published or 0.0 for result in repeated))
        for repeated in groups.values()
    ]


def _halves(results: Iterable[PublishedResult]) -> dict[str, list[PublishedResult]]:
    gathered: dict[str, list[PublishedResult]] = {"in sample": [], "left out": []}
    for result in results:
        gathered["in sample" if result.in_sample else "left out"].append(result)
    return gathered


def _apart(results: Sequence[PublishedResult]) -> dict[str, Any]:
    return {name: errors_of(group) for name, group in _halves(results).items()} | {"all": errors_of(results)}


def _untouched(epochs: Sequence[PublishedResult], axis: str) -> list[PublishedResult]:
    """The rows of groups that no constant was chosen from: no row of the same dataset, model, ... is in sample."""
    touched = {result.facts[axis] for result in epochs if result.in_sample}
    return [result for result in epochs if result.facts[axis] not in touched]


def _order(results: Sequence[PublishedResult]) -> dict[str, Any]:
    gathered = pairs(results)
    return order_of(gathered) | {"clear": order_of([pair for pair in gathered if pair.clear])}


def with_bands(results: Sequence[PublishedResult], evidence: Evidence) -> list[PublishedResult]:
    """The results with the bands of their epochs, each made without the cases of its own group."""
    return [replace(result, band=_own_band(result, evidence)) for result in results]


def _own_band(result: PublishedResult, evidence: Evidence) -> tuple[float, float] | None:
    if case_of(result) is None or result.predicted is None:
        return None
    band = band_without(result, evidence, INSIDE)
    return None if band is None else band.around(result.predicted)


def band_without(result: PublishedResult, evidence: Evidence, axis: str) -> Band | None:
    """The band of an epoch from the cases of all other groups along an axis."""
    situation = situation_of(result.facts)
    axes = ("testbed", "dataset", "model", "method") if axis == INSIDE else (axis,)
    return evidence.band(situation, ~evidence.like(situation, axes))


def coverage(epochs: Sequence[PublishedResult], evidence: Evidence) -> list[dict[str, Any]]:
    """How many epochs lie in bands that nothing of their own group went into, by what was left out."""
    return [_covered(epochs, evidence, axis) for axis in (INSIDE, *GROUPS)]


def _covered(epochs: Sequence[PublishedResult], evidence: Evidence, axis: str) -> dict[str, Any]:
    held: dict[str, list[bool]] = defaultdict(list)
    widths = []
    for result in epochs:
        band = band_without(result, evidence, axis)
        if band is not None and result.published is not None and result.predicted is not None:
            low, high = band.around(result.predicted)
            cell = " ".join(result.facts[name] for name in ("testbed", "dataset", "model", "method"))
            held[f"{result.row['source']} {cell}"].append(low <= result.published <= high)
            widths.append(band.high - 1)
    shares = [sum(group) / len(group) for group in held.values()]
    rows = [inside for group in held.values() for inside in group]
    return {
        "left_out": axis,
        "rows": len(rows),
        "held": sum(rows) / len(rows) if rows else None,
        "groups": len(shares),
        "held_by_group": sum(shares) / len(shares) if shares else None,
        "width": median(widths) if widths else None,
    }


def verdicts(results: Iterable[PublishedResult]) -> dict[str, Any]:
    """Whether runs fit in memory, predicted and known: rows that say so, and every run that was measured, so ran."""
    known: dict[str, tuple[bool, bool, PublishedResult]] = {}
    for result in results:
        if result.out_of_memory is None:
            continue
        if result.row["metric"] == "oom":
            known[result.setting] = bool(result.published), result.out_of_memory, result
        elif result.row["metric"] in RAN:
            known.setdefault(result.setting, (False, result.out_of_memory, result))
    gathered = list(known.values())
    return {
        "out_of_memory": _right([(was, said) for was, said, _ in gathered if was]),
        "ran": _right([(was, said) for was, said, _ in gathered if not was]),
        "all": _right([(was, said) for was, said, _ in gathered]),
        "wrong": [
            {**place_of(result), "ran_out": was, "predicted": said} for was, said, result in gathered if was != said
        ],
    }


def _right(cases: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    right = sum(was == said for was, said in cases)
    return {"cases": len(cases), "right": right, "share": right / len(cases) if cases else None}


def place_of(result: PublishedResult) -> dict[str, str]:
    row = result.row
    return {name: row[name] for name in ("source", "dataset", "model", "testbed", "gpus", "method", "params")}


def runs_of(results: Iterable[PublishedResult]) -> dict[tuple[str, str], dict[str, PublishedResult]]:
    """The rows of each measured run by metric; those of one table and setting are one run."""
    runs: dict[tuple[str, str], dict[str, PublishedResult]] = defaultdict(dict)
    for result in results:
        if result.predicted is not None and result.setting:
            runs[f"{result.row['source']} {result.row['where']}", result.setting].setdefault(
                result.row["metric"], result
            )
    return runs


def cancelled(results: Iterable[PublishedResult]) -> list[dict[str, Any]]:
    """Runs whose epoch agrees while its parts do not: right for the wrong reasons."""
    gathered = []
    for run in runs_of(results).values():
        epoch = run.get("epoch_s")
        if epoch is None or epoch.error is None or abs(epoch.error) > AGREES:
            continue
        off = {name: run[name].off_s for name in PARTS if name in run}
        share = sum(map(abs, off.values())) / (epoch.published or 1.0)
        if share > DISAGREE:
            gathered.append({**place_of(epoch), "error": epoch.error, "parts": off, "share": share})
    return sorted(gathered, key=lambda result: -result["share"])


def verdict_lines(sums: Mapping[str, Any]) -> list[str]:
    """What the accuracy of published rows comes to, a line per question."""
    lines = [_epoch_line("Epochs in sample", sums["epoch_s"]["in sample"])]
    lines.append(_epoch_line("Epochs left out", sums["epoch_s"]["left out"]))
    lines += [
        _epoch_line(f"  of {axis}s that no constant was chosen from", errors)
        for axis, errors in sums["left_out_by"].items()
        if errors["num"]
    ]
    for name, order in sums["order"].items():
        clear = order["clear"]
        if clear["pairs"]:
            share = f"{clear['right']} of {clear['pairs']} ({clear['share']:.0%})"
            lines.append(f"Order of pairs that differ by more than 10 %, {name}: right in {share}")
    lines += [
        f"Bands of 80 % made without the epoch's own {covered['left_out']}: hold {covered['held']:.0%} of "
        f"{covered['rows']} epochs ({covered['held_by_group']:.0%} by group), "
        f"typically up to {1 + covered['width']:.2f} x"
        for covered in sums["coverage"]
        if covered["rows"]
    ]
    lines += [_epoch_line(f"Memory {name}", sums["memory"][name]) for name in ("in sample", "left out")]
    oom = sums["oom"]
    said = ", ".join(
        f"{name.replace('_', ' ')} {oom[name]['right']} of {oom[name]['cases']}" for name in ("out_of_memory", "ran")
    )
    lines.append(f"Verdicts on memory right: {said}")
    lines.append(f"Epochs that agree while their parts do not: {len(sums['cancels'])}")
    return lines


def _epoch_line(name: str, errors: Mapping[str, Any]) -> str:
    if not errors["num"]:
        return f"{name}: none"
    return f"{name}: median error {errors['median']:.1%}, lean {errors['lean']:+.1%}, over {errors['num']} settings"
