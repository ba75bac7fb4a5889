"""The Pareto front of score, time and price: what no other choice beats in all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from halocast.reports.converge.targets import Reached, best_point, price_of, seconds_of, within
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


def _stops(reach: Reached) -> list[Stop]:
    """At the target, and at the best epoch where that is another one."""
    both = [stop for stop in (_at_target(reach), _at_best(reach)) if stop is not None]
    return both[:1] if len(both) == 2 and _figures(both[0]) == _figures(both[1]) else both


def _figures(stop: Stop) -> tuple[float, float]:
    return stop.test, stop.seconds


def _at_target(reach: Reached) -> Stop | None:
    if reach.seconds is None or reach.test is None:
        return None
    test, seconds = reach.test.mean, reach.seconds
    return Stop(curve=reach.curve, at="the target", test=test, seconds=seconds, price=reach.price)


def _at_best(reach: Reached) -> Stop | None:
    """At the best epoch by validation: the middle seed's time, and only if all seeds have one."""
    curve = reach.curve
    inside = [some for seed in curve.seeds if (some := within(curve, seed, reach.budget_s))]
    best = [best_point(some) for some in inside]
    times = [time for point in best if (time := seconds_of(curve, point)) is not None]
    if not times or len(times) < len(curve.seeds):
        return None
    test, seconds = mean(point.test for point in best), median(times)
    return Stop(curve=curve, at="its best", test=test, seconds=seconds, price=price_of(curve, seconds))
