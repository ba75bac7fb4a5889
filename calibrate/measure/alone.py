"""Measurements that rank 0 makes alone: the executor's kernels over a grid of sizes, and what its interpreter costs.

A kernel is run as the handlers run it: by the same functions, with autograd where it works on what needs gradients.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor, nn

from halocast.base.kernels import built_rows
from halocast.calibrate.measure.bench import Bench, PlainPoint, Timing, point, summary, time_it
from halocast.exec.run.drawn import build_block
from halocast.exec.run.interpret import Interpreter
from halocast.exec.run.part_tensors import block_of
from halocast.exec.run.state import flatten
from halocast.exec.store.blocks import Table
from halocast.exec.store.kvs import create_store
from halocast.graph.partition import random_assignment
from halocast.graph.parts import build_parts
from halocast.graph.sampling import draw_boundary
from halocast.graph.synthetic import synthetic
from halocast.models.aggregate import Aggregate, neighbour_sum
from halocast.models.modules import drop, hits, summed_loss
from halocast.schedule.ir import Lane, Op, Schedule

Run = Callable[[], object]
WIDTHS = (8, 16, 32, 64, 100, 128, 256, 512)
MOST_FLOPS, MOST_BYTES, MOST_ENTRIES = 2e9, 96e6, 4e6
NUM_OPS, EPOCHS = 40, 60  # of a schedule whose ops do nothing
QUICK = 8  # a quick calibration has largest sizes that are so much smaller


def gemm(bench: Bench) -> Iterator[PlainPoint]:
    """Products of rows with a matrix, for its gradient and for theirs: three shapes of a layer; also of the last, whose
    results are narrow."""
    rng, most = bench.rng("gemm"), MOST_FLOPS / (QUICK if bench.quick else 1)
    shapes = [(m, *(int(rng.choice(WIDTHS)) for _ in range(2))) for m in sizes(60, 60_000, 10 if bench.quick else 18)]
    last = [(m, int(rng.choice(WIDTHS)), classes) for m in sizes(300, 40_000, 4) for classes in (7, 12)]
    for m, k, n in (*shapes, *last):
        m = min(m, int(most / (2 * k * n)))
        rows, matrix, grad = bench.tensor(m, k), bench.tensor(n, k), bench.tensor(m, n)
        bias = bench.tensor(n)
        yield from bench.kernel("gemm", (m, k, n), partial(F.linear, rows, matrix, bias))
        yield from bench.kernel("gemm", (k, m, n), partial(torch.matmul, grad.t(), rows))
        yield from bench.kernel("gemm", (m, n, k), partial(torch.matmul, grad, matrix))


def spmm(bench: Bench) -> Iterator[PlainPoint]:
    """Sums of neighbours and their gradient, over graphs of several sizes, densities and skews."""
    for rows, cols, nnz, width, skew in _graphs(bench, "spmm", 14 if bench.quick else 28):
        sums, given = some_graph(bench, rows, cols, nnz, skew), bench.tensor(cols, width)
        yield from bench.kernel("spmm", (rows, cols, nnz, width), partial(sums, given), skew=skew)
        back = _backward(sums(given.requires_grad_()), [given])
        yield from bench.kernel("spmm", (cols, rows, nnz, width), back, skew=skew, back=True)


def attention(bench: Bench) -> Iterator[PlainPoint]:
    """Neighbours weighted edge by edge, the gradients of rows and weights; the softmax of the edges that enter a row:
    nine passes forth and four back, as the arithmetic counts them."""
    for rows, cols, nnz, width, skew in _graphs(bench, "attention", 6 if bench.quick else 12):
        edges = some_graph(bench, rows, cols, nnz, skew).edges
        values, weights = bench.tensor(cols, 1, width), bench.tensor(nnz, 1)
        run = partial(edges.weighted_sum, values, weights)
        yield from bench.kernel("spmm_weighted", (rows, cols, nnz, width), run, skew=skew)
        back = _backward(edges.weighted_sum(values, weights.requires_grad_()), [weights])
        yield from bench.kernel("sddmm", (rows, cols, nnz, width), back, skew=skew)
        scores = bench.tensor(nnz, 1)
        yield from bench.kernel("softmax", (nnz, 9), partial(edges.softmax, scores))
        yield from bench.kernel("softmax", (nnz, 4), _backward(edges.softmax(scores.requires_grad_()), [scores]))


def elementwise(bench: Bench) -> Iterator[PlainPoint]:
    """Kernels of one, two and three passes: column sums, rows scaled or cut off at zero, two tensors added."""
    for k, (rows, width) in enumerate(_shapes(bench, "elementwise", 8)):
        a, b, column = bench.tensor(rows, width), bench.tensor(rows, width), bench.tensor(rows, 1)
        yield from bench.kernel("sum_rows", (rows, width), partial(torch.sum, a, 0))
        twice = partial(torch.div, a, column) if k % 2 else partial(F.relu, a)
        yield from bench.kernel("elementwise", (rows * width, 2), twice)
        yield from bench.kernel("elementwise", (rows * width, 3), partial(torch.add, a, b))


def dropout(bench: Bench) -> Iterator[PlainPoint]:
    for rows, width in _shapes(bench, "dropout", 7):
        given = bench.tensor(rows, width).requires_grad_()
        yield from bench.kernel("dropout", (rows * width, 3), partial(drop, given, 0.5))


def norm(bench: Bench) -> Iterator[PlainPoint]:
    for rows, width in _shapes(bench, "norm", 8):
        layer, given = nn.LayerNorm(width).to(bench.device.where), bench.tensor(rows, width).requires_grad_()
        yield from bench.kernel("norm", (rows, width), partial(layer, given))
        back = _backward(layer(given), [given, *layer.parameters()])
        yield from bench.kernel("norm_back", (rows, width), back)


def loss(bench: Bench) -> Iterator[PlainPoint]:
    """The loss of the train rows, its gradient, and the scores of all rows, as the handler does; 60 % train."""
    for rows, classes in [(m, c) for m in sizes(100, 100_000, 5 if bench.quick else 8) for c in (7, 41)]:
        logits = bench.tensor(rows, classes).requires_grad_()
        labels = torch.randint(classes, (rows,), device=bench.device.where)
        places = torch.arange(rows, device=bench.device.where) % 5
        masks = [torch.nonzero(mask).flatten() for mask in (places < 3, places == 3, places == 4)]
        yield from bench.kernel("loss", (rows, classes), partial(_loss, logits, labels, masks))


def _loss(logits: Tensor, labels: Tensor, masks: Sequence[Tensor]) -> None:
    share = summed_loss(logits[masks[0]], labels[masks[0]]) / len(masks[0])
    torch.autograd.grad(share, logits)
    float(share.detach())
    for rows in masks:
        hits(logits.detach()[rows], labels[rows])


def update(bench: Bench) -> Iterator[PlainPoint]:
    """The optimiser's step over flat weights, and their gradients cleared."""
    for numel in sizes(500, 3_000_000 // (QUICK if bench.quick else 1), 7 if bench.quick else 12):
        weights, grads = flatten(nn.Linear(numel, 1, bias=False).to(bench.device.where))
        optimizer = torch.optim.Adam([weights], lr=0.01)
        yield from bench.kernel("update", (numel, 8), partial(_update, optimizer, grads))


def _update(optimizer: torch.optim.Optimizer, grads: Tensor) -> None:
    optimizer.step()
    grads.zero_()


def draw(bench: Bench) -> Iterator[PlainPoint]:
    """Boundary rows drawn by their owner: on the CPU, wherever rows lie."""
    for count in sizes(100, 1_000_000 // (QUICK if bench.quick else 1), 6 if bench.quick else 10):
        offsets = np.array([0, count // 2, count])
        yield from bench.kernel("draw", (count, 4), partial(draw_boundary, offsets, 0.3, seed=0, rank=0, epoch=1))


def build(bench: Bench) -> Iterator[PlainPoint]:
    """The local graph of an epoch from marks of its edges."""
    rng = bench.rng("build")
    for nodes in sizes(400, 40_000 // (QUICK if bench.quick else 1), 4 if bench.quick else 6):
        graph = synthetic(nodes=nodes, degree=16, skew=1, classes=4, features=1, mixing=0.5, seed=0)
        part = build_parts(graph, random_assignment(nodes, 2, 0))[0]
        whole = block_of(part, torch.float32, bench.device.where)
        for share in (0.2, 0.7):
            kept = rng.random(len(part.indices)) < share
            rows = built_rows(len(part.indices), int(kept.sum()))
            yield from bench.kernel("build", (rows, 1), partial(build_block, part, whole, kept, None))


def store(bench: Bench) -> Iterator[PlainPoint]:
    """Rows into the store of a host and out of it: ranges are pushed, scattered rows pulled. Others have made or will
    use them, so caches are cold."""
    if bench.flush is None:
        return
    clear = partial(bench.flush.add_, 1.0)
    for rows, width in [(m, d) for m in sizes(300, 60_000 // (QUICK if bench.quick else 1), 5) for d in (16, 128)]:
        values, scattered = np.ones((rows, width), np.float32), np.arange(0, 2 * rows, 2)
        with create_store([Table(name="rows", num_rows=2 * rows, width=width)]) as kept:
            push, pull = partial(kept.push, "rows", slice(0, rows), values, 1), partial(kept.pull, "rows", scattered)
            for run in (push, pull):
                timing = time_it(run, bench.limits, bench.device.finish, clear)
                yield point("store", "store", (values.nbytes,), timing)


def gather(bench: Bench) -> Iterator[PlainPoint]:
    """Rows in ascending order out of three times as many, into a buffer; and added to the rows they belong to."""
    for rows, width in _shapes(bench, "gather", 8):
        table, buffer = bench.tensor(3 * rows, width), bench.tensor(rows, width)
        places = torch.from_numpy(np.sort(bench.rng("rows").choice(3 * rows, rows, replace=False)))
        picked = places.to(bench.device.where)
        yield from bench.kernel("gather", (rows, width), partial(torch.index_select, table, 0, picked, out=buffer))
        yield from bench.kernel("scatter", (rows, width), partial(table.index_add_, 0, picked, buffer))


def copies(bench: Bench) -> Iterator[PlainPoint]:
    """Copies between the device and pinned host memory, both ways; nothing where they are one."""
    if not bench.device.stages:
        return
    for numel in sizes(250, 16_000_000 // (QUICK if bench.quick else 1), 7 if bench.quick else 12):
        rows = bench.tensor(numel)
        host = bench.device.host_like(rows)
        for kind, ends in (("copy_down", (rows, host)), ("copy_up", (host, rows))):
            timing = time_it(partial(bench.device.copy, *ends), bench.limits, bench.device.finish)
            yield point("copies", kind, (numel * rows.element_size(),), timing)


def _backward(result: Tensor, leaves: Sequence[Tensor]) -> Run:
    """A call that computes the gradients of a result, as often as wanted."""
    return partial(torch.autograd.grad, result, leaves, torch.ones_like(result), retain_graph=True)


def sizes(low: float, high: float, count: int) -> list[int]:
    return [int(size) for size in np.geomspace(low, high, count)]


def _shapes(bench: Bench, group: str, fewest: int) -> list[tuple[int, int]]:
    """Rows and widths of tensors from a kilobyte up."""
    rng, most = bench.rng(group), MOST_BYTES / (QUICK if bench.quick else 1)
    chosen = sizes(1e3, most, fewest if bench.quick else 2 * fewest)
    widths = [int(rng.choice(WIDTHS)) for _ in chosen]
    return [(max(1, size // (4 * width)), width) for size, width in zip(chosen, widths, strict=True)]


def _graphs(bench: Bench, group: str, count: int) -> list[tuple[int, int, int, int, float]]:
    """Graphs as (rows, columns, entries, width, skew) spread over the grid; rows and width grow, the rest is drawn."""
    rng, most = bench.rng(group), MOST_ENTRIES / (QUICK if bench.quick else 1)
    chosen = []
    for rows in sizes(50, 40_000, count):
        nnz = int(min(rows * rng.choice([4, 10, 25, 60, 120]), most))
        width = int(rng.choice([w for w in WIDTHS if w * nnz <= 3e8]))
        cols = int(rows * rng.choice([1.0, 1.5, 2.5]))
        chosen.append((rows, cols, nnz, width, float(rng.choice([0.0, 1.0, 2.0]))))
    return chosen


def some_graph(bench: Bench, rows: int, cols: int, nnz: int, skew: float) -> Aggregate:
    """A graph whose degrees and popularity are lognormal, with the skew as the deviation of their logarithm."""
    rng = bench.rng(f"graph {rows} {cols} {nnz} {skew}")
    ends = [np.cumsum(np.exp(skew * rng.standard_normal(size))) for size in (rows, cols)]
    drawn = [np.searchsorted(steps, rng.uniform(0, steps[-1], nnz)) for steps in ends]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(drawn[0], minlength=rows))])
    order = np.lexsort((drawn[1], drawn[0]))  # by row, and by column in it, as in a part
    starts, ids = (torch.from_numpy(np.asarray(table)).to(bench.device.where) for table in (indptr, drawn[1][order]))
    return neighbour_sum(starts, ids, cols)


def interpreter(bench: Bench) -> Iterator[PlainPoint]:
    """Seconds of an op that does nothing on the compute lane, and on another one, with the ways there and back."""
    alone, between = (_epoch_timing(bench, schedule) for schedule in (_chain(), _relay()))
    op_s = alone.seconds / NUM_OPS
    switch_s = max(op_s, 2 * between.seconds / NUM_OPS - op_s)
    for kind, seconds, timing in (("op", op_s, alone), ("communication_op", switch_s, between)):
        per_op = Timing(seconds=seconds, spread=timing.spread, repeats=timing.repeats * NUM_OPS)
        yield point("interpreter", kind, (NUM_OPS,), per_op)


def _epoch_timing(bench: Bench, schedule: Schedule) -> Timing:
    running = Interpreter(
        schedule=schedule,
        rank=0,
        handle=lambda op, epoch: 0,
        timeout_s=bench.link.timeout_s,
        enter_lane=bench.device.enter,
    )
    ends: list[float] = []
    running.run(running.ending(EPOCHS, finished=lambda epoch: ends.append(time.perf_counter())))
    bench.device.enter(Lane.COMPUTE)
    return summary([end - start for start, end in pairwise(ends)][EPOCHS // 4 :])


def _chain() -> Schedule:
    ops = tuple(_op(k, Lane.COMPUTE, ()) for k in range(NUM_OPS))
    return Schedule(num_ranks=1, matrices=(), buffers=(), ops=ops, meta=())


def _relay() -> Schedule:
    """A schedule in which every op waits for the one before, which is another lane's."""
    lanes = [Lane.HALO if k % 2 else Lane.COMPUTE for k in range(NUM_OPS)]
    waits = [((f"op.{k - 1}", 0),) if k else ((f"op.{NUM_OPS - 1}", 1),) for k in range(NUM_OPS)]
    ops = tuple(_op(k, lane, after) for k, (lane, after) in enumerate(zip(lanes, waits, strict=True)))
    return Schedule(num_ranks=1, matrices=(), buffers=(), ops=ops, meta=())


def _op(number: int, lane: Lane, after: tuple[tuple[str, int], ...]) -> Op:
    return Op(name=f"op.{number}", rank=0, lane=lane, after=after)


ALONE: MappingProxyType[str, Callable[[Bench], Iterator[PlainPoint]]] = MappingProxyType(
    {
        "interpreter": interpreter,
        "gemm": gemm,
        "spmm": spmm,
        "elementwise": elementwise,
        "dropout": dropout,
        "norm": norm,
        "gather": gather,
        "loss": loss,
        "update": update,
        "draw": draw,
        "build": build,
        "store": store,
        "attention": attention,
        "copies": copies,
    }
)
