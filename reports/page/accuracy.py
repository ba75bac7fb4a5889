"""The accuracy page: predicted beside published figures, as one HTML file that needs nothing else.

In sample (a constant was chosen from the row's run) and left out are always apart.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from markupsafe import Markup

from halocast.reports.page.template import environment, text_of
from halocast.reports.published import PublishedResult, errors_of
from halocast.reports.table import aligned

PLACE = ("source", "where", "dataset", "train_graph", "model", "layers", "hidden", "testbed", "gpus", "nodes", "method")
# How rows are put together, and in whose words: a row's own, or what the prediction took it for.
GROUPS: Mapping[str, Callable[[PublishedResult], str]] = MappingProxyType(
    {
        "source": lambda result: result.row["source"],
        "implementation": lambda result: result.facts.get("code", ""),
        "method": lambda result: result.facts.get("method", "") or result.row["method"],
        "device": lambda result: result.facts.get("device", ""),
        "graph": lambda result: result.facts.get("dataset", "") or result.row["dataset"],
        "model": lambda result: result.facts.get("model", "") or result.row["model"],
    }
)
EPOCH, FLAG = "epoch_s", "oom"


def render_accuracy(results: Sequence[PublishedResult], summary: Mapping[str, Any], version: str, command: str) -> str:
    """The page as HTML."""
    template = environment().from_string(text_of("accuracy.html"))
    return template.render(
        page=_page(results, summary, version, command),
        css=Markup(text_of("report.css") + text_of("accuracy.css")),  # ours, not a user's
        script=Markup(text_of("accuracy.js")),
        data={"runs": runs(results), "groups": list(GROUPS)},
    )


def _page(results: Sequence[PublishedResult], summary: Mapping[str, Any], version: str, command: str) -> dict[str, Any]:
    accuracy = summary["accuracy"]
    epochs = [result for result in results if result.row["metric"] == EPOCH and result.error is not None]
    return {
        "made": version,
        "command": command,
        "facts": _facts(results, summary),
        "verdict": _verdict(summary),
        "tiles": _tiles(accuracy),
        "metrics": sorted({result.row["metric"] for result in results if result.error is not None} - {FLAG}),
        "tables": {name: _grouped(epochs, said) for name, said in GROUPS.items()},
        "by_metric": _grouped(
            [result for result in results if result.row["metric"] != FLAG], lambda result: result.row["metric"]
        ),
        "left_out_by": accuracy["left_out_by"],
        "coverage": accuracy["coverage"],
        "oom": accuracy["oom"],
        "cancels": accuracy["cancels"],
        "wrong_order": summary["wrong_order"],
        "not_predicted": summary["not_predicted"],
    }


def _facts(results: Sequence[PublishedResult], summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    sources = {result.row["source"] for result in results}
    return [
        ("rows", f"{summary['rows']:,}"),
        ("predicted", f"{summary['predicted']:,}"),
        ("runs", f"{len({result.setting for result in results if result.setting}):,}"),
        ("sources", str(len(sources))),
    ]


def _verdict(summary: Mapping[str, Any]) -> str:
    epochs = summary["accuracy"]["epoch_s"]
    said = [
        f"{name} {errors['median']:.0%} ({errors['num']} settings, lean {errors['lean']:+.0%})"
        for name, errors in (("left out", epochs["left out"]), ("in sample", epochs["in sample"]))
        if errors["num"]
    ]
    return f"Median error of an epoch: {'; '.join(said)}." if said else "No epoch could be compared."


def _tiles(accuracy: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        *(_error_tile(f"epochs {name}", accuracy["epoch_s"][name]) for name in ("left out", "in sample")),
        *(_order_tile(f"order of methods, {name}", order["clear"]) for name, order in accuracy["order"].items()),
        *(_coverage_tile(result) for result in accuracy["coverage"][:1]),
        _error_tile("memory, left out", accuracy["memory"]["left out"]),
        _verdict_tile("out of memory, told", accuracy["oom"]["out_of_memory"]),
        _verdict_tile("ran, told", accuracy["oom"]["ran"]),
    ]


def _tile(label: str, value: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def _error_tile(label: str, errors: Mapping[str, Any]) -> dict[str, str]:
    if not errors["num"]:
        return _tile(label, "-", "no rows")
    return _tile(label, f"{errors['median']:.1%}", f"median of {errors['num']} settings, lean {errors['lean']:+.1%}")


def _order_tile(label: str, order: Mapping[str, Any]) -> dict[str, str]:
    if not order["pairs"]:
        return _tile(label, "-", "no pairs")
    return _tile(label, f"{order['share']:.0%}", f"{order['right']} of {order['pairs']} pairs that differ by > 10 %")


def _coverage_tile(covered: Mapping[str, Any]) -> dict[str, str]:
    if not covered["rows"]:
        return _tile("80 % bands hold", "-", "no epochs")
    return _tile("80 % bands hold", f"{covered['held']:.0%}", f"of {covered['rows']} epochs, own run left out")


def _verdict_tile(label: str, right: Mapping[str, Any]) -> dict[str, str]:
    return _tile(label, f"{right['right']} of {right['cases']}" if right["cases"] else "-", "runs with a known end")


def _grouped(results: Iterable[PublishedResult], said: Callable[[PublishedResult], str]) -> list[dict[str, Any]]:
    groups: dict[str, list[PublishedResult]] = {}
    for result in results:
        if result.error is not None:
            groups.setdefault(said(result) or "not stated", []).append(result)
    return [_apart(name, groups[name]) for name in sorted(groups)]


def _apart(name: str, results: Sequence[PublishedResult]) -> dict[str, Any]:
    """The errors of a group, in sample and left out."""
    halves = {
        half: errors_of([result for result in results if result.in_sample is inside]) for half, inside in HALVES.items()
    }
    return {"name": name, **halves}


def epochs_by(results: Sequence[PublishedResult], *axes: str) -> str:
    """Errors of epochs by some axes together, left out and in sample apart, for a terminal."""
    epochs = [result for result in results if result.row["metric"] == EPOCH]
    lines = [(*axes, *(f"{name}: {half}" for half in ("left out", "in sample") for name in ("rows", "median", "lean")))]
    for group in _grouped(epochs, lambda result: SEPARATOR.join(GROUPS[axis](result) or "-" for axis in axes)):
        halves = (group[half] for half in HALVES)
        cells = [cell for errors in halves for cell in _cells(errors)]
        lines.append((*group["name"].split(SEPARATOR), *cells))
    return aligned(lines)


def _cells(errors: Mapping[str, Any]) -> tuple[str, str, str]:
    if not errors["num"]:
        return "0", "-", "-"
    return str(errors["num"]), f"{errors['median']:.0%}", f"{errors['lean']:+.0%}"


SEPARATOR = "\n"  # in no name
HALVES: Mapping[str, bool] = MappingProxyType({"left_out": False, "in_sample": True})


def runs(results: Sequence[PublishedResult]) -> list[dict[str, Any]]:
    """Every measured run with its rows: measured, predicted, and the band; runs of one table and setting once."""
    by_place: dict[tuple[str, ...], dict[str, Any]] = {}
    for result in results:
        if result.error is None or result.row["metric"] == FLAG:
            continue
        place = [result.row[name] for name in PLACE]
        run = by_place.setdefault((*place, result.row["params"]), _run(result))
        run["rows"].append(
            [result.row["metric"], result.published, result.predicted, result.row["unit"], *(result.band or ())]
        )
    return list(by_place.values())


def _run(result: PublishedResult) -> dict[str, Any]:
    return {
        "place": {name: result.row[name] for name in (*PLACE, "params") if result.row[name]},
        "groups": [said(result) or "not stated" for said in GROUPS.values()],
        "how": result.how,
        "in_sample": result.in_sample,
        "rows": [],
    }
