"""Figures that are no part of a comparison's page (panels of curves, time against price, predicted over measured),
and what all figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from halocast.base.errors import InputError
from halocast.base.files import whole_file

if TYPE_CHECKING:  # slow to import, and only figures need it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
DPI = 130
PANELS_PER_ROW = 3
STYLES = ("-", "--", ":", "-.")  # curves of one colour differ in their dashes
NUM_COLOURS = 10  # of matplotlib's cycle
MARKS = "os^Dv<>"


def require_figure(path: Path) -> None:
    """Refuse a file's name that no figure has."""
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: a figure ends in {' or '.join(FORMATS)}")


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "halocast"  # the same figure twice is the same file
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(rows, columns, k + 1) for k in range(rows * columns)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    return figure, axes


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure whole, as the suffix of its path says."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)
        temporary.chmod(0o644)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves by name over one variable; a final value is marked at its curve's end, a crossing by a line."""

    title: str = ""
    x_label: str = "epoch"
    y_label: str
    curves: Mapping[str, Sequence[float]]
    xs: Sequence[float] | None = None  # else 1, 2, 3, ...
    final: Mapping[str, float] = field(default_factory=dict)
    crossings: Sequence[float] = ()
    y_range: tuple[float, float | None] | None = None
    log: bool = False


def draw_panels(path: Path, panels: Sequence[Panel]) -> None:
    """Write panels side by side as a .png or .svg."""
    columns = min(PANELS_PER_ROW, len(panels))
    rows = -(-len(panels) // columns)
    width, height = (8.0, 5.0) if len(panels) == 1 else (5.2 * columns, 4.2 * rows)
    figure, axes = new_figure(width, height, rows, columns)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel)
    for axis in axes[len(panels) :]:
        axis.remove()
    save_figure(figure, path)


def _draw_panel(axis: Axes, panel: Panel) -> None:
    for number, (name, values) in enumerate(panel.curves.items()):
        xs = panel.xs or range(1, len(values) + 1)
        style, colour = STYLES[number // NUM_COLOURS % len(STYLES)], f"C{number % NUM_COLOURS}"
        axis.plot(xs, values, f".{style}" if panel.xs else style, color=colour, label=name, linewidth=1.2)
        if name in panel.final:
            axis.plot([xs[-1]], [panel.final[name]], "o", color=colour, markersize=4, clip_on=False)
    for crossing in panel.crossings:
        axis.axvline(crossing, color="0.5", linestyle=":", label=f"break-even at {crossing:.4g}")
    axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.y_range is not None:
        axis.set_ylim(*panel.y_range)
    if panel.log:
        axis.set_xscale("log")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize="x-small")


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """A choice of a plan by its time and its price; only those of one group are compared with each other."""

    epoch_s: float
    price: float
    label: str
    group: str
    on_front: bool


def draw_front(path: Path, choices: Sequence[TradeOff], currency: str) -> None:
    """Draw every choice as a dot; of each group those that no other beats are joined and named."""
    figure, (axis,) = new_figure(8, 5)
    for number, group in enumerate(dict.fromkeys(choice.group for choice in choices)):
        _draw_group(axis, [choice for choice in choices if choice.group == group], number)
    axis.set(xscale="log", yscale="log", xlabel=f"price of an epoch, {currency}", ylabel="time of an epoch, s")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize="small")
    save_figure(figure, path)


def _draw_group(axis: Axes, choices: Sequence[TradeOff], number: int) -> None:
    colour, mark = f"C{number % NUM_COLOURS}", MARKS[number % len(MARKS)]
    others = [choice for choice in choices if not choice.on_front]
    axis.scatter([c.price for c in others], [c.epoch_s for c in others], color=colour, marker=mark, alpha=0.3, s=12)
    front = sorted((choice for choice in choices if choice.on_front), key=lambda choice: choice.price)
    label = f"{choices[0].group}: best trade-offs (pale: beaten in both)"
    axis.plot([c.price for c in front], [c.epoch_s for c in front], f"{mark}-", color=colour, label=label)
    for choice in front:
        axis.annotate(choice.label, (choice.price, choice.epoch_s), (4, 5), textcoords="offset points", fontsize=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A predicted epoch over a true one; equal groups have one colour, equal kinds one mark."""

    group: str
    kind: str = ""
    true: float
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Named shares, in per cent when drawn."""

    label: str
    shares: Mapping[str, float]


def draw_errors(path: Path, dots: Sequence[Dot], bars: Bars, *, true: str, unit: str, aim: float) -> None:
    """Draw predicted over true epochs with the band that we aim at, and beside them bars of what errs."""
    figure, (left, right) = new_figure(11, 5.5, columns=2)
    left.set(xlabel=f"{true} epoch, {unit}", ylabel=f"predicted epoch, {unit} (band: ±{aim:.0%})")
    if dots:
        _scatter(left, dots, aim)
    right.barh(list(bars.shares), [100 * share for share in bars.shares.values()])
    right.set_xlabel(bars.label)
    right.invert_yaxis()
    save_figure(figure, path)


def _scatter(axis: Axes, dots: Sequence[Dot], aim: float) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    colours = {group: f"C{k % NUM_COLOURS}" for k, group in enumerate(dict.fromkeys(dot.group for dot in dots))}
    marks = {kind: MARKS[k % len(MARKS)] for k, kind in enumerate(dict.fromkeys(dot.kind for dot in dots))}
    for dot in dots:
        axis.loglog(dot.true, dot.predicted, marks[dot.kind], color=colours[dot.group], alpha=0.75, markersize=5)
    for group, colour in colours.items():
        axis.plot([], [], "o", color=colour, label=group)
    for kind, mark in marks.items():
        if kind:
            axis.plot([], [], mark, color="grey", label=kind)
    values = [value for dot in dots for value in (dot.true, dot.predicted)]
    ends = [min(values), max(values)]
    axis.loglog(ends, ends, color="black", linewidth=0.8)
    axis.fill_between(ends, [(1 - aim) * x for x in ends], [(1 + aim) * x for x in ends], color="#dddddd")
    for side in (axis.xaxis, axis.yaxis):  # 1, 2, 5, 10: more labels would overlap
        side.set_major_locator(LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter("{x:g}")
        side.set_minor_formatter(NullFormatter())
    axis.legend(frameon=False, fontsize="small")
