"""Ops of a long cadence are counted by their share; the mean epoch is that of whole periods, within the bound."""

from typing import Any

import pytest
from schedules import op

from halocast.reports.metrics import measure
from halocast.schedule.ir import Compute, Kernel, Schedule
from halocast.schedule.passes import spread_rare, steady_epochs
from halocast.sim.engine import simulate
from halocast.sim.lower import lower
from halocast.study.codes import scenario_code
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario

WORK = Compute(kernels=(Kernel("elementwise", (10**6, 2)),))


def schedule_of(*ops: Any) -> Schedule:
    return Schedule(num_ranks=1, ops=ops)


def test_only_rare_ops_that_nobody_waits_for_and_that_wait_for_nothing_new_are_spread() -> None:
    often, rare, awaited = op("often", every=3), op("rare", every=7), op("awaited", every=7)
    schedule = schedule_of(often, rare, awaited, op("last", after=(("awaited", 1),)))
    eased, found = spread_rare(schedule)
    assert found == {(0, "rare"): 7}
    assert [one.every for one in eased.ops] == [3, 1, 7, 1]
    new = schedule_of(op("first"), op("rare", every=7, after=(("first", 1),)))
    assert spread_rare(new) == (new, {})


@pytest.mark.parametrize("options", [[], ["method.lockstep=true"], ["method.stages=2", "method.ways=2"]])
def test_a_pipeline_that_renews_snapshots_every_nine_epochs_is_as_fast_as_its_whole_period(options: list[str]) -> None:
    settings = ["method.name=gnnpipe", "graph.dataset=flickr", "model.kind=gcnii", "model.layers=6", "method.freeze=9"]
    place = ["cluster.name=a5000-2x4-pcie4-ib200", "cluster.gpus=4", "method.chunks=4"]
    found = predict(load_scenario("demo", [*settings, *place, *options]))
    assert found.trace.num_epochs < 8
    workload, code = found.workload, scenario_code(found.workload.scenario)
    schedule = lower(workload.schedule, code, workload.spec)
    warmup, epochs = steady_epochs(schedule)
    assert epochs >= 18
    whole = measure(simulate(schedule, found.cluster, epochs, code=code), schedule, warmup)
    copied = {s.rank: 0.0 for s in found.trace.spans}
    for span in found.trace.spans:
        if span.op.startswith("refresh") and span.epoch == 1:
            copied[span.rank] += span.end_s - span.start_s
    assert max(copied.values()) > 0
    assert found.summary.epoch_s == pytest.approx(whole.epoch_s, abs=sum(copied.values()))
    assert found.summary.compute_s == pytest.approx(whole.mean("compute_s"), rel=1e-3)
