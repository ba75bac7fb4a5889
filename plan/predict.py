"""The prediction of one scenario: simulate its schedule on its cluster and summarise the trace."""

from dataclasses import dataclass
from typing import Any

from halocast.base.errors import InputError
from halocast.plan.scenario import Scenario
from halocast.plan.workload import Say, Workload, prepare
from halocast.reports.metrics import steady_epochs
from halocast.reports.summary import summarise
from halocast.schedule.passes import memory
from halocast.schedule.trace import Trace
from halocast.sim.cluster import Cluster, load_cluster
from halocast.sim.engine import simulate
from halocast.sim.queued import links_for

DEFAULT_CLUSTER, DEFAULT_RANKS = "cpu-local", 2  # of a scenario that names no cluster


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    workload: Workload
    cluster: Cluster
    trace: Trace
    summary: dict[str, Any]


def scenario_cluster(scenario: Scenario) -> Cluster:
    section = scenario.cluster
    name = section.file or section.name or DEFAULT_CLUSTER
    gpus = section.gpus if section.file or section.name else section.gpus or DEFAULT_RANKS
    return load_cluster(name, gpus=gpus, transport=section.transport)


def predict(scenario: Scenario, *, num_epochs: int | None = None, say: Say = lambda text: None) -> Prediction:
    cluster = scenario_cluster(scenario)
    workload = prepare(scenario, cluster.num_ranks, say=say)
    return predict_on(workload, cluster, num_epochs=num_epochs, say=say)


def predict_on(
    workload: Workload, cluster: Cluster, *, num_epochs: int | None = None, say: Say = lambda text: None
) -> Prediction:
    """Predict a workload on any cluster with as many ranks; nothing of the schedule is made again."""
    schedule = workload.schedule
    warmup, needed = steady_epochs(schedule)
    epochs = num_epochs or needed
    if epochs <= warmup:
        raise InputError(f"{epochs} epochs: steady state needs more than {warmup} warm-up epochs for this schedule")
    say(f"simulating {schedule.num_ranks} ranks")
    trace = simulate(schedule, cluster, epochs)
    peaks = [memory(schedule, rank) for rank in range(schedule.num_ranks)]
    worst = max(range(schedule.num_ranks), key=lambda rank: peaks[rank].peak_bytes)
    capacity = cluster.device(worst).memory_bytes
    summary = summarise(trace, schedule, warmup, [peak.peak_bytes for peak in peaks])
    summary |= {
        "cluster": cluster.name,
        "transport": str(cluster.transport),
        "device": cluster.device(0).name,
        "sizes": workload.halo.source,
        "links": links_for(schedule.num_ranks).kind,
        "constants": cluster.source,
        "device_memory_bytes": capacity,
        "fits": peaks[worst].peak_bytes <= capacity,
        "largest_buffers": [list(item) for item in peaks[worst].alive[:5]],
    }
    return Prediction(workload=workload, cluster=cluster, trace=trace, summary=summary)
