"""Neighbours over a local CSR, summed or attended to: one seam, two kernels (dgl's where it is importable, torch's CSR
otherwise)."""

import contextlib
import io
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from halocast.base.errors import unknown
from halocast.models.attention import CsrEdges, DglEdges, Edges, csr, rows_of, transposed


class Aggregate(Protocol):
    """A local graph; what only attention needs is made when it is first asked for."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Sum every row's neighbours: rows [num_cols, d] -> [num_rows, d]."""

    @property
    def edges(self) -> Edges: ...


@cache
def _dgl() -> Any:
    """The module dgl, or None where it has no wheel (Python 3.12 and later); its first import prints and warns."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            import dgl
            import dgl.ops
    except ImportError:
        return None
    return dgl


def kernels() -> tuple[str, ...]:
    """The kernels usable here, the preferred one first."""
    return ("dgl", "torch") if _dgl() is not None else ("torch",)


def neighbour_sum(
    indptr: Tensor, indices: Tensor, num_cols: int, kernel: str = "", *, at_once: bool = False
) -> Aggregate:
    """Sums of rows, [num_cols, d] -> [num_rows, d]: row i of the result is that of rows indices[indptr[i]:indptr[i+1]].

    `at_once`: make what the way back needs now, not when it is first gone (torch's kernel always waits, for the type
    of the rows).
    """
    # dgl's wheels of this version are built for the CPU
    chosen = kernel or (kernels()[0] if indptr.device.type == "cpu" else "torch")
    if chosen not in kernels():
        raise unknown("aggregation kernel", chosen, kernels())
    return _MAKERS[chosen](indptr.to(torch.int32), indices.to(torch.int32), num_cols, at_once)


def neighbour_sum_back(indptr: Tensor, indices: Tensor, num_cols: int) -> Aggregate:
    """The transposed of `neighbour_sum`: rows [num_rows, d] -> [num_cols, d], sums of what each was summed to."""
    starts, order = transposed(indices.to(torch.int32), num_cols)
    return neighbour_sum(starts, rows_of(indptr.to(torch.int32))[order], len(indptr) - 1)


class _DglSum:
    def __init__(self, indptr: Tensor, indices: Tensor, num_cols: int, at_once: bool) -> None:
        dgl = _dgl()
        # dgl takes an empty list for "in order", but its blocked float32 kernel then reads it and crashes
        ids = torch.arange(len(indices), dtype=torch.int32, device=indptr.device)
        table = ("csc", (indptr, indices, ids))
        self._ops = dgl.ops
        self._block = dgl.create_block(table, num_src_nodes=num_cols, num_dst_nodes=len(indptr) - 1)
        if at_once:
            self._block.adj_tensors("csr")  # which it keeps

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self._ops.copy_u_sum(self._block, rows)
        return result

    @cached_property
    def edges(self) -> Edges:
        return DglEdges(self._ops, self._block)


class _CsrSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return matrix @ rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back @ grads[0].contiguous(), None, None


class _TorchSum:
    def __init__(self, indptr: Tensor, indices: Tensor, num_cols: int, at_once: bool) -> None:
        self._indptr, self._indices, self._num_cols = indptr, indices, num_cols
        self._matrices: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.dtype not in self._matrices:
            self._matrices[rows.dtype] = self._make(rows.dtype)
        result: Tensor = _CsrSum.apply(rows, *self._matrices[rows.dtype])  # type: ignore[no-untyped-call]
        return result

    def _make(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The adjacency matrix and its transpose, as torch's sparse CSR."""
        num_rows, ones = len(self._indptr) - 1, torch.ones_like(self._indices, dtype=dtype)
        starts, order = transposed(self._indices, self._num_cols)
        receivers = rows_of(self._indptr)[order]
        return (
            csr(self._indptr, self._indices, ones, (num_rows, self._num_cols)),
            csr(starts, receivers, ones, (self._num_cols, num_rows)),
        )

    @cached_property
    def edges(self) -> Edges:
        return CsrEdges(self._indptr, self._indices, self._num_cols)


_MAKERS: MappingProxyType[str, Callable[[Tensor, Tensor, int, bool], Aggregate]] = MappingProxyType(
    {"dgl": _DglSum, "torch": _TorchSum}
)
