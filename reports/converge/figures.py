"""The figures of an answer: score over seconds, dollars and epochs; time to the target over what is varied; errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halocast.reports.converge.contests import Contest, Variation, contests, variations
from halocast.reports.converge.series import DASHES, ScoreLine, Spot, score_lines
from halocast.reports.converge.targets import Reached
from halocast.reports.converge.words import setting_text
from halocast.reports.curves import Converged, Curve
from halocast.reports.figures import STYLES, Panel, draw_panels, new_figure, save_figure

if TYPE_CHECKING:  # slow to import, and only figures need it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0077bb", "#ee7733", "#009988", "#ee3377", "#cc3311", "#33a0d0", "#777777", "#aa8800", "#7744aa", "#225522")
DASHED = (STYLES[0], STYLES[1], STYLES[2])  # exact, stale, sampled
MOST_SHARE = 0.25  # below the best score; the first epochs are far below and would flatten all others
FOOT = 0.03  # of a panel's height, from bar to bar
TITLES = {"weights": "gradient of the weights"}  # where what is stale needs more words
Across = Callable[[Spot], float | None]


def axes_of(converged: Converged) -> tuple[tuple[str, str, Across], ...]:
    """What scores are drawn over: a name, the axis's label, and the value."""
    timed = converged.timed.name
    of = f" for {timed}" if converged.stands_in else ""
    return (
        ("seconds", f"predicted seconds{of}", lambda spot: spot.seconds),
        ("dollars", f"predicted price{of}, USD", lambda spot: spot.price),
        ("epochs", "epochs", lambda spot: float(spot.epochs)),
    )


def score_label(converged: Converged) -> str:
    """What the scores are of, which is never the graph that they were not measured on."""
    return f"test score on {converged.trained.name}, points"


def draw_answer(directory: Path, converged: Converged) -> list[tuple[str, str]]:
    """Draw what there is as PNG and return (title, name of the file) of each."""
    every = contests(converged)
    drawn = []
    for number, contest in enumerate(every, 1):
        lines = [line for line in score_lines(converged, contest) if line.spots]
        if lines:
            name = "score.png" if len(every) == 1 else f"score-{number}.png"
            save_figure(_scores(converged, contest, lines), directory / name)
            drawn.append((f"Score over time{' with ' if contest.text else ''}{contest.text}", name))
    ranged = [v for v in variations(every) if len([r for r in v.rankings if isinstance(r.value, int | float)]) > 1]
    if ranged:
        save_figure(_crossings(converged, ranged, every), directory / "crossovers.png")
        drawn.append(("Time to the target over what is varied", "crossovers.png"))
    panels = error_panels(converged)
    if panels:
        draw_panels(directory / "errors.png", panels)
        drawn.append(("Errors of stale rows", "errors.png"))
    return drawn


def _scores(converged: Converged, contest: Contest, lines: Sequence[ScoreLine]) -> Figure:
    """A panel each over seconds, dollars and epochs; only what is known is drawn."""
    axes = [over for over in axes_of(converged) if any(over[2](s) is not None for line in lines for s in line.spots)]
    figure, places = new_figure(4.6 * len(axes) + 1.6, 4.6, columns=len(axes))
    best = max(spot.high for line in lines for spot in line.spots)
    least = min(spot.low for line in lines for spot in line.spots)
    bottom = max(least, best - MOST_SHARE)
    for axis, (name, label, across) in zip(places, axes, strict=True):
        for line in lines:
            _draw_line(axis, line, across)
        if name != "epochs":
            _draw_likely(axis, lines, across)
            axis.set_xscale("log")
            axis.set_xlim(_left(lines, across, bottom), None)
            _plain_ticks(axis.xaxis)
        axis.set(xlabel=_plain_label(label), ylim=(100 * bottom - 1, None))
        axis.grid(alpha=0.25)
    places[0].set_ylabel(_plain_label(score_label(converged)))
    if contest.text:
        figure.suptitle(_plain_label(contest.text), fontsize="medium")
    handles, names = places[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize="small")
    note = "dot: the target is met; shade: over seeds; bar: likely time or price to the target"
    figure.legend([], [], title=note, loc="outside lower center", frameon=False, title_fontsize="x-small")
    return figure


def _left(lines: Sequence[ScoreLine], across: Across, bottom: float) -> float | None:
    """Where the first line comes into view."""
    return min((x for line in lines for s in line.spots if s.high >= bottom and (x := across(s))), default=None)


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10 in place of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _draw_line(axis: Axes, line: ScoreLine, across: Across) -> None:
    """The mean with the band over seeds, and a dot where the target is met."""
    colour, label = COLOURS[line.colour % len(COLOURS)], _plain_label(line.label)
    some = [(x, spot) for spot in line.spots if (x := across(spot)) is not None]
    xs = [x for x, _ in some]
    axis.plot(xs, [100 * s.test for _, s in some], DASHED[line.dash], color=colour, label=label, linewidth=1.5)
    axis.fill_between(
        xs, [100 * s.low for _, s in some], [100 * s.high for _, s in some], color=colour, alpha=0.15, linewidth=0
    )
    met = line.met
    at = across(met) if met else None
    if met is not None and at is not None:
        axis.plot([at], [100 * met.test], "o", color=colour, markersize=5)


def _draw_likely(axis: Axes, lines: Sequence[ScoreLine], across: Across) -> None:
    """The bands of the prediction, each in a row of its own at the foot: they are not those over seeds."""
    rows = [(line, at) for line in lines if line.met and (at := across(line.met)) is not None]
    for row, (line, at) in enumerate(rows):
        colour, height = COLOURS[line.colour % len(COLOURS)], FOOT * (len(rows) - row)
        place = axis.get_xaxis_transform()
        axis.plot(_ends(line.reach, at), [height] * 2, "|-", color=colour, linewidth=1, markersize=6, transform=place)
        axis.plot([at], [height], "o", color=colour, markersize=3, transform=place)


def _ends(reach: Reached, at: float) -> list[float]:
    """The likely band at a crossing, in the unit of the axis; an open end is drawn at the crossing."""
    if reach.likely is None or not reach.seconds:
        return [at, at]
    scale = at / reach.seconds
    high = reach.likely.high_s if reach.likely.high_s is not None else reach.seconds
    return [scale * reach.likely.low_s, scale * high]


def _plain_label(text: str) -> str:
    """A label as it is: matplotlib hides those that begin with _ and reads $ as mathematics."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def _crossings(converged: Converged, some: Sequence[Variation], every: Sequence[Contest]) -> Figure:
    """Time to the target over each varied key, on logarithmic axes."""
    figure, axes = new_figure(5.4 * len(some) + 1.6, 4.6, columns=len(some))
    for axis, variation in zip(axes, some, strict=True):
        for label, reaches in at_values(variation, every).items():
            _draw_crossing(axis, converged, label, reaches)
        values = [float(ranking.value) for ranking in variation.rankings]
        axis.set(xlabel=_plain_label(variation.key), title=_plain_label(setting_text(variation.fixed)), yscale="log")
        if min(values) > 0:
            axis.set_xscale("log")
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.xaxis.minorticks_off()
        _plain_ticks(axis.yaxis)
        axis.grid(alpha=0.25)
    of = f" for {converged.timed.name}" if converged.stands_in else ""
    axes[0].set_ylabel(_plain_label(f"predicted seconds to the target{of}"))
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize="small")
    return figure


def at_values(variation: Variation, every: Sequence[Contest]) -> dict[str, list[tuple[float, Reached]]]:
    """The curves of every case with the values of the key, exact methods first."""
    by_label: dict[str, list[tuple[float, Reached]]] = {}
    for ranking in variation.rankings:
        contest = next(c for c in every if c.values == {**variation.fixed, variation.key: ranking.value})
        for reach in (*contest.exact, *contest.approximate):
            by_label.setdefault(reach.curve.label, []).append((ranking.value, reach))
    return by_label


def _draw_crossing(axis: Axes, converged: Converged, label: str, reaches: Sequence[tuple[float, Reached]]) -> None:
    met = [(value, reach) for value, reach in reaches if reach.seconds is not None and reach.curve.fits]
    if not met:
        return
    labels = list(dict.fromkeys(curve.label for curve in converged.curves))
    colour = COLOURS[labels.index(label) % len(COLOURS)]
    style = DASHED[DASHES[met[0][1].curve.approximation]]
    xs, ys = [value for value, _ in met], [reach.seconds or nan for _, reach in met]
    axis.plot(xs, ys, f"o{style}", color=colour, label=_plain_label(label), linewidth=1.5, markersize=4)
    for x, (_, reach) in zip(xs, met, strict=True):
        axis.plot([x, x], _ends(reach, reach.seconds or nan), "_-", color=colour, linewidth=1, markersize=6, alpha=0.6)


def error_panels(converged: Converged) -> list[Panel]:
    """Errors of stale rows over epochs in the first setting, a panel for each thing that is stale."""
    curves = {curve.label: curve for curve in reversed(converged.curves)}
    some = [curve for curve in reversed(curves.values()) if curve.errors]
    kinds = dict.fromkeys(error.what for curve in some for error in curve.errors)
    return [panel for what in kinds for panel in _error_panel(what, some)]


def _error_panel(what: str, some: Sequence[Curve]) -> list[Panel]:
    by_name = {
        f"{curve.label}, layer {error.layer}" if error.layer >= 0 else curve.label: error.by_epoch
        for curve in some
        for error in curve.errors
        if error.what == what and any(value for epoch, value in error.by_epoch.items() if epoch)
    }
    epochs = sorted({epoch for by_epoch in by_name.values() for epoch in by_epoch})
    if not epochs:
        return []
    curves = {_plain_label(name): [by.get(epoch, nan) for epoch in epochs] for name, by in by_name.items()}
    title, label = _plain_label(TITLES.get(what, f"stale {what}")), "‖stale − fresh‖ / ‖fresh‖"
    return [Panel(title=title, y_label=label, curves=curves, xs=[epoch + 1 for epoch in epochs])]
