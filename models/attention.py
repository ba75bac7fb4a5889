"""Attention over the edges of a local CSR: one rule over three edge-wise steps that two kernels offer."""

import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

NEGATIVE_SLOPE = 0.2  # of the leaky ReLU, as published


class Edges(Protocol):
    """The edges of a local graph, in CSR order: by the row they enter. E edges, h heads, f columns per head."""

    def ends(self, source: Tensor, target: Tensor) -> Tensor:
        """Sum what stands at an edge's two ends: source [num_cols, h], target [num_rows, h] -> [E, h]."""

    def softmax(self, scores: Tensor) -> Tensor:
        """Positive weights that sum to 1 over the edges that enter a row: [E, h] -> [E, h]."""

    def weighted_sum(self, values: Tensor, weights: Tensor) -> Tensor:
        """Sum neighbours' values by edge weights: values [num_cols, h, f], weights [E, h] -> [num_rows, h, f]."""


def attend(edges: Edges, source: Tensor, target: Tensor, values: Tensor) -> Tensor:
    """Rows of weighted neighbours: an edge weighs the more, the higher the score of its ends."""
    scores = F.leaky_relu(edges.ends(source, target), NEGATIVE_SLOPE)
    return edges.weighted_sum(values, edges.softmax(scores))


class DglEdges:
    def __init__(self, ops: Any, block: Any) -> None:
        self._ops, self._block = ops, block

    def ends(self, source: Tensor, target: Tensor) -> Tensor:
        result: Tensor = self._ops.u_add_v(self._block, source, target)
        return result

    def softmax(self, scores: Tensor) -> Tensor:
        result: Tensor = self._ops.edge_softmax(self._block, scores)
        return result

    def weighted_sum(self, values: Tensor, weights: Tensor) -> Tensor:
        result: Tensor = self._ops.u_mul_e_sum(self._block, values, weights.unsqueeze(2))
        return result


class CsrEdges:
    """Edges for torch's own kernels: segments of the CSR and of its transpose, one sparse product per head."""

    def __init__(self, indptr: Tensor, indices: Tensor, num_cols: int) -> None:
        self.indptr, self.indices = indptr, indices
        self.shape = (len(indptr) - 1, num_cols)
        self.row_of = rows_of(indptr)
        self.back, self.order = transposed(indices, num_cols)
        self.receivers = self.row_of[self.order]
        self.starts, self.back_starts = indptr.long(), self.back.long()  # as segment_reduce wants them

    def ends(self, source: Tensor, target: Tensor) -> Tensor:
        result: Tensor = _Ends.apply(source, target, self)  # type: ignore[no-untyped-call]
        return result

    def softmax(self, scores: Tensor) -> Tensor:
        result: Tensor = _Softmax.apply(scores, self)  # type: ignore[no-untyped-call]
        return result

    def weighted_sum(self, values: Tensor, weights: Tensor) -> Tensor:
        result: Tensor = _WeightedSum.apply(values, weights, self)  # type: ignore[no-untyped-call]
        return result

    def by_row(self, numbers: Tensor, reduce: str = "sum") -> Tensor:
        """Reduce numbers over the edges that enter a row: [E, h] -> [num_rows, h]."""
        return torch.segment_reduce(numbers, reduce, offsets=self.starts, axis=0)

    def by_column(self, numbers: Tensor) -> Tensor:
        """Sum numbers over the edges that leave a column: [E, h] -> [num_cols, h]."""
        return torch.segment_reduce(numbers[self.order], "sum", offsets=self.back_starts, axis=0)

    def matrix(self, weights: Tensor) -> Tensor:
        return csr(self.indptr, self.indices, weights.contiguous(), self.shape)

    def matrix_back(self, weights: Tensor) -> Tensor:
        return csr(self.back, self.receivers, weights[self.order], self.shape[::-1])


class _Ends(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, edges: CsrEdges) -> Tensor:
        ctx.edges = edges
        return source.index_select(0, edges.indices).add_(target.index_select(0, edges.row_of))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return ctx.edges.by_column(grads[0]), ctx.edges.by_row(grads[0].contiguous()), None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, edges: CsrEdges) -> Tensor:
        highest = edges.by_row(scores, "max")  # exp of a row's highest score is 1: nothing overflows
        powers = (scores - highest.index_select(0, edges.row_of)).exp_()
        weights = powers.div_(edges.by_row(powers).index_select(0, edges.row_of))
        ctx.edges = edges
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        pulled = grads[0] * weights
        mean = ctx.edges.by_row(pulled).index_select(0, ctx.edges.row_of)
        return pulled.addcmul_(mean, weights, value=-1), None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, edges: CsrEdges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(values, weights)
        return _side_by_side([edges.matrix(w) @ v.contiguous() for v, w in _heads(values, weights)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        edges, (values, weights) = ctx.edges, ctx.saved_tensors
        by_value = _side_by_side([edges.matrix_back(w) @ g.contiguous() for w, g in _heads(weights, grads[0])])
        heads = _heads(values, weights, grads[0])
        by_weight = _side_by_side([_products(edges.matrix(w), g.contiguous(), v) for v, w, g in heads])
        return by_value, by_weight, None


def _heads(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors by head: each head's pieces together."""
    return zip(*(tensor.unbind(1) for tensor in tensors), strict=True)


def _side_by_side(heads: list[Tensor]) -> Tensor:
    return torch.stack(heads, 1) if len(heads) > 1 else heads[0].unsqueeze(1)  # one head needs no copy


def _products(pattern: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """One number per entry (i, j) of the pattern: rows[i] times columns[j]."""
    result: Tensor = torch.sparse.sampled_addmm(pattern, rows, columns.T, beta=0.0).values()
    return result


def rows_of(indptr: Tensor) -> Tensor:
    """The row of every entry of a CSR."""
    rows = torch.arange(len(indptr) - 1, dtype=torch.int32, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff())


def transposed(indices: Tensor, num_cols: int) -> tuple[Tensor, Tensor]:
    """Row starts of the transposed matrix, and which entry of the CSR each of its entries is."""
    ends = torch.bincount(indices, minlength=num_cols).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends]).to(torch.int32)
    return starts, torch.argsort(indices, stable=True).to(torch.int32)


def csr(indptr: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that CSR tensors are in beta
        return torch.sparse_csr_tensor(indptr, indices, values, size=shape)
