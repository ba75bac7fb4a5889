"""Scores over epochs, seconds and dollars as lines to draw: means over seeds with their band.

A line shows what one has so far: the scores of the best epoch by validation until then. So a training that has stopped,
or has diverged, keeps its best weights and the mean goes on; raw scores of every evaluation are in curves.csv.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from halocast.reports.converge.contests import Contest
from halocast.reports.converge.targets import Reached, best_point, price_of, seconds_of, within
from halocast.reports.curves import Converged, Point
from halocast.schedule.approximation import Approximation

DASHES = {Approximation.EXACT: 0, Approximation.STALE: 1, Approximation.SAMPLED: 2}  # of lines, by kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A line after so many epochs; seconds and price are None where they are not known."""

    epochs: int
    seconds: float | None
    price: float | None
    val: float
    test: float
    low: float  # the test score of the worst seed
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """A curve to draw; a case has one colour in all settings, and dashes that say what kind it is."""

    reach: Reached
    colour: int
    dash: int
    spots: tuple[Spot, ...]

    @property
    def label(self) -> str:
        return self.reach.curve.label

    @property
    def met(self) -> Spot | None:
        """Where the middle seed meets the target, with the mean test score of those that do."""
        reach = self.reach
        if reach.epochs is None or reach.test is None:
            return None
        val = mean(point.val for point in reach.points)
        tests = [point.test for point in reach.points]
        return Spot(
            epochs=round(reach.epochs),
            seconds=reach.seconds,
            price=reach.price,
            val=val,
            test=reach.test.mean,
            low=min(tests),
            high=max(tests),
        )


def score_lines(converged: Converged, contest: Contest) -> list[ScoreLine]:
    """The lines of a setting, one GPU's among them."""
    labels = list(dict.fromkeys(curve.label for curve in converged.curves))
    return [
        ScoreLine(
            reach=reach,
            colour=labels.index(reach.curve.label),
            dash=DASHES[reach.curve.approximation],
            spots=tuple(_spots(reach)),
        )
        for reach in contest.shown
    ]


def _spots(reach: Reached) -> list[Spot]:
    inside = [some for seed in reach.curve.seeds if (some := within(reach.curve, seed, reach.budget_s))]
    epochs = sorted({point.epochs for some in inside for point in some})
    first = max((some[0].epochs for some in inside), default=0)
    spots: list[Spot] = []
    for epoch in epochs:
        if epoch >= first:
            spots.append(_spot(reach, inside, epoch, spots[-1].seconds if spots else None))
    return spots


def _spot(reach: Reached, inside: Sequence[Sequence[Point]], epoch: int, before_s: float | None) -> Spot:
    best = [best_point(p for p in some if p.epochs <= epoch) for some in inside]
    times = [seconds_of(reach.curve, p) for some in inside for p in some if p.epochs == epoch]
    known = [time for time in times if time is not None]
    seconds = max(mean(known), before_s or 0.0) if known else None  # trainings that are late may end first
    tests = [point.test for point in best]
    return Spot(
        epochs=epoch,
        seconds=seconds,
        price=price_of(reach.curve, seconds),
        val=mean(point.val for point in best),
        test=mean(tests),
        low=min(tests),
        high=max(tests),
    )
