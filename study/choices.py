"""What is known of a plan's choices, what makes one better than another, and the answer: two ranked lists.

Choices that compute what one device computes are ranked among themselves, since for them a shorter epoch is all there
is. Those that approximate it are another list: how many epochs they need is not known from their schedules.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar

from halocast.base.records import require
from halocast.reports.converge.targets import Reached
from halocast.reports.summary import Summary
from halocast.schedule.approximation import Approximation
from halocast.study.bands import Sure, sure_of
from halocast.study.candidates import Candidate
from halocast.study.screen import Screened
from halocast.study.showable import Showable

NONE = float("inf")


class Aim(StrEnum):
    """The figure that is to be small: of an epoch, or of all epochs to a target where these are known."""

    FASTEST = "fastest"  # seconds
    CHEAPEST = "cheapest"
    FEWEST = "fewest"  # GPUs, under a limit of time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """A candidate with what is known of it: before its prediction only bounds and memory."""

    candidate: Candidate
    screened: Screened
    figures: Summary | None = None
    reached: Reached | None = None  # the target of the plan, if there is one and trainings tell of it

    @property
    def epoch_s(self) -> float:
        """The predicted epoch, or before its prediction the least that it can be."""
        return self.screened.bound_s if self.figures is None else self.figures.epoch_s

    @property
    def predicted(self) -> Summary:
        """The figures of a choice of a plan, all of which were predicted."""
        assert self.figures is not None, self.candidate.label
        return self.figures

    @property
    def price(self) -> float | None:
        """The price of an epoch, predicted or the least that it can be; None where the cluster has no price."""
        rate = self.screened.price_per_s
        return None if rate is None else rate * self.epoch_s

    @property
    def epochs(self) -> float | None:
        """How many it needs to the target, where that is known."""
        return None if self.reached is None else self.reached.epochs

    @property
    def time_s(self) -> float:
        """To the target, where that is known, else of an epoch."""
        return self.epoch_s * (1.0 if self.epochs is None else self.epochs)

    @property
    def cost(self) -> float | None:
        """The price of that time; None where the cluster has none."""
        rate = self.screened.price_per_s
        return None if rate is None else rate * self.time_s

    @property
    def gpus(self) -> int:
        return self.candidate.gpus

    @property
    def approximation(self) -> Approximation:
        return self.screened.approximation

    @property
    def exact(self) -> bool:
        """Whether it computes what one device computes."""
        return self.approximation is Approximation.EXACT

    @property
    def kind(self) -> tuple[bool, ...]:
        """The choices it is compared with: with a time to the target or not, exact or not, on one GPU or on several."""
        return self.epochs is not None, self.exact, self.gpus == 1

    @property
    def headroom_bytes(self) -> int:
        memory = self.screened.memory
        return memory.device_memory_bytes - memory.memory_bytes

    @property
    def ages(self) -> list[int]:
        """Ages, in epochs, of rows of others when they are read."""
        return self.predicted.ages

    @property
    def any_age(self) -> bool:
        """Whether rows may be of any age, since ranks run freely without a bound."""
        return any(read.free for read in self.predicted.staleness)

    @property
    def staleness(self) -> str:
        """The reason why the rows that it reads may be too old."""
        return "rows of any age: ranks run freely" if self.any_age else f"rows up to {self.ages[-1]} epochs old"

    @property
    def sure(self) -> Sure:
        return sure_of(self.predicted)

    def record(self) -> dict[str, Any]:
        """A row of the plan's table: what is chosen, and its figures."""
        chosen = {"label": self.candidate.label, **self.candidate.options, "sure": str(self.sure)}
        known = {"headroom_bytes": self.headroom_bytes, "price": self.price}
        return {**chosen, **self.predicted.plain_figures(), **known, **self.to_target}

    @property
    def to_target(self) -> dict[str, Any]:
        """The figures of its way to the target; none where it is not known."""
        if self.reached is None or self.epochs is None:
            return {}
        test = self.reached.test
        figures = {"target_epochs": self.epochs, "target_s": self.time_s, "target_price": self.cost}
        return {**figures, "target_test": test and test.mean, "target_test_std": test and test.std}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The aim of a plan: a choice of smaller rank is better. Bounds never have larger ranks than predictions."""

    aim: Aim = Aim.FASTEST
    limit_s: float | None = None
    max_staleness: int | None = None  # epochs
    pareto: bool = False  # also keep all that no other beats in both time and price

    def __post_init__(self) -> None:
        needed = self.aim is not Aim.FEWEST or self.limit_s is not None
        require(needed, "fewest GPUs: under which time? give a limit of seconds per epoch (--limit-s)")
        legal = self.limit_s is None or self.limit_s > 0
        require(legal, f"limit_s = {self.limit_s}: needs to be above 0")

    def rank(self, choice: Choice) -> tuple[float, ...]:
        """The rank of a choice; those whose time to the target is known come before the others."""
        return float(choice.epochs is None), *RANKS[self.aim](choice)

    def allows(self, choice: Choice) -> bool:
        return (self.limit_s is None or choice.epoch_s <= self.limit_s) and not self.too_stale(choice)

    def too_stale(self, choice: Choice) -> bool:
        """Whether a choice reads older rows than allowed, which is known when it is predicted."""
        if self.max_staleness is None or choice.figures is None:
            return False
        return choice.any_age or (bool(choice.ages) and choice.ages[-1] > self.max_staleness)


def _cheapest(choice: Choice) -> tuple[float, ...]:
    """Rank a choice by its price; those without one come last."""
    return (NONE if choice.cost is None else choice.cost, choice.time_s)


RANKS: Mapping[Aim, Callable[[Choice], tuple[float, ...]]] = MappingProxyType(
    {
        Aim.FASTEST: lambda choice: (choice.time_s,),
        Aim.CHEAPEST: _cheapest,
        Aim.FEWEST: lambda choice: (choice.gpus, choice.time_s),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTarget:
    """The target of a plan: what trainings tell of it, or why they tell nothing."""

    goal: str = ""  # in words
    score: float | None = None  # on validation
    trained: str = ""  # the graph that scores are of
    timed: str = ""
    reason: str = ""

    @property
    def stands_in(self) -> bool:
        """Whether scores are of another graph than the seconds."""
        return self.trained != self.timed


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RankedPlan(Showable):
    """The answer: every choice that was predicted, in two lists with the best first, and what became of the others."""

    columns: ClassVar[tuple[str, ...]] = (
        *("label", "approximation", "epoch_s", "exposed_comm_s", "headroom_bytes", "price", "sure"),
    )
    exact: tuple[Choice, ...]  # those that compute what one device computes
    approximate: tuple[Choice, ...]  # those that do not: how many epochs they need is another question
    dropped: tuple[tuple[Candidate, str], ...]  # not legal, too large, or the same as another, and why
    hopeless: tuple[Choice, ...]  # not simulated: their bounds show that they are not better
    goal: Goal
    target: PlanTarget | None = None  # that was asked for, and what trainings tell of it

    @property
    def reached(self) -> list[Choice]:
        """The choices whose time to the target is known, exact or not, in one order: they end equally accurate."""
        return sorted((c for c in self.choices if c.epochs is not None), key=self.goal.rank)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Both lists, one after the other."""
        return self.exact + self.approximate

    @property
    def best_exact(self) -> Choice | None:
        return next(iter(self.exact), None)

    @property
    def best_approximate(self) -> Choice | None:
        return next(iter(self.approximate), None)

    @property
    def single(self) -> Choice | None:
        """The best choice of one GPU, an exact one if there is any."""
        return next((choice for choice in self.choices if choice.gpus == 1), None)

    def line(self) -> str:
        best = {"exact": self.best_exact, "approximate": self.best_approximate}
        lists = [
            f"{name}: {c.candidate.label}, {c.epoch_s:.3g} s an epoch" for name, c in best.items() if c is not None
        ]
        dropped = f"{len(self.dropped)} dropped, {len(self.hopeless)} not better by their bounds"
        return f"{AIMS[self.goal.aim]}; {'; '.join(lists)}; {len(self.choices) - len(lists)} others, {dropped}"

    def records(self) -> list[dict[str, Any]]:
        """A row per predicted choice, exact ones first, the best of each list first."""
        return [choice.record() for choice in self.choices]

    def best_by(self, what: Callable[[Candidate], str]) -> dict[tuple[object, ...], Choice]:
        """The best choice of each method, or on each cluster, of every kind."""
        best: dict[tuple[object, ...], Choice] = {}
        for choice in self.choices:
            best.setdefault((what(choice.candidate), *choice.kind), choice)
        return best


AIMS: Mapping[Aim, str] = MappingProxyType(
    {
        Aim.FASTEST: "shortest epoch",
        Aim.CHEAPEST: "cheapest epoch",
        Aim.FEWEST: "fewest GPUs",
    }
)


def best_of_groups(choices: Iterable[Choice]) -> list[Choice]:
    """The best choice that was predicted of every method on every cluster, in order: surely the best of a method and
    the best on a cluster, and for other pairs one that is not far from it."""
    best: dict[tuple[str, str], Choice] = {}
    for choice in choices:
        best.setdefault(choice.candidate.group, choice)
    return list(best.values())


def pareto(choices: Iterable[Choice]) -> list[Choice]:
    """Choices with a price that no other beats in both time and price, the fastest first: to the target, where that is
    known of some, else of an epoch."""
    some = list(choices)
    known = [choice for choice in some if choice.epochs is not None] or some
    priced = [(choice.time_s, choice.cost, choice) for choice in known if choice.cost is not None]
    front, cheapest = [], NONE
    for _, price, choice in sorted(priced, key=lambda item: item[:2]):
        if price < cheapest:
            front.append(choice)
            cheapest = price
    return front
