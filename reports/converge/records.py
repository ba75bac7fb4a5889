"""The answer as plain records: a flat row per curve, every evaluated point, and all of it as one JSON object."""

from dataclasses import asdict
from math import isfinite
from typing import Any

from halocast.reports.converge.answer import answer, answer_lines, goal_text
from halocast.reports.converge.cases import age_text, case_scores, last_error
from halocast.reports.converge.contests import Contest, Values, Variation, contests, variations
from halocast.reports.converge.front import Stop, front, stops
from halocast.reports.converge.targets import Reached, price_of, seconds_of
from halocast.reports.converge.words import plain
from halocast.reports.curves import Converged, Curve, SeedCurve
from halocast.reports.scores import ErrorCurve

NOT_OF_CURVES = ("total_s", "reason")  # of a case's flat row: the real time of a training, and what stands here anyway


def records(converged: Converged) -> list[dict[str, Any]]:
    """A flat row per curve and setting, in SI units and USD; scores are shares."""
    return [_row(converged, contest, reach) for contest in contests(converged) for reach in contest.curves]


def _row(converged: Converged, contest: Contest, reach: Reached) -> dict[str, Any]:
    curve, scores = reach.curve, case_scores(converged, contest, reach).flat()
    return {
        **plain_values(contest.values),
        "method": curve.method,
        "approximation": str(curve.approximation),
        "cluster": curve.cluster,
        "gpus": curve.gpus,
        "fits": curve.fits,
        "epoch_s": curve.epoch_s,
        "epoch_low_s": curve.epoch_low_s,
        "epoch_high_s": curve.epoch_high_s,
        "price_per_s": curve.price_per_s,
        **_target(converged, reach),
        **{key: value for key, value in scores.items() if key not in NOT_OF_CURVES},
        "age": age_text(curve),
        "stale_error": last_error(curve),
        "scores_of": converged.trained.name,
        "seconds_of": converged.timed.name,
        "reason": curve.reason,
    }


def _target(converged: Converged, reach: Reached) -> dict[str, Any]:
    test, likely = reach.test, reach.likely if reach.is_met else None
    return {
        "target": converged.target,
        "target_epochs": reach.epochs,
        "target_s": reach.seconds,
        "target_mean_s": reach.mean_s,
        "target_first_s": reach.low_s,
        "target_last_s": reach.high_s,
        "target_likely_low_s": likely and likely.low_s,
        "target_likely_high_s": likely and likely.high_s,
        "target_price": reach.price,
        "target_test": test and test.mean,
        "target_test_std": test and test.std,
        "num_reached": reach.num_reached,
        "missed": reach.text,
    }


def point_records(converged: Converged) -> list[dict[str, Any]]:
    """Every evaluation of every training, in long form; `perturbed` numbers those at other speeds, from 1 on."""
    return [
        {**plain_values(curve.setting), "case": curve.label, "gpus": curve.gpus, **row}
        for curve in converged.curves
        for row in (
            *(row for seed in curve.seeds for row in _points(curve, seed, 0)),
            *(row for k, seed in enumerate(curve.perturbed, 1) for row in _points(curve, seed, k)),
        )
    ]


def _points(curve: Curve, seed: SeedCurve, perturbed: int) -> list[dict[str, Any]]:
    return [
        {
            "seed": seed.seed,
            "perturbed": perturbed,
            "epochs": point.epochs,
            "seconds": seconds_of(curve, point),
            "price": price_of(curve, seconds_of(curve, point)),
            "val": point.val,
            "test": point.test,
        }
        for point in seed.points
    ]


def error_records(converged: Converged) -> list[dict[str, Any]]:
    """Errors of stale rows of the first seed, by layer and epoch."""
    return [
        {**plain_values(curve.setting), "case": curve.label, "what": error.what, "layer": error.layer, **row}
        for curve in converged.curves
        for error in curve.errors
        for row in _errors(error)
    ]


def _errors(error: ErrorCurve) -> list[dict[str, Any]]:
    known = sorted(error.by_epoch.items())
    return [{"epoch": epoch + 1, "error": value if isfinite(value) else None} for epoch, value in known]


def plain_values(values: Values) -> dict[str, Any]:
    """Varied values that stand in a cell: tables and lists as text."""
    scalar = (bool, int, float, str)
    return {key: value if isinstance(value, scalar) else plain(value) for key, value in values.items()}


def as_json(converged: Converged) -> dict[str, Any]:
    """The whole answer, its lines first."""
    every = contests(converged)
    return {
        "answer": answer_lines(converged),
        "goal": goal_text(converged),
        "target": converged.target,
        "budget_s": converged.budget_s,
        "max_epochs": converged.max_epochs,
        "answers": [answer(converged, contest).as_dict() for contest in every],
        "trained": asdict(converged.trained),
        "timed": asdict(converged.timed),
        "stands_in": converged.stands_in,
        "cases": records(converged),
        "front": [_stop(contest, stop) for contest in every for stop in front(stops(contest.shown))],
        "variations": [_variation(variation) for variation in variations(every)],
        "evaluations": point_records(converged),
        "errors": error_records(converged),
        "command": converged.command,
    }


def _stop(contest: Contest, stop: Stop) -> dict[str, Any]:
    return {
        **plain_values(contest.values),
        "case": stop.curve.label,
        "gpus": stop.curve.gpus,
        "at": stop.at,
        "test": stop.test,
        "seconds": stop.seconds,
        "price": stop.price,
    }


def _variation(variation: Variation) -> dict[str, Any]:
    return {
        "key": variation.key,
        "fixed": dict(variation.fixed),
        "orders": [{"value": ranking.value, "cases": list(ranking.labels)} for ranking in variation.rankings],
        "crossovers": [asdict(change) for change in variation.crossovers],
    }
