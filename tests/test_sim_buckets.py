"""Links behind token buckets: a burst passes at once after a pause, then the rate holds."""

from dataclasses import replace

import numpy as np
import pytest
from schedules import op

from halocast.cluster.catalogue import Cluster, load_cluster
from halocast.cluster.topology import build_topology, burst_links
from halocast.schedule.ir import Exchange, Lane, Matrix, Schedule
from halocast.schedule.trace import Trace
from halocast.sim.engine import simulate

RATE = 25e6 * 0.9927  # payload of 200 Mbit/s
BURST = 1e-3 * RATE
Sizes = list[list[float]]


def cluster(burst_s: float = 1e-3) -> Cluster:
    """Nothing costs anything but the NICs' rate."""
    found = load_cluster("cpu-4x1-200mbit", gpus=3)
    assert found.gloo is not None
    assert found.nic is not None
    free = replace(found.gloo, latency_s=0.0, stream_bytes_per_s=1e15, host_bytes_per_s=1e15)
    return replace(found, gloo=free, nic=replace(found.nic, burst_s=burst_s, latency_s=0.0))


def exchanged(sizes: Sizes, cluster: Cluster, pause_s: float = 0.0, epochs: int = 1) -> Trace:
    """Rank i sends sizes[i][j] bytes to rank j, again after a pause of the same length on all ranks."""
    rows = Exchange(matrix="halo", row_bytes=1)
    ops = []
    for rank in range(3):
        ops.append(op("work", rank, after=(("exchange", 1),)))
        ops.append(op("exchange", rank, Lane.HALO, work=rows, after=(("work", 0),)))
    schedule = Schedule(num_ranks=3, ops=tuple(ops), matrices=(Matrix("halo", np.array(sizes).astype(np.int64)),))
    paused = {(rank, "work"): pause_s for rank in range(3)}
    return simulate(schedule, cluster, epochs, measured_s=paused)


def moved_s(trace: Trace, rank: int, epoch: int = 0) -> float:
    (span,) = [s for s in trace.of_rank(rank) if s.op == "exchange" and s.epoch == epoch]
    return float(span.end_s - span.start_s)


def test_of_a_message_only_what_exceeds_the_burst_takes_time() -> None:
    one: Sizes = [[0, 3 * BURST, 0], [0, 0, 0], [0, 0, 0]]
    assert moved_s(exchanged(one, cluster()), 0) == pytest.approx(2e-3, rel=1e-4)
    assert moved_s(exchanged(one, cluster(burst_s=0.0)), 0) == pytest.approx(3e-3, rel=1e-4)


def test_a_message_within_the_burst_takes_none() -> None:
    assert moved_s(exchanged([[0, BURST / 2, 0], [0, 0, 0], [0, 0, 0]], cluster()), 0) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("pause_s", "expected"), [(0.0, 3e-3), (0.4e-3, 2.6e-3), (1e-3, 2e-3), (5e-3, 2e-3)])
def test_tokens_come_back_at_the_links_rate_up_to_one_burst(pause_s: float, expected: float) -> None:
    one: Sizes = [[0, 3 * BURST, 0], [0, 0, 0], [0, 0, 0]]
    again = exchanged(one, cluster(), pause_s=pause_s, epochs=2)
    assert moved_s(again, 0, epoch=1) == pytest.approx(expected, rel=1e-3)


def test_two_senders_to_one_host_share_the_burst_of_its_link() -> None:
    """4 bursts arrive through one link that has tokens for one."""
    two: Sizes = [[0, 0, 2 * BURST], [0, 0, 2 * BURST], [0, 0, 0]]
    assert moved_s(exchanged(two, cluster()), 2) == pytest.approx(3e-3, rel=1e-3)


def test_ports_of_devices_have_one_limiter_and_a_way_of_nothing_else_is_legal() -> None:
    found = load_cluster("h100-4x8-nvlink-ib400", gpus=16)
    assert found.nic is not None
    limited = replace(found, nic=replace(found.nic, burst_s=1e-3))
    topology = build_topology(limited)
    ends = {topology.names[link] for link in burst_links(topology, limited)}
    assert all(name.startswith(("nics", "host", "network", "leaf")) for name in ends)
    rows = Exchange(matrix="halo", row_bytes=1)
    ops = tuple(op("exchange", rank, Lane.HALO, work=rows) for rank in range(16))
    sizes = np.zeros((16, 16), dtype=np.int64)
    sizes[0, 8] = 1000  # to another host, within the burst
    trace = simulate(Schedule(num_ranks=16, ops=ops, matrices=(Matrix("halo", sizes),)), limited, 1)
    assert len(trace.spans) == 16


def test_links_still_count_every_byte() -> None:
    one: Sizes = [[0, 3 * BURST, 0], [0, 0, 0], [0, 0, 0]]
    carried = {link.name: link.num_bytes for link in exchanged(one, cluster()).links}
    assert carried["host 0 > network"] == pytest.approx(int(3 * BURST))
    assert carried["network > host 1"] == pytest.approx(int(3 * BURST))
