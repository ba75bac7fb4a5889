"""The drawings of the page as numbers: widths of bars in per cent, shades of cells, points of curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halocast.reports.comparison import Comparison, MethodResult, ScalePoint, family
from halocast.reports.critical import last_window
from halocast.reports.metrics import PARTS
from halocast.reports.network import Utilisation, bytes_by_link, link_utilisation
from halocast.reports.page.tables import memory_share
from halocast.reports.summary import MemoryFigures, Summary
from halocast.reports.table import seconds, size, used_of
from halocast.reports.verdict import LABELS

Row = dict[str, Any]
MOST_LINKS = 16


def epoch_bars(results: Sequence[MethodResult]) -> list[Row]:
    """Stacked parts of the mean rank's epoch: `abs` in per cent of the longest bar, `rel` of its own."""
    longest = max((_reach(result.summary) for result in results), default=0.0)
    return [_bar(result, longest) for result in results] if longest > 0 else []


def _reach(summary: Summary) -> float:
    band = summary.known_band
    return max(summary.epoch_s, summary.epoch_s_mean, band.high_s if band else 0.0)


def _bar(result: MethodResult, longest: float) -> Row:
    s = result.summary
    parts = [(part, s.seconds_of(part)) for part in PARTS]
    whole = sum(part_s for _, part_s in parts)
    segments = [
        {
            "class": part.removesuffix("_s"),
            "abs": 100 * part_s / longest,
            "rel": 100 * part_s / whole,
            "title": f"{LABELS[part]}: {seconds(part_s)} ({part_s / whole:.0%})",
        }
        for part, part_s in parts
        if part_s > 0
    ]
    band = s.known_band
    return {
        "method": result.method,
        "kind": str(s.approximation),
        "how": f"{s.how} on {s.cluster}",
        "epoch": seconds(s.epoch_s),
        "segments": segments,
        "band": [100 * band.low_s / longest, 100 * band.high_s / longest] if band else None,
    }


def memory_bars(results: Sequence[MethodResult]) -> list[Row]:
    """The fullest device of every method against its capacity."""
    known = [(result.method, result.summary.memory) for result in results]
    bars = [(method, memory) for method, memory in known if memory is not None]
    widest = max((max(memory.memory_bytes, memory.device_memory_bytes) for _, memory in bars), default=0)
    return [_memory(method, memory, widest) for method, memory in bars] if widest else []


def _memory(method: str, memory: MemoryFigures, widest: int) -> Row:
    return {
        "method": method,
        "used": 100 * memory.memory_bytes / widest,
        "capacity": 100 * memory.device_memory_bytes / widest,
        "fits": memory.fits,
        "text": used_of(memory),
        "share": memory_share(memory),
        "largest": ", ".join(f"{name} {size(value)}" for name, value in memory.largest_buffers[:4]),
        "at": f"rank {memory.memory_rank}, at {memory.memory_at}",
    }


def link_table(results: Sequence[MethodResult], most: int = MOST_LINKS) -> Row:
    """Bytes per epoch and mean utilisation of the links that carry most, by method; of all links of a trace."""
    carried = [bytes_by_link(result.trace) for result in results]
    used = [link_utilisation(r.trace, last_window(r.trace, r.summary.warmup_epochs)) for r in results]
    totals: dict[str, float] = {}
    for by_link in carried:
        for name, num_bytes in by_link.items():
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A predicted epoch on so many devices."""

    ranks: int
    epoch_s: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """A method's predicted epochs over devices; methods of a family have one colour and differ in their dashes."""

    method: str
    colour: int
    dash: int
    points: tuple[CurvePoint, ...]


def scaling_curves(comparison: Comparison) -> list[ScalingCurve]:
    """A curve per method, for the page and for the figure."""
    methods = list(dict.fromkeys(point.method for point in comparison.scaling))
    families = list(dict.fromkeys(family(method) for method in methods))
    return [
        ScalingCurve(
            method=method,
            colour=families.index(family(method)),
            dash=[name for name in methods if family(name) == family(method)].index(method),
            points=tuple(
                CurvePoint(ranks=p.ranks, epoch_s=p.epoch_s, fits=p.fits)
                for p in comparison.scaling
                if p.method == method and p.epoch_s is not None
            ),
        )
        for method in methods
    ]


def scaling_chart(comparison: Comparison) -> Row:
    """The curves as the page's script draws them."""
    return {
        "ranks": sorted({point.ranks for point in comparison.scaling}),
        "here": comparison.predicted[0].summary.ranks if comparison.predicted else 0,
        "curves": [
            {
                "method": curve.method,
                "colour": curve.colour,
                "dash": curve.dash,
                "points": [[point.ranks, point.epoch_s, point.fits] for point in curve.points],
            }
            for curve in scaling_curves(comparison)
        ],
    }


def scaling_table(comparison: Comparison) -> tuple[list[int], list[Row]]:
    """The curves as a table: the numbers of devices, and a row per method."""
    points = {(point.method, point.ranks): point for point in comparison.scaling}
    counts = sorted({ranks for _, ranks in points})
    methods = list(dict.fromkeys(method for method, _ in points))
    return counts, [{"method": name, "cells": [_cell(points.get((name, k))) for k in counts]} for name in methods]


def missing(comparison: Comparison) -> list[str]:
    """Reasons why scaling curves lack points, each once per method."""
    gaps: dict[tuple[str, str], list[int]] = {}
    for point in comparison.scaling:
        if point.epoch_s is None:
            gaps.setdefault((point.method, point.reason), []).append(point.ranks)
    return [f"{method} on {', '.join(map(str, counts))}: {reason}" for (method, reason), counts in gaps.items()]


def _cell(point: ScalePoint | None) -> Row:
    if point is None or point.epoch_s is None:
        return {"text": "-", "title": point.reason if point else ""}
    return {"text": seconds(point.epoch_s) + ("" if point.fits else " (does not fit)"), "title": ""}
