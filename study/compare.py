"""Comparisons: every method on one scenario, predicted and if asked run, with predictions at other numbers of GPUs."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from halocast.base.errors import InputError, RunError, unknown
from halocast.base.kernels import bytes_moved, flops
from halocast.calibrate.profile import calibrated, load_profile
from halocast.cluster.catalogue import Cluster, load_cluster
from halocast.graph.graph import Graph
from halocast.methods import METHODS
from halocast.reports.comparison import Comparison, MethodResult, NotCompared, ScalePoint
from halocast.reports.curves import Converged
from halocast.reports.page.place import require_report_place
from halocast.reports.page.report import write_report
from halocast.reports.summary import Summary
from halocast.reports.to_target import rows
from halocast.reports.verdict import verdict, verdict_dict
from halocast.schedule.ir import Kernel
from halocast.study.asked_accuracy import Accuracy
from halocast.study.banded import with_band
from halocast.study.clusters import scenario_cluster
from halocast.study.converge import converge
from halocast.study.pipelines import settled
from halocast.study.predict import Prediction, predict_on
from halocast.study.run import machine, require_torch, run_workload
from halocast.study.scenario import MethodSection, Scenario, format_scenario
from halocast.study.showable import Showable, made_now, plain_figures
from halocast.study.validate import LOOPBACK
from halocast.study.workload import Say, Workload, prepare, silent

ALONE = "vanilla"  # on one device: the whole graph, nothing to exchange
GROWTH = 4.0  # a point with twice the ranks has four times the transfers
ASSUMPTIONS = (
    "Every method has its default options, except the scenario's own method, which keeps the options given there.",
    "Times are of one steady epoch; what happens once before training and evaluation are not in them.",
    "Shared links give all transfers their max-min fair rate; queued ones serve them in order, used above 16 ranks.",
    "Compute is a roofline with one table of efficiencies for all devices; compute slows while bytes of its rank move.",
    "Exact methods learn the same in every epoch; stale and sampled ones may need more epochs, or never get as far.",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MethodComparison(Showable):
    """All methods of a comparison, those that could not be compared with their reasons."""

    columns: ClassVar[tuple[str, ...]] = (
        *(
            "method",
            "approximation",
            "source",
            "cluster",
            "ranks",
            "epoch_s",
            "compute_s",
            "exposed_comm_s",
            "hidden_comm_s",
        ),
        *("bytes_total", "peak_memory_bytes", "reason"),
    )
    content: Comparison

    def line(self) -> str:
        return " ".join(self.verdict)

    @property
    def verdict(self) -> list[str]:
        """The best exact method, the best approximate one, and whether one GPU is enough: a line each."""
        return [line.replace("**", "") for line in verdict(self.content)]

    def as_dict(self) -> dict[str, Any]:
        """The verdict and all rows as a JSON object."""
        return {"verdict": verdict_dict(self.content), "results": rows(self.content)}

    def records(self) -> list[dict[str, Any]]:
        return [plain_figures(row) for row in rows(self.content)]

    @property
    def results(self) -> tuple[MethodResult, ...]:
        """The predictions and runs, each with its summary, trace and schedule."""
        return self.content.results

    @property
    def failures(self) -> tuple[NotCompared, ...]:
        return self.content.failures

    @property
    def warnings(self) -> list[str]:
        """Warnings of what predictions do not cover and which methods could not be compared, each once."""
        known = [result.summary.basis for result in self.results if result.summary.basis]
        outside = dict.fromkeys(text for basis in known for text in basis.outside_range)
        return [*outside, *(f"{one.method} on {one.cluster}: {one.reason}" for one in self.failures)]

    def write(self, directory: str | Path) -> None:
        """Write the report: a page, tables, figures, traces and what makes them again."""
        write_report(Path(directory), self.content)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """A user's choices for a comparison: what is compared, and how."""

    scenario: Scenario
    names: tuple[str, ...]
    graph: Graph | None
    execute: bool
    profile: Path | None  # what was measured of the cluster's devices, or of this machine
    scaling_s: float
    accuracy: Accuracy | None  # methods are trained as well
    say: Say

    def cluster(self, scenario: Scenario) -> Cluster:
        return self.calibrated(scenario_cluster(scenario))

    def calibrated(self, cluster: Cluster) -> Cluster:
        """The cluster with the profile, if it is of its device; another may still be this machine's, and used there."""
        if self.profile is None:
            return cluster
        profile = load_profile(self.profile)
        if self.execute and cluster.device(0).name != profile.device:
            return cluster
        return calibrated(cluster, profile)

    def with_method(self, name: str) -> Scenario:
        if self.scenario.method.name == name:
            return self.scenario
        return replace(self.scenario, method=MethodSection(name=name, options=METHODS[name].options()))

    @property
    def _methods(self) -> list[str]:
        return [] if list(self.names) == list(METHODS) else ["--methods", ",".join(self.names)]

    @property
    def converge(self) -> str:
        """The command line that trains the same methods, beside the report's scenario.toml."""
        return shlex.join(["halocast", "converge", "scenario.toml", *self._methods])

    @property
    def command(self) -> str:
        """The command line that makes the same report, beside its scenario.toml."""
        chosen = list(self._methods)
        chosen += ["--execute"] * self.execute
        chosen += ["--profile", str(self.profile)] if self.profile else []
        chosen += ["--accuracy", *self.accuracy.words] if self.accuracy else []
        return shlex.join(["halocast", "compare", "scenario.toml", *chosen])


def compare(
    scenario: Scenario,
    *,
    methods: Sequence[str] = (),
    graph: Graph | None = None,
    execute: bool = False,
    profile: str | Path | None = None,
    scaling_s: float = 0.0,
    accuracy: Accuracy | None = None,
    out: str | Path | None = None,
    say: Say = silent,
) -> MethodComparison:
    """Predict all methods, or the named ones, on a scenario; `execute` also runs each on this machine.

    With `accuracy` each is also trained in virtual time, so that they are compared at an equal validation score.

    `graph` takes the place of the scenario's own. `profile` is what was measured of the cluster's devices. Up to
    `scaling_s` seconds are spent on predictions at other numbers of GPUs. `out` is a directory for the report. A method
    that cannot be compared is one of the failures, unless all are.
    """
    if execute:
        require_torch("comparing with real runs")
    if out is not None:
        require_report_place(Path(out))
    if accuracy is not None and graph is not None:
        raise InputError("accuracy: a graph from memory cannot be trained; save it and name its file")
    asked = _Asked(
        scenario=scenario,
        names=tuple(method_names(methods)),
        graph=graph,
        execute=execute,
        profile=None if profile is None else Path(profile),
        scaling_s=scaling_s,
        accuracy=accuracy,
        say=say,
    )
    comparison = MethodComparison(content=_compare(asked))
    if out is not None:
        comparison.write(out)
    return comparison


def method_names(names: Sequence[str]) -> list[str]:
    """The names, each once and legal; all methods where none is named."""
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, METHODS, "--methods")
    return list(dict.fromkeys(names)) or list(METHODS)


def _compare(asked: _Asked) -> Comparison:
    asked.cluster(asked.scenario)  # what cannot be is no method's fault
    converged = None if asked.accuracy is None else _converged(asked, asked.accuracy)
    results: list[MethodResult] = []
    failures: list[NotCompared] = []
    for name in asked.names:
        _compare_one(asked.with_method(name), asked, results, failures)
    if not results:
        raise InputError(failures[0].reason)
    predicted = [r for r in results if r.summary.predicts is None and not r.summary.is_run]
    return Comparison(
        results=tuple(results),
        failures=tuple(failures),
        scaling=tuple(_scaling(asked, predicted, failures)) if asked.scaling_s > 0 else (),
        scenario=format_scenario(asked.scenario),
        command=asked.command,
        made=made_now(),
        assumptions=ASSUMPTIONS,
        kernel_work=kernel_work,
        alone=_alone(asked),
        converge=asked.converge,
        converged=converged,
    )


def _compare_one(scenario: Scenario, asked: _Asked, results: list[MethodResult], failures: list[NotCompared]) -> None:
    """Simulate one method on the scenario's cluster; with `execute` also run it on this machine and predict that."""
    name, cluster = scenario.method.name, asked.cluster(scenario)

    def say(text: str) -> None:
        asked.say(f"{name}: {text}")

    try:
        chosen = settled(scenario, cluster.num_ranks, graph=asked.graph, say=say)
        workload = prepare(chosen, cluster.num_ranks, data=asked.execute, graph=asked.graph, say=say)
        results.append(_result(predict_on(workload, cluster, say=say)))
    except (InputError, RunError) as error:
        failures.append(NotCompared(method=name, cluster=cluster.name, reason=str(error)))
        return
    if asked.execute:
        try:
            results += _execute_here(workload, asked, say)
        except (InputError, RunError) as error:
            failures.append(NotCompared(method=name, cluster=machine(None), reason=str(error)))


def _converged(asked: _Asked, accuracy: Accuracy) -> Converged:
    """The methods, trained in virtual time: score over seconds of the cluster that they are predicted on."""
    cluster, scenario = asked.cluster(asked.scenario), asked.scenario
    if asked.profile is not None and cluster.device(0).measured is not None:
        scenario = replace(scenario, cluster=replace(scenario.cluster, profile=str(asked.profile)))
    return converge(
        scenario,
        methods=asked.names,
        target=accuracy.target,
        seeds=accuracy.seeds,
        stand_in=accuracy.stand_in,
        jobs=accuracy.jobs,
        progress=accuracy.progress,
    ).content


def _alone(asked: _Asked) -> Summary | NotCompared:
    """The whole graph on one device of the cluster."""
    try:
        return _predict_on(asked, ALONE, 1).summary
    except (InputError, RunError) as error:
        return NotCompared(method=ALONE, cluster=asked.cluster(asked.scenario).name, reason=str(error))


def _predict_on(asked: _Asked, name: str, ranks: int) -> Prediction:
    """A method on the first devices of the cluster, with a part for each."""
    scenario, graph = asked.with_method(name), asked.graph
    parts, cluster = replace(scenario.graph, parts=None), replace(scenario.cluster, gpus=ranks)
    sized = replace(scenario, graph=parts, cluster=cluster)
    workload = prepare(settled(sized, ranks, graph=graph), ranks, graph=graph)
    return predict_on(workload, asked.cluster(sized))


def _result(prediction: Prediction, predicts: str | None = None) -> MethodResult:
    banded = with_band(prediction.summary, prediction.workload, prediction.cluster)
    summary = replace(banded, predicts=predicts)
    return MethodResult(summary=summary, trace=prediction.trace, schedule=prediction.workload.schedule)


def _execute_here(workload: Workload, asked: _Asked, say: Say) -> list[MethodResult]:
    """The prediction for this machine, and the run on it."""
    cluster = replace(
        load_cluster(LOOPBACK, gpus=workload.schedule.num_ranks), shared_cores=len(os.sched_getaffinity(0))
    )
    here, of = predict_on(workload, asked.calibrated(cluster)), workload.scenario.run.epochs
    done = run_workload(workload, on_epoch=lambda epochs: say(f"running, {epochs} of {of} epochs"))
    run = MethodResult(summary=done.summary, trace=done.trace, schedule=workload.schedule)
    return [_result(here, predicts=done.summary.cluster), run]


def kernel_work(kernel: Kernel) -> tuple[int, int]:
    """FLOPs of a kernel, and bytes that it moves."""
    return flops(kernel.kind, kernel.dims), bytes_moved(kernel.kind, kernel.dims, kernel.numbers.itemsize)


def device_counts(size: int, chosen: int) -> list[int]:
    """Numbers of devices to predict: 1, 2, 4, ... and the cluster's own size and the scenario's."""
    powers = {2**k for k in range(size.bit_length())}
    return sorted(count for count in {*powers, size, chosen} if count <= size)


def _scaling(asked: _Asked, predicted: Sequence[MethodResult], failures: Sequence[NotCompared]) -> list[ScalePoint]:
    """Points of all sizes, few devices first: what time does not suffice for is at the end; the own size is known."""
    section = replace(asked.scenario.cluster, gpus=None)
    whole = scenario_cluster(replace(asked.scenario, cluster=section)).num_ranks
    chosen = predicted[0].summary.ranks if predicted else 0
    names = [result.method for result in predicted]
    names += [failure.method for failure in failures if failure.method not in names]
    known = {(r.method, chosen): _point(r.method, r.summary) for r in predicted}
    todo = [(name, k) for k in device_counts(whole, chosen) for name in names]
    predictor = _Predictor(asked, time.monotonic() + asked.scaling_s)
    points = []
    for number, (name, ranks) in enumerate(todo, start=1):
        asked.say(f"scaling with GPUs: {number} of {len(todo)}")
        points.append(known.get((name, ranks)) or predictor.point(name, ranks))
    return points


@dataclass(slots=True)
class _Predictor:
    """A predictor of points while there is time; a method's next point is expected to take longer than its last."""

    asked: _Asked
    end_s: float
    last_s: dict[str, float] = field(default_factory=dict)

    def point(self, name: str, ranks: int) -> ScalePoint:
        started = time.monotonic()
        if started + GROWTH * self.last_s.get(name, 0.0) > self.end_s:
            return ScalePoint(method=name, ranks=ranks, reason="not predicted: more time than --scaling allows")
        try:
            return _point(name, _predict_on(self.asked, name, ranks).summary)
        except (InputError, RunError) as error:
            return ScalePoint(method=name, ranks=ranks, reason=str(error))
        finally:
            self.last_s[name] = time.monotonic() - started


def _point(name: str, summary: Summary) -> ScalePoint:
    return ScalePoint(method=name, ranks=summary.ranks, epoch_s=summary.epoch_s, fits=summary.fits)
