"""The tables of the page as plain rows of text."""

import tomllib
from collections.abc import Callable
from typing import Any

from halocast.reports.comparison import Comparison, MethodResult, exact_first
from halocast.reports.converge.answer import answer
from halocast.reports.converge.contests import contests
from halocast.reports.converge.targets import Reached
from halocast.reports.converge.words import dollars, duration, points
from halocast.reports.curves import Converged
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
    return [_tile("Epoch, one GPU alone", alone.method, seconds(alone.epoch_s), note)]


def tiles(comparison: Comparison) -> list[Row]:
    """The few figures most readers want, beside the verdict: times to the target where methods were trained."""
    fitting = [r for r in comparison.predicted if r.summary.fits]
    quiet = sorted(fitting, key=lambda r: r.summary.bytes_total)
    least = sorted(comparison.predicted, key=lambda r: _memory_bytes(r.summary))
    answers: list[tuple[str, list[MethodResult], Callable[[Summary], str], str]] = [
        ("Least traffic", quiet, lambda s: size(s.bytes_total), "per epoch, all ranks"),
        ("Least memory", least, lambda s: size(_memory_bytes(s)), "on its fullest device"),
    ]
    rest = [_tile(label, some[0].method, value(some[0].summary), note) for label, some, value, note in answers if some]
    if comparison.converged is not None:
        return [*_times_to_target(comparison.converged), *rest]
    return [*_shortest(comparison), *rest, *_alone(comparison)]


def _tile(label: str, method: str, value: str, note: str) -> Row:
    return {"label": label, "method": method, "value": value, "note": note}


def _shortest(comparison: Comparison) -> list[Row]:
    exact, approximate = best_exact(comparison), best_approximate(comparison)
    some = [
        ("Epoch, exact", exact, "the shortest that fits"),
        ("Epoch, approximate", approximate, "the shortest, accuracy aside"),
    ]
    return [_tile(label, r.method, seconds(r.summary.epoch_s), note) for label, r, note in some if r is not None]


def _times_to_target(converged: Converged) -> list[Row]:
    """Tiles of the best exact method, the best approximate one, and one GPU."""
    first = answer(converged, contests(converged)[0])
    some = [("exact", first.exact), ("approximate", first.approximate), ("one GPU", first.alone)]
    to = f"To {points(converged.target)} points"
    return [
        _tile(f"{to}, {kind}", reach.curve.label, duration(reach.seconds), f"{reach.epochs:.0f} epochs{_cost(reach)}")
        for kind, reach in some
        if reach is not None
    ]


def _cost(reach: Reached) -> str:
    return "" if reach.price is None else f", {dollars(reach.price)}"


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
