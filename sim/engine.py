"""The simulator: SimPy processes, one per (rank, lane), run a schedule's ops in order on a described cluster.

Ties break by (time, issue order), SimPy's own rule, and nothing else; the same input gives the same trace, bit for bit.
"""

from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import simpy

from halocast.base.errors import InputError
from halocast.schedule.ir import Kind, Lane, Op, Schedule
from halocast.schedule.trace import Span, Trace, span_of
from halocast.sim.cluster import Cluster
from halocast.sim.cost import op_seconds
from halocast.sim.fairshare import Floats, Ints
from halocast.sim.links import Network, after
from halocast.sim.queued import links_for

Steps = Generator[simpy.Event, Any, None]


def simulate(
    schedule: Schedule,
    cluster: Cluster,
    num_epochs: int,
    *,
    network: Callable[[simpy.Environment], Network] | None = None,
) -> Trace:
    """Run `num_epochs` of a schedule in virtual time; `network` replaces the cluster's links (an oracle has none)."""
    if schedule.num_ranks > cluster.num_ranks:
        raise InputError(
            f"the schedule has {schedule.num_ranks} ranks, cluster {cluster.name} only {cluster.num_ranks}"
        )
    env = simpy.Environment()
    links = network(env) if network else links_for(schedule.num_ranks)(env, cluster)
    world = _World(schedule, cluster, num_epochs, env, links)
    lanes = [
        env.process(world.run_lane(ops)) for rank in range(schedule.num_ranks) for ops in _ordered_lanes(schedule, rank)
    ]
    env.run(until=env.all_of(lanes))
    return Trace(
        source="simulated",
        num_ranks=schedule.num_ranks,
        num_epochs=num_epochs,
        spans=tuple(world.spans),
        meta={**dict(schedule.meta), "cluster": cluster.name, "transport": cluster.transport},
    )


def _ordered_lanes(schedule: Schedule, rank: int) -> list[tuple[Op, ...]]:
    lanes = schedule.lanes(rank)
    return [lanes[lane] for lane in Lane if lane in lanes]


@dataclass(slots=True)
class _Meeting:
    """A collective instance: who has come, and the event of its end."""

    done: simpy.Event
    num_present: int = 0


class _Messages:
    """The messages of one communication instance: per rank, how many of its own have yet to arrive somewhere and how
    many are yet to arrive at it. Messages may arrive at a rank that has not come yet."""

    def __init__(self, num_ranks: int, num_open: int) -> None:
        self.missing = np.zeros(num_ranks, dtype=np.int64)
        self.latest_s = np.zeros(num_ranks)
        self.ended: set[int] = set()
        self.events: dict[int, simpy.Event] = {}
        self.num_open = num_open

    def expect(self, env: simpy.Environment, rank: int, num_sent: int, num_received: int) -> simpy.Event:
        self.missing[rank] += num_sent + num_received
        self.events[rank] = env.event()
        self._end(env, [rank])
        return self.events[rank]

    def arrive(self, env: simpy.Environment, source: int, targets: Ints, times_s: Floats) -> None:
        self.missing[source] -= len(targets)
        self.missing[targets] -= 1
        self.latest_s[source] = max(self.latest_s[source], float(times_s.max()))
        self.latest_s[targets] = np.maximum(self.latest_s[targets], times_s)
        self._end(env, [source, *targets[self.missing[targets] == 0].tolist()])

    def _end(self, env: simpy.Environment, ranks: list[int]) -> None:
        """A rank that misses nothing any more ends at its latest arrival."""
        for rank in ranks:
            if self.missing[rank] == 0 and rank in self.events and rank not in self.ended:
                self.ended.add(rank)
                after(env, max(0.0, float(self.latest_s[rank]) - env.now), partial(_succeed, self.events[rank]))


class _World:
    def __init__(
        self, schedule: Schedule, cluster: Cluster, num_epochs: int, env: simpy.Environment, links: Network
    ) -> None:
        self.schedule = schedule
        self.num_epochs = num_epochs
        self.env = env
        self.links = links
        self.spans: list[Span] = []
        self.seconds = {
            (op.rank, op.name): op_seconds(op, cluster.device(op.rank), schedule.itemsize) for op in schedule.ops
        }
        self._finished: dict[tuple[int, str], int] = defaultdict(lambda: -1)
        self._waiting: dict[tuple[int, str], list[tuple[int, simpy.Event]]] = defaultdict(list)
        self._messages: dict[tuple[str, int], _Messages] = {}
        self._meetings: dict[tuple[str, int], _Meeting] = {}

    def run_lane(self, ops: tuple[Op, ...]) -> Steps:
        for epoch in range(self.num_epochs):
            for op in ops:
                if op.exists(epoch):
                    yield from self._run_op(op, epoch)

    def _run_op(self, op: Op, epoch: int) -> Steps:
        for name, lag in op.after:
            yield from self._wait_for(op, name, epoch - lag)
        start = self.env.now
        if self.seconds[op.rank, op.name] > 0:
            yield self.env.timeout(self.seconds[op.rank, op.name])
        yield from HANDLERS[op.kind](self, op, epoch)
        self._record(op, epoch, start)
        self._finish(op, epoch)

    def _wait_for(self, op: Op, name: str, epoch: int) -> Steps:
        source = self.schedule.find(op.rank, name)
        assert source is not None
        instance = source.latest(epoch)
        if instance > self._finished[op.rank, name]:
            event = self.env.event()
            self._waiting[op.rank, name].append((instance, event))
            yield event

    def _finish(self, op: Op, epoch: int) -> None:
        key = op.rank, op.name
        self._finished[key] = epoch
        late = [item for item in self._waiting[key] if item[0] > epoch]
        for instance, event in self._waiting[key]:
            if instance <= epoch:
                event.succeed()
        self._waiting[key] = late

    def _record(self, op: Op, epoch: int, start_s: float) -> None:
        self.spans.append(span_of(op, epoch, start_s, self.env.now, self.schedule.num_bytes(op)))

    def nothing(self, op: Op, epoch: int) -> Steps:
        """The kernels were all there was to do."""
        yield from ()

    def exchange(self, op: Op, epoch: int) -> Steps:
        """Own sends leave now; the op ends when they and everything addressed to this rank have arrived."""
        sent = self.schedule.sent(op)
        yield from self._move(op, epoch, np.flatnonzero(sent), sent)

    def send(self, op: Op, epoch: int) -> Steps:
        yield from self._move(op, epoch, np.array([op.work.peer]), self.schedule.sent(op))

    def receive(self, op: Op, epoch: int) -> Steps:
        yield from self._move(op, epoch, np.zeros(0, dtype=np.int64), self.schedule.sent(op))

    def _move(self, op: Op, epoch: int, targets: Ints, sizes: Ints) -> Steps:
        key = op.name, epoch
        if key not in self._messages:
            self._messages[key] = _Messages(self.schedule.num_ranks, len(self.schedule.group(op)))
        messages = self._messages[key]
        event = messages.expect(self.env, op.rank, len(targets), len(self.schedule.senders(op)))
        if len(targets):
            self.links.send(op.rank, targets, sizes[targets], partial(messages.arrive, self.env, op.rank))
        if not event.triggered:
            yield event
        messages.num_open -= 1
        if messages.num_open == 0:
            del self._messages[key]

    def meet(self, op: Op, epoch: int) -> Steps:
        """ALLREDUCE and BARRIER: begins when the last rank has come, ends for all at once."""
        group = self.schedule.group(op)
        key = op.name, epoch
        meeting = self._meetings.setdefault(key, _Meeting(self.env.event()))
        meeting.num_present += 1
        if meeting.num_present == len(group):
            del self._meetings[key]
            self.links.reduce(group, op.work.num_bytes, lambda: _succeed(meeting.done))
        yield meeting.done

    def store(self, op: Op, epoch: int) -> Steps:
        done = self.env.event()
        self.links.store(op.rank, op.work.num_bytes, lambda: _succeed(done))
        yield done


def _succeed(event: simpy.Event) -> None:
    event.succeed()


HANDLERS: MappingProxyType[Kind, Callable[[_World, Op, int], Steps]] = MappingProxyType(
    {
        Kind.COMPUTE: _World.nothing,
        Kind.SAMPLE: _World.nothing,
        Kind.EXCHANGE: _World.exchange,
        Kind.SEND: _World.send,
        Kind.RECV: _World.receive,
        Kind.ALLREDUCE: _World.meet,
        Kind.BARRIER: _World.meet,
        Kind.PUSH: _World.store,
        Kind.PULL: _World.store,
    }
)
