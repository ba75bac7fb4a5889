"""The smaller tables of an answer as rows of cells, their head first; the terminal and the pages share them."""

from collections.abc import Callable, Sequence
from math import isfinite

from halocast.reports.converge.cases import BADGES
from halocast.reports.converge.columns import LEGEND, STALE_LEGEND
from halocast.reports.converge.contests import Contest, Variation
from halocast.reports.converge.front import Stop
from halocast.reports.converge.series import ScoreLine, Spot
from halocast.reports.converge.words import MISSING, dollars, duration, gpus, plain, points, setting_value
from halocast.reports.curves import Converged, GraphFigures
from halocast.reports.scores import ErrorCurve
from halocast.schedule.approximation import Approximation

FIGURES: tuple[tuple[str, Callable[[GraphFigures], str]], ...] = (
    ("nodes", lambda g: f"{g.nodes:,}"),
    ("mean degree", lambda g: f"{g.degree:.3g}"),
    ("degree skew", lambda g: f"{g.degree_sigma:.2f}"),
    ("features", lambda g: str(g.features)),
    ("classes", lambda g: str(g.classes)),
    ("parts", lambda g: str(g.parts)),
    ("edges cut", lambda g: "not known" if g.cut_share is None else f"{g.cut_share:.0%}"),
    ("halo / inner nodes", lambda g: f"{g.halo_ratio:.2f}"),
    ("train nodes", lambda g: f"{g.train_share:.1%}"),
)
MOST_SPOTS = 12  # of a line in a table; curves.csv has all


def graph_rows(converged: Converged) -> list[list[str]]:
    """The figures of the graph that was trained on beside those of the one that is timed."""
    trained, timed = converged.trained, converged.timed
    head = ["", f"scores: {trained.name}", f"seconds: {timed.name}"]
    return [head, *([name, say(trained), say(timed)] for name, say in FIGURES)]


def variation_rows(variation: Variation, every: Sequence[Contest]) -> list[list[str]]:
    """Times to the target of each case at every value of a key, exact methods first."""
    by_value = [
        next(s for s in every if s.values == {**variation.fixed, variation.key: ranking.value})
        for ranking in variation.rankings
    ]
    head = ["method", "kind", *(setting_value(variation.key, ranking.value) for ranking in variation.rankings)]
    cases = {reach.curve.label: reach.curve for s in by_value for reach in (*s.exact, *s.approximate)}
    ordered = sorted(cases.values(), key=lambda curve: curve.approximation is not Approximation.EXACT)
    return [
        head,
        *([c.label, BADGES[c.approximation], *(_time_in(s, c.label) for s in by_value)] for c in ordered),
    ]


def _time_in(contest: Contest, label: str) -> str:
    return next((duration(reach.seconds) for reach in contest.rivals if reach.curve.label == label), MISSING)


def front_rows(some: Sequence[Stop]) -> list[list[str]]:
    """The cells of the front, its head first."""
    head = ["method", "on", "stopped at", "test", "time", "cost"]
    return [
        head,
        *(
            [s.curve.label, gpus(s.curve.gpus), s.at, points(s.test), duration(s.seconds), dollars(s.price)]
            for s in some
        ),
    ]


def search_rows(converged: Converged) -> list[list[str]]:
    """Best validation scores by searched choice, in points; nothing where nothing was searched."""
    searched = {curve.label: curve.trials for curve in converged.curves if curve.trials}
    if not searched:
        return []
    first = next(iter(searched.values()))
    tried = [", ".join(plain(value) for value in trial.values.values()) for trial in first]
    rows = [[label, *(points(trial.val) for trial in trials)] for label, trials in searched.items()]
    return [[f"by {', '.join(first[0].values)}", *tried], *rows]


def legend(converged: Converged) -> str:
    """What the columns mean."""
    stale = any(curve.ages or curve.errors for curve in converged.curves)
    return f"{LEGEND} {STALE_LEGEND}" if stale else LEGEND


def reasons(converged: Converged) -> list[str]:
    """Why trainings or times are missing, each once with the cases that it holds for; and what the search chose."""
    labels: dict[str, list[str]] = {}
    for curve in converged.curves:
        if curve.reason:
            labels.setdefault(curve.reason, []).append(curve.label)
    return [f"{', '.join(dict.fromkeys(some))}: {reason}" for reason, some in labels.items()]


def spot_rows(lines: Sequence[ScoreLine]) -> list[list[str]]:
    """What is drawn, as rows: some spots of every line, evenly apart, and the last one."""
    head = ["method", "epochs", "time", "cost", "val", "test", "over seeds"]
    return [head, *(_spot_row(line.label, spot) for line in lines for spot in _some(line.spots))]


def _some(spots: Sequence[Spot]) -> Sequence[Spot]:
    step = -(-len(spots) // MOST_SPOTS) or 1
    return spots[::-1][::step][::-1]


def _spot_row(label: str, spot: Spot) -> list[str]:
    seeds = f"{points(spot.low)} to {points(spot.high)}"
    times = [str(spot.epochs), duration(spot.seconds), dollars(spot.price)]
    return [label, *times, points(spot.val), points(spot.test), seeds]


def error_rows(converged: Converged) -> list[list[str]]:
    """Errors of stale rows by case and layer: after a quarter, a half, three quarters and all of the epochs."""
    curves = {curve.label: curve for curve in reversed(converged.curves)}
    rows = [
        [curve.label, error.what, "all" if error.layer < 0 else str(error.layer), *_quarters(error)]
        for curve in reversed(curves.values())
        for error in curve.errors
        if any(value for epoch, value in error.by_epoch.items() if epoch)  # else exact after the first epoch
    ]
    return [["method", "what", "layer", "at 1/4", "at 1/2", "at 3/4", "in the end"], *rows] if rows else []


def _quarters(error: ErrorCurve) -> list[str]:
    epochs = sorted(error.by_epoch)
    values = [error.by_epoch[epochs[max(0, len(epochs) * k // 4 - 1)]] for k in (1, 2, 3, 4)]
    return [f"{value:.1%}" if isfinite(value) else MISSING for value in values]
