"""Five ranks over gloo, four peers each: messages move while lanes compute, and staged ones arrive whole.

One start of the ranks runs every program below; the tests look at what they left behind.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from training import metis_parts, schedule_for, small_graph, spec_for

from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import free_port
from halocast.exec.run.handlers import handle
from halocast.exec.run.interpret import Interpreter
from halocast.exec.run.state import RankState
from halocast.exec.transport.channels import make_channels
from halocast.exec.transport.comm import Endpoint, smallest
from halocast.exec.transport.device import Cpu, Event, Past, Seam, Twin, ending, open_device
from halocast.exec.transport.dist_channel import DistChannel
from halocast.exec.transport.link import Call, drain
from halocast.graph import build_parts
from halocast.schedule.ir import Exchange, Kind, Lane, Matrix, Op, Schedule
from halocast.schedule.trace import Span

RANKS, EPOCHS, LIMIT_S = 5, 6, 60.0
MESSAGES, FLOATS = 50, 8192  # per peer; 32 KB each
WIDTH = 16
Left = list[dict[str, Any]]  # by rank
GPU = torch.cuda.is_available()
CUDA = pytest.param("cuda", marks=[pytest.mark.skipif(not GPU, reason="torch sees no CUDA device here")])


class Forgetful(Twin):
    """Its copies are never waited for."""

    def record(self) -> Event:  # type: ignore[override]
        return Past()


def link_for(rank: int, seam: Seam, lanes: dict[Lane, Any]) -> Endpoint:
    groups: dict[tuple[Lane, tuple[int, ...]], Any] = {(lane, ()): group for lane, group in lanes.items()}
    return Endpoint(rank=rank, timeout_s=LIMIT_S, backend="gloo", device=seam.where, seam=seam, groups=groups)


def computes_until(done: Callable[[], bool]) -> int:
    """Multiply matrices, never waiting for anything, until it is done; returns how often, 0 if it never was."""
    rows, end, steps = torch.ones(64, 64), time.monotonic() + LIMIT_S, 0
    while time.monotonic() < end:
        torch.mm(rows, rows)
        steps += 1
        if done():
            return steps
    return 0


def raw_progress(rank: int) -> dict[str, Any]:
    """Many messages with every peer, of which nobody waits for any before all have arrived."""
    peers = [peer for peer in range(RANKS) if peer != rank]
    sent = torch.arange(MESSAGES).repeat_interleave(FLOATS).reshape(MESSAGES, FLOATS) + 1000.0 * rank
    received = torch.full((RANKS, MESSAGES, FLOATS), float("nan"))
    received[rank] = sent
    works = [dist.irecv(received[peer, k], peer, tag=k) for peer in peers for k in range(MESSAGES)]
    works += [dist.isend(sent[k], peer, tag=k) for k in range(MESSAGES) for peer in peers]
    steps = computes_until(lambda: not bool(received[..., -1].isnan().any()))
    for work in works:
        assert work is not None
        work.wait(timedelta(seconds=LIMIT_S))
    return {"steps": steps, "received": received[:, :, 0]}


def beside() -> Schedule:
    """An exchange of every pair beside a computation that uses what came an epoch before."""
    counts = 7 * (np.ones((RANKS, RANKS), dtype=np.int64) - np.eye(RANKS, dtype=np.int64))
    moved = Exchange(matrix="halo", row_bytes=4 * WIDTH)
    ops = []
    for r in range(RANKS):
        after = (("work.0", 1),), (("exchange.0", 1),)
        ops.append(Op(name="exchange.0", rank=r, lane=Lane.HALO, work=moved, after=after[0]))
        ops.append(Op(name="work.0", rank=r, lane=Lane.COMPUTE, after=after[1]))
    return Schedule(num_ranks=RANKS, ops=tuple(ops), matrices=(Matrix("halo", counts),))


def channel_for(link: Endpoint, op: Op, number: int) -> DistChannel:
    """Seven rows with every peer, in a ring of two."""
    rows = [0 if peer == link.rank else 7 for peer in range(RANKS)]
    return DistChannel(
        op=op,
        tag=number,
        num_tags=2,
        link=link,
        send_rows=rows,
        recv_rows=rows,
        packed=torch.empty(0, WIDTH, device=link.device),
        ring=[torch.zeros(sum(rows), WIDTH, device=link.device) for _ in range(2)],
        last_epoch=EPOCHS - 1,
        is_free=lambda epoch, wait: True,
    )


def packed_rows(link: Endpoint, epoch: int, number: int) -> Tensor:
    """Rows for every peer that say who sent them, to whom, when, and in which exchange."""
    peers = torch.tensor([peer for peer in range(RANKS) if peer != link.rank]).repeat_interleave(7)
    values = 1000.0 * link.rank + 100.0 * peers + 10.0 * epoch + number
    return values[:, None].expand(-1, WIDTH).contiguous().to(link.device)


def expected_rows(rank: int, epoch: int, number: int) -> list[float]:
    peers = [peer for peer in range(RANKS) if peer != rank for _ in range(7)]
    return [1000.0 * peer + 100.0 * rank + 10.0 * epoch + number for peer in peers]


def lane_progress(rank: int, groups: dict[Lane, Any]) -> dict[str, Any]:
    """The computation of an epoch ends only when the exchange beside it has, whose bytes move only after it began."""
    schedule, link = beside(), link_for(rank, Cpu(), groups)
    channel = channel_for(link, schedule.by_rank[rank][0], 0)
    begun = [threading.Event() for _ in range(EPOCHS)]
    steps, received = [], []

    def run(op: Op, epoch: int) -> int:
        if op.kind is Kind.COMPUTE:
            begun[epoch].set()
            steps.append(computes_until(lambda: interpreter.progress.is_done("exchange.0", epoch)))
            return 0
        assert begun[epoch].wait(LIMIT_S)
        channel.give(epoch, packed_rows(link, epoch, 0))
        sent = channel.take(epoch)
        received.append(channel.read(epoch)[:, 0].tolist())
        return sent

    interpreter = Interpreter(schedule=schedule, rank=rank, handle=run, timeout_s=LIMIT_S)
    interpreter.run(interpreter.ending(EPOCHS))
    return {"steps": steps, "received": received, "spans": interpreter.spans}


def exchanges(rank: int, seam: Seam, groups: dict[Lane, Any]) -> dict[str, Any]:
    """Two exchanges in turn for some epochs, then the collectives; what came, and what gloo was given."""
    link = link_for(rank, seam, groups)
    ops = [replace(beside().by_rank[rank][0], name=name) for name in ("exchange.0", "exchange_grad.0")]
    channels = [channel_for(link, op, k) for k, op in enumerate(ops)]
    packed = {(e, k): packed_rows(link, e, k) for e in range(EPOCHS) for k in range(2)}
    given: list[tuple[str, Tensor, int]] = []
    received = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("isend", "irecv"):
            patch.setattr(dist, name, noting(given, name))
        for (epoch, k), rows in packed.items():
            channels[k].give(epoch, rows)
            channels[k].take(epoch)
            received[epoch, k] = channels[k].read(epoch)[:, 0].tolist()
    counts = channels[0].send_rows
    once = drain(link.trade(packed_rows(link, 7, 7), counts, counts, "once"))
    total = torch.full((5,), rank + 1.0, device=link.device)
    drain(link.sum(total, Call("sum")))
    drain(link.meet(Call("a barrier")))
    of_device = {memory(rows) for rows in (*packed.values(), *channels[0].ring, *channels[1].ring)}
    return {
        "received": received,
        "tags": [tag for _, _, tag in given],
        "rooms": {tag: memory(rows) for name, rows, tag in given if name == "irecv"},
        "num_of_device": sum(memory(rows) in of_device for _, rows, _ in given),
        "once": once[:, 0].tolist(),
        "total": (total.tolist(), smallest(link, rank + 3.0, "least")),
    }


def memory(rows: Tensor) -> int:
    return rows.untyped_storage().data_ptr()


def noting(given: list[tuple[str, Tensor, int]], name: str) -> Callable[..., Any]:
    """isend or irecv, remembering its tensor and tag."""
    real = getattr(dist, name)

    def note(rows: Tensor, peer: int, *, group: Any, tag: int) -> Any:
        given.append((name, rows, tag))
        return real(rows, peer, group=group, tag=tag)

    return note


def training(rank: int, seam: Seam, groups: dict[Lane, Any]) -> dict[str, Any]:
    """PipeGCN: layers use what the exchanges brought an epoch before."""
    graph = small_graph(nodes=1500)
    parts, spec = build_parts(graph, metis_parts(graph, RANKS)), spec_for(graph, hidden=64)
    schedule = schedule_for(parts, spec, "float32", "pipegcn")
    job = Job(schedule=schedule, spec=spec, settings=Settings(epochs=EPOCHS, timeout_s=LIMIT_S))
    state = RankState(job, parts[rank], link_for(rank, seam, groups))
    state.channels = make_channels(state)
    run = ending(seam, partial(handle, state))
    interpreter = Interpreter(schedule=schedule, rank=rank, handle=run, timeout_s=LIMIT_S, enter_lane=seam.enter)
    state.progress = interpreter.progress
    interpreter.run(interpreter.ending(EPOCHS))
    return {"weights": state.weights.detach().cpu(), "logits": drain(state.logits()).cpu(), "spans": interpreter.spans}


def run_rank(rank: int, port: int, directory: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS, timeout=limit)
    groups = {lane: dist.new_group(timeout=limit) for lane in (Lane.HALO, Lane.GRAD, Lane.REDUCE)}
    seams: dict[str, Seam] = {"cpu": Cpu(), "twin": Twin()}
    seams |= {"cuda": open_device("cuda", "gloo", rank)} if GPU else {}
    left: dict[str, Any] = {"raw": raw_progress(rank), "lanes": lane_progress(rank, groups)}
    left["exchanges"] = {name: exchanges(rank, seam, groups) for name, seam in seams.items()}
    left["forgetful"] = exchanges(rank, Forgetful(), groups)
    left["training"] = {name: training(rank, seam, groups) for name, seam in seams.items()}
    torch.save(left, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What every rank left; each runs this very file, in a process forked from the server that imported torch."""
    directory, port = tmp_path_factory.mktemp("ranks"), free_port(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["halocast.exec.launch.preload"])
    arguments = [{"ARGUMENTS": (rank, port, directory)} for rank in range(RANKS)]
    ranks = [context.Process(target=run_path, args=(__file__, given, "rank"), daemon=True) for given in arguments]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(2 * LIMIT_S)
    for process in ranks:
        process.kill()
    assert [process.exitcode for process in ranks] == [0] * RANKS
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def overlap(one: Span, other: Span) -> bool:
    return one.start_s < other.end_s and other.start_s < one.end_s


def test_gloo_moves_many_messages_with_four_peers_while_nobody_waits(left: Left) -> None:
    expected = [[1000.0 * peer + k for k in range(MESSAGES)] for peer in range(RANKS)]
    for rank in left:
        assert rank["raw"]["steps"] > 0, "not all arrived while the rank computed"
        assert rank["raw"]["received"].tolist() == expected


def test_an_exchange_begins_and_ends_while_the_compute_lane_computes(left: Left) -> None:
    for number, rank in enumerate(left):
        spans = {(span.op, span.epoch): span for span in rank["lanes"]["spans"]}
        assert all(steps > 0 for steps in rank["lanes"]["steps"])
        assert rank["lanes"]["received"] == [expected_rows(number, epoch, 0) for epoch in range(EPOCHS)]
        for epoch in range(EPOCHS):
            moved, computed = spans["exchange.0", epoch], spans["work.0", epoch]
            assert computed.start_s < moved.end_s <= computed.end_s
            assert overlap(moved, computed)


def test_exchanges_of_a_pipelined_model_overlap_its_computation_on_every_rank(left: Left) -> None:
    for rank in left:
        spans = rank["training"]["cpu"]["spans"]
        computed = [span for span in spans if span.lane == Lane.COMPUTE]
        for lane in (Lane.HALO, Lane.GRAD):
            assert any(overlap(span, other) for span in spans if span.lane == lane for other in computed)


@pytest.mark.parametrize("device", ["cpu", "twin", CUDA])
def test_every_row_arrives_at_its_peer_in_its_epoch_and_exchange(left: Left, device: str) -> None:
    for number, rank in enumerate(left):
        found = rank["exchanges"][device]["received"]
        assert found == {(e, k): expected_rows(number, e, k) for e in range(EPOCHS) for k in range(2)}
        assert rank["exchanges"][device]["once"] == expected_rows(number, 7, 7)
        assert rank["exchanges"][device]["total"] == ([15.0] * 5, 3.0)


@pytest.mark.parametrize(("device", "share"), [("cpu", 1), ("twin", 0), pytest.param("cuda", 0, marks=CUDA.marks)])
def test_gloo_is_given_host_memory_and_on_the_cpu_the_rows_themselves(left: Left, device: str, share: int) -> None:
    for rank in left:
        found = rank["exchanges"][device]
        assert found["num_of_device"] == share * len(found["tags"])


@pytest.mark.parametrize("device", ["cpu", "twin", CUDA])
def test_an_instance_is_received_beside_the_one_before(left: Left, device: str) -> None:
    """Tags of one exchange are two apart."""
    for rank in left:
        rooms = rank["exchanges"][device]["rooms"]
        assert all(rooms[tag] != rooms[tag + 2] for tag in range(1, 2 * EPOCHS - 1))


def test_a_tag_is_that_of_one_exchange_in_one_epoch(left: Left) -> None:
    """Every instance has four sends and four receives."""
    for rank in left:
        tags = rank["exchanges"]["cpu"]["tags"]
        assert sorted(tags) == sorted(1 + k for k in range(2 * EPOCHS) for _ in range(8))


def test_a_forgotten_wait_is_seen(left: Left) -> None:
    for number, rank in enumerate(left):
        found = rank["forgetful"]["received"]
        assert all(found[e, k] != expected_rows(number, e, k) for e in range(EPOCHS) for k in range(2))


@pytest.mark.parametrize(("device", "tolerance"), [("twin", 0.0), pytest.param("cuda", 1e-4, marks=CUDA.marks)])
def test_training_on_a_device_is_training_on_the_cpu(left: Left, device: str, tolerance: float) -> None:
    for rank in left:
        for what in ("weights", "logits"):
            found, expected = (rank["training"][name][what] for name in (device, "cpu"))
            assert float((found - expected).abs().max()) <= tolerance


if __name__ == "rank":
    run_rank(*globals()["ARGUMENTS"])
