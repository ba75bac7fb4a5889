"""Curves of scores over predicted time: what was trained, put on the clock of the machine that a case is timed on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from halocast.methods import METHODS
from halocast.reports.curves import Curve, Point, SeedCurve
from halocast.reports.scores import Trial
from halocast.reports.summary import from_flat
from halocast.schedule.approximation import Approximation, approximation_of
from halocast.study.placed import Placed
from halocast.study.results import State, Stored
from halocast.study.scenario import GraphSection, MethodSection, Scenario
from halocast.study.timing import EpochTiming
from halocast.study.training import Trained
from halocast.study.trainings import WantedTraining
from halocast.study.workload import prepare

NOT_YET = "not trained yet"
SMALL = GraphSection(nodes=64, degree=4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a curve is made of: a case on a machine, how it is timed, what was chosen for it, and its trainings."""

    placed: Placed
    timing: EpochTiming
    chosen: Mapping[str, Any]
    trials: tuple[Trial, ...]
    seeds: Sequence[tuple[WantedTraining, Stored | None]]
    perturbed: Sequence[tuple[WantedTraining, Stored | None]]


def curve_of(parts: Parts) -> Curve:
    """The curve of a case whose epoch was predicted."""
    timing, summary = parts.timing, parts.timing.summary
    trained = [(want, trained_of(stored)) for want, stored in parts.seeds]
    first = next((record for _, record in trained if record is not None), None)
    return Curve(
        **_case(parts.placed, timing.approximation),
        cluster=summary.cluster,
        gpus=summary.ranks,
        epoch_s=summary.epoch_s,
        epoch_low_s=timing.band.low_s if timing.band else None,
        epoch_high_s=timing.band.high_s if timing.band else None,
        price_per_s=timing.price_per_s,
        fits=summary.fits,
        seeds=_seed_curves(trained, summary.epoch_s),
        perturbed=_seed_curves([(want, trained_of(stored)) for want, stored in parts.perturbed], summary.epoch_s),
        chosen=parts.chosen,
        trials=parts.trials,
        errors=first.errors if first else (),
        ages=first.ages if first else (),
        reason=_reasons([why(want, stored) for want, stored in parts.seeds]),
    )


def curve_without(placed: Placed, reason: str) -> Curve:
    """The curve of a case that cannot be: it says why."""
    cluster = placed.tables.get("cluster", {})
    name, gpus = str(cluster.get("name") or cluster.get("file") or ""), int(cluster.get("gpus") or 0)
    return Curve(**_case(placed, usual_approximation(placed.case.method)), cluster=name, gpus=gpus, reason=reason)


def usual_approximation(method: str) -> Approximation:
    """What a method with its usual options does to the numbers, on two ranks of a small graph."""
    section = MethodSection(name=method, options=METHODS[method].options())
    return approximation_of(prepare(Scenario(graph=SMALL, method=section), 2).schedule)


def _case(placed: Placed, approximation: Approximation) -> dict[str, Any]:
    return {
        "label": placed.case.label,
        "method": placed.case.method,
        "approximation": approximation,
        "summary": METHODS[placed.case.method].summary,
        "setting": placed.setting,
        "overrides": placed.case.overrides,
    }


def _seed_curves(trained: Sequence[tuple[WantedTraining, Trained | None]], epoch_s: float) -> tuple[SeedCurve, ...]:
    return tuple(_seed_curve(want.seed, record, epoch_s) for want, record in trained if record is not None)


def _seed_curve(seed: int, record: Trained, epoch_s: float) -> SeedCurve:
    """A training on the clock: its own, where events had times; else so many epochs, each as long as predicted."""
    points = tuple(
        Point(
            epochs=epoch + 1,
            seconds=record.times_s.get(epoch, (epoch + 1) * epoch_s),
            val=scores["val"],
            test=scores.get("test", nan),
        )
        for epoch, scores in sorted(record.evaluated.items())
    )
    return SeedCurve(
        seed=seed, points=points, diverged=record.diverged, stopped=record.stopped, losses=dict(record.losses)
    )


def trained_of(stored: Stored | None) -> Trained | None:
    """The record of a training that was finished."""
    return None if stored is None or stored.state is not State.DONE else from_flat(Trained, stored.figures)


def why(want: WantedTraining, stored: Stored | None) -> str:
    """Why a training is missing; empty where it is not."""
    if stored is not None:
        return stored.reason
    return want.queries[0].reason or NOT_YET


def _reasons(reasons: Sequence[str]) -> str:
    missing = [reason for reason in reasons if reason]
    counted = {reason: missing.count(reason) for reason in missing}
    return "; ".join(f"{num} of {len(reasons)}: {reason}" for reason, num in counted.items())
