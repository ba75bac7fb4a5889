"""The order of events without a clock: moments at which ops begin and end, orders that are legal, whether they matter.

Whoever does the numbers of all ranks in one process is told moment by moment. A COMPUTE or SAMPLE is done at its begin.
A communication gives at its begin and takes at its end; a PULL reads at its begin, a PUSH writes at its end. An order
is legal if no op begins before what it awaits has ended, lanes run their ops one after the other, and no communication
ends before all who give something to it have begun.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from halocast.base.errors import InputError
from halocast.schedule.ending import Ending
from halocast.schedule.ir import Lane, Op, Schedule
from halocast.schedule.trace import Trace

ENDLESS = 2**40  # epochs: as many as whoever reads the moments wants


class Moment(NamedTuple):
    """The begin or the end of an instance of an op."""

    time_s: float
    begins: bool
    op: Op
    epoch: int


Awaits = Callable[[Op, int], list[tuple[Op, int]]]  # as of a schedule
Choose = Callable[[int], int]  # of so many things that may happen next, the number of one


def list_order(schedule: Schedule, num_epochs: int | None = None) -> Iterator[Moment]:
    """A legal order without a clock: ranks take turns, each lane going on as far as it can; all times are 0.

    Without a number of epochs it has no end.
    """
    return legal_order(schedule, num_epochs, None)


def legal_order(schedule: Schedule, num_epochs: int | None, choose: Choose | None) -> Iterator[Moment]:
    """A legal order in which `choose` settles what happens next; without it, lanes have turns in the order of ranks."""
    order = _Order(schedule, ENDLESS if num_epochs is None else num_epochs)
    return order.by_turns() if choose is None else order.chosen(choose)


Key = tuple[int, str]  # rank, op
Wait = tuple[dict[Key, int], Key, int]  # among the begun or the ended, an instance of an op


@dataclass(slots=True)
class _Lane:
    """One lane of one rank: its next op, or the one under way, and the epoch."""

    ops: tuple[Op, ...]
    ending: Ending
    epoch: int = 0
    place: int = 0
    going: bool = False  # it is settled that the rank does this epoch
    begun: bool = False
    over: bool = False
    waits: list[Wait] | None = None  # of its next event, those that are not over; None: not looked up yet

    @property
    def op(self) -> Op:
        return self.ops[self.place]


class _Order:
    """What has begun and ended so far, and with it what may happen next."""

    def __init__(self, schedule: Schedule, num_epochs: int) -> None:
        self.schedule, self.num_epochs = schedule, num_epochs
        ranks = range(schedule.num_ranks)
        self.done = [0 for _ in ranks]  # epochs, by rank
        endings = [self._ending(rank) for rank in ranks]
        self.lanes = [_Lane(ops, endings[rank]) for rank in ranks for _, ops in sorted(schedule.lanes(rank).items())]
        self.begun: dict[Key, int] = {}  # the newest instance
        self.ended: dict[Key, int] = {}
        self.senders = {(op.rank, op.name): schedule.senders(op) for op in schedule.ops}

    def _ending(self, rank: int) -> Ending:
        def finished(epoch: int) -> None:
            self.done[rank] = epoch + 1

        def slowest() -> int:
            return min((done for other, done in enumerate(self.done) if other != rank), default=self.num_epochs)

        return Ending(schedule=self.schedule, rank=rank, num_epochs=self.num_epochs, slowest=slowest, finished=finished)

    def by_turns(self) -> Iterator[Moment]:
        """Let every lane in turn go on as far as it can."""
        while lanes := [lane for lane in self.lanes if not lane.over]:
            moved = False
            for lane in lanes:
                while self._is_able(lane):
                    yield self._next(lane)
                    moved = True
            self._require(moved or any(lane.over for lane in lanes))

    def chosen(self, choose: Choose) -> Iterator[Moment]:
        """Let one of those that can go on do so, as chosen."""
        while lanes := [lane for lane in self.lanes if not lane.over]:
            able = [lane for lane in lanes if self._is_able(lane)]
            self._require(bool(able) or any(lane.over for lane in lanes))
            if able:
                yield self._next(able[choose(len(able))])

    def _require(self, moved: bool) -> None:
        if not moved:
            stuck = next(lane for lane in self.lanes if not lane.over)
            raise InputError(f"no legal order: {stuck.op.label} of epoch {stuck.epoch} can never go on")

    def _is_able(self, lane: _Lane) -> bool:
        """Whether the next event of a lane may happen now."""
        if not self._is_settled(lane):
            return False
        if lane.waits is None:
            lane.waits = self.waits_of(lane.op, lane.epoch, not lane.begun, lane.ending.awaits)
        return self._are_over(lane.waits)

    def waits_of(self, op: Op, epoch: int, begins: bool, awaits: Awaits) -> list[Wait]:
        """What has to happen before an event: the ends of what an op awaits, or the begins of all who give to it."""
        if begins:
            return [(self.ended, (source.rank, source.name), at) for source, at in awaits(op, epoch)]
        return [(self.begun, (rank, op.name), epoch) for rank in self.senders[op.rank, op.name]]

    def _are_over(self, waits: list[Wait]) -> bool:
        """Whether nothing is left to wait for; what is over is taken from the list."""
        while waits:
            events, key, instance = waits[-1]
            if events.get(key, -1) < instance:
                return False
            waits.pop()
        return True

    def _is_settled(self, lane: _Lane) -> bool:
        """Whether a lane has a next op, to which it is brought; that it has none may have to be waited for."""
        while not (lane.begun or lane.over):
            if lane.place == len(lane.ops):
                lane.ending.lane_ended(lane.epoch)
                lane.place, lane.epoch, lane.going = 0, lane.epoch + 1, False
            if not lane.going:
                if not all(self._has_ended(*wait) for wait in lane.ending.before(lane.epoch)):
                    return False
                lane.going = lane.ending.goes_on(lane.epoch)
                lane.over = not lane.going
            elif lane.op.exists(lane.epoch):
                return True
            else:
                lane.place += 1
        return lane.begun

    def _has_ended(self, source: Op, instance: int) -> bool:
        return self.ended.get((source.rank, source.name), -1) >= instance

    def _next(self, lane: _Lane) -> Moment:
        op, epoch, begins = lane.op, lane.epoch, not lane.begun
        (self.begun if begins else self.ended)[op.rank, op.name] = epoch
        lane.begun, lane.waits = begins, None
        lane.place += not begins
        return Moment(0.0, begins, op, epoch)


def of_trace(schedule: Schedule, trace: Trace) -> Iterator[Moment]:
    """The moments of a run that happened, by their times; among events of one time, or of clocks that differ a little,
    in a legal order."""
    happened, lanes = _Happened(schedule), _by_lane(schedule, trace)
    while lanes:
        able = [events for events in lanes if happened.may(events[0])]
        if not able:
            first = min((events[0] for events in lanes), key=_when)
            raise InputError(f"no legal order: {first.op.label} of epoch {first.epoch} waits for what no span has")
        events = min(able, key=lambda events: _when(events[0]))
        moment = events.popleft()
        if not events:
            lanes.remove(events)
        happened.note(moment)
        yield moment


def _when(moment: Moment) -> tuple[float, bool]:
    return moment.time_s, not moment.begins


def _by_lane(schedule: Schedule, trace: Trace) -> list[deque[Moment]]:
    """The events of every lane, in its order."""
    place = {(op.rank, op.name): number for number, op in enumerate(schedule.ops)}
    for span in trace.all_spans:
        if (span.rank, span.op) not in place:
            raise InputError(f"the trace has op {span.rank}/{span.op}, which the schedule has not")
    lanes: dict[tuple[int, Lane], deque[Moment]] = defaultdict(deque)
    for span in sorted(trace.all_spans, key=lambda span: (span.epoch, place[span.rank, span.op])):
        op = schedule.ops[place[span.rank, span.op]]
        lanes[op.rank, op.lane] += Moment(span.start_s, True, op, span.epoch), Moment(span.end_s, False, op, span.epoch)
    return [lanes[key] for key in sorted(lanes)]


class _Happened(_Order):
    """Events of a run that is over: how many epochs a rank did is known, so nothing has to be settled."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule, ENDLESS)

    def may(self, moment: Moment) -> bool:
        """Whether the next event of a lane may come now; what a rank waited for elsewhere, clocks need not show."""
        return self._are_over(self.waits_of(moment.op, moment.epoch, moment.begins, self._own))

    def _own(self, op: Op, epoch: int) -> list[tuple[Op, int]]:
        return [wait for wait in self.schedule.awaits(op, epoch) if wait[0].rank == op.rank]

    def note(self, moment: Moment) -> None:
        op = moment.op
        (self.begun if moment.begins else self.ended)[op.rank, op.name] = moment.epoch
