"""`halocast compare`: every method on one scenario, predicted and if asked run, into one report."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from halocast.base.errors import InputError, RunError, unknown
from halocast.base.kernels import bytes_moved, flops
from halocast.calibrate.profile import calibrated, load_profile
from halocast.cli.output import Say, epoch_bar, note, print_json, status
from halocast.cluster.catalogue import Cluster, load_cluster
from halocast.methods import METHODS
from halocast.reports.comparison import Comparison, Failure, Result, ScalePoint
from halocast.reports.page.report import require_report_place, write_report
from halocast.reports.summary import ErrorBand, NoBand, Summary
from halocast.reports.table import text_table
from halocast.reports.verdict import verdict
from halocast.schedule.ir import Kernel
from halocast.study.bands import band_for, read_bands, sure_of
from halocast.study.grid import LOOPBACK
from halocast.study.pipelines import settled
from halocast.study.predict import Prediction, predict_on, scenario_cluster
from halocast.study.scenario import MethodSection, Scenario, format_scenario
from halocast.study.workload import Workload, prepare

THIS_MACHINE = "this machine"
GROWTH = 4.0  # a point with twice the ranks has four times the transfers
ASSUMPTIONS = (
    "Every method has its default options, except the scenario's own method, which keeps the options given there.",
    "Times are of one steady epoch; what happens once before training and evaluation are not in them.",
    "Shared links give all transfers their max-min fair rate; queued ones serve them in order, used above 16 ranks.",
    "Compute is a roofline with one table of efficiencies for all devices; compute slows while bytes of its rank move.",
    "Speed is compared, not accuracy after training: methods with stale or sampled rows may need more epochs.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    out: Path
    execute: bool = False
    limit_s: float = 30.0  # for predictions at other numbers of devices
    profile: Path | None = None  # what was measured of the cluster's devices, or of this machine

    def calibrated(self, cluster: Cluster) -> Cluster:
        """With the profile, if it is of the cluster's device; another may still be this machine's, and used there."""
        if self.profile is None:
            return cluster
        found = load_profile(self.profile)
        if self.execute and cluster.device(0).name != found.device:
            return cluster
        return calibrated(cluster, found)


def compare_methods(chosen: Scenario, names: Sequence[str], options: CompareOptions) -> Comparison:
    """Compare, and write the report; a method that cannot run gets a row with the reason, not the last word."""
    require_report_place(options.out)
    options.calibrated(scenario_cluster(chosen))  # what cannot be is no method's fault
    results: list[Result] = []
    failures: list[Failure] = []
    for name in names:
        _compare_one(_with_method(chosen, name), options, results, failures)
    if not results:
        raise InputError(failures[0].reason)
    known = [result.summary.basis for result in results if result.summary.basis]
    for text in dict.fromkeys(text for basis in known for text in basis.outside_range):
        note(f"warning: {text}")
    for failure in failures:
        note(f"warning: {failure.method} on {failure.cluster}: {failure.reason}")
    predicted = [r for r in results if r.summary.predicts is None and not r.summary.is_run]
    comparison = Comparison(
        results=tuple(results),
        failures=tuple(failures),
        scaling=tuple(_scaling(chosen, predicted, failures, options)) if options.limit_s > 0 else (),
        scenario=format_scenario(chosen),
        command=_command(names, options),
        made=f"Made by halocast {metadata.version('halocast')} on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC.",
        assumptions=ASSUMPTIONS,
        kernel_work=_kernel_work,
    )
    write_report(options.out, comparison)
    return comparison


def show_comparison(comparison: Comparison, out: Path, json: bool) -> None:
    if json:
        print_json(comparison.rows)
        return
    print(text_table(comparison.lines))
    print(f"\n{verdict(comparison).replace('**', '')}\n\nreport: {out / 'report.html'}")


def method_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()] or list(METHODS)
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, METHODS, "--methods")
    return list(dict.fromkeys(names))


def _command(names: Sequence[str], options: CompareOptions) -> str:
    chosen = [] if list(names) == list(METHODS) else ["--methods", ",".join(names)]
    chosen += ["--execute"] * options.execute
    chosen += ["--profile", str(options.profile)] if options.profile else []
    return shlex.join(["halocast", "compare", "scenario.toml", *chosen])


def _with_method(scenario: Scenario, name: str) -> Scenario:
    if scenario.method.name == name:
        return scenario
    return replace(scenario, method=MethodSection(name=name, options=METHODS[name].options()))


def _compare_one(scenario: Scenario, options: CompareOptions, results: list[Result], failures: list[Failure]) -> None:
    """Simulated on the scenario's cluster; with `execute` also run here, and predicted for here."""
    name, cluster = scenario.method.name, options.calibrated(scenario_cluster(scenario))
    try:
        with status() as say:
            chosen = settled(scenario, cluster.num_ranks, say=say)
            workload = prepare(chosen, cluster.num_ranks, data=options.execute, say=_named(say, name))
            results.append(_result(predict_on(workload, cluster, say=_named(say, name))))
    except (InputError, RunError) as error:
        failures.append(Failure(method=name, cluster=cluster.name, reason=str(error)))
        return
    if options.execute:
        try:
            results += _execute_here(workload, options)
        except (InputError, RunError) as error:
            failures.append(Failure(method=name, cluster=THIS_MACHINE, reason=str(error)))


def _named(say: Say, name: str) -> Say:
    return lambda text: say(f"{name}: {text}")


def _result(prediction: Prediction, predicts: str | None = None) -> Result:
    summary = replace(prediction.summary, band=_error_band(prediction.summary), predicts=predicts)
    return Result(summary=summary, trace=prediction.trace, schedule=prediction.workload.schedule)


def _error_band(summary: Summary) -> ErrorBand | NoBand:
    """Where the epoch would be if the prediction errs as eight of ten like it did."""
    band = band_for(read_bands(), sure_of(summary), summary.cluster, summary.transport, summary.method)
    if band is None:
        return NoBand.NOT_KNOWN
    low_s, high_s = band.around(summary.epoch_s)
    basis = f"from {band.num} epochs measured on {band.testbeds.replace(' ', ', ')}"
    return ErrorBand(low_s=low_s, high_s=high_s, basis=basis)


def _execute_here(workload: Workload, options: CompareOptions) -> list[Result]:
    from halocast.cli.execution import run_workload  # torch: seconds that only a real run needs

    cluster = replace(
        load_cluster(LOOPBACK, gpus=workload.schedule.num_ranks), shared_cores=len(os.sched_getaffinity(0))
    )
    here = predict_on(workload, options.calibrated(cluster))
    done, summary = run_workload(workload)
    run = Result(summary=summary, trace=done.trace, schedule=workload.schedule)
    return [_result(here, predicts=summary.cluster), run]


def _kernel_work(kernel: Kernel) -> tuple[int, int]:
    return flops(kernel.kind, kernel.dims), bytes_moved(kernel.kind, kernel.dims, kernel.numbers.itemsize)


def device_counts(size: int, chosen: int) -> list[int]:
    """1, 2, 4, ... and the cluster's own size and the scenario's."""
    powers = {2**k for k in range(size.bit_length())}
    return sorted(count for count in {*powers, size, chosen} if count <= size)


def _scaling(
    scenario: Scenario, predicted: Sequence[Result], failures: Sequence[Failure], options: CompareOptions
) -> list[ScalePoint]:
    """Few devices first, so that what the time does not suffice for is at the end; the scenario's own size is known."""
    section = replace(scenario.cluster, gpus=None)
    whole = scenario_cluster(replace(scenario, cluster=section)).num_ranks
    chosen = predicted[0].summary.ranks if predicted else 0
    names = [result.method for result in predicted]
    names += [failure.method for failure in failures if failure.method not in names]
    known = {(r.method, chosen): _point(r.method, r.summary) for r in predicted}
    todo = [(name, k) for k in device_counts(whole, chosen) for name in names]
    predictor = _Predictor(scenario, options)
    points = []
    with epoch_bar(len(todo), "scaling with GPUs") as bar:
        for done, (name, ranks) in enumerate(todo):
            points.append(known.get((name, ranks)) or predictor.point(name, ranks))
            bar(done + 1)
    return points


class _Predictor:
    """Predicts points as long as there is time; a method's next point is expected to take longer than its last."""

    def __init__(self, scenario: Scenario, options: CompareOptions) -> None:
        self._scenario, self._options = scenario, options
        self._end_s = time.monotonic() + options.limit_s
        self._last_s: dict[str, float] = {}

    def point(self, name: str, ranks: int) -> ScalePoint:
        started = time.monotonic()
        if started + GROWTH * self._last_s.get(name, 0.0) > self._end_s:
            return ScalePoint(method=name, ranks=ranks, reason="not predicted: more time than --scaling allows")
        try:
            return _point(name, self._predict(name, ranks).summary)
        except (InputError, RunError) as error:
            return ScalePoint(method=name, ranks=ranks, reason=str(error))
        finally:
            self._last_s[name] = time.monotonic() - started

    def _predict(self, name: str, ranks: int) -> Prediction:
        section = replace(self._scenario.cluster, gpus=ranks)
        graph = replace(self._scenario.graph, parts=None)
        one = replace(_with_method(self._scenario, name), graph=graph, cluster=section)
        return predict_on(prepare(settled(one, ranks), ranks), self._options.calibrated(scenario_cluster(one)))


def _point(name: str, summary: Summary) -> ScalePoint:
    return ScalePoint(method=name, ranks=summary.ranks, epoch_s=summary.epoch_s, fits=summary.fits)
