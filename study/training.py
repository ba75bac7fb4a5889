"""One training in virtual time as a task of a pool: all ranks of a scenario in one process, one thread.

What it learnt is kept as a small record. Where ranks meet, numbers depend on no clock: one training serves every
machine. Where they depend on the order of events, the simulated moments of another scenario, the clock, drive them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic

from halocast.base.errors import InputError
from halocast.exec.launch.job import Job
from halocast.reports.scores import ErrorCurve
from halocast.reports.summary import FoundAges, Scores, StaleError
from halocast.schedule.order import Moment, list_order
from halocast.sim.engine import moments
from halocast.sim.lower import lower
from halocast.study.clusters import scenario_cluster
from halocast.study.codes import scenario_code
from halocast.study.pipelines import settled
from halocast.study.run import make_job, prepare_run, stale_errors
from halocast.study.scenario import Scenario, build_scenario
from halocast.study.workload import Workload, prepare

TRAIN = "train"  # the task's name
BACKEND = "gloo"  # only CPUs: several trainings side by side would not share GPUs well
MOST_POINTS = 200  # of a curve that is kept
EVALUATIONS = 20  # of a training that does not say how many
NEEDED = ("val", "test")  # masks that scores are of


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The record of a training: exact scores by epoch, and what else a study may want to know of it."""

    evaluated: Mapping[int, Scores]
    losses: Mapping[int, float]  # by epoch, some of them
    times_s: Mapping[int, float]  # of the clock, by evaluated epoch; none where numbers depend on no clock
    num_epochs: int  # done
    diverged: int | None  # epochs after which the loss was no number
    stopped: bool  # since validation did not improve any more
    total_s: float  # with loading, partitioning and evaluations
    ages: tuple[FoundAges, ...]
    errors: tuple[ErrorCurve, ...]


def trainable(scenario: Scenario) -> Scenario:
    """The scenario as a study trains it: one thread, scored often enough for a curve, all chosen."""
    every = scenario.run.eval_every or max(1, scenario.run.epochs // EVALUATIONS)
    return replace(settled(scenario), run=replace(scenario.run, threads=1, eval_every=every))


def train_alone(
    scenario: Scenario, *, patience: int | None = None, clock: Mapping[str, Mapping[str, object]] | None = None
) -> Trained:
    """Train a scenario from its file to its last epoch, or until validation has not improved for `patience` epochs.

    `clock` has the tables of the scenario whose simulated moments are those of this training.
    """
    from halocast.exec.run.process import on_one_thread  # torch: seconds that predictions do not need
    from halocast.exec.run.together import train_together

    began = monotonic()
    workload = prepare_run(scenario)
    _require_scores(workload)
    rule = _Patience(patience=patience)
    with on_one_thread():
        timed = train_together(
            _job(workload),
            tuple(workload.parts()),
            _order(workload, clock),
            scored=tuple(workload.scored()),
            on_scores=rule.goes_on,
        )
    return Trained(
        evaluated=timed.evaluated,
        losses=thinned(dict(enumerate(timed.losses))),
        times_s={} if clock is None else timed.times_s,
        num_epochs=len(timed.losses),
        diverged=timed.diverged,
        stopped=rule.stopped,
        total_s=monotonic() - began,
        ages=tuple(FoundAges(op=op, reads=buffer, rows_by_age=ages) for (op, buffer), ages in timed.ages.items()),
        errors=error_curves(stale_errors(timed)),
    )


def _job(workload: Workload) -> Job:
    """The job of a training; errors, where they are asked for, are those of rows, which cost next to nothing."""
    job = make_job(workload, BACKEND)
    return replace(job, settings=replace(job.settings, fresh_gradients=False))


def _require_scores(workload: Workload) -> None:
    graph = workload.whole or workload.graph
    assert graph is not None, "what is trained has data"
    for name in NEEDED:
        if not getattr(graph, f"{name}_mask").any():
            raise InputError(f"graph {graph.name} has no {name} nodes: there is nothing to select by")


def _order(workload: Workload, clock: Mapping[str, Mapping[str, object]] | None) -> Iterator[Moment]:
    """The moments of a training: in a legal order without a clock, or as they happen in the clock's scenario."""
    epochs = workload.scenario.run.epochs
    if clock is None:
        return list_order(workload.schedule, epochs)
    scenario = build_scenario(clock, "clock")
    cluster, section = scenario_cluster(scenario), scenario.cluster
    timed, code = prepare(scenario, cluster.num_ranks), scenario_code(scenario)
    return moments(
        lower(timed.schedule, code, timed.spec),
        cluster,
        num_epochs=epochs,
        world=scenario.world.world,
        sharing=section.links,
        tolerance=section.tolerance,
        code=code,
    )


@dataclass(slots=True, kw_only=True)
class _Patience:
    """Ends a training whose validation score has not improved for some epochs."""

    patience: int | None
    best: float = -1.0
    best_epoch: int = field(default=0)
    stopped: bool = False

    def goes_on(self, epoch: int, time_s: float, scores: Scores) -> bool:
        if scores["val"] > self.best:
            self.best, self.best_epoch = scores["val"], epoch
        self.stopped = self.patience is not None and epoch - self.best_epoch >= self.patience
        return not self.stopped


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
