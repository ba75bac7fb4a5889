"""The figures of a comparison as SVG and PNG files, drawn by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from halocast.reports.comparison import Comparison, MethodResult
from halocast.reports.figures import FORMATS, STYLES, new_figure, save_figure
from halocast.reports.metrics import PARTS
from halocast.reports.page.charts import link_table, scaling_curves
from halocast.reports.table import size
from halocast.reports.verdict import LABELS

if TYPE_CHECKING:  # slow to import, and only reports need it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#4477aa", "#ee6677", "#ccbb44", "#aa3377", "#bbbbbb")  # Tol's bright scheme, told apart by all eyes
CURVES = ("#0077bb", "#ee7733", "#009988", "#ee3377", "#cc3311", "#33bbee", "#777777")  # Tol's vibrant scheme
MOST_LINKS = 10


def draw_all(directory: Path, comparison: Comparison) -> list[tuple[str, str]]:
    """Draw what there is; return (title, path without suffix) of each figure, as seen from beside the directory."""
    directory.mkdir()
    drawn = []
    if comparison.results:
        _save(_epochs(comparison.results), directory / "epoch")
        drawn.append(("What an epoch is made of", f"{directory.name}/epoch"))
    if any(point.epoch_s for point in comparison.scaling):
        _save(_scaling(comparison), directory / "scaling")
        drawn.append(("Predicted epoch over the number of devices", f"{directory.name}/scaling"))
    if any(result.trace.links for result in comparison.predicted):
        _save(_links(comparison.predicted), directory / "links")
        drawn.append(("Bytes per epoch on the links that carry most", f"{directory.name}/links"))
    if comparison.predicted:
        _save(_memory(comparison.predicted), directory / "memory")
        drawn.append(("Memory of the fullest device against its capacity", f"{directory.name}/memory"))
    return drawn


def _save(figure: Figure, path: Path) -> None:
    for suffix in FORMATS:
        save_figure(figure, path.with_suffix(suffix))


def _epochs(results: tuple[MethodResult, ...]) -> Figure:
    """Stacked bars of what the mean rank's epoch is made of, each cluster on an axis of its own."""
    figure, (axis,) = new_figure(8.5, 1.3 + 0.42 * len(results))
    ordered = sorted(results, key=lambda r: list(dict.fromkeys(_place(one) for one in results)).index(_place(r)))
    names = [f"{r.method}, {_how(r)}" for r in ordered]
    left = [0.0] * len(ordered)
    for part, colour in zip(PARTS, COLOURS, strict=True):
        values = [1e3 * r.summary.seconds_of(part) for r in ordered]
        axis.barh(range(len(ordered)), values, left=left, color=colour, label=LABELS[part])
        left = [a + b for a, b in zip(left, values, strict=True)]
    for place, result in enumerate(ordered):
        axis.annotate(f" {1e3 * result.summary.epoch_s:.3g}", (left[place], place), va="center", fontsize="small")
        _whisker(axis, result, place)
    axis.set_yticks(range(len(ordered)), names)
    axis.set_xlabel("ms per epoch (mean over ranks)")
    axis.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize="small")
    return figure


def _how(result: MethodResult) -> str:
    return f"{result.summary.how} on {result.summary.cluster}"


def _place(result: MethodResult) -> str:
    return result.summary.predicts or result.summary.cluster


def _whisker(axis: Axes, result: MethodResult, place: int) -> None:
    if band := result.summary.known_band:
        ends = [1e3 * band.low_s, 1e3 * band.high_s]
        axis.plot(ends, [place, place], "|-", color="black", linewidth=1, markersize=7)


def _scaling(comparison: Comparison) -> Figure:
    """Curves of predicted epochs over devices; a hollow mark does not fit in memory."""
    figure, (axis,) = new_figure(8.5, 4.8)
    for curve in scaling_curves(comparison):
        colour, style = CURVES[curve.colour % len(CURVES)], STYLES[curve.dash % len(STYLES)]
        ys = [1e3 * point.epoch_s for point in curve.points]
        axis.plot([point.ranks for point in curve.points], ys, style, color=colour, label=curve.method, linewidth=1.6)
        for point, y in zip(curve.points, ys, strict=True):
            face = colour if point.fits else "white"
            axis.plot([point.ranks], [y], "o", color=colour, markersize=5, markerfacecolor=face)
    axis.set(xscale="log", yscale="log", xlabel="devices (hollow: does not fit in memory)", ylabel="ms per epoch")
    counts = sorted({point.ranks for point in comparison.scaling})
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure


def _links(results: list[MethodResult]) -> Figure:
    """A table of shades, links by methods, with the bytes in it: bars would be unreadable with many methods."""
    table = link_table(results, MOST_LINKS)
    links = [row["link"] for row in table["rows"]]
    values = [[cell["num_bytes"] for cell in row["cells"]] for row in table["rows"]]
    figure, (axis,) = new_figure(2.5 + 0.85 * len(results), 1.4 + 0.36 * len(links))
    axis.imshow(values, aspect="auto", cmap="Blues", vmax=1.6 * max(map(max, values)))
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            axis.text(column, row, size(value) if value else "–", ha="center", va="center", fontsize="x-small")
    axis.set_xticks(range(len(results)), [result.method for result in results], rotation=30, ha="right")
    axis.set_yticks(range(len(links)), links, fontsize="small")
    axis.spines[:].set_visible(False)
    axis.set_title("bytes per epoch", fontsize="medium")
    return figure


def _memory(results: list[MethodResult]) -> Figure:
    """A bar per method on a grey one that is its device's capacity."""
    figure, (axis,) = new_figure(8.5, 1.2 + 0.36 * len(results))
    for place, memory in enumerate(result.summary.memory for result in results):
        if memory is not None:
            used, capacity = 1e-9 * memory.memory_bytes, 1e-9 * memory.device_memory_bytes
            axis.barh(place, capacity, color="#e4e7eb")
            axis.barh(place, used, color=COLOURS[0] if used <= capacity else "#cc3311", height=0.5)
            label = f" {size(memory.memory_bytes)}, {used / capacity:.0%}" if capacity else ""
            axis.annotate(label, (used, place), va="center", fontsize="small")
    axis.set_yticks(range(len(results)), [result.method for result in results])
    axis.set_xlabel("GB on the fullest device (grey: its capacity)")
    axis.invert_yaxis()
    return figure
