"""Compute and transfers slow each other down while they overlap, and only then."""

from dataclasses import replace

import numpy as np
import pytest
from schedules import op

from halocast.cluster.catalogue import Cluster, load_cluster
from halocast.schedule.ir import Compute, Exchange, Kernel, Lane, Matrix, Schedule
from halocast.schedule.trace import Trace
from halocast.sim.cost import op_seconds
from halocast.sim.engine import simulate

CPU = load_cluster("cpu-local", gpus=2)
STREAM = 1e9


def cluster(*, compute: float = 1.0, transfer: float = 1.0) -> Cluster:
    """Streams of 1 GB/s without latency; how much compute and transfers slow each other."""
    assert CPU.gloo is not None
    gloo = replace(
        CPU.gloo,
        stream_bytes_per_s=STREAM,
        host_bytes_per_s=8 * STREAM,
        latency_s=0.0,
        compute_slowdown=compute,
        transfer_slowdown=transfer,
    )
    return replace(CPU, gloo=gloo)


def overlapping(exchange_s: float, numel: int) -> Schedule:
    """Rank 0 and 1 exchange for so many seconds beside a kernel of rank 0 that waits for nothing."""
    rows = int(exchange_s * STREAM)
    swap = [op("exchange", rank, Lane.HALO, work=Exchange(matrix="halo", row_bytes=1)) for rank in (0, 1)]
    work = op("work", work=Compute(kernels=(Kernel("elementwise", (numel, 2)),)))
    return Schedule(num_ranks=2, ops=(work, *swap), matrices=(Matrix("halo", np.array([[0, rows], [rows, 0]])),))


def end_of(trace: Trace, name: str) -> float:
    return max(span.end_s for span in trace.spans if span.op == name)


def seconds(numel: int) -> float:
    return op_seconds(overlapping(1.0, numel).ops[0], CPU.device(0))


def test_a_kernel_is_slower_only_while_bytes_of_its_rank_move() -> None:
    numel = 10**9
    alone = seconds(numel)
    transfer_s = alone / 4
    trace = simulate(overlapping(transfer_s, numel), cluster(compute=1.5), 1)
    assert end_of(trace, "exchange") == pytest.approx(transfer_s, rel=1e-6)
    # in transfer_s it did transfer_s / 1.5 of its work
    assert end_of(trace, "work") == pytest.approx(transfer_s + alone - transfer_s / 1.5, rel=1e-6)


def test_a_kernel_that_ends_before_the_transfer_is_slower_throughout() -> None:
    alone = seconds(10**8)
    trace = simulate(overlapping(10 * alone, 10**8), cluster(compute=1.5), 1)
    assert end_of(trace, "work") == pytest.approx(1.5 * alone, rel=1e-9)


def test_without_a_measured_slowdown_they_do_not_feel_each_other() -> None:
    alone = seconds(10**8)
    trace = simulate(overlapping(10 * alone, 10**8), cluster(), 1)
    assert end_of(trace, "work") == alone


def test_a_transfer_is_slower_while_its_sender_computes() -> None:
    numel = 10**9
    alone = seconds(numel)
    trace = simulate(overlapping(alone, numel), cluster(transfer=2.0), 1)
    # rank 0 computes all the time its bytes need at half pace, half of them; rank 1 sends undisturbed
    ends = {span.rank: span.end_s for span in trace.spans if span.op == "exchange"}
    assert ends[0] == ends[1] == pytest.approx(alone + alone / 2, rel=1e-6)


def test_bytes_are_conserved_when_rates_change_on_the_way() -> None:
    trace = simulate(overlapping(seconds(10**9), 10**9), cluster(compute=1.3, transfer=1.7), 1, record=True)
    (host,) = [link for link in trace.links if link.name == "cpu of host 0"]
    times, rates = host.times_s, host.rates
    carried = sum(rate * (b - a) for rate, a, b in zip(rates, times, times[1:], strict=False))
    assert carried == pytest.approx(host.num_bytes, rel=1e-9)
