"""Ranks of one machine keep to parts of its cores: kernels of a part go on at cores / running of their pace, at most at
their own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules import op

from halocast.base.cores import part_of
from halocast.base.delays import Delay
from halocast.base.errors import InputError
from halocast.cluster.catalogue import Cluster, load_cluster
from halocast.cluster.topology import build_topology
from halocast.schedule.ir import AllReduce, Barrier, Compute, Exchange, Kernel, Lane, Matrix, Pull, Schedule
from halocast.schedule.trace import Trace
from halocast.sim.cost import op_seconds
from halocast.sim.engine import simulate
from halocast.sim.world import Failure, StoppedError, World

CPU = load_cluster("cpu-local")
UNIT = 10**8  # numbers of a kernel; times below are in the seconds this one takes alone


def machine(cores: int | None, ranks: int) -> Cluster:
    return replace(load_cluster("cpu-local", gpus=ranks), shared_cores=cores)


def kernels(*units: float) -> Schedule:
    """A kernel per rank, all ready at 0."""
    ops = tuple(
        op("work", rank, work=Compute(kernels=(Kernel("elementwise", (int(UNIT * size), 2)),)))
        for rank, size in enumerate(units)
    )
    return Schedule(num_ranks=len(units), ops=ops)


def alone_s(schedule: Schedule, rank: int) -> float:
    return op_seconds(schedule.ops[rank], CPU.device(0))


def ends(trace: Trace) -> list[float]:
    return [max(span.end_s for span in trace.of_rank(rank)) for rank in range(trace.num_ranks)]


@given(st.integers(1, 8), st.integers(1, 8))
def test_equal_kernels_of_all_ranks_run_at_cores_over_ranks_of_their_pace(cores: int, ranks: int) -> None:
    """Whether ranks have parts of their own or, where they cannot be equal, all the same."""
    schedule = kernels(*[1.0] * ranks)
    expected = alone_s(schedule, 0) * max(1.0, ranks / cores)
    assert ends(simulate(schedule, machine(cores, ranks), 1)) == pytest.approx([expected] * ranks, rel=1e-9)


def test_a_kernel_is_faster_when_others_have_ended() -> None:
    schedule = kernels(1.0, 2.0, 2.0)
    unit = alone_s(schedule, 0)
    # three on two cores at 2/3: the first ends at 1.5; the others have 1 left and a core each
    assert ends(simulate(schedule, machine(2, 3), 1)) == pytest.approx([1.5 * unit, 2.5 * unit, 2.5 * unit], rel=1e-4)


def test_a_kernel_is_slower_from_the_moment_another_one_starts() -> None:
    schedule = kernels(2.0, 1.0)
    unit = alone_s(schedule, 1)
    late = World(delays=(Delay(rank=1, low_s=unit, high_s=unit),))
    trace = simulate(schedule, machine(1, 2), 1, world=late)
    # alone until 1, then both at half pace until 3, when both have done their work
    assert ends(trace) == pytest.approx([3 * unit, 3 * unit], rel=1e-4)


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6), st.integers(1, 6))
def test_work_is_conserved_and_divided_equally(sizes: list[float], cores: int) -> None:
    schedule = kernels(*sizes)
    work = [alone_s(schedule, rank) for rank in range(len(sizes))]
    found = ends(simulate(schedule, machine(cores, len(sizes)), 1))
    assert max(found) >= max(max(work), sum(work) / cores) * (1 - 1e-9)
    ranks = range(len(sizes))
    parts = {rank: tuple(part_of(range(cores), rank, len(sizes))) for rank in ranks}
    for part in set(parts.values()):
        mine = [rank for rank in ranks if parts[rank] == part]
        expected = expected_ends(sorted(work[rank] for rank in mine), len(part))
        assert sorted(found[rank] for rank in mine) == pytest.approx(expected, rel=1e-9)


def expected_ends(work: list[float], cores: int) -> list[float]:
    """Sizes in ascending order: between two ends everybody left gets the same."""
    now, given_s, found = 0.0, 0.0, []
    for k, size in enumerate(work):
        now += (size - given_s) / min(1.0, cores / (len(work) - k))
        given_s = size
        found.append(now)
    return found


def test_enough_cores_change_nothing() -> None:
    schedule = kernels(1.0, 2.0)
    assert ends(simulate(schedule, machine(2, 2), 1)) == ends(simulate(schedule, machine(None, 2), 1))


def test_a_host_that_failed_leaves_its_core_to_the_others() -> None:
    schedule = kernels(4.0, 4.0)
    unit = alone_s(schedule, 0) / 4
    two_hosts = replace(load_cluster("cpu-4x1-200mbit", gpus=2), shared_cores=1)
    with pytest.raises(StoppedError) as stopped:
        simulate(meeting(schedule), two_hosts, 1, world=World(failure=Failure(host=1, at_s=2 * unit)))
    # both at half pace until 2: one of four units is done; the other three are done alone
    (span,) = [span for span in stopped.value.trace.spans if span.op == "work"]
    assert span.end_s == pytest.approx(5 * unit, rel=1e-9)


def meeting(schedule: Schedule) -> Schedule:
    both = tuple(op("meet", rank, work=Barrier(), after=(("work", 0),)) for rank in (0, 1))
    return replace(schedule, ops=(*schedule.ops, *both))


def test_emulated_hosts_have_one_memory_so_a_store_is_near_all_of_them() -> None:
    schedule = Schedule(
        num_ranks=2,
        ops=tuple(op("pull", rank, work=Pull(num_bytes=25_000_000)) for rank in (0, 1)),
    )
    near = load_cluster("cpu-4x1-200mbit", gpus=2)
    far = replace(near, shared_cores=None)
    assert len(set(ends(simulate(schedule, near, 1)))) == 1
    assert ends(simulate(schedule, far, 1))[1] == pytest.approx(1.0 / 0.9927, rel=1e-3)  # 25 MB at 25 MB/s


def test_a_nic_carries_its_payload_only() -> None:
    topology = build_topology(load_cluster("cpu-4x1-1gbit", gpus=2))
    assert topology.capacity[topology.names.index("host 0 > network")] == pytest.approx(0.9927 * 1.25e8)


def test_a_machine_has_at_least_one_core(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'description = "d"\nsource = "s"\nnum_hosts = 1\ndevices_per_host = 2\ndevice = "cpu"\ntransport = "gloo"\n'
        "shared_cores = 0\n[gloo]\nstream_gbytes_per_s = 1\nhost_gbytes_per_s = 1\nlatency_us = 1\n"
    )
    with pytest.raises(InputError, match="shared_cores = 0"):
        load_cluster(path)


STREAM = 1e9


def moving_beside(core_s_per_byte: float, cores: int) -> tuple[float, float]:
    """Rank 0 computes for 4 s while both ranks exchange for 1 s: when the kernel and the exchange end."""
    unit = kernels(1.0)
    numel = int(UNIT * 4.0 / alone_s(unit, 0))
    work = op("work", work=Compute(kernels=(Kernel("elementwise", (numel, 2)),)))
    rows = Exchange(matrix="halo", row_bytes=1)
    swap = tuple(op("exchange", rank, Lane.HALO, work=rows) for rank in (0, 1))
    halo = Matrix("halo", np.array([[0, 10**9], [10**9, 0]]))
    cluster = machine(cores, 2)
    assert cluster.gloo is not None
    gloo = replace(
        cluster.gloo,
        stream_bytes_per_s=STREAM,
        host_bytes_per_s=8 * STREAM,
        latency_s=0.0,
        core_s_per_byte=core_s_per_byte,
        compute_slowdown=3.0,  # sharing cores takes its place
        transfer_slowdown=3.0,
    )
    trace = simulate(Schedule(num_ranks=2, ops=(work, *swap), matrices=(halo,)), replace(cluster, gloo=gloo), 1)
    found = {name: max(span.end_s for span in trace.spans if span.op == name) for name in ("work", "exchange")}
    return found["work"], found["exchange"]


@pytest.mark.parametrize(
    ("core_s_per_byte", "cores", "moved_s", "expected"),
    [
        (0.25e-9, 1, 1.0, 4.5),  # 2 GB/s take half a core for a second
        (0.25e-9, 2, 1.0, 4.25),  # half of it is the other rank's core
        (0.25e-9, 4, 1.0, 4.0),  # there is a core left for them
        (0.5e-9, 1, 1.0, 5.0),  # all of it: the kernel stands still for a second
        (1.0e-9, 1, 2.0, 6.0),  # the core moves no more than 1 GB/s
    ],
)
def test_moving_bytes_take_cores_from_kernels(
    core_s_per_byte: float, cores: int, moved_s: float, expected: float
) -> None:
    end, exchange = moving_beside(core_s_per_byte, cores)
    assert exchange == pytest.approx(moved_s, rel=1e-6)
    assert end == pytest.approx(expected, rel=1e-4)


def test_messages_and_steps_of_sums_take_the_cores_of_their_ranks() -> None:
    """Of four ranks on two cores everybody has three peers: six ends of messages each, and two such ranks on a core."""
    cluster = machine(2, 4)
    assert cluster.gloo is not None
    free = replace(cluster.gloo, latency_s=0.0, stream_bytes_per_s=1e15, host_bytes_per_s=1e15)
    gloo = replace(free, core_s_per_message=1.0, core_s_per_step=10.0)
    rows = Exchange(matrix="halo", row_bytes=1)
    swap = tuple(op("exchange", rank, Lane.HALO, work=rows) for rank in range(4))
    sums = tuple(
        op("allreduce", rank, Lane.REDUCE, work=AllReduce(num_bytes=4), after=(("exchange", 0),)) for rank in range(4)
    )
    schedule = Schedule(num_ranks=4, ops=(*swap, *sums), matrices=(Matrix("halo", 1 - np.eye(4, dtype=np.int64)),))
    trace = simulate(schedule, replace(cluster, gloo=gloo), 1)
    spans = {(span.rank, span.op): (span.start_s, span.end_s) for span in trace.spans}
    overhead_s = 2 * op_seconds(swap[0], CPU.device(0))
    assert spans[0, "exchange"] == pytest.approx((0.0, 6.0 + overhead_s), rel=1e-6)
    assert spans[0, "allreduce"] == pytest.approx((6.0, 6.0 + 2 * 6 * 10.0), rel=1e-4)


def test_all_hosts_of_a_machine_move_bytes_on_the_same_cores() -> None:
    """Two exchanges of two pairs of hosts take twice as long as one, where the machine is what limits them."""
    near = load_cluster("cpu-4x1-unlimited")
    assert near.gloo is not None
    gloo = replace(near.gloo, stream_bytes_per_s=STREAM, host_bytes_per_s=2 * STREAM, latency_s=0.0)
    rows = Exchange(matrix="halo", row_bytes=1)
    pairs = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]) * 10**9
    swap = tuple(op("exchange", rank, Lane.HALO, work=rows) for rank in range(4))
    trace = simulate(Schedule(num_ranks=4, ops=swap, matrices=(Matrix("halo", pairs),)), replace(near, gloo=gloo), 1)
    assert ends(trace) == pytest.approx([2.0] * 4, rel=1e-3)
