"""Which cores ranks keep to, and the policy of their threads."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from halocast.base.cores import part_of
from halocast.exec.launch.affinity import HAS_CALLS, go_first, keep_to_cores


def test_ranks_get_equal_parts_of_the_cores_in_order() -> None:
    assert [part_of([0, 1, 2, 3], rank, 2) for rank in range(2)] == [[0, 1], [2, 3]]
    assert [part_of([3, 5, 7], rank, 2) for rank in range(2)] == [[3], [5, 7]]


def test_more_ranks_than_cores_take_them_in_turn() -> None:
    assert [part_of([4, 6], rank, 4) for rank in range(4)] == [[4], [6], [4], [6]]


def test_ranks_that_cannot_have_equal_parts_share_all_cores() -> None:
    assert [part_of([4, 6], rank, 3) for rank in range(3)] == [[4, 6]] * 3


def test_a_rank_alone_has_all_cores() -> None:
    assert part_of([0, 1, 2], 0, 1) == [0, 1, 2]


@pytest.mark.skipif(not HAS_CALLS, reason="the system has no calls for cores and policies")
def test_a_rank_keeps_to_its_core_as_batch_and_its_lanes_go_first() -> None:
    before = os.sched_getaffinity(0)
    with ThreadPoolExecutor(1) as thread:  # the calls are about the calling thread
        num, cores, batch, lane = thread.submit(_settle).result()
    assert (num, cores) == (1, {max(before)})
    assert (batch, lane) == (os.SCHED_BATCH, os.SCHED_OTHER)
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not HAS_CALLS, reason="the system has no calls for cores and policies")
def test_a_sandbox_that_forbids_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    assert keep_to_cores(0, 1) >= 1
    go_first()


def _settle() -> tuple[int, set[int], int, int]:
    ranks = len(os.sched_getaffinity(0))
    num = keep_to_cores(ranks - 1, ranks)
    batch = os.sched_getscheduler(0)
    go_first()
    return num, os.sched_getaffinity(0), batch, os.sched_getscheduler(0)
