"""Rules that both interpreters keep, each said once: what an op waits for, what a straggler slows, what a buffer is."""

import time
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
import torch
from schedules import op, two_rank_exchange
from training import metis_parts, schedule_for, small_graph, spec_for, with_channels

from halocast.cluster.catalogue import load_cluster
from halocast.exec.chunks.stage import ChunkState
from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import execute
from halocast.exec.run.handlers import handle
from halocast.exec.run.interpret import Progress
from halocast.exec.run.null import execute_null
from halocast.exec.run.state import RankState
from halocast.exec.run.straggle import Stretch
from halocast.exec.store.push_pull import make_store, wait_for_pushes
from halocast.exec.transport.comm import Endpoint
from halocast.graph import build_parts
from halocast.models.spec import ModelKind
from halocast.reports.timers import timers
from halocast.schedule.check import check
from halocast.schedule.ir import (
    SHARED,
    Buffer,
    Compute,
    Counted,
    Exchange,
    Kernel,
    Lane,
    Matrix,
    Op,
    Pull,
    Push,
    Rows,
    Schedule,
)
from halocast.schedule.passes import dependence_edges
from halocast.schedule.trace import Span, Trace
from halocast.sim.cost import op_seconds
from halocast.sim.engine import simulate
from halocast.sim.world import World

GRAPH = small_graph()
PARTS = build_parts(GRAPH, metis_parts(GRAPH, 2))
HOST = Endpoint(rank=0, timeout_s=20, backend="gloo", device=torch.device("cpu"))
SLOW = Compute(kernels=(Kernel("elementwise", (10**7, 2)),))


def bounded(bound: int) -> Schedule:
    """Two ranks that push rows and pull each other's; rank 1 takes long, and no pull may run too far ahead."""
    ops = list[Op]()
    for rank, work in ((0, Compute()), (1, SLOW)):
        ops += [
            op("pull", rank, Lane.STORE, work=Pull(num_bytes=8, bound=bound), reads=("table",), after=(("push", 1),)),
            op("use", rank, work=work, after=(("pull", 0),), writes=("rows",)),
            op(
                "push", rank, Lane.HALO, work=Push(num_bytes=8), reads=("rows",), writes=("table",), after=(("use", 0),)
            ),
        ]
    buffers = [Buffer(name="rows", rank=rank, num_bytes=8, rows=Rows.INNER) for rank in (0, 1)]
    table = Buffer(name="table", rank=SHARED, num_bytes=16, persistent=True)
    return check(Schedule(num_ranks=2, ops=tuple(ops), buffers=(*buffers, table)))


def lead(trace: Trace) -> int:
    """How many epochs rank 0 is ahead of what rank 1 has pushed, at most, when it pulls."""
    pushed = sorted(span.end_s for span in trace.spans if (span.rank, span.op) == (1, "push"))
    pulls = [(span.epoch, span.start_s) for span in trace.spans if (span.rank, span.op) == (0, "pull")]
    return max(epoch - 1 - sum(end <= start + 1e-9 for end in pushed) + 1 for epoch, start in pulls)


@pytest.mark.parametrize("bound", [0, 2])
def test_a_bounded_pull_of_rows_waits_in_the_simulator_and_in_the_null_executor(bound: int) -> None:
    schedule = bounded(bound)
    assert lead(simulate(schedule, load_cluster("cpu-local", gpus=2), 8)) == bound
    assert lead(execute_null(schedule, 30)) <= bound


def rows_with_bound(bound: int) -> tuple[list[RankState], Schedule]:
    """DIGEST's ranks, whose pulls of rows have a bound."""
    spec = spec_for(GRAPH, layers=2)
    plain = schedule_for(PARTS, spec, "float64", "digest", interval=1)
    ops = [replace(o, work=replace(o.work, bound=bound)) if isinstance(o.work, Pull) else o for o in plain.ops]
    schedule = check(replace(plain, ops=tuple(ops)))
    job = Job(schedule=schedule, spec=spec, settings=Settings(epochs=4, dtype="float64", timeout_s=20))
    states = [RankState(job, part, replace(HOST, rank=part.rank)) for part in PARTS]
    for state in states:
        state.progress = Progress(schedule, state.rank, 20.0)
    return states, schedule


def test_a_bounded_pull_of_rows_waits_in_a_real_store() -> None:
    """Rank 0 may not pull in epoch 2 before rank 1 has pushed in epoch 1; that push lets it go on."""
    (first, second), schedule = rows_with_bound(0)
    pull, push = schedule.find(0, "pull.1"), schedule.find(1, "push.1")
    assert pull is not None
    assert push is not None
    elsewhere = [wait for wait in schedule.awaits(pull, 2) if wait[0].rank != 0]
    assert elsewhere == [(push, 1)]
    with make_store(first) as store:
        first.store = second.store = store
        waiting = Thread(target=wait_for_pushes, args=(first, pull, 2, elsewhere), daemon=True)
        waiting.start()
        for epoch in range(2):
            assert waiting.is_alive()
            second.values["h.1"][epoch] = torch.zeros(second.part.num_inner, 16, dtype=torch.float64)
            handle(second, push, epoch)
        waiting.join(20)
        assert not waiting.is_alive()


def test_awaits_names_after_edges_and_bounds_and_nothing_before_the_first_instance() -> None:
    pull, use, push = (op_ for op_ in bounded(1).ops if op_.rank == 0)
    schedule = bounded(1)
    other = schedule.find(1, "push")
    assert schedule.awaits(pull, 0) == []
    assert schedule.awaits(pull, 1) == [(push, 0)]
    assert schedule.awaits(pull, 5) == [(push, 4), (other, 3)]
    assert schedule.awaits(use, 5) == [(pull, 5)]


def test_a_waiter_sees_the_newest_instance_of_what_exists_every_few_epochs() -> None:
    schedule = Schedule(
        num_ranks=1, ops=(op("rare", every=3, offset=1), op("often", lane=Lane.HALO, after=(("rare", 1),)))
    )
    rare, often = schedule.ops
    assert [schedule.awaits(often, epoch) for epoch in range(6)] == [
        *([], [], [(rare, 1)], [(rare, 1)], [(rare, 1)], [(rare, 4)])
    ]
    lags = [edge.lag for edge in dependence_edges(schedule) if edge.source == 1 and edge.target == 2]
    assert lags == [1]


def test_a_stopwatch_looks_for_the_newest_instance_too() -> None:
    """Of a pull in epochs 0, 2, ... that an op waits for in every epoch; the wait of epoch 1 is for that of epoch 0."""
    ops = (op("pull", lane=Lane.STORE, work=Pull(num_bytes=4), every=2), op("use", after=(("pull", 0),)))
    times = [("pull", 0, 0.0, 1.0), ("use", 0, 1.0, 2.0), ("use", 1, 3.0, 4.0)]
    spans = tuple(
        Span(rank=0, lane=o.lane, op=name, kind=o.kind, epoch=epoch, start_s=start, end_s=end)
        for name, epoch, start, end in times
        for o in ops
        if o.name == name
    )
    (rank,) = timers(
        Trace(source="simulated", num_ranks=1, num_epochs=2, spans=spans), Schedule(num_ranks=1, ops=ops), 0
    )
    assert rank.waits == {"pull": 2.0 / 2}


def test_a_slow_device_packs_slowly_in_the_simulator() -> None:
    base = two_rank_exchange()
    packing = (Kernel("gather", (10**6, 16)),)
    ops = [replace(o, work=replace(o.work, kernels=packing)) if o.name == "swap" else o for o in base.ops]
    schedule = replace(base, ops=tuple(ops))
    cluster = load_cluster("cpu-local", gpus=2)
    swap = schedule.find(0, "swap")
    assert swap is not None
    pack_s = op_seconds(swap, cluster.device(0))

    def took(speed: float) -> float:
        trace = simulate(schedule, cluster, 1, world=World(speed={0: speed}))
        return next(span.end_s - span.start_s for span in trace.spans if (span.rank, span.op) == (0, "swap"))

    assert took(0.25) - took(1.0) == pytest.approx(3 * pack_s)


def test_a_slow_rank_packs_slowly_in_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing that takes 20 ms takes a rank of a tenth of the speed 200 ms."""
    spec = spec_for(GRAPH)
    schedule = schedule_for(PARTS, spec, "float64")
    settings = Settings(epochs=1, dtype="float64", speed={"0": 0.1})
    state = RankState(Job(schedule=schedule, spec=spec, settings=settings), PARTS[0], HOST)
    exchange = schedule.find(0, "exchange.0")
    assert exchange is not None
    channel, moved = with_channels(state)["exchange.0"], list[torch.Tensor]()

    def pack(self: object, rows: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return rows[picked]

    monkeypatch.setattr(type(channel), "pack", pack)

    def begun(self: object, epoch: int, packed: torch.Tensor) -> list[object]:
        moved.append(packed)
        return []

    monkeypatch.setattr(type(channel), "_start", begun)
    start = time.perf_counter()
    handle(state, exchange, 0)
    assert time.perf_counter() - start >= 0.2
    assert torch.equal(moved[0], state.features[state.send_rows])
    assert Stretch(1, settings).slower == 0


def test_a_pipeline_makes_no_channels_for_what_it_swaps_in_place() -> None:
    """Its rows lie in tables; channels of their own would take as much memory again, and nobody would use them."""
    spec = spec_for(GRAPH)
    parts = build_parts(GRAPH, metis_parts(GRAPH, 4))
    schedule = schedule_for(parts, spec, "float64", "gnnpipe", stages=1, ways=2)
    assert any(o.verb == "swap" for o in schedule.ops)
    job = Job(schedule=schedule, spec=spec, settings=Settings(epochs=1, dtype="float64"))
    assert with_channels(ChunkState(job, list(parts), 0, HOST)) == {}


def renamed(schedule: Schedule) -> Schedule:
    """All buffers under names that mean nothing."""
    names = {name: f"buffer.{k}" for k, name in enumerate(dict.fromkeys(b.name for b in schedule.buffers))}
    ops = [
        replace(o, reads=tuple(names[n] for n in o.reads), writes=tuple(names[n] for n in o.writes))
        for o in schedule.ops
    ]
    return replace(schedule, ops=tuple(ops), buffers=tuple(replace(b, name=names[b.name]) for b in schedule.buffers))


@pytest.mark.parametrize(
    ("method", "kind", "options"),
    [
        ("vanilla", ModelKind.GCNII, {}),
        ("pipegcn-gf", ModelKind.SAGE, {}),
        ("digest-a", ModelKind.SAGE, {"interval": 2, "bound": 0}),
        ("gnnpipe", ModelKind.GCNII, {"stages": 2, "late_gradients": True}),
    ],
)
def test_the_executor_needs_no_names_of_buffers(method: str, kind: ModelKind, options: dict[str, object]) -> None:
    """What DIGEST-A computes depends on who comes first, so its losses are compared loosely."""
    spec = spec_for(GRAPH, kind=kind, layers=4)
    schedule = schedule_for(PARTS, spec, "float64", method, **options)
    settings = Settings(epochs=4, dtype="float64")
    plain, other = (
        execute(Job(schedule=check(one), spec=spec, settings=settings), PARTS).losses
        for one in (schedule, renamed(schedule))
    )
    assert np.allclose(plain, other, rtol=0.2 if method == "digest-a" else 1e-12, atol=0)


def giving(matrix: Matrix) -> tuple[RankState, Op]:
    """Rank 0 of two and an exchange of its rows that the matrix counts."""
    spec = spec_for(GRAPH, layers=2)
    plain = schedule_for(PARTS, spec, "float64")
    exchange = plain.find(0, "exchange.0")
    assert exchange is not None
    assert isinstance(exchange.work, Exchange)
    moved = replace(exchange, work=replace(exchange.work, matrix=matrix.name))
    schedule = replace(plain, matrices=(matrix,), ops=(moved,))
    job = Job(schedule=schedule, spec=spec, settings=Settings(epochs=1, dtype="float64"))
    return RankState(job, PARTS[0], HOST), moved


def test_an_exchange_packs_the_rows_that_its_own_matrix_counts() -> None:
    halo, sizes = len(PARTS[0].send_rows), [part.num_inner for part in PARTS]
    state, exchange = giving(Matrix("some", np.array([[0, halo], [0, 0]])))
    assert state.send_lists(exchange).tolist() == PARTS[0].send_rows.tolist()
    state, exchange = giving(Matrix("none", np.array([[0, 0], [5, 0]])))
    assert state.send_lists(exchange).tolist() == []
    state, exchange = giving(Matrix("all", np.array([[0, sizes[0]], [sizes[1], 0]]), rows=Counted.ALL))
    assert state.send_lists(exchange).tolist() == list(range(sizes[0]))


def test_a_matrix_that_counts_other_rows_than_there_are_is_refused() -> None:
    halo = len(PARTS[0].send_rows)
    state, exchange = giving(Matrix("few", np.array([[0, halo - 1], [0, 0]])))
    with pytest.raises(ValueError, match=f"matrix few: rank 0 would give rank 1 {halo - 1} halo rows, but has {halo}"):
        state.send_lists(exchange)
