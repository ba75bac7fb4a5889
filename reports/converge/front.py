"""The Pareto front of score, time and price: what no other choice beats in all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from halocast.reports.converge.targets import Reached, as_scores, price_of, seconds_of, within
from halocast.reports.curves import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A curve left at some point: the mean test score then, and what it took; the price may not be known."""

    curve: Curve
    at: str  # "the target" or "its best"
    test: float
    seconds: float
    price: float | None


def front(stops: Sequence[Stop]) -> list[Stop]:
    """The stops that no other beats, the soonest first."""
    best = [stop for stop in stops if not any(beats(other, stop) for other in stops)]
    return sorted(best, key=lambda stop: (stop.seconds, -stop.test))


def beats(a: Stop, b: Stop) -> bool:
    """Whether one is as good in everything and better in something; a price that is not known beats none."""
    if (a.price is None) != (b.price is None):
        return False
    ours = (-a.test, a.seconds, a.price or 0.0)
    theirs = (-b.test, b.seconds, b.price or 0.0)
    return ours != theirs and all(x <= y for x, y in zip(ours, theirs, strict=True))


def stops(some: Sequence[Reached]) -> list[Stop]:
    """Where curves that fit may be left: at the target and at the best epoch by validation.

    If some meet the target, those that do not are left out: any score at all is a trade-off for someone.
    """
    fitting = [reach for reach in some if reach.curve.fits]
    met = [reach for reach in fitting if reach.is_met]
    return [stop for reach in met or fitting for stop in _stops(reach)]


def _stops(reached: Reached) -> Iterator[Stop]:
    curve = reached.curve
    if reached.seconds is not None and reached.test is not None:
        yield Stop(curve=curve, at="the target", test=reached.test.mean, seconds=reached.seconds, price=reached.price)
    inside = [(seed, within(curve, seed, reached.budget_s)) for seed in curve.seeds]
    scores = [as_scores(seed.seed, some) for seed, some in inside if some]
    times = [
        seconds_of(curve, next(p for p in some if p.epochs == score.best_epoch + 1))
        for score, (_, some) in zip(scores, [pair for pair in inside if pair[1]], strict=True)
    ]
    known = [time for time in times if time is not None]
    if known and len(known) == len(curve.seeds):
        middle = median(known)
        test = mean(score.test for score in scores)
        yield Stop(curve=curve, at="its best", test=test, seconds=middle, price=price_of(curve, middle))
