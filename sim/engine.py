"""The simulator: SimPy processes, one per (rank, lane), run a schedule's ops in order on a described cluster.

Ties break by (time, issue order), SimPy's own rule, and nothing else; the same input gives the same trace, bit for bit.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import simpy

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.cluster.catalogue import Cluster
from halocast.codes.implementation import BARE, AllToAll, Implementation
from halocast.schedule.ending import Ending
from halocast.schedule.ir import COLLECTIVE, Kind, Lane, Message, Op, Payload, Schedule
from halocast.schedule.order import ENDLESS, Moment
from halocast.schedule.trace import Span, Trace, span_of
from halocast.sim.core import Core, Cores, Steps
from halocast.sim.cost import op_times
from halocast.sim.meeting import Meeting, Messages, succeed
from halocast.sim.network.collectives import num_steps
from halocast.sim.network.fairshare import Floats, Ints
from halocast.sim.network.links import Network
from halocast.sim.network.queued import Sharing, links_for
from halocast.sim.network.transports import settings_of
from halocast.sim.world import PERFECT, Failure, StoppedError, World


def simulate(
    schedule: Schedule,
    cluster: Cluster,
    num_epochs: int,
    *,
    world: World = PERFECT,
    network: Callable[[simpy.Environment], Network] | None = None,
    record: bool = False,
    sharing: Sharing = Sharing.AUTO,
    tolerance: float = 0.0,
    measured_s: Mapping[tuple[int, str], float] = MappingProxyType({}),
    code: Implementation = BARE,
) -> Trace:
    """Run `num_epochs` of a schedule in virtual time, in a perfect world or another one.

    `code` is the implementation that runs it, for which it has been lowered (`halocast.sim.lower`).
    `network` replaces the cluster's links (an oracle has none); `record` also keeps the load of every link over time;
    `measured_s` are seconds of ops by (rank, name), used in place of what their kernels cost;
    `tolerance` lets transfers that lack at most this fraction of their time end with the next one that ends.
    A run that a failed host stops raises StoppedError, which holds the trace until then.
    """
    _require_fits(schedule, cluster, world)
    env = simpy.Environment()
    make_links = links_for(schedule.num_ranks, sharing)
    links = network(env) if network else make_links(env, cluster, slack=tolerance, factors=world.links, record=record)
    engine, spans = _Engine(_Setting(schedule, cluster, world, code), num_epochs, env, links), list[Span]()
    engine.ended = partial(_note_span, spans, engine)
    engine.take(measured_s)
    left = engine.run()
    trace = Trace.of(
        spans,
        source="simulated",
        num_ranks=schedule.num_ranks,
        num_epochs=num_epochs,
        links=links.use(),
        meta={**dict(schedule.meta), "cluster": cluster.name, "transport": cluster.transport, "links": links.kind},
    )
    if world.failure is not None and left:
        raise StoppedError(_epitaph(world.failure, left), trace, schedule)
    return trace


def _note_span(spans: list[Span], engine: "_Engine", op: Op, epoch: int, start_s: float) -> None:
    """Take note of an op instance that ends now."""
    spans.append(span_of(op, epoch, start_s, engine.env.now, engine.schedule.num_bytes(op)))


def moments(
    schedule: Schedule,
    cluster: Cluster,
    *,
    num_epochs: int | None = None,
    world: World = PERFECT,
    sharing: Sharing = Sharing.AUTO,
    tolerance: float = 0.0,
    code: Implementation = BARE,
) -> Iterator[Moment]:
    """The begins and ends of ops as they happen in virtual time; nothing is simulated that is not asked for.

    Without a number of epochs they have no end. Events of one time come in the order in which they happen.
    """
    _require_fits(schedule, cluster, world)
    require(world.failure is None, "moments of a world in which a host fails: they would never end")
    env = simpy.Environment()
    links = links_for(schedule.num_ranks, sharing)(env, cluster, slack=tolerance, factors=world.links, record=False)
    setting = _Setting(schedule, cluster, world, code)
    engine = _Engine(setting, ENDLESS if num_epochs is None else num_epochs, env, links)
    seen: deque[Moment] = deque()
    engine.begun = lambda op, epoch: seen.append(Moment(float(env.now), True, op, epoch))
    engine.ended = lambda op, epoch, start_s: seen.append(Moment(float(env.now), False, op, epoch))
    over = env.all_of([process for _, _, process in engine.start()])
    while not over.processed:
        env.step()
        while seen:
            yield seen.popleft()


def _require_fits(schedule: Schedule, cluster: Cluster, world: World) -> None:
    if schedule.num_ranks > cluster.num_ranks:
        raise InputError(
            f"the schedule has {schedule.num_ranks} ranks, cluster {cluster.name} only {cluster.num_ranks}"
        )
    world.require_fits(schedule.num_ranks, 1 + cluster.host(schedule.num_ranks - 1))


def _epitaph(failure: Failure, left: list[str]) -> str:
    more = f"; and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
    return f"host {failure.host} failed at {failure.at_s:g} s: " + "; ".join(left[:MOST_NAMED]) + more


MOST_NAMED = 16  # waiting lanes in one message


class _Setting(NamedTuple):
    """What runs, where, in which world, and whose program it is."""

    schedule: Schedule
    cluster: Cluster
    world: World
    code: Implementation


class _Engine:
    def __init__(self, setting: _Setting, num_epochs: int, env: simpy.Environment, links: Network) -> None:
        schedule, cluster, world, code = setting
        self.schedule, self.cluster = schedule, cluster
        ranks = range(schedule.num_ranks)
        self.done = [0] * schedule.num_ranks  # epochs, by rank
        self.endings = [self._ending(rank, num_epochs) for rank in ranks]
        self.env = env
        self.links = links
        self.world = world
        self.begun: Callable[[Op, int], None] = lambda op, epoch: None  # told when an op begins
        self.ended: Callable[[Op, int, float], None] = lambda op, epoch, start_s: None  # and when it ends
        self.seconds = op_times(schedule, cluster, world.speed, code)
        transport = settings_of(cluster)
        self.rendezvous, self.in_rounds = transport.rendezvous, code.exchange is AllToAll.ROUNDS
        self.step_s = transport.core_s_per_step
        self.cores = [
            Core(machine, env, transport.compute_slowdown, partial(links.computing, rank))
            for rank, machine in enumerate(_machines(env, cluster, links)[: schedule.num_ranks])
        ]
        for rank, core in enumerate(self.cores):
            links.moving.watch(rank, core.moving)
        self.dead_s: Floats = np.full(cluster.num_ranks, np.inf)
        if world.failure is not None:
            hosts = np.array([cluster.host(rank) for rank in range(cluster.num_ranks)])
            self.dead_s[hosts == world.failure.host] = world.failure.at_s
        self._finished: dict[tuple[int, str], int] = defaultdict(lambda: -1)
        self._waiting: dict[tuple[int, str], list[tuple[int, simpy.Event]]] = defaultdict(list)
        self._messages: dict[tuple[str, int, int], Messages] = {}
        self._meetings: dict[tuple[str, int], Meeting] = {}
        self._doing: dict[tuple[int, Lane], tuple[Op, int]] = {}

    def _ending(self, rank: int, num_epochs: int) -> Ending:
        def finished(epoch: int) -> None:
            self.done[rank] = epoch + 1

        def slowest() -> int:
            others = (other for other in range(self.schedule.num_ranks) if other != rank)
            return min((self.done[other] for other in others if self.dead_s[other] > self.env.now), default=num_epochs)

        return Ending(schedule=self.schedule, rank=rank, num_epochs=num_epochs, slowest=slowest, finished=finished)

    def take(self, measured_s: Mapping[tuple[int, str], float]) -> None:
        for rank, name in measured_s:
            require(
                (rank, name) in self.seconds, f"measured seconds of {name} on rank {rank}: the schedule has no such op"
            )
        self.seconds |= measured_s

    def start(self) -> list[tuple[int, Lane, simpy.Process]]:
        """Start all lanes."""
        ranks = range(self.schedule.num_ranks)
        lanes = [(rank, ops) for rank in ranks for ops in _ordered_lanes(self.schedule, rank)]
        return [(rank, ops[0].lane, self.env.process(self.run_lane(ops))) for rank, ops in lanes]

    def run(self) -> list[str]:
        """Run all lanes; returns those that never ended, as text."""
        running = self.start()
        if self.world.failure is None:
            self.env.run(until=self.env.all_of([process for _, _, process in running]))
            return []
        self.env.process(self._fail(self.world.failure, running))
        self.env.run()
        left = [(rank, lane) for rank, lane, process in running if process.is_alive]
        remote = [place for place in left if not self._awaited(*self._doing[place])]
        return [self._stuck(*place) for place in remote or left]  # lanes of a rank that wait for it say nothing new

    def _fail(self, failure: Failure, running: list[tuple[int, Lane, simpy.Process]]) -> Steps:
        yield self.env.timeout(failure.at_s)
        for rank, _, process in running:
            if self.dead_s[rank] <= self.env.now and process.is_alive:
                process.interrupt()

    def _stuck(self, rank: int, lane: Lane) -> str:
        op, epoch = self._doing[rank, lane]
        late = self._awaited(op, epoch)
        if late:
            whom = ", ".join(f"its own {name} of epoch {instance}" for name, instance in late)
        else:
            absent = self._absent(op, epoch)
            whom = f"rank{'s' if len(absent) > 1 else ''} " + ", ".join(map(str, absent))
        return f"rank {rank} waits in {op.name} of epoch {epoch} for {whom}"

    def _awaited(self, op: Op, epoch: int) -> list[tuple[str, int]]:
        """Ops of its own rank that an op still waits for."""
        waits = self.endings[op.rank].awaits(op, epoch)
        return [(source.name, instance) for source, instance in waits if not self._has_ended(source, instance)]

    def _absent(self, op: Op, epoch: int) -> list[int]:
        """The ranks that a communication waits for: the dead among its partners, else those who have not come."""
        partners = self.schedule.partners(op)
        dead = [rank for rank in partners if np.isfinite(self.dead_s[rank])]
        return dead or [rank for rank in partners if self._finished[rank, op.name] < epoch]

    def run_lane(self, ops: tuple[Op, ...]) -> Steps:
        rank, lane, ending = ops[0].rank, ops[0].lane, self.endings[ops[0].rank]
        try:
            for epoch in count():
                yield from self._wait(ending.before(epoch))
                if not ending.goes_on(epoch):
                    return
                delay_s = self.world.delay_s(rank, epoch) if lane == Lane.COMPUTE else 0.0
                for op in ops:
                    if op.exists(epoch):
                        self._doing[rank, lane] = op, epoch
                        yield from self._run_op(op, epoch, delay_s)
                        delay_s = 0.0
                ending.lane_ended(epoch)
        except simpy.Interrupt:
            return  # its host has failed

    def _run_op(self, op: Op, epoch: int, delay_s: float) -> Steps:
        """Run an op once its waits are over; a straggler's delay counts as part of the first op of its epoch."""
        yield from self._wait(self.endings[op.rank].awaits(op, epoch))
        start = self.env.now
        self.begun(op, epoch)
        if delay_s > 0:
            yield self.env.timeout(delay_s)
        if self.seconds[op.rank, op.name] > 0:
            yield from self.cores[op.rank].run(self.seconds[op.rank, op.name])
        yield from HANDLERS[op.kind](self, op, epoch)
        self.ended(op, epoch, start)
        self._finish(op, epoch)

    def _wait(self, waits: list[tuple[Op, int]]) -> Steps:
        for source, instance in waits:
            if not self._has_ended(source, instance):
                yield self._end_of(source, instance)

    def _has_ended(self, source: Op, instance: int) -> bool:
        return instance <= self._finished[source.rank, source.name]

    def _end_of(self, source: Op, instance: int) -> simpy.Event:
        """An event that happens when an instance of an op ends."""
        event = self.env.event()
        self._waiting[source.rank, source.name].append((instance, event))
        return event

    def _finish(self, op: Op, epoch: int) -> None:
        key = op.rank, op.name
        self._finished[key] = epoch
        late = [item for item in self._waiting[key] if item[0] > epoch]
        for instance, event in self._waiting[key]:
            if instance <= epoch:
                event.succeed()
        self._waiting[key] = late

    def nothing(self, op: Op, epoch: int) -> Steps:
        """Do nothing: the op's kernels were all there was to do."""
        yield from ()

    def exchange(self, op: Op, epoch: int) -> Steps:
        """Send a rank's own rows now; the op ends when they and everything addressed to this rank have arrived."""
        sent = self.schedule.sent(op)
        if not self.in_rounds:
            yield from self._move(op, epoch, np.flatnonzero(sent), len(self.schedule.senders(op)))
            return
        num, received = len(sent), self.schedule.received(op)
        for turn in range(1, num):
            target, source = (op.rank + turn) % num, (op.rank - turn) % num
            targets = np.array([target] if sent[target] else [], dtype=np.int64)
            yield from self._move(op, epoch, targets, int(received[source] > 0), turn)

    def send(self, op: Op, epoch: int) -> Steps:
        assert isinstance(op.work, Message)
        yield from self._move(op, epoch, np.array([op.work.peer]), 0)

    def receive(self, op: Op, epoch: int) -> Steps:
        yield from self._move(op, epoch, np.zeros(0, dtype=np.int64), 1)

    def _move(self, op: Op, epoch: int, targets: Ints, num_received: int, turn: int = 0) -> Steps:
        key = op.name, epoch, turn
        if key not in self._messages:
            self._messages[key] = Messages(self.schedule.num_ranks, len(self.schedule.group(op)))
        messages, sizes = self._messages[key], self.schedule.sent(op)[targets]
        event = messages.expect(self.env, op.rank, len(targets), num_received)
        leaving = messages.meet(op.rank, targets, sizes) if self.rendezvous else [(op.rank, targets, sizes)]
        for source, to, num_bytes in leaving:
            if len(to):
                self.links.send(source, to, num_bytes, partial(messages.arrive, self.env, self.dead_s, source))
        if not event.triggered:
            yield event
        messages.num_open -= 1
        if messages.num_open == 0:
            del self._messages[key]

    def meet(self, op: Op, epoch: int) -> Steps:
        """Take part in a collective, which begins when the last rank of its group has come, and ends for all at once.

        Its steps take their ranks' cores, where that was measured; then bytes move.
        """
        group, work = self.schedule.group(op), op.work
        key = op.name, epoch
        meeting = self._meetings.setdefault(key, Meeting(self.env.event(), self.env.event()))
        meeting.present.add(op.rank)
        if len(meeting.present) == len(group):
            del self._meetings[key]
            meeting.begun.succeed()
        yield meeting.begun
        if self.step_s > 0 and len(group) > 1:
            yield from self.cores[op.rank].run(num_steps(op.kind, len(group)) * self.step_s)
        meeting.num_ready += 1
        if meeting.num_ready == len(group):
            if isinstance(work, Payload):
                self.links.collect(work, group, lambda: self._end_meeting(meeting))
            else:
                self._end_meeting(meeting)
        yield meeting.done

    def _end_meeting(self, meeting: Meeting) -> None:
        """End a collective, unless one of those who came has died meanwhile."""
        if all(self.dead_s[rank] > self.env.now for rank in meeting.present):
            meeting.done.succeed()

    def store(self, op: Op, epoch: int) -> Steps:
        measured = self.cluster.device(op.rank).measured
        near = self.cluster.shared_cores is not None or self.cluster.host(op.rank) == 0
        if near and measured is not None and measured.store is not None:
            return  # its core has copied the rows
        assert isinstance(op.work, Payload)
        done = self.env.event()
        self.links.store(op.rank, op.work.num_bytes, lambda: succeed(done))
        yield done


def _machines(env: simpy.Environment, cluster: Cluster, links: Network) -> list[Cores]:
    """The cores that the kernels of each rank run on: a device of its own, or a part of the cores of one machine."""
    if cluster.shared_cores is None:
        return [Cores(env) for _ in range(cluster.num_ranks)]
    parts = {part: Cores(env, len(part)) for part in dict.fromkeys(cluster.core_parts)}
    for part, cores in parts.items():
        links.watch_cores(part, cores.take)
    return [parts[part] for part in cluster.core_parts]


def _ordered_lanes(schedule: Schedule, rank: int) -> list[tuple[Op, ...]]:
    lanes = schedule.lanes(rank)
    return [lanes[lane] for lane in sorted(lanes)]


HANDLERS: MappingProxyType[Kind, Callable[[_Engine, Op, int], Steps]] = MappingProxyType(
    {
        Kind.COMPUTE: _Engine.nothing,
        Kind.SAMPLE: _Engine.nothing,
        Kind.EXCHANGE: _Engine.exchange,
        Kind.SEND: _Engine.send,
        Kind.RECV: _Engine.receive,
        **dict.fromkeys(COLLECTIVE, _Engine.meet),
        Kind.PUSH: _Engine.store,
        Kind.PULL: _Engine.store,
    }
)
