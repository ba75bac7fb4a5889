"""PSC-GCN: rows travel `tau` epochs before they are used, and only those that a sample of the edges needs.

Every node samples its neighbours, the important ones more often; what matters is estimated anew every `refresh` epochs
from rows of past epochs. Features of halo nodes that are needed often stay where they are needed (a cache).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np

from halocast.base.records import require
from halocast.graph.halo import Cached, Halo
from halocast.graph.inclusion import CachePolicy, Important
from halocast.graph.sampling import Weighting, drawn_counts
from halocast.methods import pipegcn
from halocast.methods.common import PartOps
from halocast.methods.sampled import (
    ID_BYTES,
    NEEDS,
    SampledEpoch,
    drawn_matrices,
    rounded,
    smaller,
    unsampled,
)
from halocast.methods.skeleton import assemble, meta_of, parts_of
from halocast.models.arithmetic import Kernels
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Buffer, Exchange, Lane, Matrix, Numbers, Op, Rows, Schedule

MISSED = "missed"  # matrix: rows of layer 0 that travel
MISSES, LACKS = "misses", "lacks"  # their ids, at the receiver and at the owner
ODDS, NORMS, CACHE = "odds", "norms", "cache"
ODDS_BYTES = 4
ROUNDS = 3  # over all edges, until a row's probabilities no longer exceed 1: later ones have few rows


class Draws(StrEnum):
    """The number of draws per epoch."""

    ONE = "one"  # for all layers
    EACH = "each"  # every layer its own


class Lengths(StrEnum):
    """The rows whose lengths say how much a neighbour matters."""

    PRODUCT = "product"  # after the matrix of their layer, as they enter the sum
    ROWS = "rows"  # as they are sent


class Wait(StrEnum):
    JUST_IN_TIME = "just_in_time"
    BARRIER = "barrier"  # an epoch begins when all its rows are there


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    tau: int = 1  # epochs from sending rows to using them
    eps: float = 0.1  # the share of its neighbours a node samples
    least: int = 1  # and how many at the least, on average
    refresh: int = 10  # epochs between estimates of what matters; 0: never, all rows count as equally long
    weighting: Weighting = Weighting.SAMPLED_DEGREE
    draws: Draws = Draws.ONE
    lengths: Lengths = Lengths.PRODUCT
    cache: float = 0.0  # the share of halo rows whose features stay
    policy: CachePolicy = CachePolicy.INCLUSION
    wait: Wait = Wait.JUST_IN_TIME
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.tau >= 0, f"tau = {self.tau}: needs to be at least 0")
        require(0 < self.eps <= 1, f"eps = {self.eps}: needs 0 < eps <= 1")
        require(self.least >= 0, f"least = {self.least}: needs to be at least 0")
        require(self.refresh >= 0, f"refresh = {self.refresh}: needs to be at least 0 (0: never)")
        require(0 <= self.cache <= 1, f"cache = {self.cache}: needs 0 <= cache <= 1")
        require(self.seed >= 0, f"seed = {self.seed}: needs to be at least 0")
        late = self.wait == Wait.JUST_IN_TIME or self.tau >= 1
        require(late, "wait = barrier: needs tau of at least 1, or an epoch would wait for rows it makes itself")


# the rule that the paper states, and that of the code its authors released
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": MappingProxyType(
            {"weighting": "inverse", "lengths": "product", "refresh": 10, "least": 0, "wait": "just_in_time"}
        ),
        "code": MappingProxyType({"weighting": "sampled_degree", "lengths": "rows", "wait": "barrier"}),
    }
)


def psc(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    meta = (*meta_of("psc", halo), *_warnings(spec, options))
    if unsampled(halo, spec):
        return replace(pipegcn.pipegcn(halo, spec, pipegcn.Options(lag=options.tau), numbers), meta=meta)
    odds = [Important(eps=options.eps, least=options.least, symmetric=spec.symmetric)] * halo.num_parts
    drawn, *matrices = drawn_matrices(halo.expected_rows(odds), halo.matrix)
    missed = drawn
    if _caches(spec, options):
        rows = halo.expected_rows(odds, Cached(options.cache, options.policy))
        missed = Matrix(MISSED, rounded(rows, halo.matrix), np.sqrt(rows.variance))
        matrices.append(missed)
    edges = halo.kept_edges(odds)
    sizes = smaller(halo, drawn.counts, edges), smaller(halo, missed.counts, edges)
    epochs = [_epoch(full, sizes, options) for full in parts_of(halo, spec, numbers)]
    return assemble(epochs, meta, (drawn, *matrices))


def _caches(spec: ModelSpec, options: Options) -> bool:
    return options.cache > 0 and spec.aggregates(0)


def _warnings(spec: ModelSpec, options: Options) -> tuple[tuple[str, str], ...]:
    if options.cache == 0 or spec.aggregates(0):
        return ()
    return (("warning", f"cache = {options.cache} is of no use with precompute: layer 0 sends no rows to save"),)


def _epoch(full: PartOps, sizes: tuple[Halo, Halo], options: Options) -> "_Ahead":
    spec = full.spec
    words: dict[str, object] = {"eps": options.eps, "least": options.least, "symmetric": int(spec.symmetric)}
    words |= {"seed": options.seed, "ahead": options.tau, "weighting": options.weighting, "lengths": options.lengths}
    if _caches(spec, options):
        words |= {"cache": options.cache, "policy": options.policy}
    part, misses = (replace(full, halo=some) for some in sizes)
    return _Ahead(
        full=full,
        part=part,
        misses=misses,
        options=options,
        draw="sample_edges",
        params=tuple((key, str(word)) for key, word in words.items()),
        by_receiver=True,
        weighted=options.eps < 1,
        each=options.draws == Draws.EACH,
        lag=options.tau,
        lane=Lane.SAMPLE,
        id_lane=Lane.SAMPLE,
        grad_lane=Lane.GRAD,
    )


@dataclass(frozen=True, kw_only=True)
class _Ahead(SampledEpoch):
    """One rank's epoch: draws and rows run `lag` epochs ahead of the layers that use them."""

    misses: PartOps  # sizes of layer 0's exchange
    options: Options

    @property
    def caches(self) -> bool:
        return _caches(self.part.spec, self.options)

    def ops(self) -> list[Op]:
        ops = super().ops()
        return self._with_barrier(ops) if self.options.wait == Wait.BARRIER else ops

    def begin(self) -> list[Op]:
        ops = list[Op]()
        for layer in self.drawn_layers:
            ops += [self._sample(layer), self._twice(self.exchange_ids(layer), layer, LACKS), self.rebuild(layer)]
        return ops

    def _sample(self, layer: int) -> Op:
        waits, reads = (("step", 1), ("weigh", 1)), (ODDS,)
        op = self.sample(layer, waits, reads) if self.options.refresh else self.sample(layer, waits[:1])
        return self._twice(op, layer, MISSES)

    def _twice(self, op: Op, layer: int, missing: str) -> Op:
        """The op with a second result where there is a cache: the ids of layer 0 that are not in it."""
        return replace(op, writes=(*op.writes, missing)) if self.caches and layer == 0 else op

    def fetch(self, layer: int) -> list[Op]:
        if layer > 0 or not self.caches:
            return super().fetch(layer)
        drawn = ((self.of(self.draw, 0), 0), (self.of("exchange_ids", 0), 0))
        sent = self.misses.exchange(0, (*self.rows_made(0), *drawn))
        assert isinstance(sent.work, Exchange)
        sent = replace(sent, work=replace(sent.work, matrix=MISSED), reads=(*sent.reads, LACKS, MISSES))
        return [sent, self._recall()]

    def forward(self, layer: int) -> Op:
        op = super().forward(layer)
        return _instead(op) if layer == 0 and self.caches else op

    def loss(self) -> list[Op]:
        return [*super().loss(), *([self._weigh()] if self.options.refresh else [])]

    def _recall(self) -> Op:
        """The op that joins received rows and cached ones."""
        part, lag = self.part, self.options.tau
        kernels: Kernels = (("gather", (part.size.num_halo, part.spec.num_features)),)
        waits = (("exchange.0", lag), (self.of(self.draw, 0), lag))
        op = part.compute("recall.0", kernels, ("halo.0", self.of(NEEDS, 0), CACHE), ("rows.0", CACHE), waits)
        return replace(op, carries=True)

    def _weigh(self) -> Op:
        """The op that finds how much every neighbour's rows matter, and from it the probabilities of the edges."""
        part, lag, every = self.part, self.options.tau, self.options.refresh
        layers, drawn = part.spec.exchanged_layers, self.drawn_layers
        rows = tuple(f"{name}.{layer}" for name in ("h", "halo") for layer in layers)
        reads = (*rows, *(self.of(NEEDS, layer) for layer in drawn), NORMS)
        awaited = (*(f"exchange.{layer}" for layer in layers), *(self.of(self.draw, layer) for layer in drawn))
        waits = tuple((name, lag) for name in awaited)
        op = part.compute("weigh", self._weighing(), reads, (ODDS, NORMS), waits)
        op = replace(op, every=every, offset=every - 1, work=replace(op.work, params=self.params))
        return _instead(op) if self.caches else op

    def _weighing(self) -> Kernels:
        part, edges = self.part, self.full.size.num_edges
        rows, widths = part.size.num_inner + part.size.num_halo, part.spec.widths
        kernels: list[tuple[str, tuple[int, ...]]] = []
        for layer in part.spec.exchanged_layers:
            width = widths[layer]
            if self.options.lengths == Lengths.PRODUCT:
                kernels.append(("gemm", (rows, width, widths[layer + 1])))
                width = widths[layer + 1]
            kernels.append(("elementwise", (rows * width, 1)))
        return (*kernels, ("gather", (edges, 1)), *[("draw", (edges, 4))] * ROUNDS)

    def _with_barrier(self, ops: list[Op]) -> list[Op]:
        sent = [op.name for op in ops if op.verb in ("exchange", "exchange_grad")]
        waits = tuple((name, self.options.tau) for name in sent)
        return [
            replace(op, after=(*op.after, *(edge for edge in waits if edge not in op.after)))
            if op.name == "forward.0"
            else op
            for op in ops
        ]

    def buffers(self) -> list[Buffer]:
        buffers = {buffer.name: buffer for buffer in super().buffers()}
        part, full = self.part, self.full
        rank, columns = part.rank, full.size.num_inner + full.size.num_halo
        if self.options.refresh:
            norms = len(part.spec.exchanged_layers) * columns * part.itemsize
            buffers[ODDS] = Buffer(name=ODDS, rank=rank, num_bytes=ODDS_BYTES * full.size.num_edges)
            buffers[NORMS] = Buffer(name=NORMS, rank=rank, num_bytes=norms, persistent=True)
        if self.caches:
            missed = {buffer.name: buffer for buffer in self.misses.buffers()}
            buffers |= {"rows.0": replace(buffers["halo.0"], name="rows.0")}
            buffers |= {name: missed[name] for name in ("halo.0", "packed.0")}
            size = int(drawn_counts(np.array([full.size.num_halo]), self.options.cache)[0])
            num_bytes = size * part.spec.num_features * part.itemsize
            buffers[CACHE] = Buffer(name=CACHE, rank=rank, num_bytes=num_bytes, persistent=True)
            buffers[MISSES] = self._ids(MISSES, self.misses.size.num_halo, Rows.HALO_IDS)
            buffers[LACKS] = self._ids(LACKS, self.misses.num_sent, Rows.SENT_IDS)
        return list(buffers.values())

    def _ids(self, name: str, num_rows: int, rows: Rows) -> Buffer:
        return Buffer(name=name, rank=self.misses.rank, num_bytes=2 * ID_BYTES * num_rows, rows=rows)


def _instead(op: Op) -> Op:
    """The op with received and cached rows of layer 0 together in place of those received; they are made before it."""
    reads = tuple("rows.0" if name == "halo.0" else name for name in op.reads)
    return replace(op, reads=reads, after=tuple(edge for edge in op.after if edge[0] != "exchange.0"))
