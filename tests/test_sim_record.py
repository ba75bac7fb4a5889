"""What links carried: bytes are exact, and the recorded load integrates to them and never exceeds a capacity."""

from collections.abc import Generator

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from halocast.reports.network import loads
from halocast.schedule.trace import LinkUse
from halocast.sim.network.fairshare import NO_LINK, Floats, Ints
from halocast.sim.network.flows import Flows, LinkRecord

Problem = tuple[list[list[int]], list[float], list[float], list[float]]


def table(routes: list[list[int]]) -> Ints:
    width = max(len(route) for route in routes)
    return np.array([route + [NO_LINK] * (width - len(route)) for route in routes], dtype=np.int64)


def recorded(problem: Problem, *, caps: list[float] | None = None, record: bool = True) -> tuple[LinkUse, ...]:
    routes, capacity, sizes, starts = problem
    env = simpy.Environment()
    flows = Flows(env, np.array(capacity), None if caps is None else np.array(caps), record=record)
    for k, start in enumerate(starts):
        env.process(_later(env, start, flows, table([routes[k]]), np.array([sizes[k]])))
    env.run()
    names = [f"link {k}" for k in range(len(capacity))]
    assert sum(link.num_bytes for link in flows.use(names)) == pytest.approx(flows.link_bytes().sum())
    return flows.use(names)


def _later(
    env: simpy.Environment, start: float, flows: Flows, route: Ints, size: Floats
) -> Generator[simpy.Event, None, None]:
    yield env.timeout(start)
    flows.start(route, size, np.array([0]), lambda names: None)


def test_a_link_shared_by_two_flows_and_one_shared_by_none() -> None:
    """Link 0 of 10: a flow of 30 from 0 on, one of 10 from 1 to 3, both at 5 then; link 1 of 4 carries the second."""
    first, second = recorded(([[0], [0, 1]], [10.0, 100.0, 9.0], [30.0, 10.0], [0.0, 1.0]))
    assert first == LinkUse(name="link 0", bytes_per_s=10, num_bytes=40, times_s=(0, 4), rates=(10, 0))
    assert second == LinkUse(name="link 1", bytes_per_s=100, num_bytes=10, times_s=(1, 3), rates=(5, 0))


def test_a_cap_is_no_link_but_its_flow_loads_the_links_it_takes() -> None:
    (link,) = recorded(([[0, 1], [0]], [10.0], [20.0, 40.0], [0.0, 0.0]), caps=[2.0])
    assert (link.num_bytes, link.times_s, link.rates) == (60, (0, 5, 10), (10, 2, 0))


def test_a_bundle_loads_its_links_with_all_its_flows() -> None:
    """Three flows of one route, capped at 2 each: one ends at 2, two at 4."""
    (link,) = recorded(([[0, 1]] * 3, [10.0], [4.0, 8.0, 8.0], [0.0] * 3), caps=[2.0])
    assert (link.num_bytes, link.times_s, link.rates) == (20, (0, 2, 4), (6, 4, 0))


def test_without_recording_the_bytes_are_known_all_the_same() -> None:
    (link,) = recorded(([[0], [0]], [10.0], [20.0, 40.0], [0.0, 0.0]), record=False)
    assert link == LinkUse(name="link 0", bytes_per_s=10, num_bytes=60)


def test_of_changes_at_one_instant_the_last_counts() -> None:
    """A queue's busy periods: from 0 to 2, and from 2 to 3 at once after it."""
    record, one = LinkRecord(np.array([10.0])), np.array([0])
    record.carry(np.array([[0]]), np.array([30.0]))
    for start, end in ((0.0, 2.0), (2.0, 3.0)):
        record.change(one, np.array([start]), np.array([10.0]))
        record.change(one, np.array([end]), np.array([0.0]))
    assert record.use(["only"]) == (LinkUse(name="only", bytes_per_s=10, num_bytes=30, times_s=(0, 3), rates=(10, 0)),)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    num_links, num = draw(st.integers(1, 5)), draw(st.integers(1, 10))
    capacity = draw(st.lists(st.floats(1, 100), min_size=num_links, max_size=num_links))
    route = st.lists(st.integers(0, num_links - 1), min_size=1, max_size=num_links, unique=True)
    return (
        draw(st.lists(route, min_size=num, max_size=num)),
        capacity,
        draw(st.lists(st.floats(0, 500), min_size=num, max_size=num)),
        draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.25]), min_size=num, max_size=num)),
    )


@given(problems())
def test_the_recorded_load_integrates_to_the_bytes_within_the_capacity(problem: Problem) -> None:
    routes, capacity, sizes, _ = problem
    for link in recorded(problem):
        number = int(link.name.split()[1])
        carried = sum(size for route, size in zip(routes, sizes, strict=True) if number in route)
        assert link.num_bytes == pytest.approx(carried)
        assert sum(load.num_bytes for load in loads(link)) == pytest.approx(carried, rel=1e-9, abs=1e-9)
        assert 0 <= min(link.rates, default=0) <= max(link.rates, default=0) <= link.bytes_per_s == capacity[number]
        assert link.rates[-1:] in ((0.0,), ())
        assert list(link.times_s) == sorted(set(link.times_s))
