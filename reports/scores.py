"""Scores of trainings: the test score of the epoch that validation selects, over seeds, and against a baseline.

Scores are shares (0.913), tables show points (91.3). Test scores are never looked at to choose anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Any

import numpy as np

from halocast.reports.summary import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCurve:
    """Errors of stale rows of a layer, relative to fresh ones, by epoch."""

    what: str
    layer: int
    by_epoch: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedScores:
    """Exact scores of one training by epoch; epochs need not be equally far apart."""

    seed: int
    evaluated: Mapping[int, Scores]
    errors: tuple[ErrorCurve, ...] = ()
    total_s: float = 0.0

    @property
    def best_epoch(self) -> int:
        """The evaluated epoch with the best validation score, the first of equal ones."""
        return min(self.evaluated, key=lambda epoch: (-self.evaluated[epoch]["val"], epoch))

    @property
    def val(self) -> float:
        return self.evaluated[self.best_epoch]["val"]

    @property
    def test(self) -> float:
        """The test score of the epoch that validation selects."""
        return self.evaluated[self.best_epoch]["test"]

    @property
    def last(self) -> float:
        """The test score after the last epoch."""
        return self.evaluated[max(self.evaluated)]["test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and standard deviation of some values; of a single one the deviation is not known."""

    mean: float
    std: float | None


def spread(values: Sequence[float]) -> Spread:
    return Spread(mean=mean(values), std=stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The mean difference of a score to a baseline's, seed by seed, and its standard error."""

    mean: float
    error: float | None
    num_seeds: int


def paired(scores: Sequence[SeedScores], base: Sequence[SeedScores]) -> Difference | None:
    """The difference over the seeds that both have; none if there are none."""
    of_base = {run.seed: run.test for run in base}
    differences = [run.test - of_base[run.seed] for run in scores if run.seed in of_base]
    if not differences:
        return None
    known = spread(differences)
    error = None if known.std is None else known.std / sqrt(len(differences))
    return Difference(mean=known.mean, error=error, num_seeds=len(differences))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A value that the search tried for a case, and the mean best validation score it led to."""

    values: Mapping[str, Any]
    val: float | None  # none if all its trainings failed


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseScores:
    """A case of a study: what it is, the values chosen for it on validation, its scores by seed, and what failed."""

    label: str
    baseline: str  # the label of the case it is compared with
    settings: Mapping[str, Any]  # what it overrides of the scenario, by section.key
    chosen: Mapping[str, Any]  # of the searched keys, or the learning rate as it is
    seeds: tuple[SeedScores, ...]
    difference: Difference | None = None  # of the test score to the baseline's
    trials: tuple[Trial, ...] = ()
    reasons: tuple[str, ...] = ()  # why trainings are missing, each once
    wanted: int = 0  # seeds

    @property
    def test(self) -> Spread | None:
        return spread([one.test for one in self.seeds]) if self.seeds else None

    @property
    def last(self) -> Spread | None:
        return spread([one.last for one in self.seeds]) if self.seeds else None

    @property
    def best_epoch(self) -> float | None:
        """The mean over seeds of the epoch that validation selects, counted from 1."""
        return mean(one.best_epoch + 1 for one in self.seeds) if self.seeds else None

    @property
    def is_baseline(self) -> bool:
        return self.label == self.baseline

    def flat(self) -> dict[str, Any]:
        """The case with plain values only; scores are shares."""
        test, last, difference = self.test, self.last, self.difference
        return {
            "case": self.label,
            "test": test and test.mean,
            "test_std": test and test.std,
            "last": last and last.mean,
            "last_std": last and last.std,
            "baseline": self.baseline,
            "difference": difference and difference.mean,
            "difference_error": difference and difference.error,
            "best_epoch": self.best_epoch,
            **self.chosen,
            "num_seeds": len(self.seeds),
            "total_s": sum(one.total_s for one in self.seeds),
            "reason": "; ".join(self.reasons),
        }


def mean_curve(seeds: Sequence[SeedScores], mask: str, epochs: Sequence[int]) -> list[float]:
    """The mean score over seeds at these epochs; between evaluations on a line, outside of them not a number."""
    curves = [{epoch: run.evaluated[epoch][mask] for epoch in sorted(run.evaluated)} for run in seeds]
    drawn = [np.interp(epochs, list(curve), list(curve.values()), left=np.nan, right=np.nan) for curve in curves]
    return [float(value) for value in np.mean(drawn, axis=0)]


def epochs_of(cases: Sequence[CaseScores]) -> list[int]:
    """All epochs that some training was scored after."""
    return sorted({epoch for case in cases for one in case.seeds for epoch in one.evaluated})
