"""Curves as cases with scores: the test score that validation selects within the budget, and against the baseline."""

from math import isfinite

from halocast.reports.converge.contests import Contest, baseline_of
from halocast.reports.converge.targets import Reached, as_scores, within
from halocast.reports.curves import Converged, Curve
from halocast.reports.scores import CaseScores, SeedScores, paired
from halocast.schedule.approximation import Approximation

BADGES = {Approximation.EXACT: "exact", Approximation.STALE: "stale", Approximation.SAMPLED: "sampled"}


def seed_scores(reach: Reached) -> tuple[SeedScores, ...]:
    """The scores of a curve's trainings within the budget; a training without any is left out."""
    inside = [(seed.seed, within(reach.curve, seed, reach.budget_s)) for seed in reach.curve.seeds]
    return tuple(as_scores(seed, some) for seed, some in inside if some)


def case_scores(converged: Converged, contest: Contest, reach: Reached) -> CaseScores:
    """A curve as the case of a study, compared with the setting's baseline seed by seed."""
    base = baseline_of(contest, converged.baseline)
    scores = seed_scores(reach)
    return CaseScores(
        label=reach.curve.label,
        baseline=base.curve.label if base else "",
        settings={"method.name": reach.curve.method, **reach.curve.overrides},
        chosen=reach.curve.chosen or {},
        seeds=scores,
        difference=paired(scores, seed_scores(base)) if base else None,
        trials=reach.curve.trials,
        reasons=(reach.curve.reason,) if reach.curve.reason else (),
        wanted=converged.num_seeds,
    )


def age_text(curve: Curve) -> str:
    """The youngest and the oldest age, in epochs, of the rows that the first seed read."""
    ages = sorted({age for read in curve.ages for age, rows in read.rows_by_age.items() if rows})
    return "" if not ages else str(ages[0]) if len(ages) == 1 else f"{ages[0]}..{ages[-1]}"


def last_error(curve: Curve) -> float | None:
    """The largest error of stale rows and gradients over layers at the last epoch where it was measured."""
    last = [error.by_epoch[max(error.by_epoch)] for error in curve.errors if error.layer >= 0 and error.by_epoch]
    return max((value for value in last if isfinite(value)), default=None)
