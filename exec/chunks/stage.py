"""A stage of a pipeline: some layers of the model on chunks of the whole graph, one chunk per slot.

Rows of all nodes lie in one table per layer, chunk after chunk. A chunk reads the rows of its halo nodes from there if
their chunk came before it in this epoch, else from the snapshot; only the former get a gradient. Dropout is drawn anew
for every (epoch, layer, chunk), so that what is computed does not depend on how layers are spread over stages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from halocast.exec.launch.job import FORWARD_CHUNK, Job, read_part, read_scored
from halocast.exec.run.part_tensors import PartTensors, block_of
from halocast.exec.run.state import OPTIMIZERS, EpochOutcome, RankState, flatten
from halocast.exec.transport.link import Call, Halves, RankLink
from halocast.graph.chunks import needed_rows, table_rows, whole
from halocast.graph.parts import Part
from halocast.models.modules import NEIGHBOURS, Block, Gnn
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Kind, Op, Role, Rows, Schedule

ENTER = (Role.FEATURES, Role.ROWS, Role.FIRST)  # of tables whose rows enter a layer
NOTHING = ((0.0, 0.0),) * 3  # hits of a stage that sees no logits
ORDER_STREAM, DROPOUT_STREAM = 0, 1


def read_state(job: Job, directory: Path, rank: int, link: RankLink) -> RankState:
    """A rank's state from the files of a job."""
    first = read_part(directory, 0 if works_on_chunks(job) else rank)
    needed = range(first.num_parts) if works_on_chunks(job) else (rank,)
    parts = [first if k == first.rank else read_part(directory, k) for k in needed]
    scored = [part for k in needed if (part := read_scored(directory, k)) is not None]
    return make_state(job, parts, scored, rank, link)


def works_on_chunks(job: Job) -> bool:
    """Whether every rank needs all parts, since they are chunks that flow through it."""
    return any(op.verb == FORWARD_CHUNK for op in job.schedule.ops)


def make_state(job: Job, parts: list[Part], scored: list[Part], rank: int, link: RankLink) -> RankState:
    """A rank's state: of its part, or of all chunks where the schedule works on chunks; scored may be other parts."""
    dtype = getattr(torch, job.settings.dtype)
    if not works_on_chunks(job):
        state = RankState(job, parts[0], link)
        if scored:
            state.scored = PartTensors(scored[0], job.spec, dtype, link)
        return state
    stage = ChunkState(job, parts, rank, link)
    if scored:
        stage.scored = ScoredChunks(scored, rank, job.spec, dtype, link)
    return stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    number: int
    rows: slice  # of the tables
    halo: Tensor  # rows of the tables
    owners: Tensor  # the chunk of every halo row
    block: Block
    masks: list[tuple[Tensor, Tensor]]  # rows of the chunk and their labels, per mask

    @property
    def num_rows(self) -> int:
        return len(self.block.in_degree)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HaloPlaces:
    """Places in a chunk's halo by where their rows come from in one epoch."""

    epoch: int
    beside: Tensor  # fresh, of other ways' chunks in the same slot
    before: Tensor  # fresh, of chunks that came before
    old: Tensor  # of the snapshot


class ChunkState(RankState):
    """The state of a stage beside a rank's usual one: the chunks, and tables of rows by buffer name."""

    def __init__(self, job: Job, parts: list[Part], rank: int, link: RankLink) -> None:
        dtype = getattr(torch, job.settings.dtype)
        self.chunks = _chunks(parts, dtype, link)
        super().__init__(job, whole(parts, rank), link)
        ops = job.schedule.by_rank[rank]
        self.layers = sorted({op.index[0] for op in ops if op.verb == FORWARD_CHUNK})
        self._own_weights()
        self.shuffles = any(op.verb == "shuffle" for op in ops)
        self.messages = numbered(job.schedule)
        self.num_slots = sum(op.verb == FORWARD_CHUNK and op.index[0] == self.layers[0] for op in ops)
        self.num_ways = len(parts) // self.num_slots
        self._meet_ways(parts)
        self.made: dict[
            tuple[int, int], tuple[Tensor, Tensor, Tensor | None]
        ] = {}  # by layer and chunk, until backward
        self.tables = self._tables()
        self.compared: dict[int, tuple[Tensor, Tensor]] = {}  # by layer: rows and their snapshot, to measure errors
        self._divided: dict[int, HaloPlaces] = {}  # by chunk
        if not any(op.verb == "loss_chunk" for op in ops):
            self.history = [EpochOutcome(loss=0.0, hits=list(NOTHING)) for _ in range(job.settings.epochs)]

    def _own_weights(self) -> None:
        """Flat weights and an optimizer of this stage's layers alone."""
        norms = [self.model.norms[layer] for layer in self.layers if layer < self.job.spec.layers - 1]
        self.own = nn.ModuleList([*(self.model.linears[layer] for layer in self.layers), *norms])
        for weight in self.model.parameters():
            weight.data, weight.grad = weight.data.clone(), None
        self.weights, self.grads = flatten(self.own)
        self.kept_grads, self.fetched = torch.zeros_like(self.grads), self.weights.detach().clone()
        settings = self.job.settings
        self.optimizer = OPTIMIZERS[settings.optimizer](
            [self.weights], lr=settings.lr, weight_decay=settings.weight_decay
        )

    def _meet_ways(self, parts: list[Part]) -> None:
        """Learn which way of its stage this rank is, and who needs which rows."""
        self.way = 0
        self.ways_ranks: tuple[int, ...] = (self.rank,)
        for op in self.schedule.by_rank[self.rank]:
            if op.kind is Kind.ALLREDUCE:  # the ways of a stage share its weights
                self.ways_ranks = self.schedule.group(op)
                self.way = self.ways_ranks.index(self.rank)
        needed = needed_rows(parts, self.num_ways)
        self.needed = [[torch.from_numpy(rows).to(self.link.device) for rows in ways] for ways in needed]

    def _tables(self) -> dict[str, Tensor]:
        """A table per buffer that holds rows of all nodes."""
        buffers = [b for b in self.schedule.buffers if b.rank == self.rank and b.rows is Rows.ALL]
        num_nodes = self.part.num_inner
        widths = {b.name: b.num_bytes // self.features.element_size() // num_nodes for b in buffers}
        known = self._features()
        return {name: known.get(name, self.features.new_zeros((num_nodes, wide))) for name, wide in widths.items()}

    def table(self, names: tuple[str, ...], *roles: Role) -> Tensor:
        """The table with one of these roles among the named buffers."""
        matching = [name for name in names if self.rows_of(name) is Rows.ALL and self.role_of(name) in roles]
        return self.tables[matching[0]]

    def has(self, names: tuple[str, ...], role: Role) -> bool:
        return bool(self.names(names, role=role))

    def _neighbours(self) -> Halves[Tensor]:
        yield from ()
        return neighbours(self.spec, self.chunks, self.features)

    def exact_logits(self, model: Gnn) -> Halves[Tensor]:
        yield from ()
        with torch.no_grad():
            return chunk_logits(self, self.chunks, model)

    def order(self, epoch: int) -> tuple[int, ...]:
        """The chunk in every slot; the same on all stages."""
        numbers = tuple(range(self.num_slots))
        return drawn_order(len(numbers), self.job.settings.seed, epoch) if self.shuffles else numbers

    def in_slot(self, op: Op, epoch: int) -> Chunk:
        return self.chunk_of(op, self.way, epoch)

    def chunk_of(self, op: Op, way: int, epoch: int) -> Chunk:
        """The chunk that a way has in a slot."""
        return self.chunks[way * self.num_slots + self.order(epoch)[op.index[-1]]]

    def rows_of_slot(self, name: str, op: Op, epoch: int) -> Tensor:
        return self.tables[name][self.in_slot(op, epoch).rows]

    def divided(self, chunk: Chunk, epoch: int) -> HaloPlaces:
        """Where the rows of a chunk's halo come from; all layers ask for the same."""
        known = self._divided.get(chunk.number)
        if known is None or known.epoch != epoch:
            turn = torch.from_numpy(np.argsort(self.order(epoch))).to(chunk.owners.device)
            ahead = turn[chunk.number % self.num_slots] - turn[chunk.owners % self.num_slots]
            places = {"beside": ahead == 0, "before": ahead > 0, "old": ahead < 0}
            known = HaloPlaces(epoch=epoch, **{name: where.nonzero().flatten() for name, where in places.items()})
            self._divided[chunk.number] = known
        return known

    def joined(self, op: Op, chunk: Chunk, epoch: int) -> Tensor:
        """The chunk's rows, and those of its halo if the layer aggregates: fresh, or of the snapshot."""
        table, num_own = self.table(op.reads, *ENTER), chunk.num_rows
        if not self.job.spec.aggregates(op.index[0]):
            return table[chunk.rows].clone()
        rows = table.new_empty((num_own + len(chunk.halo), table.shape[1]))
        rows[:num_own] = table[chunk.rows]
        torch.index_select(table, 0, chunk.halo, out=rows[num_own:])
        old = self.divided(chunk, epoch).old
        if self.has(op.reads, Role.SNAPSHOT) and len(old):
            snapshot = self.table(op.reads, Role.SNAPSHOT).index_select(0, chunk.halo[old])
            rows[num_own:].index_copy_(0, old, snapshot)
        return rows

    def draw_dropout(self, epoch: int, layer: int, chunk: Chunk) -> None:
        words = (self.job.settings.seed, DROPOUT_STREAM, epoch, layer, chunk.number)
        seed = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed looks for other devices, 60 times as long
        if self.link.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def logits(self) -> Halves[Tensor]:
        """Exact logits of all nodes, on every rank, with the weights of all stages."""
        yield from self.share_weights()
        return (yield from super().logits())

    def share_weights(self) -> Halves[None]:
        """Send the weights of every stage's layers to all ranks."""
        own = {id(weight) for weight in self.own.parameters()}
        weights = list(self.model.parameters())
        flat = torch.cat([w.detach().reshape(-1) * (id(w) in own and self.way == 0) for w in weights])
        yield from self.link.sum(flat, Call("weights of all stages"))
        for weight, value in zip(weights, torch.split(flat, [w.numel() for w in weights]), strict=True):
            if id(weight) not in own:
                weight.data.copy_(value.view_as(weight))


class ScoredChunks(PartTensors):
    """All chunks of a graph that is scored and not trained on."""

    def __init__(self, parts: list[Part], rank: int, spec: ModelSpec, dtype: torch.dtype, link: RankLink) -> None:
        self.chunks = _chunks(parts, dtype, link)
        super().__init__(whole(parts, rank), spec, dtype, link)

    def _neighbours(self) -> Halves[Tensor]:
        yield from ()
        return neighbours(self.spec, self.chunks, self.features)

    def exact_logits(self, model: Gnn) -> Halves[Tensor]:
        yield from ()
        with torch.no_grad():
            return chunk_logits(self, self.chunks, model)


@torch.no_grad()
def neighbours(spec: ModelSpec, chunks: list[Chunk], rows: Tensor) -> Tensor:
    """What the neighbours of all nodes add up to, chunk after chunk."""
    sums = NEIGHBOURS[spec.kind]
    return torch.cat([sums(chunk.block, torch.cat([rows[chunk.rows], rows[chunk.halo]])) for chunk in chunks])


Draw = Callable[[int, Chunk], None]


def chunk_logits(here: PartTensors, chunks: list[Chunk], model: Gnn, draw: Draw = lambda layer, chunk: None) -> Tensor:
    """Logits of all nodes, layer by layer, chunk after chunk; `draw` is called before each, to settle its dropout."""
    rows = first = here.features
    for layer in range(here.spec.layers):
        outputs = []
        for c in chunks:
            given = torch.cat([rows[c.rows], rows[c.halo]]) if here.spec.aggregates(layer) else rows[c.rows]
            aggregated = here.aggregated[c.rows] if here.aggregated is not None and layer == 0 else None
            mixed = first[c.rows] if here.spec.mixes_first(layer) else None
            draw(layer, c)
            outputs.append(model.layer(layer, given, c.block, aggregated, mixed))
        rows = torch.cat(outputs)
        first = rows if layer == 0 else first
    return rows


def numbered(schedule: Schedule) -> dict[str, int]:
    """A number for every message of a schedule, by name; both ends number them alike."""
    names = sorted({op.name for op in schedule.ops if op.kind in (Kind.SEND, Kind.EXCHANGE)})
    return {name: number for number, name in enumerate(names)}


@lru_cache(maxsize=4)
def drawn_order(num_chunks: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng((seed, ORDER_STREAM, epoch)).permutation(num_chunks).tolist())


def _chunks(parts: list[Part], dtype: torch.dtype, link: RankLink) -> list[Chunk]:
    bounds = np.cumsum([0, *(part.num_inner for part in parts)]).tolist()
    chunks = []
    for number, (part, halo) in enumerate(zip(parts, table_rows(parts), strict=True)):
        owners = np.repeat(np.arange(len(parts)), np.diff(part.halo_offsets))
        masks = [np.flatnonzero(mask) for mask in (part.train_mask, part.val_mask, part.test_mask)]
        chunks.append(
            Chunk(
                number=number,
                rows=slice(bounds[number], bounds[number + 1]),
                halo=torch.from_numpy(halo).to(link.device),
                owners=torch.from_numpy(owners).to(link.device),
                block=block_of(part, dtype, link.device),
                masks=[
                    (torch.from_numpy(rows).to(link.device), torch.from_numpy(part.labels[rows]).to(link.device))
                    for rows in masks
                ],
            )
        )
    return chunks


def chunk_state(state: RankState) -> ChunkState:
    assert isinstance(state, ChunkState), "a schedule with slots has chunks"
    return state
