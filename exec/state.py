"""What one rank holds while it trains: its part as tensors, the model with flat weights, values by buffer name."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from halocast.exec.comm import Channel, Link, gather_once, rows_per_peer
from halocast.exec.interpret import Progress
from halocast.exec.job import Job
from halocast.graph.parts import Part
from halocast.models.aggregate import neighbour_sum
from halocast.models.modules import NEIGHBOURS, Block, Gnn, build_model, hits, make_block
from halocast.schedule.ir import Kind, Op, Rows
from halocast.schedule.passes import num_copies, read_lag

MASKS = ("train", "val", "test")


@dataclass(slots=True, kw_only=True)
class Epoch:
    """What a rank knows of one epoch's outcome; sums over ranks give the loss and the scores."""

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


class RankState:
    """The mutable state handlers work on; nothing here knows a method."""

    def __init__(self, job: Job, part: Part, link: Link) -> None:
        self.job, self.part, self.link = job, part, link
        self.schedule = job.schedule
        self.rank = part.rank
        dtype = getattr(torch, job.settings.dtype)
        self.features = self._tensor(part.features, dtype)
        self.labels = self._tensor(part.labels)
        masks = (part.train_mask, part.val_mask, part.test_mask)
        self.mask_rows = [self._tensor(np.flatnonzero(mask)) for mask in masks]
        self.mask_labels = [self.labels[rows] for rows in self.mask_rows]
        self.send_rows = self._tensor(part.send_rows)
        self.send_counts = np.diff(part.send_offsets).tolist()
        self.recv_counts = np.diff(part.halo_offsets).tolist()
        self.block = _block(part, dtype, link.device)
        self.model: Gnn = build_model(job.spec, job.settings.seed, dtype).to(link.device)
        self.weights, self.grads = flatten(self.model)
        self.optimizer = torch.optim.Adam([self.weights], lr=job.settings.lr, weight_decay=job.settings.weight_decay)
        self.aggregated = self._precompute() if job.spec.precompute else None
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}
        self.values: dict[str, Tensor] = {"h.0": self.features}
        self.history: list[Epoch] = []
        self.weight_hashes: list[str] = []
        self.kept_grads = torch.zeros_like(self.grads)
        self.progress: Progress | None = None
        self.lags = self._lags()
        self.channels = self._channels()

    def _tensor(self, array: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=self.link.device, dtype=dtype)

    def _precompute(self) -> Tensor:
        """Neighbours of layer 0, exchanged and aggregated once before training."""
        rows = torch.cat([self.features, self.gather(self.features, "precompute")])
        with torch.no_grad():
            return NEIGHBOURS[self.job.spec.kind](self.block, rows)

    def gather(self, rows: Tensor, what: str) -> Tensor:
        """Fresh halo rows, outside the schedule."""
        return gather_once(self.link, rows[self.send_rows], self.send_counts, self.recv_counts, what)

    def _lags(self) -> dict[tuple[str, str], int]:
        """(op, buffer it reads) -> how many epochs back its writer's instance is; looked up in every op."""
        found = {
            (op.name, b): read_lag(self.schedule, op, b) for op in self.schedule.by_rank[self.rank] for b in op.reads
        }
        return {key: seen[1] for key, seen in found.items() if seen}

    def _channels(self) -> dict[str, Channel]:
        """A channel per exchange, found by the buffer it fills as well as by its own name."""
        names = sorted({op.name for op in self.schedule.ops if op.kind is Kind.EXCHANGE})
        made: dict[str, Channel] = {}
        for op in self.schedule.by_rank[self.rank]:
            if op.kind is Kind.EXCHANGE:
                channel = self._channel(op, names.index(op.name), len(names))
                made |= {op.name: channel, op.writes[0]: channel}
        return made

    def _channel(self, op: Op, tag: int, num_tags: int) -> Channel:
        send_rows, recv_rows = rows_per_peer(self.schedule, op)
        width = op.work.row_bytes // self.features.element_size()
        shape = (sum(recv_rows), width)
        # one slot per value alive, and one that is being received ahead
        slots = num_copies(self.schedule, self.rank, op.writes[0]) + 1
        return Channel(
            op=op,
            tag=tag,
            num_tags=num_tags,
            link=self.link,
            send_rows=send_rows,
            recv_rows=recv_rows,
            ring=[self.features.new_zeros(shape) for _ in range(slots)],
            last_epoch=op.latest(self.job.settings.num_epochs - 1),
            is_free=lambda epoch, wait: self._is_free(op, epoch, slots, wait),
        )

    def _is_free(self, op: Op, epoch: int, slots: int, wait: bool) -> bool:
        """Whether everybody has read the instance whose slot the one of `epoch` will overwrite."""
        old = epoch - slots * op.every
        assert self.progress is not None
        for reader in self.schedule.by_rank[self.rank]:
            if op.writes[0] in reader.reads:
                last = reader.latest(old + op.every - 1 + self.lags[reader.name, op.writes[0]])
                if wait:
                    self.progress.wait_for(reader.name, last, op, epoch)
                elif not self.progress.is_done(reader.name, last):
                    return False
        return True

    def read(self, op: Op, rows: Rows, epoch: int) -> Tensor | None:
        """The value of the buffer with such rows that the op reads, as old as its lag says; None if it reads none."""
        for name in op.reads:
            buffer = self.schedule.buffer(self.rank, name)
            assert buffer is not None
            if buffer.rows is rows:
                return self.value(op, name, epoch)
        return None

    def value(self, op: Op, name: str, epoch: int) -> Tensor:
        channel = self.channels.get(name)
        if channel is None:
            return self.values[name]
        return channel.read(channel.op.latest(epoch - self.lags[op.name, name]))

    def write(self, op: Op, rows: Rows, value: Tensor) -> None:
        for name in op.writes:
            buffer = self.schedule.buffer(self.rank, name)
            assert buffer is not None
            if buffer.rows is rows:
                self.values[name] = value

    def score(self, logits: Tensor) -> list[tuple[float, float]]:
        pairs = zip(self.mask_rows, self.mask_labels, strict=True)
        return [hits(logits[rows], labels) for rows, labels in pairs]

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Exact logits of the inner rows: evaluation mode, every halo row fresh."""
        self.model.eval()
        rows = self.features
        for layer in range(self.job.spec.layers):
            joined = rows
            if self.job.spec.aggregates(layer) and self.part.num_parts > 1:
                joined = torch.cat([rows, self.gather(rows, f"evaluation of layer {layer}")])
            rows = self.model.layer(layer, joined, self.block, self.aggregated if layer == 0 else None)
        self.model.train()
        return rows

    def hash_weights(self) -> str:
        return hashlib.blake2b(self.weights.detach().cpu().numpy().tobytes(), digest_size=16).hexdigest()


def _block(part: Part, dtype: torch.dtype, device: torch.device) -> Block:
    indptr, indices = torch.from_numpy(part.indptr), torch.from_numpy(part.indices)
    num_inner, num_cols = len(part.inner), len(part.inner) + len(part.halo)
    aggregate = neighbour_sum(indptr.to(device), indices.to(device), num_cols)
    degrees = [
        torch.from_numpy(np.asarray(d)).to(device=device, dtype=dtype) for d in (part.in_degree, part.out_degree)
    ]
    return make_block(aggregate, degrees[0][:num_inner], degrees[1])
