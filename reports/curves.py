"""Scores over predicted time: what trainings in virtual time leave, and what follows from it.

Scores are measured, seconds and prices are predicted. A target is met by the validation score and reported with the
test score of that epoch; a target that is not met is not guessed at. The band over seeds and the band of the prediction
are two different bands and stay apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halocast.reports.scores import ErrorCurve, Trial
from halocast.reports.summary import FoundAges
from halocast.schedule.approximation import Approximation


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Exact scores of the weights after so many epochs (of every rank), at a predicted time."""

    epochs: int  # done, so at least 1
    seconds: float  # not a number where the time of an epoch is not known
    val: float
    test: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedCurve:
    """One training, evaluated now and then; `diverged` is the number of epochs after which its loss was no number."""

    seed: int
    points: tuple[Point, ...]
    diverged: int | None = None
    stopped: bool = False  # before its last epoch, since validation did not improve any more
    losses: Mapping[int, float] | None = None  # by epoch, some of them


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFigures:
    """The sizes of a partitioned graph that decide how much an approximation matters."""

    name: str
    nodes: int
    degree: float
    degree_sigma: float
    features: int
    classes: int
    parts: int
    cut_share: float | None  # of the edges, between parts; None where a card cannot tell
    halo_ratio: float  # halo nodes over inner nodes, all parts together
    train_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A case (a method with options) on a machine: its trainings, and what an epoch and a second there cost."""

    label: str  # of the case, the same in every setting; no two curves of one setting have the same
    method: str
    approximation: Approximation
    summary: str  # of the method, a line
    cluster: str
    gpus: int
    setting: Mapping[str, Any]  # values of keys that are varied, by section.key; a curve without some is of all of them
    epoch_s: float | None = None  # predicted; None where it could not be
    epoch_low_s: float | None = None  # the band in which eight of ten such predictions were
    epoch_high_s: float | None = None
    price_per_s: float | None = None  # USD, of all hosts in use
    fits: bool = True  # in the devices' memory
    seeds: tuple[SeedCurve, ...] = ()
    perturbed: tuple[SeedCurve, ...] = ()  # the first seed again, with speeds that differ as predictions may err
    overrides: Mapping[str, Any] = field(default_factory=dict)  # of the scenario, by section.key: what the case is
    chosen: Mapping[str, Any] | None = None  # searched values that were best on validation
    errors: tuple[ErrorCurve, ...] = ()  # of stale rows of the first seed
    ages: tuple[FoundAges, ...] = ()
    reason: str = ""  # why trainings are missing or time is not known
    trials: tuple[Trial, ...] = ()  # of the search, each tried choice with its best validation score


@dataclass(frozen=True, slots=True, kw_only=True)
class Converged:
    """A whole answer: curves in the order of cases, one group of them per varied setting."""

    curves: tuple[Curve, ...]
    target: float  # a validation score
    target_text: str  # "95 % of vanilla's best" or "0.88"
    budget_s: float | None
    max_epochs: int
    timed: GraphFigures  # the graph whose epochs are predicted
    trained: GraphFigures  # the graph that is trained on; another one where the first has no data
    num_seeds: int
    scenario: str  # TOML
    command: str
    baseline: str | None = None  # the label of the case to compare with; else vanilla of the same setting
    made: str = ""  # when and by which version

    @property
    def stands_in(self) -> bool:
        """Whether scores are of another graph than the seconds."""
        return self.timed.name != self.trained.name
