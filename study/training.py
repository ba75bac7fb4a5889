"""One training as a task of a pool: a scenario is trained by its ranks; what it learnt is kept as a small record."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic

from halocast.base.errors import InputError
from halocast.exec.launch.local import Run
from halocast.reports.scores import ErrorCurve
from halocast.reports.summary import FoundAges, Scores, StaleError
from halocast.study.pipelines import settled
from halocast.study.run import make_job, prepare_run, stale_errors, train
from halocast.study.scenario import Scenario

TRAIN = "train"  # the task's name
BACKEND = "gloo"  # several trainings side by side would not share GPUs well
MOST_POINTS = 200  # of a curve that is kept
EVALUATIONS = 20  # of a training that does not say how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The record of a training: exact scores by epoch, and what else a study may want to know of it."""

    evaluated: Mapping[int, Scores]
    losses: Mapping[int, float]  # by epoch, some of them
    train_s: float  # of training alone; the clock stands still for evaluations
    total_s: float  # with loading, partitioning, the start of the ranks, and evaluations
    ages: tuple[FoundAges, ...]
    errors: tuple[ErrorCurve, ...]
    num_bytes: Mapping[str, int]  # that travelled, by kind of op


def trainable(scenario: Scenario) -> Scenario:
    """The scenario as a study trains it: one thread per rank, scored often enough for a curve, all chosen."""
    every = scenario.run.eval_every or max(1, scenario.run.epochs // EVALUATIONS)
    return replace(settled(scenario), run=replace(scenario.run, threads=1, eval_every=every))


def train_alone(scenario: Scenario) -> Trained:
    """Train a scenario from its file to its last epoch."""
    began = monotonic()
    workload = prepare_run(scenario)
    run = train(workload, make_job(workload, BACKEND))
    if any("val" not in scores or "test" not in scores for scores in run.evaluated.values()):
        raise InputError(
            f"graph {scenario.graph.dataset} has no validation or no test nodes: there is nothing to select by"
        )
    return record_of(run, monotonic() - began)


def record_of(run: Run, total_s: float) -> Trained:
    """The record of a finished run; curves have no more than some hundred points."""
    num_bytes: Counter[str] = Counter()
    for span in run.trace.spans:
        num_bytes[span.kind] += span.num_bytes
    return Trained(
        evaluated=run.evaluated,
        losses=thinned(dict(enumerate(run.losses))),
        train_s=max((span.end_s for span in run.trace.spans), default=0.0),
        total_s=total_s,
        ages=tuple(FoundAges(op=op, reads=buffer, rows_by_age=ages) for (op, buffer), ages in run.ages.items()),
        errors=error_curves(stale_errors(run)),
        num_bytes={kind: total for kind, total in sorted(num_bytes.items()) if total},
    )


def error_curves(errors: tuple[StaleError, ...]) -> tuple[ErrorCurve, ...]:
    """Relative errors over epochs, by what is stale and its layer."""
    curves: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for error in errors:
        if error.squared_norm > 0:
            curves[error.what, error.layer][error.epoch] = error.relative
    return tuple(ErrorCurve(what=what, layer=layer, by_epoch=thinned(c)) for (what, layer), c in sorted(curves.items()))


def thinned(curve: Mapping[int, float], most: int = MOST_POINTS) -> dict[int, float]:
    """Points of a curve at equal distances, the last one among them, no more than `most`."""
    epochs = sorted(curve)
    step = -(-len(epochs) // most) if epochs else 1
    return {epoch: curve[epoch] for epoch in sorted(epochs[::-step])}
