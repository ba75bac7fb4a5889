"""The tables of the page as plain rows of text."""

import tomllib
from collections.abc import Callable
from typing import Any

from halocast.reports.comparison import Comparison, Result, fastest_first
from halocast.reports.table import Summary, ages, band, insights, seconds, size
from halocast.reports.verdict import LABELS, ranks

Row = dict[str, Any]


def facts(comparison: Comparison) -> list[tuple[str, str]]:
    """What was compared, in a few words."""
    tables = tomllib.loads(comparison.scenario) if comparison.scenario else {}
    graph, model = tables.get("graph", {}), tables.get("model", {})
    found = [("graph", _graph(graph)), ("model", _model(model))]
    if comparison.results:
        first = comparison.results[0].summary
        found.append(("cluster", f"{first['cluster']}, {ranks(first['ranks'])}, {first.get('transport', '')}"))
    return [(name, text) for name, text in found if text]


def _graph(graph: Row) -> str:
    name = str(graph.get("dataset", ""))
    size_told = f", {graph['nodes']:,} nodes of degree {graph['degree']:g}" if name == "synthetic" else ""
    return name + size_told


def _model(model: Row) -> str:
    if not model:
        return ""
    return f"{model['layers']}-layer {model['kind']}, {model['hidden']} hidden{', precompute' * model['precompute']}"


def _alone(comparison: Comparison) -> list[Row]:
    """What a single device would take: whoever compares wants to know whether it pays to have more."""
    alone = [p for p in comparison.scaling if p.ranks == 1 and p.epoch_s is not None]
    if not alone or comparison.predicted[0].summary["ranks"] == 1:
        return []
    best = min(alone, key=lambda p: (not p.fits, p.epoch_s))
    note = "per epoch" if best.fits else "per epoch, but it does not fit"
    return [{"label": "One device alone", "method": best.method, "value": seconds(best.epoch_s or 0.0), "note": note}]


def tiles(comparison: Comparison) -> list[Row]:
    """The few answers most readers want, beside the verdict."""
    ordered = [r for r in fastest_first(comparison.predicted) if r.summary.get("fits", True)]
    fresh = [r for r in ordered if r.summary["staleness"] and not _oldest(r.summary)]
    quiet = sorted(ordered, key=lambda r: r.summary["bytes_total"])
    least = sorted(comparison.predicted, key=lambda r: r.summary["memory_bytes"])
    found: list[tuple[str, list[Result], Callable[[Summary], str], str]] = [
        ("Fastest", ordered, lambda s: seconds(s["epoch_s"]), "per epoch"),
        ("Fastest on fresh rows", fresh, lambda s: seconds(s["epoch_s"]), "per epoch"),
        ("Least traffic", quiet, lambda s: size(s["bytes_total"]), "per epoch, all ranks"),
        ("Least memory", least, lambda s: size(s["memory_bytes"]), "on its fullest device"),
    ]
    told = [
        {"label": label, "method": results[0].method, "value": value(results[0].summary), "note": note}
        for label, results, value, note in found
        if results
    ]
    return [*told, *_alone(comparison)]


def _oldest(summary: Summary) -> int:
    return max((age for row in summary["staleness"] for age in row["ages"]), default=0)


def main_table(comparison: Comparison) -> list[Row]:
    """Predictions on the scenario's cluster, the fastest that fits first."""
    ordered = fastest_first(comparison.predicted)
    best = ordered[0].summary["epoch_s"] if ordered else 0.0
    return [_main_row(result, best) for result in ordered]


def _main_row(result: Result, best_s: float) -> Row:
    s = result.summary
    return {
        "method": result.method,
        "fits": s.get("fits", True),
        "epoch": seconds(s["epoch_s"]),
        "band": band(s),
        "ratio": f"{s['epoch_s'] / best_s:.2f}×" if best_s else "-",
        "parts": [seconds(s[part]) for part in (*LABELS, "hidden_comm_s")],
        "traffic": size(s["bytes_total"]),
        "memory": size(s["memory_bytes"]),
        "share": f"{s['memory_bytes'] / s['device_memory_bytes']:.0%}" if s["device_memory_bytes"] else "-",
        "stale": ages(s["staleness"]),
        "why": insights(s),
    }


def measured_table(comparison: Comparison) -> list[Row]:
    """Real runs on this machine beside what was predicted for it."""
    rows = []
    for predicted, run in comparison.measured:
        s = run.summary
        p = predicted.summary if predicted else None
        accuracy = s.get("final_accuracy", {})
        rows.append(
            {
                "method": run.method,
                "predicted": seconds(p["epoch_s"]) if p else "-",
                "measured": seconds(s["epoch_s"]),
                "ratio": f"{s['epoch_s'] / p['epoch_s']:.2f}×" if p and p["epoch_s"] else "-",
                "exposed": seconds(s["exposed_comm_s"]),
                "traffic": size(s["bytes_total"]),
                "epochs": f"{s['epochs']}, first {s['warmup_epochs']} dropped",
                "loss": f"{s['loss'][0]:.3f} → {s['loss'][-1]:.3f}" if s.get("loss") else "-",
                "accuracy": ", ".join(f"{name} {value:.3f}" for name, value in accuracy.items()) or "-",
            }
        )
    return rows


def staleness_rows(comparison: Comparison) -> list[Row]:
    """What reads rows of others and how old they are, as scheduled and, where there was a run, as found."""
    found = {run.method: _found_ages(run.summary) for _, run in comparison.measured}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for result in comparison.predicted:
        for row in result.summary["staleness"]:
            real = found.get(result.method, {}).get((row["op"], row["reads"]), "")
            groups.setdefault((result.method, ages([row]), real), []).append(row["op"])
    return [
        {"method": method, "ages": scheduled, "found": real, "readers": _by_verb(readers)}
        for (method, scheduled, real), readers in groups.items()
    ]


def _by_verb(ops: list[str]) -> str:
    """forward.0, forward.1, loss -> forward 0 1, loss."""
    indices: dict[str, list[str]] = {}
    for op in dict.fromkeys(ops):
        verb, _, index = op.partition(".")
        indices.setdefault(verb, []).append(index)
    return ", ".join(" ".join([verb, *filter(None, found)]) for verb, found in indices.items())


def _found_ages(summary: Summary) -> dict[tuple[str, str], str]:
    return {(row["op"], row["reads"]): _range(row["rows_by_age"]) for row in summary.get("ages", [])}


def _range(rows_by_age: dict[str, int]) -> str:
    found = sorted(int(age) for age in rows_by_age)
    if not found:
        return "-"
    return str(found[0]) if len(found) == 1 else f"{found[0]}..{found[-1]}"


def provenance_rows(comparison: Comparison) -> list[Row]:
    """Where every row's figures come from; methods that share all of it are told together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for result in comparison.results:
        groups.setdefault(_provenance(result.summary), []).append(result.method)
    keys = ("how", "cluster", "constants", "sizes", "links", "calibrated")
    return [{"methods": ", ".join(names)} | dict(zip(keys, told, strict=True)) for told, names in groups.items()]


def _provenance(s: Summary) -> tuple[str, ...]:
    if s["source"] == "executed":
        return "measured", s["cluster"], f"{s['epochs']} real epochs over {s['transport']}", "data", "real", "-"
    calibrated = str(s["calibrated"]) if s.get("calibrated") else "no"
    return "predicted", s["cluster"], s["constants"], s["sizes"], s.get("links", "-"), calibrated
