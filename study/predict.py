"""The prediction of one scenario: simulate its schedule on its cluster and summarise the trace."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from halocast.base.errors import InputError
from halocast.calibrate.profile import outside_range
from halocast.cluster.catalogue import Cluster
from halocast.codes.implementation import Implementation
from halocast.graph.graph import Graph
from halocast.reports.summary import Basis, EpochPrice, MemoryFigures, Summary, summarise
from halocast.reports.table import seconds, size
from halocast.schedule.ir import Schedule
from halocast.schedule.passes import Rare, hyperperiod, spread_rare, steady_epochs
from halocast.schedule.trace import Trace
from halocast.sim.cost import op_times
from halocast.sim.engine import simulate
from halocast.sim.lower import lower
from halocast.sim.memory import DeviceMemory, device_memory, pinned_bytes, tightest
from halocast.sim.network.queued import SHARED_RANKS
from halocast.sim.world import World
from halocast.study.banded import with_band
from halocast.study.clusters import scenario_cluster as scenario_cluster
from halocast.study.codes import scenario_code as scenario_code
from halocast.study.scenario import Scenario
from halocast.study.showable import Showable
from halocast.study.workload import Say, Workload, prepare, silent

LARGEST = 6  # contributors to memory that a summary names
DRAWN_EPOCHS = 16  # more, where delays differ from epoch to epoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Prediction(Showable):
    """A simulated scenario: its schedule and sizes, the cluster, every span, and the figures of a steady epoch."""

    columns: ClassVar[tuple[str, ...]] = (
        *("method", "cluster", "ranks", "epoch_s", "compute_s", "exposed_comm_s", "hidden_comm_s", "bytes_total"),
        *("memory_bytes", "fits"),
    )
    workload: Workload
    cluster: Cluster
    trace: Trace
    summary: Summary

    def line(self) -> str:
        summary, memory = self.summary, self.summary.device_memory
        fits = "fits" if memory.fits else "DOES NOT FIT"
        where = f"{summary.method} on {summary.ranks} x {summary.cluster}"
        return f"{where}: {seconds(summary.epoch_s)} an epoch, {size(memory.memory_bytes)} of device memory, {fits}"

    def records(self) -> list[dict[str, Any]]:
        return [self.summary.plain_figures()]


def predict(
    scenario: Scenario,
    *,
    graph: Graph | None = None,
    num_epochs: int | None = None,
    lean: bool = False,
    say: Say = silent,
) -> Prediction:
    """Simulate a scenario on its cluster; `graph` is one from memory, in place of the scenario's.

    The summary has the figures that `halocast simulate --json` prints. A lean prediction has the same figures but for
    the critical path and the use of links, which cost as much again to record and to work out.
    """
    cluster = scenario_cluster(scenario)
    workload = prepare(scenario, cluster.num_ranks, graph=graph, say=say)
    prediction = predict_on(workload, cluster, num_epochs=num_epochs, lean=lean, say=say)
    return replace(prediction, summary=with_band(prediction.summary, workload, cluster))


def predict_on(
    workload: Workload,
    cluster: Cluster,
    *,
    num_epochs: int | None = None,
    lean: bool = False,
    say: Say = silent,
    measured_s: Mapping[tuple[int, str], float] = MappingProxyType({}),
) -> Prediction:
    """Predict a workload on any cluster with as many ranks; nothing of the schedule is made again.

    `measured_s` (reports.metrics.measured_seconds of a run's trace) replaces the cost of those ops, so that only the
    network is predicted.
    """
    code = scenario_code(workload.scenario)
    lowered = lower(workload.schedule, code, workload.spec)
    schedule, rare = (lowered, {}) if num_epochs else spread_rare(lowered)
    warmup, needed = steady_epochs(schedule)
    world = workload.scenario.world.world
    epochs = num_epochs or needed + (_drawn_epochs(schedule) if world.is_drawn else 0)
    if epochs <= warmup:
        raise InputError(f"{epochs} epochs: steady state needs more than {warmup} warm-up epochs for this schedule")
    say(f"simulating {schedule.num_ranks} ranks")
    section = workload.scenario.cluster
    trace = simulate(
        schedule,
        cluster,
        epochs,
        world=world,
        record=not lean and schedule.num_ranks <= SHARED_RANKS,
        sharing=section.links,
        tolerance=section.tolerance,
        measured_s={**measured_s, **_shares(schedule, cluster, world, rare, measured_s, code)},
        code=code,
    )
    schedule = lowered
    memories = [device_memory(schedule, cluster, rank, code) for rank in range(schedule.num_ranks)]
    summary = summarise(trace, schedule, warmup, [one.total_bytes for one in memories], details=not lean)
    summary = replace(
        summary,
        cluster=cluster.name,
        hosts=cluster.num_hosts,
        transport=str(cluster.transport),
        basis=Basis(
            code=code.name,
            device=cluster.device(0).name,
            sizes=workload.halo.source,
            links=trace.meta["links"],
            constants=cluster.source,
            calibrated=calibration(cluster),
            outside_range=tuple(outside_range(schedule, cluster)),
        ),
        memory=_memory_figures(memories, schedule, cluster),
        price=_price(cluster, summary.epoch_s),
    )
    return Prediction(workload=workload, cluster=cluster, trace=trace, summary=summary)


def _drawn_epochs(schedule: Schedule) -> int:
    """The number of epochs to draw: whole periods, so that an op with a cadence counts as often as it happens."""
    period = hyperperiod(schedule)
    return period * -(-DRAWN_EPOCHS // period)


def _shares(
    schedule: Schedule,
    cluster: Cluster,
    world: World,
    rare: Rare,
    measured_s: Mapping[tuple[int, str], float],
    code: Implementation,
) -> dict[tuple[int, str], float]:
    """Seconds of rare ops per epoch: their part of what the simulator would take for them, or of what was measured."""
    if not rare:
        return {}
    op_s = {**op_times(schedule, cluster, world.speed, code), **measured_s}
    return {key: op_s[key] / every for key, every in rare.items()}


def _price(cluster: Cluster, epoch_s: float) -> EpochPrice | None:
    """The price of an epoch where hosts are rented whole; None where the cluster's file has no price."""
    if cluster.price is None:
        return None
    return EpochPrice(
        price_per_epoch=cluster.price.per_host_hour * cluster.num_hosts * epoch_s / 3600,
        currency=cluster.price.currency,
        price_date=cluster.price.date,
    )


def calibration(cluster: Cluster) -> str | None:
    """The profile that the cluster's devices were measured with; none if they are described by constants."""
    measured = cluster.device(0).measured
    return None if measured is None else measured.source


def memory_figures(schedule: Schedule, cluster: Cluster, code: Implementation) -> MemoryFigures:
    """Whether a schedule fits in its devices' memory, and what fills it; known without a simulation."""
    memories = [device_memory(schedule, cluster, rank, code) for rank in range(schedule.num_ranks)]
    return _memory_figures(memories, schedule, cluster)


def _memory_figures(memories: list[DeviceMemory], schedule: Schedule, cluster: Cluster) -> MemoryFigures:
    worst = tightest(memories)
    return MemoryFigures(
        fits=worst.fits,
        memory_rank=worst.rank,
        memory_bytes=worst.total_bytes,
        memory_at=worst.at,
        device_memory_bytes=worst.capacity_bytes,
        largest_buffers=tuple(worst.contributors[:LARGEST]),
        pinned_host_bytes=max(pinned_bytes(schedule, cluster)),
    )
