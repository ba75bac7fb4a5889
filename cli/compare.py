"""`halocast compare`: every method on one scenario, predicted and if asked run, into one report."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from halocast.base.errors import InputError, RunError, unknown
from halocast.cli.output import Say, epoch_bar, note, print_json, status
from halocast.methods import METHODS
from halocast.models.arithmetic import bytes_moved, flops
from halocast.plan.predict import Prediction, predict_on, scenario_cluster
from halocast.plan.scenario import MethodSection, Scenario, format_scenario, load_scenario
from halocast.plan.workload import Workload, prepare
from halocast.reports.report import require_report_place, write_report
from halocast.reports.report_data import Comparison, Failure, Result, ScalePoint
from halocast.reports.report_verdict import verdict
from halocast.reports.table import Summary, text_table
from halocast.schedule.ir import Kernel
from halocast.sim.cluster import load_cluster

THIS_MACHINE = "this machine"
GROWTH = 4.0  # a point with twice the ranks has four times the transfers
ASSUMPTIONS = (
    "Every method has its default options, except the scenario's own method, which keeps the options given there.",
    "Times are of one steady epoch; what happens once before training and evaluation are not in them.",
    "Shared links give all transfers their max-min fair rate; queued ones serve them in order, used above 16 ranks.",
    "Compute is a roofline with one table of efficiencies for all devices; compute slows while bytes of its rank move.",
    "Speed is compared, not accuracy after training: methods with stale or sampled rows may need more epochs.",
)


def compare_methods(
    scenario: str | None, overrides: Sequence[str], names: Sequence[str], out: Path, *, execute: bool, limit_s: float
) -> Comparison:
    """Compare, and write the report; a method that cannot run gets a row with the reason, not the last word."""
    require_report_place(out)
    chosen = load_scenario(scenario, overrides)
    scenario_cluster(chosen)  # a cluster that cannot be is nobody's fault but the scenario's
    results: list[Result] = []
    failures: list[Failure] = []
    for name in names:
        _compare_one(_with_method(chosen, name), execute, results, failures)
    if not results:
        raise InputError(failures[0].reason)
    for failure in failures:
        note(f"warning: {failure.method} on {failure.cluster}: {failure.reason}")
    predicted = [r for r in results if "predicts" not in r.summary and r.summary["source"] == "simulated"]
    comparison = Comparison(
        results=tuple(results),
        failures=tuple(failures),
        scaling=tuple(_scaling(chosen, predicted, failures, limit_s)) if limit_s > 0 else (),
        scenario=format_scenario(chosen),
        command=_command(names, execute),
        made=f"Made by halocast {metadata.version('halocast')} on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC.",
        assumptions=ASSUMPTIONS,
        kernel_work=_kernel_work,
    )
    write_report(out, comparison)
    return comparison


def show_comparison(comparison: Comparison, out: Path, json: bool) -> None:
    if json:
        print_json(comparison.rows)
        return
    print(text_table(comparison.rows))
    print(f"\n{verdict(comparison).replace('**', '')}\n\nreport: {out / 'report.html'}")


def method_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()] or list(METHODS)
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, METHODS, "--methods")
    return list(dict.fromkeys(names))


def _command(names: Sequence[str], execute: bool) -> str:
    chosen = [] if list(names) == list(METHODS) else ["--methods", ",".join(names)]
    return shlex.join(["halocast", "compare", "scenario.toml", *chosen, *["--execute"] * execute])


def _with_method(scenario: Scenario, name: str) -> Scenario:
    if scenario.method.name == name:
        return scenario
    return replace(scenario, method=MethodSection(name=name, options=METHODS[name].options()))


def _compare_one(scenario: Scenario, execute: bool, results: list[Result], failures: list[Failure]) -> None:
    """Simulated on the scenario's cluster; with `execute` also run here, and predicted for here."""
    name, cluster = scenario.method.name, scenario_cluster(scenario)
    try:
        with status() as say:
            workload = prepare(scenario, cluster.num_ranks, data=execute, say=_named(say, name))
            results.append(_result(predict_on(workload, cluster, say=_named(say, name))))
    except (InputError, RunError) as error:
        failures.append(Failure(method=name, cluster=cluster.name, reason=str(error)))
        return
    if execute:
        try:
            results += _execute_here(workload)
        except (InputError, RunError) as error:
            failures.append(Failure(method=name, cluster=THIS_MACHINE, reason=str(error)))


def _named(say: Say, name: str) -> Say:
    return lambda text: say(f"{name}: {text}")


def _result(prediction: Prediction, **more: object) -> Result:
    summary = prediction.summary | {"band": None} | more
    return Result(summary=summary, trace=prediction.trace, schedule=prediction.workload.schedule)


def _execute_here(workload: Workload) -> list[Result]:
    from halocast.cli.execution import run_workload  # torch: seconds that only a real run needs

    here = predict_on(workload, load_cluster("cpu-local", gpus=workload.schedule.num_ranks))
    done, summary = run_workload(workload)
    run = Result(summary=summary, trace=done.trace, schedule=workload.schedule)
    return [_result(here, predicts=summary["cluster"]), run]


def _kernel_work(kernel: Kernel, itemsize: int) -> tuple[int, int]:
    return flops(kernel.kind, kernel.dims), bytes_moved(kernel.kind, kernel.dims, itemsize)


def device_counts(size: int, chosen: int) -> list[int]:
    """1, 2, 4, ... and the cluster's own size and the scenario's."""
    powers = {2**k for k in range(size.bit_length())}
    return sorted(count for count in {*powers, size, chosen} if count <= size)


def _scaling(
    scenario: Scenario, predicted: Sequence[Result], failures: Sequence[Failure], limit_s: float
) -> list[ScalePoint]:
    """Few devices first, so that what the time does not suffice for is at the end; the scenario's own size is known."""
    section = replace(scenario.cluster, gpus=None)
    whole = scenario_cluster(replace(scenario, cluster=section)).num_ranks
    chosen = predicted[0].summary["ranks"] if predicted else 0
    names = [result.method for result in predicted]
    names += [failure.method for failure in failures if failure.method not in names]
    known = {(r.method, chosen): _point(r.method, r.summary) for r in predicted}
    todo = [(name, k) for k in device_counts(whole, chosen) for name in names]
    clock = _Clock(limit_s)
    points = []
    with epoch_bar(len(todo), "scaling with GPUs") as bar:
        for done, (name, ranks) in enumerate(todo):
            points.append(known.get((name, ranks)) or _predict_point(scenario, name, ranks, clock))
            bar(done + 1)
    return points


class _Clock:
    """Time that is left, and what a method's last point took."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s
        self.last_s: dict[str, float] = {}

    def has_time_for(self, name: str) -> bool:
        return time.monotonic() + GROWTH * self.last_s.get(name, 0.0) <= self._end_s


def _predict_point(scenario: Scenario, name: str, ranks: int, clock: _Clock) -> ScalePoint:
    if not clock.has_time_for(name):
        return ScalePoint(method=name, ranks=ranks, reason="not predicted: more time than --scaling allows")
    started = time.monotonic()
    graph = replace(scenario.graph, parts=None)
    one = replace(_with_method(scenario, name), graph=graph, cluster=replace(scenario.cluster, gpus=ranks))
    try:
        cluster = scenario_cluster(one)
        return _point(name, predict_on(prepare(one, ranks), cluster).summary)
    except (InputError, RunError) as error:
        return ScalePoint(method=name, ranks=ranks, reason=str(error))
    finally:
        clock.last_s[name] = time.monotonic() - started


def _point(name: str, summary: Summary) -> ScalePoint:
    return ScalePoint(method=name, ranks=summary["ranks"], epoch_s=summary["epoch_s"], fits=summary["fits"])
