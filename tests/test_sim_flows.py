"""Flows share links max-min fairly: golden values, and the properties that define the allocation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from halocast.sim.network import bundles, fairshare
from halocast.sim.network import flows as flows_module
from halocast.sim.network.bundles import Bundles
from halocast.sim.network.fairshare import NO_LINK, Floats, Ints, connect, fair_rates
from halocast.sim.network.flows import Flows
from halocast.sim.network.golden import worst_difference

ORACLE = Path(__file__).parents[2] / "shared" / "oracle" / "maxmin.json"


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[int]], list[float]]:
    """Routes of up to 12 flows over up to 6 links, and the links' capacities."""
    num_links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.floats(1, 100), min_size=num_links, max_size=num_links))
    route = st.lists(st.integers(0, num_links - 1), min_size=1, max_size=num_links, unique=True)
    return draw(st.lists(route, min_size=1, max_size=12)), capacity


def load(routes: list[list[int]], rates: Floats, num_links: int) -> Floats:
    total = np.zeros(num_links)
    for route, rate in zip(routes, rates, strict=True):
        total[route] += rate
    return total


@given(problems())
def test_no_link_carries_more_than_its_capacity(problem: tuple[list[list[int]], list[float]]) -> None:
    routes, capacity = problem
    assert (load(routes, fair_rates(routes, capacity), len(capacity)) <= np.array(capacity) * (1 + 1e-9)).all()


@given(problems())
def test_every_flow_has_a_full_link_on_which_nobody_is_faster(problem: tuple[list[list[int]], list[float]]) -> None:
    """That is what max-min optimal means: a flow can only gain from one that is not faster."""
    routes, capacity = problem
    rates = fair_rates(routes, capacity)
    full = load(routes, rates, len(capacity)) >= np.array(capacity) * (1 - 1e-9)
    for route, rate in zip(routes, rates, strict=True):
        fastest = [max(r for other, r in zip(routes, rates, strict=True) if link in other) for link in route]
        assert any(full[link] and rate >= top * (1 - 1e-9) for link, top in zip(route, fastest, strict=True))


def table(routes: list[list[int]]) -> Ints:
    width = max(len(route) for route in routes)
    return np.array([route + [NO_LINK] * (width - len(route)) for route in routes], dtype=np.int64)


def simulate(
    routes: list[list[int]],
    capacity: list[float],
    sizes: list[float],
    starts: list[float],
    scales: tuple[tuple[float, int, float], ...] = (),
    **options: Any,
) -> tuple[Floats, Flows]:
    """End times of flows, each started by itself; at given times links are scaled."""
    env = simpy.Environment()
    flows = Flows(env, np.array(capacity), **options)
    ends = np.zeros(len(routes))

    def start(k: int) -> Any:
        yield env.timeout(starts[k])
        flows.start(table([routes[k]]), np.array([sizes[k]]), np.array([k]), lambda names: np.put(ends, names, env.now))

    def scale(time_s: float, link: int, factor: float) -> Any:
        yield env.timeout(time_s)
        flows.scale(np.array([link]), factor)

    for k in range(len(routes)):
        env.process(start(k))
    for change in scales:
        env.process(scale(*change))
    env.run()
    return ends, flows


@st.composite
def timed_problems(draw: st.DrawFn) -> tuple[list[list[int]], list[float], list[float], list[float]]:
    routes, capacity = draw(problems())
    sizes = draw(st.lists(st.floats(0, 500), min_size=len(routes), max_size=len(routes)))
    starts = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.25]), min_size=len(routes), max_size=len(routes)))
    return routes, capacity, sizes, starts


def by_filling_anew(routes: list[list[int]], capacity: list[float], sizes: list[float], starts: list[float]) -> Floats:
    """The obvious simulation: at every start and end compute all rates from scratch."""
    left, ends, now = np.array(sizes), np.full(len(routes), np.nan), 0.0
    while np.isnan(ends).any():
        active = [k for k in range(len(routes)) if starts[k] <= now and np.isnan(ends[k])]
        done = [k for k in active if left[k] <= 1e-12 * (1 + sizes[k])]
        if done:
            ends[done] = now
            continue
        rates = fair_rates([routes[k] for k in active], capacity)
        ends_in = [left[k] / r for k, r in zip(active, rates, strict=True)]
        dt = min(ends_in + [s - now for s in starts if s > now])
        left[active] -= rates * dt
        now += dt
    return ends


@given(timed_problems())
def test_partial_updates_give_the_same_ends_as_filling_everything_anew(
    problem: tuple[list[list[int]], list[float], list[float], list[float]],
) -> None:
    ends, flows = simulate(*problem)
    assert np.allclose(ends, by_filling_anew(*problem), rtol=1e-9, atol=1e-9)
    assert flows.num_ended == len(ends)
    assert flows.num_bytes == pytest.approx(sum(problem[2]))
    assert flows.forgiven_bytes <= 1e-9 * (1 + flows.num_bytes)


@given(timed_problems(), st.randoms(use_true_random=False))
def test_the_order_of_flows_does_not_matter(
    problem: tuple[list[list[int]], list[float], list[float], list[float]], random: Any
) -> None:
    routes, capacity, sizes, starts = problem
    order = list(range(len(routes)))
    random.shuffle(order)
    ends, _ = simulate(*problem)
    shuffled, _ = simulate([routes[k] for k in order], capacity, [sizes[k] for k in order], [starts[k] for k in order])
    assert np.allclose(shuffled, ends[order], rtol=1e-9, atol=1e-12)


def test_compiled_and_plain_functions_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    routes = [rng.choice(8, size=rng.integers(1, 5), replace=False).tolist() for _ in range(60)]
    problem = (routes, rng.uniform(1, 9, 8).tolist(), rng.uniform(1, 50, 60).tolist(), rng.uniform(0, 9, 60).tolist())
    monkeypatch.setattr(flows_module, "is_loaded", lambda: False)
    plain, _ = simulate(*problem, slack=0.001)
    monkeypatch.setattr(flows_module, "PLAIN_VISITS", 0)
    compiled, _ = simulate(*problem, slack=0.001)
    assert fairshare.is_loaded()
    assert plain.tolist() == compiled.tolist()


def test_a_cap_holds_a_flow_back_and_leaves_the_rest_to_others() -> None:
    """Link of 10; flow 0 capped at 2 (link 1), flow 1 free: 2 and 8; then flow 0 alone still 2."""
    ends, _ = simulate([[0, 1], [0]], [10.0], [20.0, 40.0], [0.0, 0.0], caps=np.array([2.0]))
    assert ends.tolist() == [10.0, 5.0]


def test_a_cap_is_not_shared_between_the_flows_that_have_it() -> None:
    ends, _ = simulate([[0, 1], [0, 1], [0, 1]], [10.0], [20.0] * 3, [0.0] * 3, caps=np.array([2.0]))
    assert ends.tolist() == [10.0] * 3


def test_slack_ends_flows_together_and_says_what_it_forgave() -> None:
    exact, _ = simulate([[0], [0]], [10.0], [100.0, 100.5], [0.0, 0.0])
    assert exact == pytest.approx([20.0, 20.05])
    ends, flows = simulate([[0], [0]], [10.0], [100.0, 100.5], [0.0, 0.0], slack=0.01)
    assert ends == pytest.approx([20.0, 20.0])
    assert flows.forgiven_bytes == pytest.approx(0.5)
    assert flows.error_bound() == pytest.approx(0.1 / 20.1)  # 0.5 bytes at the rate of 5 it had


@given(timed_problems())
def test_with_slack_no_flow_ends_after_its_exact_end(
    problem: tuple[list[list[int]], list[float], list[float], list[float]],
) -> None:
    """Forgiving bytes only frees links earlier."""
    routes, capacity, sizes, starts = problem
    shared = [[0] for _ in routes]  # on one link there are no anomalies of reordering
    exact, _ = simulate(shared, capacity, sizes, starts)
    early, flows = simulate(shared, capacity, sizes, starts, slack=0.05)
    assert (early <= exact * (1 + 1e-9) + 1e-12).all()
    assert exact.max() - early.max() <= flows.forgiven_bytes / capacity[0] + 1e-9
    assert 0 <= flows.error_bound() <= 0.05


@given(timed_problems())
def test_without_slack_no_flow_is_shortened(
    problem: tuple[list[list[int]], list[float], list[float], list[float]],
) -> None:
    assert simulate(*problem)[1].error_bound() == 0


def test_components_are_what_flows_connect() -> None:
    component = np.arange(6)
    connect(3, np.array([[0, 2], [3, NO_LINK], [2, 5]]), 0, component)
    assert component.tolist() == [0, 1, 0, 3, 4, 0]


@pytest.mark.skipif(not ORACLE.exists(), reason="the golden values are not beside the project")
def test_all_golden_scenarios_agree() -> None:
    scenarios = json.loads(ORACLE.read_text())
    assert len(scenarios) == 24
    assert max(worst_difference(scenario) for scenario in scenarios) <= 1e-9


def alone(routes: list[list[int]], capacity: list[float]) -> tuple[list[list[int]], list[float]]:
    """The same flows with a link of their own that never fills: no two routes are the same."""
    return [[*route, len(capacity) + k] for k, route in enumerate(routes)], capacity + [np.inf] * len(routes)


@st.composite
def crowded_problems(draw: st.DrawFn) -> tuple[list[list[int]], list[float], list[float], list[float]]:
    """Many flows on few routes, some without bytes, some alike, started at few instants."""
    kinds, capacity = draw(problems())
    sizes = st.one_of(st.floats(0, 500), st.sampled_from([0.0, 20.0, 300.0]))
    starts = st.sampled_from([0.0, 0.0, 0.0, 2.5])
    flows = draw(st.lists(st.tuples(st.sampled_from(kinds[:3]), sizes, starts), min_size=2, max_size=20))
    return [flow[0] for flow in flows], capacity, [flow[1] for flow in flows], [flow[2] for flow in flows]


@given(crowded_problems(), st.sampled_from([(), ((1.0, 0, 0.25), (4.0, 0, 1.5))]))
def test_bundles_end_as_their_flows_would_one_by_one(
    problem: tuple[list[list[int]], list[float], list[float], list[float]], scales: tuple[tuple[float, int, float], ...]
) -> None:
    routes, capacity, sizes, starts = problem
    together, flows = simulate(*problem, scales=scales)
    one_by_one, _ = simulate(*alone(routes, capacity), sizes, starts, scales=scales)
    assert np.allclose(together, one_by_one, rtol=1e-9, atol=1e-9)
    assert flows.num_ended == len(routes)


@pytest.mark.parametrize("seed", range(8))
def test_slack_forgives_bundles_what_it_forgives_their_flows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With caps, and with room so tight that gaps among the flows are closed all the time."""
    monkeypatch.setattr(bundles, "LEAST_ROOM", 1)
    rng = np.random.default_rng(seed)
    kinds = [sorted(rng.choice(6, size=rng.integers(1, 5), replace=False).tolist()) for _ in range(5)]
    routes = [kinds[k] for k in rng.integers(0, 5, 80)]
    capacity, sizes = rng.uniform(1, 9, 6).tolist(), rng.uniform(1, 50, 80).tolist()
    starts = rng.choice([0.0, 1.0, 30.0], 80).tolist()
    caps = np.array([0.7])
    together, flows = simulate([[*route, 6] for route in routes], capacity, sizes, starts, caps=caps, slack=0.05)
    lonely, links = alone(routes, capacity)
    capped = [[*route, len(links)] for route in lonely]
    one_by_one, single = simulate(capped, links, sizes, starts, caps=caps, slack=0.05)
    assert np.allclose(together, one_by_one, rtol=1e-9)
    assert flows.forgiven_bytes == pytest.approx(single.forgiven_bytes) != 0
    assert flows.error_bound() == pytest.approx(single.error_bound()) != 0


def test_flows_that_start_together_on_one_route_are_one_row() -> None:
    rows = Bundles()
    routes, sizes = np.array([[2, 0], [1, -1], [2, 0], [2, 0]]), np.array([9.0, 5.0, 3.0, 3.0])
    rows.add(routes, sizes, np.arange(4), 0.0)
    rows.add(np.array([[1]]), np.array([7.0]), np.array([4]), 1.0)
    assert (rows.num, rows.routes[: rows.num].tolist()) == (3, [[1, -1], [2, 0], [1, -1]])
    assert rows.weights[: rows.num].tolist() == [1, 3, 1]
    assert rows.remaining[: rows.num].tolist() == [5.0, 3.0, 7.0]
    assert rows.ids[: rows.heads[2] + 1].tolist() == [1, 2, 3, 0, 4]


def told(starts: list[tuple[list[float], list[int]]]) -> list[tuple[float, list[int]]]:
    """When and in which order the names of flows on one link of 10 are told; each start is a batch at 0."""
    env, seen = simpy.Environment(), list[tuple[float, list[int]]]()
    flows = Flows(env, np.array([10.0]))
    for sizes, names in starts:
        routes = np.zeros((len(names), 1), dtype=np.int64)
        flows.start(routes, np.array(sizes), np.array(names), lambda ended: seen.append((env.now, ended.tolist())))
    env.run()
    return seen


def test_flows_of_a_bundle_that_end_together_are_told_in_order_of_start() -> None:
    """Six flows: one without bytes, then 2 a second each for five, 5 each for the last two."""
    assert told([([20.0, 4.0, 20.0], [5, 3, 9]), ([4.0, 0.0, 4.0], [8, 7, 1])]) == [
        (0.0, [7]),
        (2.0, [3]),
        (2.0, [8, 1]),
        (5.2, [5, 9]),
    ]


def test_what_starts_in_answer_to_an_end_shares_from_that_instant_on() -> None:
    """A link of 10: flows of 10 and 20 at 5 each; at 2 the first ends and one of 10 begins; both end at 4."""
    env, ends = simpy.Environment(), dict[int, float]()
    flows = Flows(env, np.array([10.0]))

    def ended(names: Ints) -> None:
        ends.update(dict.fromkeys(names.tolist(), env.now))
        if names[0] == 0:
            flows.start(np.array([[0]]), np.array([10.0]), np.array([2]), ended)

    flows.start(np.array([[0], [0]]), np.array([10.0, 20.0]), np.array([0, 1]), ended)
    env.run()
    assert ends == {0: 2.0, 1: 4.0, 2: 4.0}
