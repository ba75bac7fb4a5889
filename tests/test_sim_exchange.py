"""Exchanges over nccl: bytes move when both ends have come, to all peers at once or round by round."""

from dataclasses import replace

import numpy as np
import pytest
from schedules import op

from halocast.base.delays import Delay
from halocast.cluster.catalogue import Cluster, load_cluster
from halocast.codes.implementation import BARE, AllToAll, Implementation
from halocast.schedule.check import check
from halocast.schedule.ir import Exchange, Lane, Matrix, Schedule
from halocast.sim.engine import simulate
from halocast.sim.world import World

GPUS = load_cluster("a5000-2x4-pcie4-ib200", gpus=4)
ROW_BYTES = 10**6


def exchange(counts: list[list[int]]) -> Schedule:
    num = len(counts)
    work = Exchange(matrix="halo", row_bytes=ROW_BYTES)
    ops = tuple(
        one
        for rank in range(num)
        for one in (
            op("make", rank),
            op("swap", rank, lane=Lane.HALO, work=work, after=(("make", 0),)),
        )
    )
    return check(Schedule(num_ranks=num, ops=ops, matrices=(Matrix("halo", np.array(counts)),)))


IN_ROUNDS = replace(BARE, exchange=AllToAll.ROUNDS)


def ends(schedule: Schedule, cluster: Cluster, late: int | None = None, code: Implementation = BARE) -> list[float]:
    delays = () if late is None else (Delay(rank=late, low_s=1.0, high_s=1.0),)
    trace = simulate(schedule, cluster, 1, world=World(delays=delays), code=code)
    return [
        span.end_s
        for rank in range(schedule.num_ranks)
        for span in trace.spans
        if (span.rank, span.op) == (rank, "swap")
    ]


ONLY_FIRST_TO_LAST = [[0, 0, 10], [0, 0, 0], [0, 0, 0]]
EVEN = [[0, 10, 10, 10], [10, 0, 10, 10], [10, 10, 0, 10], [10, 10, 10, 0]]


def test_a_sender_over_nccl_waits_for_its_receiver_and_over_gloo_does_not() -> None:
    schedule = exchange(ONLY_FIRST_TO_LAST)
    nccl = ends(schedule, load_cluster("a5000-2x4-pcie4-ib200", gpus=3), late=2)
    gloo = ends(schedule, load_cluster("a5000-2x4-pcie4-ib200", gpus=3, transport="gloo"), late=2)
    assert nccl[0] > 1.0
    assert gloo[0] < 0.1
    assert nccl[1] == gloo[1] == 0.0


def test_ranks_that_have_come_exchange_while_another_is_late() -> None:
    """0 and 1 send to each other only; 2, which nobody needs, is late."""
    found = ends(exchange([[0, 10, 0], [10, 0, 0], [0, 0, 0]]), load_cluster("a5000-2x4-pcie4-ib200", gpus=3), late=2)
    assert max(found[:2]) < 0.1


def test_rounds_pay_each_peer_after_the_other() -> None:
    """Three rounds of 10 MB: as long as three exchanges of one peer each."""
    pairs = [ends(exchange([[10 * (j == (i + k) % 4) for j in range(4)] for i in range(4)]), GPUS) for k in (1, 2, 3)]
    rounds = ends(exchange(EVEN), GPUS, code=IN_ROUNDS)
    assert rounds == pytest.approx([sum(max(pair) for pair in pairs)] * 4, rel=1e-9)


def test_in_rounds_a_late_rank_delays_those_whose_turn_with_it_comes_first() -> None:
    """3 sends to 0 alone, in round 1 of both; its lateness holds up everything that 0 does in later rounds."""
    needs = [[0, 0, 10, 0], [0, 0, 0, 0], [0, 0, 0, 0], [10, 0, 0, 0]]
    together, rounds = ends(exchange(needs), GPUS, late=3), ends(exchange(needs), GPUS, late=3, code=IN_ROUNDS)
    assert together[2] < 0.1
    assert rounds[2] > 1.0
