"""When trainings meet a target: epochs, predicted seconds and price by seed, or in words why not; nothing is guessed.

Over seeds the middle one counts, and a training that does not meet the target counts as later than all that do: so a
curve meets it if more than half of its seeds do, and one lucky seed makes no answer. Trainings stand for every machine,
so points after the budget are dropped here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from statistics import mean, median

from halocast.reports.converge.words import duration
from halocast.reports.curves import Converged, Curve, Point, SeedCurve
from halocast.reports.scores import SeedScores, Spread, spread


class Miss(StrEnum):
    """Why a training does not meet a target."""

    BUDGET = "budget"
    EPOCHS = "epochs"
    STOPPED = "stopped"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReach:
    """One training and a target: the first evaluated point that meets it, or why there is none."""

    seed: int
    point: Point | None = None
    miss: Miss | None = None
    epochs: int = 0  # of the training, all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Likely:
    """The times between which a prediction of this kind is right eight times of ten, of the middle seed.

    Of a training that depends on the order of events: those of trainings at speeds that differ as predictions may err;
    the end is open (None) where some of these do not meet the target.
    """

    low_s: float
    high_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A curve and a target, over seeds."""

    curve: Curve
    seeds: tuple[SeedReach, ...]
    likely: Likely | None
    budget_s: float | None
    max_epochs: int

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(seed.point for seed in self.seeds if seed.point is not None)

    @property
    def num_reached(self) -> int:
        return len(self.points)

    @property
    def epochs(self) -> float | None:
        """Of the middle seed; None if it does not meet the target."""
        return _middle([None if seed.point is None else seed.point.epochs for seed in self.seeds])

    @property
    def seconds(self) -> float | None:
        """Of the middle seed; None if it does not meet the target, or if the time of an epoch is not known."""
        return _middle([seconds_of(self.curve, seed.point) for seed in self.seeds])

    @property
    def price(self) -> float | None:
        """What the seconds cost, in USD."""
        return price_of(self.curve, self.seconds)

    @property
    def is_met(self) -> bool:
        return self.epochs is not None

    @property
    def low_s(self) -> float | None:
        return min(self._times, default=None)

    @property
    def high_s(self) -> float | None:
        """The slowest seed's; None, an open end, where some do not meet the target."""
        return max(self._times, default=None) if self.num_reached == len(self.seeds) else None

    @property
    def _times(self) -> list[float]:
        known = (seconds_of(self.curve, point) for point in self.points)
        return [value for value in known if value is not None]

    @property
    def mean_s(self) -> float | None:
        """The mean over the seeds, if all of them meet the target."""
        return mean(self._times) if self._times and self.high_s is not None else None

    @property
    def test(self) -> Spread | None:
        """Test scores at the points that meet the target."""
        return spread([point.test for point in self.points]) if self.points else None

    @property
    def scores(self) -> tuple[SeedScores, ...]:
        """The points that meet the target, as scores of their seeds."""
        return tuple(as_scores(seed.seed, [seed.point]) for seed in self.seeds if seed.point is not None)

    @property
    def text(self) -> str:
        """In few words why the target is not met; nothing if every seed meets it."""
        if not self.seeds:
            return self.curve.reason or "not trained"
        missed = [seed for seed in self.seeds if seed.miss is not None]
        said = "; ".join(self._why([s for s in missed if s.miss is kind]) for kind in _kinds(missed))
        return f"{said} ({len(missed)} of {len(self.seeds)} seeds)" if said and self.num_reached else said

    def _why(self, missed: Sequence[SeedReach]) -> str:
        epochs = sorted(seed.epochs for seed in missed)
        ran = f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]} to {epochs[-1]}"
        words = {
            Miss.BUDGET: f"not within {duration(self.budget_s)}",
            Miss.EPOCHS: f"not within {self.max_epochs} epochs",
            Miss.STOPPED: f"stopped improving at epoch {ran}",
            Miss.DIVERGED: f"diverged after {ran} epoch{'s' if ran != '1' else ''}",
        }
        kind = missed[0].miss
        assert kind is not None
        return words[kind]


def _kinds(missed: Iterable[SeedReach]) -> list[Miss]:
    return list(dict.fromkeys(seed.miss for seed in missed if seed.miss is not None))


def _middle(values: Sequence[float | None]) -> float | None:
    """The median where what is missing counts as later than everything."""
    middle = median([inf if value is None else value for value in values]) if values else inf
    return middle if isfinite(middle) else None


def seconds_of(curve: Curve, point: Point | None) -> float | None:
    """When the point is reached, if there is one and the time of an epoch is known."""
    known = point is not None and curve.epoch_s is not None and isfinite(point.seconds)
    return point.seconds if point is not None and known else None


def price_of(curve: Curve, seconds: float | None) -> float | None:
    return None if seconds is None or curve.price_per_s is None else curve.price_per_s * seconds


def within(curve: Curve, seed: SeedCurve, budget_s: float | None) -> tuple[Point, ...]:
    """The points of a training that the budget has room for; all of them where times are not known."""
    if budget_s is None:
        return seed.points
    return tuple(point for point in seed.points if (seconds_of(curve, point) or 0.0) <= budget_s)


def best_point(some: Iterable[Point]) -> Point:
    """The point that validation selects, the first of equal ones."""
    return max(some, key=lambda point: (point.val, -point.epochs))


def as_scores(seed: int, some: Iterable[Point]) -> SeedScores:
    """Points as scores by epoch, counted from 0 as everywhere."""
    return SeedScores(seed=seed, evaluated={p.epochs - 1: {"val": p.val, "test": p.test} for p in some})


def reached(curve: Curve, target: float, *, budget_s: float | None = None, max_epochs: int | None = None) -> Reached:
    """The first evaluated points of a curve's trainings whose validation scores are at least the target.

    `max_epochs` is the number of epochs after which trainings ended [the longest training's].
    """
    most = max_epochs or max((_ran(seed) for seed in curve.seeds), default=0)

    def of(seed: SeedCurve) -> SeedReach:
        inside = within(curve, seed, budget_s)
        point = next((point for point in inside if point.val >= target), None)
        miss = None if point else _miss(seed, len(inside) < len(seed.points), _ran(seed) < most, budget_s)
        return SeedReach(seed=seed.seed, point=point, miss=miss, epochs=_ran(seed))

    seeds = tuple(of(seed) for seed in curve.seeds)
    perturbed = [seconds_of(curve, of(seed).point) for seed in curve.perturbed]
    return Reached(
        curve=curve, seeds=seeds, likely=_likely(curve, seeds, perturbed), budget_s=budget_s, max_epochs=most
    )


def _ran(seed: SeedCurve) -> int:
    if seed.diverged is not None:
        return seed.diverged
    return seed.points[-1].epochs if seed.points else 0


def _miss(seed: SeedCurve, is_cut: bool, is_short: bool, budget_s: float | None) -> Miss:
    if is_cut:
        return Miss.BUDGET
    if seed.diverged is not None:
        return Miss.DIVERGED
    if seed.stopped:
        return Miss.STOPPED
    return Miss.BUDGET if is_short and budget_s is not None else Miss.EPOCHS


def _likely(curve: Curve, seeds: Sequence[SeedReach], perturbed: Sequence[float | None]) -> Likely | None:
    middle = _middle([seconds_of(curve, seed.point) for seed in seeds])
    if perturbed:
        first = seconds_of(curve, seeds[0].point)
        scale = middle / first if middle and first else 1.0  # of the first seed's spread, as it is for the middle one
        return _spread_of([time_s and time_s * scale for time_s in (first, *perturbed)])
    if middle is None or not curve.epoch_s or curve.epoch_low_s is None or curve.epoch_high_s is None:
        return None
    return Likely(low_s=middle * curve.epoch_low_s / curve.epoch_s, high_s=middle * curve.epoch_high_s / curve.epoch_s)


def _spread_of(times: Sequence[float | None]) -> Likely | None:
    known = [value for value in times if value is not None]
    if not known:
        return None
    return Likely(low_s=min(known), high_s=max(known) if len(known) == len(times) else None)


def reaches(converged: Converged, target: float | None = None) -> list[Reached]:
    """All curves of an answer against its target, or another one."""
    goal = converged.target if target is None else target
    return [
        reached(curve, goal, budget_s=converged.budget_s, max_epochs=converged.max_epochs) for curve in converged.curves
    ]
