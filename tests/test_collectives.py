"""Collectives among some ranks: legal or refused, their bytes, how long they take, and real runs that use them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from groups import from_rank_two, in_shards, in_two_levels
from schedules import op
from training import metis_parts, small_graph, spec_for, train

from halocast.cluster.catalogue import load_cluster
from halocast.schedule.check import check, problems
from halocast.schedule.ir import (
    AllGather,
    AllReduce,
    Barrier,
    Broadcast,
    Buffer,
    Lane,
    Payload,
    ReduceScatter,
    Schedule,
    Work,
)
from halocast.schedule.text import format_schedule, parse_schedule
from halocast.sim.engine import simulate

GRAPH = small_graph()
RING = Lane("ring", 1)


def among(*ranks: int, work: Work, num_ranks: int = 4) -> Schedule:
    ops = tuple(op("meet", rank, RING, work=work) for rank in ranks)
    return check(Schedule(num_ranks=num_ranks, ops=ops))


@pytest.mark.parametrize(
    ("work", "sent", "received"),
    [
        (AllReduce(num_bytes=300), [(1, 2, 400), (2, 3, 400), (3, 1, 400)], 400),
        (AllGather(num_bytes=300), [(1, 2, 200), (2, 3, 200), (3, 1, 200)], 200),
        (ReduceScatter(num_bytes=300), [(1, 2, 200), (2, 3, 200), (3, 1, 200)], 200),
        (Broadcast(num_bytes=300, root=2), [(2, 3, 300), (3, 1, 300)], 300),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Work) else "",
)
def test_bytes_of_a_group_are_those_of_its_formula(
    work: Payload, sent: list[tuple[int, int, int]], received: int
) -> None:
    schedule = among(1, 2, 3, work=work)
    found = [(o.rank, to, int(n)) for o in schedule.ops for to, n in enumerate(schedule.sent(o)) if n]
    assert found == sorted(sent)
    for source, target, num_bytes in sent:
        there = schedule.find(target, "meet")
        assert there is not None
        assert schedule.received(there)[source] == num_bytes == received
    assert parse_schedule(format_schedule(schedule)) == schedule


def test_ranks_outside_a_group_neither_wait_nor_send() -> None:
    ops = (*among(1, 3, work=AllReduce(num_bytes=10**6)).ops, op("alone", 0), op("alone", 2))
    schedule = Schedule(num_ranks=4, ops=ops)
    trace = simulate(schedule, load_cluster("h100-4x8-nvlink-ib400", gpus=4), 2)
    ends = {(span.rank, span.op): span.end_s for span in trace.spans if span.epoch == 0}
    assert ends[0, "alone"] == ends[2, "alone"] == 0.0
    assert ends[1, "meet"] == ends[3, "meet"] > 0.0


def seconds(work: Work, gpus: int, cluster: str = "rtx2080ti-x10-pcie3") -> float:
    schedule = among(*range(gpus), work=work, num_ranks=gpus)
    return max(span.end_s for span in simulate(schedule, load_cluster(cluster, gpus=gpus), 1).spans)


def test_an_all_reduce_takes_as_long_as_a_reduce_scatter_and_an_all_gather() -> None:
    """Over nccl, where nothing is staged and long messages hide the latencies."""
    size, cluster = 4 * 10**8, "a100-ib100"
    parts = [seconds(work(num_bytes=size), 4, cluster) for work in (ReduceScatter, AllGather)]
    assert parts[0] == pytest.approx(parts[1])
    assert seconds(AllReduce(num_bytes=size), 4, cluster) == pytest.approx(sum(parts), rel=0.01)


def test_a_broadcast_in_a_chain_takes_as_long_as_one_message_however_many_there_are() -> None:
    """Pieces follow each other down the chain; only latencies add up."""
    size, cluster = 4 * 10**8, "a100-ib100"
    two, four = (seconds(Broadcast(num_bytes=size, root=0), gpus, cluster) for gpus in (2, 4))
    assert two <= four < 1.05 * two


def test_over_gloo_only_the_root_copies_down_and_only_the_others_copy_up() -> None:
    """Twice the ranks do not copy twice as long: each has its own way to the host."""
    pair = seconds(Broadcast(num_bytes=10**8, root=1), 2)
    gathered = seconds(AllGather(num_bytes=10**8), 2)
    summed = seconds(AllReduce(num_bytes=10**8), 2)
    assert gathered < pair < summed


def test_pieces_that_do_not_fit_their_buffers_are_refused() -> None:
    buffers = tuple(Buffer(name=n, rank=0, num_bytes=b, persistent=True) for n, b in (("piece", 8), ("whole", 16)))
    ops = (op("meet", 0, RING, work=AllGather(num_bytes=16), reads=("piece",), writes=("whole",)),)
    (problem,) = problems(Schedule(num_ranks=1, ops=ops, buffers=buffers))
    assert problem == "op 0/meet: gives 16 bytes of 'piece', which has 8"
    three = [op("meet", rank, RING, work=ReduceScatter(num_bytes=16), reads=("whole",)) for rank in range(3)]
    wholes = tuple(Buffer(name="whole", rank=rank, num_bytes=16, persistent=True) for rank in range(3))
    found = problems(Schedule(num_ranks=3, ops=tuple(three), buffers=wholes))
    assert found[0] == "op 0/meet: 16 bytes cannot be divided among 3 ranks"


def test_sums_in_two_levels_of_groups_are_the_sums_of_all(tmp_path: Path) -> None:
    spec, parts = spec_for(GRAPH), metis_parts(GRAPH, 4)
    plain = train(GRAPH, parts, spec, tmp_path / "plain")
    levels = train(GRAPH, parts, spec, tmp_path / "levels", change=in_two_levels)
    assert {levels.schedule.group(o) for o in levels.schedule.ops if o.verb.startswith("sum")} == {
        *((0, 1), (2, 3), (0, 2), (1, 3))
    }
    for a, b in zip(plain.weights, levels.weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    sums = [span for span in levels.run.trace.spans if span.op.startswith("sum")]
    assert {span.num_bytes for span in sums} == {spec.num_weights * 8}  # 2 (P-1)/P of 8 bytes a number, P = 2


def test_sums_in_shards_are_the_sums_of_all(tmp_path: Path) -> None:
    spec, parts = spec_for(GRAPH), metis_parts(GRAPH, 4)
    assert spec.num_weights % 4 == 0
    plain = train(GRAPH, parts, spec, tmp_path / "plain")
    shards = train(GRAPH, parts, spec, tmp_path / "shards", change=in_shards)
    for a, b in zip(plain.weights, shards.weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    moved = {span.op: span.num_bytes for span in shards.run.trace.spans if span.op in ("scatter", "gather")}
    assert moved == {"scatter": spec.num_weights * 8 * 3 // 4, "gather": spec.num_weights * 8 * 3 // 4}


def test_a_broadcast_gives_its_group_the_roots_weights_and_nobody_else(tmp_path: Path) -> None:
    trained = train(GRAPH, metis_parts(GRAPH, 4), spec_for(GRAPH), tmp_path, change=from_rank_two, epochs=1)
    outside, one, two, three = trained.weights
    assert torch.equal(one, two)
    assert torch.equal(two, three)
    assert not torch.equal(outside, two)
    sent = {span.rank: span.num_bytes for span in trained.run.trace.spans if span.op == "copy"}
    size = spec_for(GRAPH).num_weights * 8
    assert sent == {2: size, 3: size, 1: 0}


def test_a_barrier_of_some_ranks_ends_in_a_real_run(tmp_path: Path) -> None:
    def meeting(schedule: Schedule) -> Schedule:
        met = tuple(op("meet", rank, RING, work=Barrier(), after=(("forward.0", 0),)) for rank in (0, 2))
        return replace(schedule, ops=(*schedule.ops, *met))

    trained = train(GRAPH, metis_parts(GRAPH, 3), spec_for(GRAPH), tmp_path, change=meeting, epochs=2)
    ends = [span for span in trained.run.trace.spans if span.op == "meet" and span.epoch == 1]
    assert {(span.rank, str(span.lane)) for span in ends} == {(0, "ring.1"), (2, "ring.1")}
