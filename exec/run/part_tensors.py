"""A part as tensors on a rank's device, and exact logits of its rows: every halo row fresh, no schedule."""

import numpy as np
import torch
from torch import Tensor

from halocast.exec.transport.link import Halves, RankLink
from halocast.graph.parts import Part
from halocast.models.aggregate import neighbour_sum
from halocast.models.modules import NEIGHBOURS, Block, Gnn, hits, make_block, master
from halocast.models.spec import ModelSpec


class PartTensors:
    """A part's rows, its labels by mask, its local graph, and the rows that its peers need."""

    def __init__(self, part: Part, spec: ModelSpec, dtype: torch.dtype, link: RankLink) -> None:
        self.part, self.spec, self.link = part, spec, link
        self.features = self._tensor(part.features, dtype)
        self.labels = self._tensor(part.labels)
        masks = (part.train_mask, part.val_mask, part.test_mask)
        self.mask_rows = [self._tensor(np.flatnonzero(mask)) for mask in masks]
        self.mask_labels = [self.labels[rows] for rows in self.mask_rows]
        self.send_rows = self._tensor(part.send_rows)
        self.send_counts = np.diff(part.send_offsets).tolist()
        self.recv_counts = np.diff(part.halo_offsets).tolist()
        self.block = block_of(part, dtype, link.device)
        self.aggregated: Tensor | None = None  # what a precomputed layer 0 keeps of its neighbours

    def _tensor(self, array: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=self.link.device, dtype=dtype)

    def precompute(self) -> Halves[None]:
        """Exchange and aggregate the neighbours of layer 0 once, if the model wants that; all ranks call it."""
        if self.spec.precompute:
            self.aggregated = yield from self._neighbours()

    def _neighbours(self) -> Halves[Tensor]:
        halo = yield from self.gather(self.features, "precompute")
        with torch.no_grad():
            return NEIGHBOURS[self.spec.kind](self.block, torch.cat([self.features, halo]))

    def gather(self, rows: Tensor, what: str) -> Halves[Tensor]:
        """Fetch fresh halo rows, outside the schedule."""
        return (yield from self.link.trade(rows[self.send_rows], self.send_counts, self.recv_counts, what))

    def give_back(self, rows: Tensor, what: str) -> Halves[Tensor]:
        """Send halo rows to their owners, outside the schedule; returns what comes back for the rows that were sent."""
        return (yield from self.link.trade(rows.contiguous(), self.recv_counts, self.send_counts, what))

    def hits(self, logits: Tensor) -> list[tuple[float, float]]:
        """Pairs (numerator, denominator) of the score of every mask; sums over ranks make the scores."""
        pairs = zip(self.mask_rows, self.mask_labels, strict=True)
        return [hits(logits[rows], labels) for rows, labels in pairs]

    def exact_logits(self, model: Gnn) -> Halves[Tensor]:
        """Logits of the inner rows with a model as it is; all ranks call it."""
        rows = first = self.features
        for layer in range(self.spec.layers):
            joined = rows
            if self.spec.aggregates(layer) and self.part.num_parts > 1:
                joined = torch.cat([rows, (yield from self.gather(rows, f"evaluation of layer {layer}"))])
            mixed = first if self.spec.mixes_first(layer) else None
            with torch.no_grad():
                rows = model.layer(layer, joined, self.block, self.aggregated if layer == 0 else None, mixed)
            first = rows if layer == 0 else first
        return rows


def block_of(part: Part, dtype: torch.dtype, device: torch.device) -> Block:
    """The local graph of a part, for rows of such numbers."""
    indptr, indices = torch.from_numpy(part.indptr), torch.from_numpy(part.indices)
    num_inner, num_cols = len(part.inner), len(part.inner) + len(part.halo)
    aggregate = neighbour_sum(indptr.to(device), indices.to(device), num_cols)
    degrees = [
        torch.from_numpy(np.asarray(d)).to(device=device, dtype=master(dtype))
        for d in (part.in_degree, part.out_degree)
    ]
    return make_block(aggregate, degrees[0][:num_inner], degrees[1])
