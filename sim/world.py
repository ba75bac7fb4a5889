"""Imperfect worlds: devices and links that are slower than described, ranks that are delayed, a host that fails."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from halocast.base.delays import Delay, delay_s
from halocast.base.errors import RunError
from halocast.base.records import require
from halocast.cluster.topology import Topology
from halocast.schedule.ir import Schedule
from halocast.schedule.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    host: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A world that differs from the cluster as described; the empty one is perfect."""

    speed: Mapping[int, float] = field(default_factory=dict)  # of a rank's device, relative to its description
    delays: tuple[Delay, ...] = ()
    links: Mapping[str, float] = field(default_factory=dict)  # capacity of a link, or of all links of a node
    failure: Failure | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for rank, factor in self.speed.items():
            require(factor > 0, f"speed of rank {rank} = {factor}: needs to be above 0")
        for name, factor in self.links.items():
            require(factor > 0, f"link {name!r} = {factor}: needs to be above 0 (a failed host is a failure)")

    def require_fits(self, num_ranks: int, num_hosts: int) -> None:
        """Raise InputError unless the ranks and hosts that are named exist."""
        for rank in (*self.speed, *(delay.rank for delay in self.delays)):
            require(0 <= rank < num_ranks, f"world: rank {rank} is not in 0..{num_ranks - 1}")
        if self.failure is not None:
            host = self.failure.host
            require(0 <= host < num_hosts, f"world: host {host} is not in 0..{num_hosts - 1} of those in use")

    @property
    def is_drawn(self) -> bool:
        return any(delay.low_s < delay.high_s for delay in self.delays)

    def delay_s(self, rank: int, epoch: int) -> float:
        return delay_s(self.delays, self.seed, rank, epoch)


PERFECT = World()


class StoppedError(RunError):
    """A simulated run that could not go on: what every rank waited for, and the trace until then."""

    def __init__(self, message: str, trace: Trace, schedule: Schedule) -> None:
        super().__init__(message)
        self.trace, self.schedule = trace, schedule


def degrade(topology: Topology, factors: Mapping[str, float]) -> None:
    """Scale links by their own name or by the name of a node they touch."""
    ends = [name.split(" > ") for name in topology.names]
    for wanted, factor in factors.items():
        touched = [k for k, name in enumerate(topology.names) if wanted == name or wanted in ends[k]]
        known = ", ".join(topology.names[:6])
        require(bool(touched), f"world: no link or node {wanted!r} in cluster {topology.name} (links: {known}, …)")
        for k in touched:
            topology.capacity[k] *= factor
