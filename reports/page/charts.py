"""The drawings of the page as numbers: widths of bars in per cent, shades of cells, points of curves."""

from collections.abc import Sequence
from typing import Any

from halocast.reports.comparison import Comparison, Result, ScalePoint, family
from halocast.reports.critical import last_window
from halocast.reports.metrics import PARTS
from halocast.reports.network import Utilisation, bytes_by_link, link_utilisation
from halocast.reports.table import Summary, seconds, size
from halocast.reports.verdict import LABELS

Row = dict[str, Any]
HOW = {"simulated": "predicted", "executed": "measured"}
MOST_LINKS = 16


def epoch_bars(results: Sequence[Result]) -> list[Row]:
    """Stacked parts of the mean rank's epoch: `abs` in per cent of the longest bar, `rel` of its own."""
    longest = max((_reach(result.summary) for result in results), default=0.0)
    return [_bar(result, longest) for result in results] if longest > 0 else []


def _reach(summary: Summary) -> float:
    band = summary.get("band")
    return float(max(summary["epoch_s"], summary["epoch_s_mean"], band["high_s"] if band else 0.0))


def _bar(result: Result, longest: float) -> Row:
    s = result.summary
    whole = sum(s[part] for part in PARTS)
    segments = [
        {
            "class": part.removesuffix("_s"),
            "abs": 100 * s[part] / longest,
            "rel": 100 * s[part] / whole,
            "title": f"{LABELS[part]}: {seconds(s[part])} ({s[part] / whole:.0%})",
        }
        for part in PARTS
        if s[part] > 0
    ]
    band = s.get("band")
    return {
        "method": result.method,
        "how": f"{HOW.get(s['source'], s['source'])} on {s['cluster']}",
        "epoch": seconds(s["epoch_s"]),
        "segments": segments,
        "band": [100 * band["low_s"] / longest, 100 * band["high_s"] / longest] if band else None,
    }


def memory_bars(results: Sequence[Result]) -> list[Row]:
    """The fullest device of every method against its capacity."""
    widest = max((max(r.summary["memory_bytes"], r.summary["device_memory_bytes"]) for r in results), default=0)
    return [_memory(result.summary, widest) for result in results] if widest else []


def _memory(s: Summary, widest: int) -> Row:
    return {
        "method": s["method"],
        "used": 100 * s["memory_bytes"] / widest,
        "capacity": 100 * s["device_memory_bytes"] / widest,
        "fits": s.get("fits", True),
        "text": f"{size(s['memory_bytes'])} of {size(s['device_memory_bytes'])}",
        "share": f"{s['memory_bytes'] / s['device_memory_bytes']:.0%}" if s["device_memory_bytes"] else "-",
        "largest": ", ".join(f"{name} {size(value)}" for name, value in s.get("largest_buffers", [])[:4]),
        "at": f"rank {s.get('memory_rank', 0)}, at {s.get('memory_at', '')}",
    }


def link_table(results: Sequence[Result], most: int = MOST_LINKS) -> Row:
    """Bytes per epoch and mean utilisation of the links that carry most, by method; of all links of a trace."""
    carried = [bytes_by_link(result.trace) for result in results]
    used = [link_utilisation(r.trace, last_window(r.trace, r.summary["warmup_epochs"])) for r in results]
    totals: dict[str, float] = {}
    for found in carried:
        for name, num_bytes in found.items():
            totals[name] = max(totals.get(name, 0.0), num_bytes)
    names = sorted(totals, key=lambda name: (-totals[name], name))[:most]
    rows = [
        {"link": name, "cells": [_link_cell(b.get(name), u.get(name)) for b, u in zip(carried, used, strict=True)]}
        for name in names
    ]
    return {"methods": [result.method for result in results], "rows": rows, "left_out": len(totals) - len(names)}


def _link_cell(num_bytes: float | None, used: Utilisation | None) -> Row:
    return {
        "num_bytes": num_bytes or 0.0,
        "bytes": size(num_bytes) if num_bytes else "",
        "used": f"{used.mean:.0%}" if used and num_bytes else "",
        "level": round(100 * used.mean) if used and num_bytes else 0,
    }


def scaling_chart(comparison: Comparison) -> Row:
    """Curves of predicted epochs over ranks."""
    methods = list(dict.fromkeys(point.method for point in comparison.scaling))
    return {
        "ranks": sorted({point.ranks for point in comparison.scaling}),
        "here": comparison.predicted[0].summary["ranks"] if comparison.predicted else 0,
        "curves": [_curve(method, methods, comparison) for method in methods],
    }


def _curve(method: str, methods: Sequence[str], comparison: Comparison) -> Row:
    families = list(dict.fromkeys(family(name) for name in methods))
    variants = [name for name in methods if family(name) == family(method)]
    points = [p for p in comparison.scaling if p.method == method and p.epoch_s is not None]
    return {
        "method": method,
        "colour": families.index(family(method)),
        "dash": variants.index(method),
        "points": [[p.ranks, p.epoch_s, p.fits] for p in points],
    }


def scaling_table(comparison: Comparison) -> tuple[list[int], list[Row]]:
    """The same as a table: the counts, and a row per method."""
    points = {(point.method, point.ranks): point for point in comparison.scaling}
    counts = sorted({ranks for _, ranks in points})
    methods = list(dict.fromkeys(method for method, _ in points))
    return counts, [{"method": name, "cells": [_cell(points.get((name, k))) for k in counts]} for name in methods]


def missing(comparison: Comparison) -> list[str]:
    """Why there are no points where there are none, each reason once per method."""
    found: dict[tuple[str, str], list[int]] = {}
    for point in comparison.scaling:
        if point.epoch_s is None:
            found.setdefault((point.method, point.reason), []).append(point.ranks)
    return [f"{method} on {', '.join(map(str, counts))}: {reason}" for (method, reason), counts in found.items()]


def _cell(point: ScalePoint | None) -> Row:
    if point is None or point.epoch_s is None:
        return {"text": "-", "title": point.reason if point else ""}
    return {"text": seconds(point.epoch_s) + ("" if point.fits else " (does not fit)"), "title": ""}
