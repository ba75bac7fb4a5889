"""What one rank holds while it trains: its part as tensors, the model with flat weights, values by buffer name."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from halocast.base.errors import InputError
from halocast.exec.launch.job import Job, Optimizer
from halocast.exec.run.drawn import Ids, LocalBlock, all_ids
from halocast.exec.run.interpret import Progress
from halocast.exec.run.notes import AgeNotes, RowError, Tally
from halocast.exec.run.part_tensors import PartTensors
from halocast.exec.run.pieces import Begun, Columns
from halocast.exec.run.straggle import Stretch
from halocast.exec.store.kvs import Store
from halocast.exec.transport.link import Channel, Halves, RankLink, drain
from halocast.graph.parts import Part
from halocast.models.modules import Gnn, build_model
from halocast.schedule.ir import IDS, Buffer, Counted, Exchange, Kind, Matrix, Op, Role, Rows
from halocast.schedule.passes import read_lag

OPTIMIZERS: MappingProxyType[Optimizer, Callable[..., torch.optim.Optimizer]] = MappingProxyType(
    {Optimizer.ADAM: torch.optim.Adam, Optimizer.SGD: torch.optim.SGD}
)


Later = Callable[[Halves[None]], None]  # does what ranks do together beside the schedule


@dataclass(slots=True, kw_only=True)
class EpochOutcome:
    """The outcome of one epoch as a rank knows it; sums over ranks give the loss and the scores."""

    loss: float
    hits: list[tuple[float, float]]  # (numerator, denominator) per mask, of the training forward


def flatten(model: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """Make all weights views of one tensor, and all gradients views of another: one all-reduce, one Adam step."""
    weights = list(model.parameters())
    flat = nn.Parameter(torch.cat([w.detach().reshape(-1) for w in weights]))
    grads = torch.zeros_like(flat)
    flat.grad = grads
    start = 0
    for weight in weights:
        end = start + weight.numel()
        weight.data = flat.data[start:end].view_as(weight)
        weight.grad = grads[start:end].view_as(weight)
        start = end
    return flat, grads


class RankState(PartTensors):
    """The mutable state handlers work on; nothing here knows a method."""

    def __init__(self, job: Job, part: Part, link: RankLink) -> None:
        dtype = getattr(torch, job.settings.dtype)
        super().__init__(part, job.spec, dtype, link)
        self.job, self.schedule, self.rank = job, job.schedule, part.rank
        self.scored: PartTensors = self  # what scores are of: whole graphs, where training sees the train nodes only
        self.model: Gnn = build_model(job.spec, job.settings.seed, dtype).to(link.device)
        self.weights, self.grads = flatten(self.model)
        self.optimizer = OPTIMIZERS[job.settings.optimizer](
            [self.weights], lr=job.settings.lr, weight_decay=job.settings.weight_decay
        )
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}
        self.begun: dict[int, Begun] = {}  # layers that are computed in pieces
        self.columns: dict[str, Columns] = {}  # of pieces, by the matrix that counts their rows
        self.firsts: dict[int, Tensor] = {}  # by layer: layer 0's output rows as mixed in there, until backward
        self.kept = self._features()  # what nobody writes
        self._lists: dict[str, Tensor] = {}  # by matrix: the rows this rank gives, grouped by peer
        self.values: dict[str, dict[int, Any]] = defaultdict(dict)  # buffer -> instance -> value
        self.announced: dict[str, dict[int, list[int]]] = defaultdict(
            dict
        )  # exchange of ids, instance -> from each rank
        self.notes: dict[str, Any] = {}  # what handlers remember from epoch to epoch
        self.store: Store | None = None
        self.fetched = self.weights.detach().clone()  # the weights as they were last taken from the store
        self.versions: dict[str, dict[int, np.ndarray]] = defaultdict(dict)  # of rows pulled, as values
        self.initials: dict[str, Any] = {}  # of buffers, before their first instance
        self.ages = AgeNotes()
        self.errors: list[RowError] = []
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.made_grads: dict[int, Tensor] = {}  # of halo rows, this epoch's, by layer; kept only to measure errors
        self.draws: dict[int, tuple[Tensor, ...]] = {}  # by epoch: random states at its first forward; likewise
        self.history: list[EpochOutcome] = []
        self.weight_hashes: list[str] = []
        self.kept_grads = torch.zeros_like(self.grads)
        self.progress: Progress | None = None
        self.stretch = Stretch(self.rank, job.settings)
        self.sources = self._sources()
        self.readers = self._readers()
        self._forgettable = self._values_read()
        self.channels: Mapping[str, Channel] = {}  # of exchanges, by name; made by whoever has the transport
        self.later: Later = drain  # where ranks cannot wait: done as soon as all have come

    def _features(self) -> dict[str, Tensor]:
        """The buffers that hold the input features of this rank's own nodes."""
        buffers = (b for b in self.schedule.buffers if b.rank == self.rank and b.role is Role.FEATURES)
        return {b.name: self.features for b in buffers if b.rows in (Rows.INNER, Rows.ALL)}

    def _sources(self) -> dict[tuple[str, str], tuple[Op, int]]:
        """The writer that each (op, buffer it reads) means and how many epochs back; looked up in every op."""
        pairs = [(op, name) for op in self.schedule.by_rank[self.rank] for name in op.reads]
        sources = {(op.name, name): read_lag(self.schedule, op, name) for op, name in pairs}
        return {key: seen for key, seen in sources.items() if seen}

    def _readers(self) -> dict[str, list[Op]]:
        readers: dict[str, list[Op]] = defaultdict(list)
        for op in self.schedule.by_rank[self.rank]:
            for name in op.reads:
                readers[name].append(op)
        return readers

    def _values_read(self) -> dict[str, list[tuple[str, Op]]]:
        """The values that each op reads and that lie here, not in a channel, with their writers."""
        read: dict[str, list[tuple[str, Op]]] = {op.name: [] for op in self.schedule.by_rank[self.rank]}
        for (reader, name), (writer, _) in self.sources.items():
            if not self._in_channel(writer, name):
                read[reader].append((name, writer))
        return read

    def read(self, op: Op, rows: Rows, epoch: int) -> Any:
        """The value of the buffer with such rows that the op reads, as old as its lag says; None if it reads none."""
        name = self._named(op.reads, rows)
        return None if name is None else self.value(op, name, epoch)

    def value(self, op: Op, name: str, epoch: int) -> Any:
        """The value of `name` from the writer's instance that `op` means; before the first, its initial one."""
        instance = self.instance(op, name, epoch)
        if instance is None:
            return self.kept[name]
        writer, lag = self.sources[op.name, name]
        if instance < 0:
            return self.values[name][epoch - lag] if epoch - lag in self.values[name] else self.initial(name)
        if self._in_channel(writer, name):
            channel = self.channels[writer.name]
            self.ages.reads[op.name, name].append((epoch, writer.name, instance, channel.drawn_rows(instance)))
            return channel.read(instance)
        if instance in self.versions[name]:
            versions = self.versions[name][instance]
            self.ages.note_stored(op.name, name, epoch - versions[versions >= 0])
        return self.values[name][instance]

    def _in_channel(self, writer: Op, name: str) -> bool:
        return writer.kind is Kind.EXCHANGE and self.rows_of(name) not in IDS

    def instance(self, op: Op, name: str, epoch: int) -> int | None:
        """The epoch of the writer that `op` means when it reads `name`; None where nobody writes it."""
        source = self.sources.get((op.name, name))
        return None if source is None else source[0].latest(epoch - source[1])

    def write(self, op: Op, rows: Rows, value: Any, epoch: int) -> None:
        """Keep a value for those who read it; other lanes may still want older ones."""
        name = self._named(op.writes, rows)
        if name is not None:
            self.put(op, name, value, epoch)

    def put(self, op: Op, name: str, value: Any, epoch: int) -> None:
        instances = self.values[name]
        for old in [e for e in list(instances) if self.is_read(op, name, e)]:
            self._drop(name, old)
        instances[epoch] = value

    def _drop(self, name: str, instance: int) -> None:
        self.values[name].pop(instance, None)
        self.versions[name].pop(instance, None)

    def forget(self, op: Op) -> None:
        """Let go of what the op read and nobody will read again."""
        for name, writer in self._forgettable[op.name]:
            for old in [e for e in list(self.values[name]) if self.is_read(writer, name, e)]:
                self._drop(name, old)

    def is_read(self, writer: Op, name: str, instance: int) -> bool:
        return all(self.running().is_done(*last) for last in self.last_reads(writer, name, instance))

    def last_reads(self, writer: Op, name: str, instance: int) -> Iterator[tuple[str, int]]:
        """Pairs (reader, the last epoch in which it reads that instance), for every reader of a buffer."""
        for reader in self.readers[name]:
            lag = self.sources[reader.name, name][1]
            yield reader.name, reader.latest(instance + writer.every - 1 + lag)

    def names(self, names: tuple[str, ...], rows: Rows | None = None, *, role: Role | None = None) -> tuple[str, ...]:
        """The names of those of the named buffers that hold such rows and have such a role."""
        buffers = ((name, self._buffer(name)) for name in names)
        return tuple(name for name, b in buffers if rows in (None, b.rows) and role in (None, b.role))

    def _named(self, names: tuple[str, ...], rows: Rows) -> str | None:
        return next((name for name in names if self.rows_of(name) is rows), None)

    def send_lists(self, op: Op) -> Tensor:
        """The rows that an EXCHANGE takes from this rank, grouped by peer, as its matrix counts them."""
        assert isinstance(op.work, Exchange)
        name = op.work.matrix
        if name not in self._lists:
            matrix = self.schedule.matrix(name)
            assert matrix is not None, "the checker has seen it"
            self._lists[name] = self._counted(matrix)
        return self._lists[name]

    def _counted(self, matrix: Matrix) -> Tensor:
        counts, bounds = matrix.counts[self.rank].tolist(), self.part.send_offsets.tolist()
        all_rows = torch.arange(self.part.num_inner, device=self.link.device)
        halo = [self.send_rows[start:end] for start, end in pairwise(bounds)]
        rows = {Counted.HALO: halo, Counted.ALL: [all_rows] * len(halo)}[matrix.rows]
        lists = [rows[peer] if count else all_rows[:0] for peer, count in enumerate(counts)]
        for peer, (count, given) in enumerate(zip(counts, lists, strict=True)):
            if count != len(given):
                raise InputError(
                    f"matrix {matrix.name}: rank {self.rank} would give rank {peer} {count} {matrix.rows} rows, "
                    f"but has {len(given)}"
                )
        return torch.cat(lists)

    def returned_rows(self, op: Op, name: str) -> Tensor:
        """The rows to which what came back in a buffer belongs: those that the EXCHANGE it came with had taken."""
        writer, _ = self.sources[op.name, name]
        if isinstance(writer.work, Exchange):
            return self.send_lists(writer)
        came = next(read for read in self.names(writer.reads, Rows.SENT) if read != name)  # a running mean of it
        return self.returned_rows(writer, came)

    def empty(self, name: str) -> Tensor:
        """Memory for a value of a buffer, contents undefined: a number each, not in rows."""
        buffer = self._buffer(name)
        like = self.features if self.flat(name) is None else self.grads
        return like.new_empty(buffer.num_bytes * 8 // buffer.bits)

    def leaf_of_first(self, op: Op, layer: int, epoch: int) -> Tensor | None:
        """Layer 0's output rows as a leaf of this layer's graph; None for a layer that does not mix them in."""
        if not self.job.spec.mixes_first(layer):
            return None
        (name,) = self.names(op.reads, role=Role.FIRST)
        self.firsts[layer] = self.value(op, name, epoch).detach().clone().requires_grad_()
        return self.firsts[layer]

    def flat(self, name: str) -> Tensor | None:
        """The flat tensor behind a buffer of weights or of their gradients; None for any other."""
        flats = {Role.WEIGHTS: self.weights.detach(), Role.WEIGHT_GRADS: self.grads}
        return flats.get(self._buffer(name).role)

    def rows_of(self, name: str) -> Rows:
        return self._buffer(name).rows

    def role_of(self, name: str) -> Role:
        return self._buffer(name).role

    def is_exact(self, name: str) -> bool:
        return self._buffer(name).exact

    def _buffer(self, name: str) -> Buffer:
        buffer = self.schedule.buffer(self.rank, name)
        assert buffer is not None, "the checker has seen it"
        return buffer

    def initial(self, name: str) -> Any:
        """The value before the first instance: zeros, or what was put there before the run.

        Where draws are made ahead, those of the first epochs are values of instances before the first (`draw_ahead`);
        before them nothing is drawn, so all rows are there, and the whole local graph.
        """
        if name not in self.initials:
            self.initials[name] = INITIAL.get(self.rows_of(name), RankState._zeros)(self, name)
        return self.initials[name]

    def _zeros(self, name: str) -> Tensor:
        buffer, itemsize = self._buffer(name), self.features.element_size()
        all_rows = {Rows.INNER: self.part.num_inner, Rows.HALO: self.part.num_halo, Rows.SENT: len(self.send_rows)}
        num_rows = all_rows[buffer.rows]
        for op in self.schedule.writers(self.rank, name):
            if isinstance(op.work, Exchange):
                matrix = self.schedule.matrix(op.work.matrix)
                assert matrix is not None, "the checker has seen it"
                came = int(self.schedule.received(op).sum()) // op.work.row_bytes
                return self.features.new_zeros(num_rows if matrix.drawn else came, op.work.row_bytes // itemsize)
        return self.features.new_zeros(num_rows, buffer.num_bytes // max(num_rows, 1) // itemsize or 1)

    def running(self) -> Progress:
        assert self.progress is not None, "set before the first op runs"
        return self.progress

    def score(self, logits: Tensor) -> list[tuple[float, float]]:
        """The share of a rank in the scores of what `logits` gives."""
        return self.scored.hits(logits)

    def logits(self) -> Halves[Tensor]:
        """Exact logits, in evaluation mode, of the rows that this rank scores; all ranks call it."""
        self.model.eval()
        logits = yield from self.scored.exact_logits(self.model)
        self.model.train()
        return logits

    @contextmanager
    def at_weights(self, weights: Tensor) -> Iterator[None]:
        """Have other weights for a while."""
        now = self.weights.detach().clone()
        self.weights.detach().copy_(weights)
        yield
        self.weights.detach().copy_(now)

    def note_weights(self, op: Op) -> None:
        """Hash the weights after the op that makes them final for its epoch: the last one that writes them."""
        if self.job.settings.audit and op.name == self.last_step:
            self.weight_hashes.append(self.hash_weights())

    @cached_property
    def last_step(self) -> str:
        """The last op of an epoch that writes this rank's weights."""
        ops = self.schedule.by_rank[self.rank]
        return [op for op in ops if any(self._is_own_weights(name) for name in op.writes)][-1].name

    def _is_own_weights(self, name: str) -> bool:
        buffer = self._buffer(name)
        return buffer.role is Role.WEIGHTS and buffer.rank == self.rank

    def hash_weights(self) -> str:
        return hashlib.blake2b(self.weights.detach().cpu().numpy().tobytes(), digest_size=16).hexdigest()


def _all_halo(state: RankState, name: str) -> Ids:
    rows = torch.arange(state.part.num_halo, device=state.link.device)
    return all_ids(rows, state.part.halo_offsets)


INITIAL: MappingProxyType[Rows, Callable[[RankState, str], Any]] = MappingProxyType(
    {
        Rows.SENT_IDS: lambda state, name: all_ids(state.send_rows, state.part.send_offsets),
        Rows.HALO_IDS: _all_halo,
        Rows.GRAPH: lambda state, name: LocalBlock(
            state.block, torch.arange(state.part.num_halo, device=state.link.device)
        ),
    }
)
