"""The tables of the page as plain rows of text."""

import tomllib
from collections.abc import Callable
from typing import Any

from halocast.reports.comparison import Comparison, MethodResult, exact_first
from halocast.reports.summary import MemoryFigures, Summary
from halocast.reports.table import age_range, ages, band, insights, seconds, size
from halocast.reports.to_target import target_columns
from halocast.reports.verdict import LABELS, best_approximate, best_exact, ranks

Row = dict[str, Any]


def facts(comparison: Comparison) -> list[tuple[str, str]]:
    """The graph, model and cluster that were compared, in a few words."""
    tables = tomllib.loads(comparison.scenario) if comparison.scenario else {}
    graph, model = tables.get("graph", {}), tables.get("model", {})
    entries = [("graph", _graph(graph)), ("model", _model(model))]
    if comparison.results:
        first = comparison.results[0].summary
        entries.append(("cluster", f"{first.cluster}, {ranks(first.ranks)}, {first.transport}"))
    return [(name, text) for name, text in entries if text]


def _graph(graph: Row) -> str:
    name = str(graph.get("dataset", ""))
    size_told = f", {graph['nodes']:,} nodes of degree {graph['degree']:g}" if name == "synthetic" else ""
    return name + size_told


def _model(model: Row) -> str:
    if not model:
        return ""
    return f"{model['layers']}-layer {model['kind']}, {model['hidden']} hidden{', precompute' * model['precompute']}"


def _alone(comparison: Comparison) -> list[Row]:
    """A tile with the epoch of a single device: whoever compares wants to know whether it pays to have more."""
    alone = comparison.alone
    if not isinstance(alone, Summary) or not comparison.predicted or comparison.predicted[0].summary.ranks == 1:
        return []
    note = "the whole graph" if alone.fits else "the whole graph does not fit"
    return [{"label": "Epoch, one GPU alone", "method": alone.method, "value": seconds(alone.epoch_s), "note": note}]


def tiles(comparison: Comparison) -> list[Row]:
    """The few figures most readers want, beside the verdict."""
    fitting = [r for r in comparison.predicted if r.summary.fits]
    quiet = sorted(fitting, key=lambda r: r.summary.bytes_total)
    least = sorted(comparison.predicted, key=lambda r: _memory_bytes(r.summary))
    exact, approximate = best_exact(comparison), best_approximate(comparison)
    answers: list[tuple[str, MethodResult | None, Callable[[Summary], str], str]] = [
        ("Epoch, exact", exact, lambda s: seconds(s.epoch_s), "the shortest that fits"),
        ("Epoch, approximate", approximate, lambda s: seconds(s.epoch_s), "the shortest, accuracy aside"),
        ("Least traffic", next(iter(quiet), None), lambda s: size(s.bytes_total), "per epoch, all ranks"),
        ("Least memory", next(iter(least), None), lambda s: size(_memory_bytes(s)), "on its fullest device"),
    ]
    shown = [
        {"label": label, "method": result.method, "value": value(result.summary), "note": note}
        for label, result, value, note in answers
        if result is not None
    ]
    return [*shown, *_alone(comparison)]


def _memory_bytes(summary: Summary) -> int:
    return summary.memory.memory_bytes if summary.memory else summary.peak_memory_bytes


def main_table(comparison: Comparison) -> list[Row]:
    """Predictions on the scenario's cluster: exact methods by their epoch, then approximate ones, then what is too
    large."""
    best = best_exact(comparison)
    best_s = best.summary.epoch_s if best else 0.0
    more = target_columns(comparison.converged)
    return [
        {
            **_main_row(result, best_s),
            "best": result is best,
            "more": [cells.get(result.method, "-") for _, cells in more],
        }
        for result in exact_first(comparison.predicted)
    ]


def _main_row(result: MethodResult, best_s: float) -> Row:
    s = result.summary
    return {
        "method": result.method,
        "kind": str(s.approximation),
        "fits": s.fits,
        "epoch": seconds(s.epoch_s),
        "band": band(s),
        "ratio": f"{s.epoch_s / best_s:.2f}×" if best_s else "-",
        "parts": [seconds(s.seconds_of(part)) for part in (*LABELS, "hidden_comm_s")],
        "traffic": size(s.bytes_total),
        "memory": size(_memory_bytes(s)),
        "share": memory_share(s.memory),
        "stale": ages(s.staleness),
        "why": insights(s),
    }


def memory_share(memory: MemoryFigures | None) -> str:
    """The share of its memory that the fullest device uses."""
    known = memory is not None and memory.device_memory_bytes
    return f"{memory.memory_bytes / memory.device_memory_bytes:.0%}" if memory is not None and known else "-"


def measured_table(comparison: Comparison) -> list[Row]:
    """Real runs on this machine beside what was predicted for it."""
    rows = []
    for predicted, run in comparison.measured:
        s = run.summary
        p = predicted.summary if predicted else None
        loss, accuracy = (s.training.loss, s.training.final_accuracy) if s.training else ((), {})
        rows.append(
            {
                "method": run.method,
                "predicted": seconds(p.epoch_s) if p else "-",
                "measured": seconds(s.epoch_s),
                "ratio": f"{s.epoch_s / p.epoch_s:.2f}×" if p and p.epoch_s else "-",
                "exposed": seconds(s.exposed_comm_s),
                "traffic": size(s.bytes_total),
                "epochs": f"{s.epochs}, first {s.warmup_epochs} dropped",
                "loss": f"{loss[0]:.3f} → {loss[-1]:.3f}" if loss else "-",
                "accuracy": ", ".join(f"{name} {value:.3f}" for name, value in accuracy.items()) or "-",
            }
        )
    return rows


def staleness_rows(comparison: Comparison) -> list[Row]:
    """Readers of others' rows and how old these are, as scheduled and, where there was a run, as found."""
    real_ages = {run.method: _found_ages(run.summary) for _, run in comparison.measured}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for result in comparison.predicted:
        for read in result.summary.staleness:
            real = real_ages.get(result.method, {}).get((read.op, read.reads), "")
            groups.setdefault((result.method, ages([read]), real), []).append(read.op)
    return [
        {"method": method, "ages": scheduled, "found": real, "readers": _by_verb(readers)}
        for (method, scheduled, real), readers in groups.items()
    ]


def _by_verb(ops: list[str]) -> str:
    """Names of ops grouped by verb: forward.0, forward.1, loss -> forward 0 1, loss."""
    indices: dict[str, list[str]] = {}
    for op in dict.fromkeys(ops):
        verb, _, index = op.partition(".")
        indices.setdefault(verb, []).append(index)
    return ", ".join(" ".join([verb, *filter(None, found)]) for verb, found in indices.items())


def _found_ages(summary: Summary) -> dict[tuple[str, str], str]:
    reads = summary.training.ages if summary.training else ()
    return {(read.op, read.reads): age_range(sorted(read.rows_by_age)) for read in reads}


def provenance_rows(comparison: Comparison) -> list[Row]:
    """Rows on where figures come from; methods that share all of it are told together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for result in comparison.results:
        groups.setdefault(_provenance(result.summary), []).append(result.method)
    keys = ("how", "cluster", "constants", "sizes", "links", "calibrated")
    return [{"methods": ", ".join(names)} | dict(zip(keys, told, strict=True)) for told, names in groups.items()]


def _provenance(s: Summary) -> tuple[str, ...]:
    if s.basis is None:
        return s.how, s.cluster, f"{s.epochs} real epochs over {s.transport}", "data", "real", "-"
    return s.how, s.cluster, s.basis.constants, s.basis.sizes, s.basis.links, s.basis.calibrated or "no"
