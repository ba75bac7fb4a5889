"""Messages between ranks, alone and beside compute; kernels on all ranks at once. Every rank takes part.

Rank 0 says how often a thing is repeated, so that all do it as often; what it measures are the points.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from halocast.calibrate.measure.alone import QUICK, sizes, some_graph
from halocast.calibrate.measure.bench import FEWEST, Bench, PlainPoint, Timing, point, summary
from halocast.exec.launch.affinity import give_turn, go_first
from halocast.models.modules import drop

Run = Callable[[], object]
Clock = Callable[[], float]
MOST_BYTES, TRAFFIC_BYTES = 32e6, 4_000_000
UNDISTURBED = 0.95  # of samples; the rest is taken for other tenants' doing
MOST_SAMPLES, BATCH_S = 200, 0.0001  # short batches: a core that others take spoils the whole batch


def messages(bench: Bench) -> Iterator[PlainPoint]:
    """Messages there and back between the first two ranks; one takes half of the time."""
    for size in sizes(4, MOST_BYTES / (QUICK if bench.quick else 1), 8 if bench.quick else 15):
        there, back = room(bench, size), room(bench, size)
        timing = together(bench, partial(_there_and_back, bench, there, back))
        half = Timing(seconds=timing.seconds / 2, spread=timing.spread, repeats=timing.repeats)
        yield point("messages", "message", (there.nbytes,), half)


def _there_and_back(bench: Bench, there: Tensor, back: Tensor) -> None:
    if bench.rank == 0:
        transfer(bench, sends=[(1, there)])
        transfer(bench, receives=[(1, back)])
    elif bench.rank == 1:
        transfer(bench, receives=[(0, there)])
        transfer(bench, sends=[(0, back)])


def exchanges(bench: Bench) -> Iterator[PlainPoint]:
    """Exchanges of all with all at once: what all streams of the machine carry, and what of the cores that takes."""
    for size in sizes(
        4000, MOST_BYTES / (QUICK if bench.quick else 1) / (bench.num_ranks - 1), 4 if bench.quick else 7
    ):
        sends, receives = _for_peers(bench, size), _for_peers(bench, size)
        begun = time.process_time()
        timing = together(bench, partial(transfer, bench, sends=sends, receives=receives))
        cores = sum(bench.all_values(time.process_time() - begun)) / (timing.repeats + WARMUPS)
        total = bench.num_ranks * (bench.num_ranks - 1) * sends[0][1].nbytes
        yield point("exchanges", "exchange", (total,), timing, core_s=cores, ranks=bench.num_ranks)


def allreduces(bench: Bench) -> Iterator[PlainPoint]:
    for size in sizes(4, MOST_BYTES / (QUICK if bench.quick else 1) / 2, 6 if bench.quick else 10):
        values = room(bench, size)
        run = partial(_allreduce, bench, values)
        yield point("allreduces", "allreduce", (values.nbytes,), together(bench, run), ranks=bench.num_ranks)


def _allreduce(bench: Bench, values: Tensor) -> None:
    bench.link.wait(dist.all_reduce(values, async_op=True), "an all-reduce", "another rank")
    bench.device.finish()


def busy(bench: Bench) -> Iterator[PlainPoint]:
    """How much slower kernels are when all ranks run them at once; cores share caches and memory."""
    # On a CPU the core's time, which stands still while another process has the core.
    clock = time.perf_counter if bench.device.stages else time.thread_time
    for kind, run in _typical(bench).items():
        alone = summary([_lasting(bench, run, clock) for _ in range(FEWEST)]) if bench.rank == 0 else None
        crowded = together(bench, run, clock)
        if alone is not None:
            ratio = replace(crowded, seconds=crowded.seconds / alone.seconds)
            yield point("busy", f"busy_{kind}", (bench.num_ranks,), ratio)


def _lasting(bench: Bench, run: Run, clock: Clock) -> float:
    start = clock()
    run()
    bench.device.finish()
    return clock() - start


def overlap(bench: Bench) -> Iterator[PlainPoint]:
    """Compute beside communication, against each without the other; all ranks do both."""
    sends, receives = (
        _for_peers(bench, TRAFFIC_BYTES // bench.num_ranks),
        _for_peers(bench, TRAFFIC_BYTES // bench.num_ranks),
    )
    move = partial(transfer, bench, sends=sends, receives=receives)
    moved = together(bench, move)
    for kind, run in _typical(bench).items():
        computed = together(bench, run)
        times = int(bench.agree(max(5, bench.limits.most_s * 2 / moved.seconds)))
        both, moving = _beside(bench, run, move, times)
        ratios = {"compute": both.seconds / computed.seconds, "transfer": moving / moved.seconds}
        for what, ratio in ratios.items():
            timing = Timing(seconds=ratio, spread=both.spread, repeats=both.repeats)
            yield point("overlap", f"{what}_slowdown", (bench.num_ranks,), timing, kernel=kind)


def _beside(bench: Bench, run: Run, move: Run, times: int) -> tuple[Timing, float]:
    """The seconds of a kernel while a thread moves messages, and the seconds of one exchange meanwhile."""
    seconds: list[float] = []
    thread = threading.Thread(target=_repeat, args=(bench, move, times, seconds), daemon=True)
    bench.meet()
    thread.start()
    samples: list[float] = []
    while thread.is_alive() or not samples:
        start = time.perf_counter()
        run()
        bench.device.finish()
        samples.append(time.perf_counter() - start)
        if not bench.device.stages:
            give_turn()
    thread.join()
    bench.meet()
    # the mean: a kernel is either disturbed or not, and the share of those that are is the answer
    mean = float(np.mean(sorted(samples)[: max(1, round(UNDISTURBED * len(samples)))]))
    return replace(summary(samples), seconds=mean), seconds[0]


def _repeat(bench: Bench, move: Run, times: int, seconds: list[float]) -> None:
    if not bench.device.stages:
        go_first()  # as lanes of a run do
    torch.set_num_threads(1)
    start = time.perf_counter()
    for _ in range(times):
        move()
    seconds.append((time.perf_counter() - start) / times)


def _typical(bench: Bench) -> dict[str, Run]:
    """A kernel of each kind that caches and memory bound, on tensors larger than the caches."""
    rows, width, grown = 60_000, 128, bench.tensor(60_000, 128)
    matrix, column = bench.tensor(width, width), bench.tensor(rows, 1)
    sums = some_graph(bench, rows, rows, 15 * rows, 1.0)
    return {
        "gemm": partial(torch.matmul, grown, matrix),
        "spmm": partial(sums, grown),
        "elementwise": partial(torch.div, grown, column),
        "dropout": partial(drop, grown, 0.5),
    }


WARMUPS = 3


def together(bench: Bench, run: Run, clock: Clock = time.perf_counter) -> Timing:
    """Seconds of what all ranks do at once, as rank 0 sees them; all repeat it as often."""
    bench.meet()
    start = time.perf_counter()
    for _ in range(WARMUPS):
        run()
    bench.device.finish()
    once_s = max((time.perf_counter() - start) / WARMUPS, 1e-7)
    batch = int(bench.agree(max(1, round(BATCH_S / once_s))))
    wanted = int(bench.agree(min(MOST_SAMPLES, max(FEWEST, bench.limits.most_s / (once_s * batch)))))
    samples = []
    for _ in range(wanted):
        start = clock()
        for _ in range(batch):
            run()
        bench.device.finish()
        samples.append((clock() - start) / batch)
    bench.meet()
    return summary(samples, batch)


def room(bench: Bench, num_bytes: float) -> Tensor:
    """A tensor of so many bytes, where the transport can take it."""
    return torch.zeros(max(1, int(num_bytes) // 4), device=bench.link.wire)


def _for_peers(bench: Bench, num_bytes: float) -> list[tuple[int, Tensor]]:
    return [(peer, room(bench, num_bytes)) for peer in range(bench.num_ranks) if peer != bench.rank]


def transfer(
    bench: Bench, *, sends: Sequence[tuple[int, Tensor]] = (), receives: Sequence[tuple[int, Tensor]] = ()
) -> None:
    """Send and receive messages as the executor posts them: receives first over gloo, all in one group over nccl."""
    works: list[Any]
    if bench.link.backend == "nccl":
        ops = [dist.P2POp(dist.isend, rows, peer) for peer, rows in sends]
        works = dist.batch_isend_irecv(ops + [dist.P2POp(dist.irecv, rows, peer) for peer, rows in receives])
    else:
        works = [dist.irecv(rows, peer) for peer, rows in receives]
        works += [dist.isend(rows, peer) for peer, rows in sends]
    for work in works:
        bench.link.wait(work, "a message", "another rank")
    bench.device.finish()


COMMUNICATION: MappingProxyType[str, Callable[[Bench], Iterator[PlainPoint]]] = MappingProxyType(
    {"messages": messages, "exchanges": exchanges, "allreduces": allreduces, "busy": busy, "overlap": overlap}
)
