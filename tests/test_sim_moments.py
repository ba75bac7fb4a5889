"""Moments of the simulator: its own trace, event by event, and no more than is asked for."""

import hashlib
from itertools import islice

import pytest
from together import FREE, MEETING, Case, case

from halocast.base.errors import InputError
from halocast.cluster.catalogue import load_cluster
from halocast.schedule.order import Moment
from halocast.sim.engine import moments, simulate
from halocast.sim.network.links import UnlimitedLinks
from halocast.sim.world import Failure, World

EPOCHS = 4
CLUSTER = load_cluster("a5000-2x4-pcie4-ib200", gpus=4)
SLOW = World(speed={1: 0.3})


def events(seen: list[Moment], *, begins: bool) -> list[tuple[float, int, str, int]]:
    return [(m.time_s, m.op.rank, m.op.name, m.epoch) for m in seen if m.begins is begins]


@pytest.mark.parametrize("chosen", [*MEETING, FREE], ids=str)
def test_moments_are_the_begins_and_ends_of_the_trace(chosen: Case) -> None:
    schedule = chosen.job(4)[0].schedule
    seen = list(moments(schedule, CLUSTER, num_epochs=EPOCHS, world=SLOW))
    spans = simulate(schedule, CLUSTER, EPOCHS, world=SLOW).all_spans
    assert sorted(events(seen, begins=True)) == sorted((s.start_s, s.rank, s.op, s.epoch) for s in spans)
    assert sorted(events(seen, begins=False)) == sorted((s.end_s, s.rank, s.op, s.epoch) for s in spans)
    assert [m.time_s for m in seen] == sorted(m.time_s for m in seen)


def test_no_more_is_simulated_than_is_asked_for() -> None:
    """Without a number of epochs there is no end, and the first moments come at once."""
    schedule = MEETING[0].job(4)[0].schedule
    first = list(islice(moments(schedule, CLUSTER), 3))
    assert [m.begins for m in first] == [True, True, True]
    some = list(islice(moments(schedule, CLUSTER), 20 * 2 * len(schedule.ops)))
    assert max(m.epoch for m in some) >= 19


def test_a_world_in_which_a_host_fails_has_no_moments() -> None:
    schedule = MEETING[0].job(4)[0].schedule
    with pytest.raises(InputError, match="a host fails"):
        next(moments(schedule, CLUSTER, world=World(failure=Failure(host=0, at_s=1.0))))


WHOLE_SECONDS = {
    "vanilla": "aa36abcdbfffd68a",
    "pipegcn-gf": "9aef3bc058705282",
    "bns": "b4047e09bfaf6417",
    "psc": "4f1abe90cb1a2d77",
    "digest": "491da1ad29ff974a",
    "digest-a": "2d39a844eb221fb8",
    "gnnpipe": "23bf7341b9b94b8d",
}


@pytest.mark.parametrize("method", WHOLE_SECONDS)
def test_events_of_one_time_come_in_the_order_they_always_came(method: str) -> None:
    """Ops of 0 to 2 seconds and links without a limit: most events have the time of many others, and only the order in
    which they are issued tells them apart. The hashes are of traces made before there were moments."""
    schedule = case(method).job(4)[0].schedule
    seconds = {(op.rank, op.name): float(place % 3) for place, op in enumerate(schedule.ops)}
    trace = simulate(schedule, CLUSTER, EPOCHS, network=UnlimitedLinks, measured_s=seconds)
    lines = [f"{s.rank} {s.op} {s.epoch} {s.start_s:.0f} {s.end_s:.0f} {s.num_bytes}" for s in trace.all_spans]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == WHOLE_SECONDS[method]
