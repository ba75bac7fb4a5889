"""Imperfect worlds: slow devices and links, stragglers, a host that fails."""

from dataclasses import replace

import pytest
from schedules import op, two_rank_exchange

from halocast.base.delays import Delay
from halocast.base.errors import InputError
from halocast.cluster.catalogue import load_cluster
from halocast.schedule.ir import Compute, Kernel, Lane, Schedule
from halocast.schedule.trace import Trace
from halocast.sim.engine import simulate
from halocast.sim.world import Failure, StoppedError, World
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario

CPU = load_cluster("cpu-local", gpus=2)
TWO_HOSTS = load_cluster("t4-3x2-15gbe", gpus=4)


def working() -> Schedule:
    """As two_rank_exchange, with kernels to make the rows."""
    base = two_rank_exchange()
    kernels = Compute(kernels=(Kernel("elementwise", (10**6, 2)),))
    return replace(base, ops=tuple(replace(o, work=kernels) if o.name == "make" else o for o in base.ops))


def lengths(trace: Trace, rank: int, name: str) -> list[float]:
    return [s.end_s - s.start_s for s in trace.spans if s.rank == rank and s.op == name]


def test_a_device_of_half_speed_takes_twice_as_long() -> None:
    trace = simulate(working(), CPU, 1, world=World(speed={1: 0.5}))
    (fast,), (slow,) = lengths(trace, 0, "make"), lengths(trace, 1, "make")
    assert slow == pytest.approx(2 * fast, rel=1e-12)


def test_a_fixed_delay_is_added_to_the_first_op_of_each_epoch() -> None:
    perfect = simulate(working(), CPU, 3)
    trace = simulate(working(), CPU, 3, world=World(delays=(Delay(rank=1, low_s=2.0, high_s=2.0),)))
    assert lengths(trace, 1, "make") == pytest.approx([2.0 + s for s in lengths(perfect, 1, "make")])
    assert lengths(trace, 0, "make") == pytest.approx(lengths(perfect, 0, "make"))


def test_drawn_delays_stay_in_bounds_differ_and_depend_on_the_seed_alone() -> None:
    def delays(seed: int) -> list[float]:
        world = World(delays=(Delay(rank=0, low_s=8.0, high_s=10.0),), seed=seed)
        return [world.delay_s(0, epoch) for epoch in range(20)]

    assert all(8 <= s <= 10 for s in delays(0))
    assert len(set(delays(0))) == 20
    assert delays(0) == delays(0) != delays(1)
    assert World(delays=(Delay(rank=0, low_s=8.0, high_s=10.0),)).delay_s(1, 0) == 0.0


def test_a_degraded_network_moves_the_same_bytes_in_more_time() -> None:
    schedule = load_reddit()
    whole = simulate(schedule, TWO_HOSTS, 1)
    slow = simulate(schedule, TWO_HOSTS, 1, world=World(links={"network": 0.01}))
    assert {(s.rank, s.op): s.num_bytes for s in whole.spans} == {(s.rank, s.op): s.num_bytes for s in slow.spans}
    assert max(s.end_s for s in slow.spans) > 5 * max(s.end_s for s in whole.spans)


def load_reddit() -> Schedule:
    from halocast.study.workload import prepare

    return prepare(load_scenario("demo", ["graph.dataset=reddit"]), 4).schedule


def test_a_failed_host_ends_the_run_with_who_waited_for_what() -> None:
    schedule = load_reddit()
    perfect = simulate(schedule, TWO_HOSTS, 3)
    middle = max(s.end_s for s in perfect.spans) / 2
    with pytest.raises(StoppedError, match="host 1 failed at") as stopped:
        simulate(schedule, TWO_HOSTS, 3, world=World(failure=Failure(host=1, at_s=middle)))
    message, spans = str(stopped.value), stopped.value.trace.spans
    assert "rank 0 waits in" in message
    assert "for ranks 2, 3" in message or "for rank 2" in message or "for rank 3" in message
    assert all(s.end_s <= middle for s in spans if s.rank in (2, 3))
    before = {s for s in perfect.spans if s.end_s < middle}
    assert before <= set(spans)


def test_a_failure_after_the_end_changes_nothing() -> None:
    schedule = working()
    perfect = simulate(schedule, CPU, 2)
    assert simulate(schedule, CPU, 2, world=World(failure=Failure(host=0, at_s=1e6))).spans == perfect.spans


def test_ranks_without_the_dead_host_go_on() -> None:
    alone = Schedule(num_ranks=4, ops=tuple(op("work", rank, Lane.COMPUTE) for rank in range(4)))
    trace = simulate(alone, TWO_HOSTS, 3, world=World(failure=Failure(host=1, at_s=0.0)))
    assert {s.rank for s in trace.spans} >= {0, 1}


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (World(speed={7: 0.5}), "rank 7 is not in 0..1"),
        (World(failure=Failure(host=3, at_s=0.0)), "host 3 is not in 0..0"),
        (World(links={"gpu 9": 0.5}), "no link or node 'gpu 9'"),
    ],
)
def test_worlds_that_do_not_fit_the_cluster_are_named(world: World, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(working(), CPU, 1, world=world)


def test_a_scenario_says_what_its_world_is() -> None:
    overrides = ["world.speed={1=0.25}", "world.delay_s={0=[0.5]}", "world.seed=3", "world.links={'host 0'=0.5}"]
    world = load_scenario("demo", overrides).world.world
    assert world == World(
        speed={1: 0.25}, delays=(Delay(rank=0, low_s=0.5, high_s=0.5),), links={"host 0": 0.5}, seed=3
    )
    slow = predict(load_scenario("demo", ["world.delay_s={0=[0.5]}"])).summary.epoch_s
    assert slow == pytest.approx(0.5 + predict(load_scenario("demo")).summary.epoch_s, rel=0.2)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("world.speed={x=0.5}", "a rank is a whole number"),
        ("world.speed={1=0}", "above 0"),
        ("world.delay_s={1=[3,2]}", "low_s <= high_s"),
        ("world.delay_s={1=[1,2,3]}", r"needs \[seconds\] or \[low, high\]"),
        ("world.fail_host=1", "go together"),
    ],
)
def test_a_bad_world_in_a_scenario_is_one_clear_line(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _ = load_scenario("demo", [override]).world.world
