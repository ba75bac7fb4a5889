"""What can be said of a scenario without simulating it: whether it fits, and how fast it is at best."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace

from halocast.cluster.catalogue import Cluster
from halocast.codes.implementation import BARE, Implementation
from halocast.reports.summary import MemoryFigures
from halocast.schedule.approximation import Approximation, approximation_of
from halocast.schedule.ir import Lane, Schedule
from halocast.schedule.races import order_matters
from halocast.schedule.text import format_schedule
from halocast.sim.cost import op_times
from halocast.sim.lower import lower
from halocast.sim.world import World
from halocast.study.clusters import scenario_cluster
from halocast.study.codes import scenario_code
from halocast.study.predict import memory_figures
from halocast.study.scenario import Scenario
from halocast.study.workload import prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """What is known of a scenario before its prediction."""

    bound_s: float
    ranks: int
    hosts: int
    price_per_s: float | None  # none where the cluster has no price
    memory: MemoryFigures
    approximation: Approximation
    order_matters: bool  # whether what a training learns depends on the order of events, and so on the machine
    fingerprint: str  # of the schedule: what has the same does the same, whatever its method is called


def screen(scenario: Scenario) -> Screened:
    """Memory and a bound of the epoch: what the busiest compute lane does alone, ops one after the other."""
    cluster = scenario_cluster(scenario)
    workload, code = prepare(scenario, cluster.num_ranks), scenario_code(scenario)
    schedule = lower(workload.schedule, code, workload.spec)
    return Screened(
        bound_s=bound_s(schedule, cluster, scenario.world.world, code),
        ranks=cluster.num_ranks,
        hosts=cluster.num_hosts,
        price_per_s=None if cluster.price is None else cluster.price.per_host_hour * cluster.num_hosts / 3600,
        memory=memory_figures(schedule, cluster, code),
        approximation=approximation_of(workload.schedule),
        order_matters=order_matters(workload.schedule),
        fingerprint=fingerprint(workload.schedule),
    )


def fingerprint(schedule: Schedule) -> str:
    """Twelve hex digits of all that a schedule does; what it is called is not among it."""
    return hashlib.sha256(format_schedule(replace(schedule, meta=())).encode()).hexdigest()[:12]


def bound_s(schedule: Schedule, cluster: Cluster, world: World, code: Implementation = BARE) -> float:
    """The least seconds of an epoch: nothing makes kernels faster than they are alone, and transfers only add to them.

    Seconds of ops are the simulator's own, so that what it predicts cannot be below.
    """
    alone_s = op_times(schedule, cluster, world.speed, code)
    busy: dict[int, float] = defaultdict(float)
    for op in schedule.ops:
        if op.lane == Lane.COMPUTE:
            busy[op.rank] += alone_s[op.rank, op.name] / op.every
    return max(busy.values())
