"""Schedules for tests: a strategy of random legal ones, and a tiny one whose every figure is known."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from halocast.schedule.check import COLLECTED
from halocast.schedule.ir import (
    SHARED,
    AllGather,
    AllReduce,
    Barrier,
    Broadcast,
    Buffer,
    Compute,
    Exchange,
    Kernel,
    Kind,
    Lane,
    Matrix,
    Op,
    Pull,
    Push,
    Recv,
    ReduceScatter,
    Sample,
    Schedule,
    Send,
    Work,
)

# what every summary has
PROMISED = {
    "method",
    "epoch_s",
    "compute_s",
    "exposed_comm_s",
    "hidden_comm_s",
    "reduce_s",
    "wait_s",
    "bubble_s",
    "bytes_total",
    "bytes_per_epoch_by_op",
    "peak_memory_bytes",
    "staleness",
    "epochs",
    "warmup_epochs",
}
COMM_LANES = (Lane.HALO, Lane.GRAD, Lane.REDUCE, Lane("halo", 2), Lane("ring"))

BUFFER_BYTES = 8


class _Builder:
    """Adds steps that all ranks see in one global order, so lanes and waits can never close a cycle."""

    def __init__(self, draw: st.DrawFn, num_ranks: int) -> None:
        self.draw = draw
        self.num_ranks = num_ranks
        self.ops: list[list[Op]] = [[] for _ in range(num_ranks)]
        self.lags: list[tuple[int, str, str, int]] = []

    def cadence(self) -> tuple[int, int]:
        every = self.draw(st.sampled_from([1, 1, 1, 2, 3]))
        return every, self.draw(st.integers(0, every - 1))

    def after(self, rank: int) -> tuple[tuple[str, int], ...]:
        earlier = [op.name for op in self.ops[rank]]
        if not earlier:
            return ()
        names = self.draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True))
        return tuple((name, self.draw(st.integers(0, 2))) for name in names)

    def add(self, rank: int, name: str, lane: Lane, work: Work, cadence: tuple[int, int]) -> None:
        after = self.after(rank)
        self.ops[rank].append(
            Op(
                name=name,
                rank=rank,
                lane=lane,
                work=work,
                reads=() if work.kind in COLLECTED else tuple(f"b.{waited}" for waited, _ in after),
                writes=(f"b.{name}",),
                after=after,
                every=cadence[0],
                offset=cadence[1],
                carries=work.kind is Kind.COMPUTE and self.draw(st.booleans()),
            )
        )

    def kernels(self) -> tuple[Kernel, ...]:
        numel = self.draw(st.integers(0, 10)) * 100_000
        return (Kernel("elementwise", (numel, 2)),) if numel else ()


def _compute(b: _Builder, name: str) -> None:
    rank = b.draw(st.integers(0, b.num_ranks - 1))
    make = b.draw(st.sampled_from([Compute, Compute, Sample]))
    scale = b.draw(st.sampled_from([1.0, 0.95, 1 / 3]))
    b.add(rank, name, Lane.COMPUTE, make(kernels=b.kernels(), scale=scale), b.cadence())


def _exchange(b: _Builder, name: str) -> None:
    cadence, lane = b.cadence(), b.draw(st.sampled_from(COMM_LANES))
    transposed = b.draw(st.booleans())
    for rank in range(b.num_ranks):
        work = Exchange(kernels=b.kernels(), matrix="halo", transposed=transposed, row_bytes=4)
        b.add(rank, name, lane, work, cadence)


def _collective(b: _Builder, name: str) -> None:
    """Among all ranks, or some."""
    cadence, lane = b.cadence(), b.draw(st.sampled_from(COMM_LANES))
    group = sorted(b.draw(st.sets(st.integers(0, b.num_ranks - 1), min_size=1)))
    whole = BUFFER_BYTES * len(group)
    works = [Barrier(), AllReduce(num_bytes=64), AllGather(num_bytes=whole), ReduceScatter(num_bytes=whole)]
    work = b.draw(st.sampled_from([*works, Broadcast(num_bytes=BUFFER_BYTES, root=group[-1])]))
    for rank in group:
        b.add(rank, name, lane, work, cadence)


def _pair(b: _Builder, name: str) -> None:
    if b.num_ranks == 1:
        return _compute(b, name)
    source = b.draw(st.integers(0, b.num_ranks - 1))
    target = (source + b.draw(st.integers(1, b.num_ranks - 1))) % b.num_ranks
    cadence, lane = b.cadence(), b.draw(st.sampled_from(COMM_LANES))
    b.add(source, name, lane, Send(kernels=b.kernels(), peer=target, num_bytes=32), cadence)
    b.add(target, name, lane, Recv(peer=source, num_bytes=32), cadence)
    return None


def _store(b: _Builder, name: str) -> None:
    rank = b.draw(st.integers(0, b.num_ranks - 1))
    b.add(rank, name, Lane.STORE, b.draw(st.sampled_from([Push, Pull]))(num_bytes=16), b.cadence())


STEPS: tuple[Callable[[_Builder, str], None], ...] = (_compute, _compute, _exchange, _collective, _pair, _store)


@st.composite
def legal_schedules(draw: st.DrawFn, max_ranks: int = 4, max_steps: int = 8) -> Schedule:
    num_ranks = draw(st.integers(1, max_ranks))
    cells = draw(st.lists(st.integers(0, 3), min_size=num_ranks**2, max_size=num_ranks**2))
    counts = np.array(cells, dtype=np.int64).reshape(num_ranks, num_ranks)
    np.fill_diagonal(counts, 0)
    builder = _Builder(draw, num_ranks)
    for k in range(draw(st.integers(1, max_steps))):
        draw(st.sampled_from(STEPS))(builder, f"op.{k}")
    ops = tuple(op for rank in builder.ops for op in rank)
    buffers = tuple(
        Buffer(name=f"b.{op.name}", rank=op.rank, num_bytes=_written(op.work), exact=draw(st.booleans())) for op in ops
    )
    shared = (Buffer(name="store", rank=SHARED, num_bytes=64, persistent=True),)
    return Schedule(
        num_ranks=num_ranks,
        ops=ops,
        buffers=buffers + shared,
        matrices=(Matrix("halo", counts),),
        meta=(("method", draw(st.text(max_size=5))),),
    )


def _written(work: Work) -> int:
    """Bytes of the buffer that an op writes; what gathers pieces holds them all."""
    return work.num_bytes if isinstance(work, AllGather) else BUFFER_BYTES


def op(name: str, rank: int = 0, lane: Lane = Lane.COMPUTE, **fields: object) -> Op:
    return Op(name=name, rank=rank, lane=lane, **fields)  # type: ignore[arg-type]


def two_rank_exchange(*, lag: int = 0, every: int = 1) -> Schedule:
    """Two ranks: make -> swap -> use, where `use` reads what `swap` brought `lag` epochs ago."""
    ops, buffers = [], []
    for rank in (0, 1):
        ops += [
            op("make", rank, writes=("rows",)),
            op(
                "swap",
                rank,
                Lane.HALO,
                work=Exchange(matrix="halo", row_bytes=4),
                reads=("rows",),
                writes=("halo",),
                after=(("make", 0),),
                every=every,
            ),
            op("use", rank, reads=("halo",), after=(("swap", lag),)),
        ]
        buffers += [Buffer(name="rows", rank=rank, num_bytes=40), Buffer(name="halo", rank=rank, num_bytes=12)]
    return Schedule(
        num_ranks=2,
        ops=tuple(ops),
        buffers=tuple(buffers),
        matrices=(Matrix("halo", np.array([[0, 3], [3, 0]])),),
    )
