"""SAR, the second worked example: exact, with vanilla's bytes, and with the halo rows of a peer or two at a time."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training import metis_parts, small_graph, spec_for, train

from halocast.base.errors import InputError
from halocast.cluster.catalogue import load_cluster
from halocast.graph import build_parts, from_parts
from halocast.graph.halo import Halo
from halocast.methods.vanilla import Options as Nothing
from halocast.methods.vanilla import vanilla
from halocast.models.spec import ModelKind, ModelSpec
from halocast.schedule.check import check, staleness
from halocast.schedule.ir import Kind, Numbers, Schedule
from halocast.schedule.passes import live, memory
from halocast.schedule.text import format_schedule, parse_schedule
from halocast.sim.engine import simulate

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from sar import Options, sar  # type: ignore[import-not-found]  # it is no part of the package

GRAPH = small_graph()
KINDS = [ModelKind.SAGE, ModelKind.GCN, ModelKind.RESGCN, ModelKind.GCNII]


def halo_of(num_parts: int) -> Halo:
    return from_parts(build_parts(GRAPH, metis_parts(GRAPH, num_parts)))


def both(num_parts: int, spec: ModelSpec, **options: Any) -> tuple[Schedule, Schedule]:
    halo = halo_of(num_parts)
    return check(vanilla(halo, spec, Nothing())), check(sar(halo, spec, Options(**options)))


def sent(schedule: Schedule, rank: int, verb: str) -> int:
    return sum(schedule.num_bytes(op) for op in schedule.by_rank[rank] if op.verb == verb)


def num_bytes(schedule: Schedule, rank: int, name: str) -> int:
    buffer = schedule.buffer(rank, name)
    assert buffer is not None
    return buffer.num_bytes


def most_in_use(schedule: Schedule, rank: int, prefix: str) -> int:
    """The most buffers of such a name that are written, but not yet read for the last time, in the order of the ops."""
    ops, uses = schedule.by_rank[rank], dict[str, list[int]]()
    for place, op in enumerate(ops):
        for name in (*op.reads, *op.writes):
            uses.setdefault(name, []).append(place)
    spans = [(places[0], places[-1]) for name, places in uses.items() if name.startswith(prefix)]
    return max(sum(first <= place <= last for first, last in spans) for place in range(len(ops)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_parts", [1, 2, 4])
@pytest.mark.parametrize("ahead", [0, 1, 9])
def test_it_is_legal_and_sends_what_vanilla_sends(kind: ModelKind, num_parts: int, ahead: int) -> None:
    exact, rounds = both(num_parts, spec_for(GRAPH, kind=kind, layers=4), ahead=ahead)
    assert parse_schedule(format_schedule(rounds)) == rounds
    assert {lag for read in staleness(rounds) for lag in read.ages} == {0}
    for rank in range(num_parts):
        for verb in ("exchange", "exchange_grad", "allreduce"):
            assert sent(rounds, rank, verb) == sent(exact, rank, verb)


def test_a_layer_of_four_ranks_op_by_op() -> None:
    _, rounds = both(4, spec_for(GRAPH, layers=2))
    names = [op.name for op in rounds.by_rank[0]]
    assert names[7:11] == ["exchange.1.1", "forward.1.0", "exchange.1.2", "forward.1.1"]
    assert names[11:14] == ["exchange.1.3", "forward.1.2", "forward.1.3"]
    assert names[14:18] == ["loss", "backward.1.0", "backward.1.1", "backward.1.2"]
    waits = {op.name: op.after for op in rounds.by_rank[0]}
    assert waits["exchange.1.3"] == (("forward.0.3", 0), ("forward.1.1", 0))
    assert waits["backward.0"] == tuple((f"exchange_grad.1.{k}", 0) for k in (1, 2, 3))
    matrix = rounds.matrix("round.3")
    assert matrix is not None
    assert np.flatnonzero(matrix.counts[:, 0]).tolist() == [3]


@pytest.mark.parametrize("ahead", [0, 1])
def test_halo_rows_of_few_peers_are_held_at_once(ahead: int) -> None:
    exact, rounds = both(4, spec_for(GRAPH, layers=3), ahead=ahead)
    for rank in range(4):
        for layer, row_bytes in enumerate((12 * 4, 16 * 4, 16 * 4)):
            pieces = [num_bytes(rounds, rank, f"halo.{layer}.{k}") for k in (1, 2, 3)]
            needed = [int(halo_of(4).matrix[(rank + k) % 4, rank]) * row_bytes for k in (1, 2, 3)]
            assert pieces == needed
            assert sum(pieces) == num_bytes(exact, rank, f"halo.{layer}")
        assert most_in_use(rounds, rank, "halo.") == most_in_use(rounds, rank, "ghalo.") == 1 + ahead
        given = [sum(name.startswith("ghalo.") for name in alive) for alive in live(rounds, rank)]
        assert max(given) == 1 + ahead  # of received rows, a channel keeps its buffers: those are always alive
        assert memory(rounds, rank).peak_bytes < memory(exact, rank).peak_bytes
    row = 16 * 4 * int(halo_of(4).num_inner[0])
    assert num_bytes(rounds, 0, "sum.1") == num_bytes(rounds, 0, "gsum.1") == row
    joined = num_bytes(exact, 0, "keep.1") - num_bytes(rounds, 0, "keep.1")
    assert joined == row + num_bytes(exact, 0, "halo.1")  # inner and halo rows in one tensor, which nobody makes here


def test_it_is_simulated_and_overlaps_only_if_rounds_run_ahead() -> None:
    cluster = load_cluster("rtx2080ti-x10-pcie3", gpus=4)
    spec = spec_for(GRAPH, hidden=64)
    ends = [max(s.end_s for s in simulate(both(4, spec, ahead=ahead)[1], cluster, 3).spans) for ahead in (0, 1)]
    assert ends[1] < ends[0]


@pytest.mark.parametrize(
    ("kind", "num_parts"), [(ModelKind.SAGE, 2), (ModelKind.SAGE, 4), (ModelKind.GCN, 2), (ModelKind.GCN, 4)]
)
def test_on_real_processes_it_trains_as_vanilla_does(kind: ModelKind, num_parts: int, tmp_path: Path) -> None:
    spec, parts = spec_for(GRAPH, kind=kind), metis_parts(GRAPH, num_parts)
    halo = from_parts(build_parts(GRAPH, parts))
    exact = train(GRAPH, parts, spec, tmp_path / "exact")
    rounds = train(
        GRAPH, parts, spec, tmp_path / "rounds", change=lambda _: sar(halo, spec, Options(), Numbers.FLOAT64)
    )
    assert sum(op.kind is Kind.EXCHANGE for op in rounds.schedule.by_rank[0]) == 5 * (num_parts - 1)
    for a, b in zip(exact.weights, rounds.weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    torch.testing.assert_close(exact.logits, rounds.logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("changes", "ahead", "message"),
    [
        ({"kind": ModelKind.GAT}, 1, "model.kind = gat: a softmax needs all neighbours at once"),
        ({"recompute": True}, 1, "rows that were freed would have to be fetched again"),
        ({}, -1, "ahead = -1: needs to be at least 0"),
    ],
)
def test_what_it_cannot_do_is_refused(changes: dict[str, Any], ahead: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sar(halo_of(2), replace(spec_for(GRAPH), **changes), Options(ahead=ahead))
