"""Neighbour sums over a local CSR: one seam, two kernels (dgl's where it is importable, torch's CSR otherwise)."""

import contextlib
import io
import warnings
from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from halocast.base.errors import unknown

Aggregate = Callable[[Tensor], Tensor]


@cache
def _dgl() -> Any:
    """dgl, or None where it has no wheel (Python 3.12 and later); its first import prints and warns."""
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


def neighbour_sum(indptr: Tensor, indices: Tensor, num_cols: int, kernel: str = "") -> Aggregate:
    """rows [num_cols, d] -> [num_rows, d]: row i of the result is the sum of rows indices[indptr[i]:indptr[i+1]]."""
    # dgl's wheels of this version are built for the CPU
    chosen = kernel or (kernels()[0] if indptr.device.type == "cpu" else "torch")
    if chosen not in kernels():
        raise unknown("aggregation kernel", chosen, kernels())
    return _MAKERS[chosen](indptr.to(torch.int32), indices.to(torch.int32), num_cols)


def _dgl_sum(indptr: Tensor, indices: Tensor, num_cols: int) -> Aggregate:
    dgl = _dgl()
    # dgl takes an empty list for "in order", but its blocked float32 kernel then reads it and crashes
    ids = torch.arange(len(indices), dtype=torch.int32, device=indptr.device)
    block = dgl.create_block(("csc", (indptr, indices, ids)), num_src_nodes=num_cols, num_dst_nodes=len(indptr) - 1)
    return lambda rows: dgl.ops.copy_u_sum(block, rows)


class _CsrSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed @ grads[0].contiguous(), None, None


def _torch_sum(indptr: Tensor, indices: Tensor, num_cols: int) -> Aggregate:
    num_rows = len(indptr) - 1
    device = indptr.device
    row_of = torch.repeat_interleave(torch.arange(num_rows, dtype=torch.int32, device=device), indptr.diff())
    order = torch.argsort(indices, stable=True)
    counts = torch.bincount(indices, minlength=num_cols)
    back = torch.cat([torch.zeros(1, dtype=torch.int64, device=device), counts.cumsum(0)]).to(torch.int32)
    made: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def apply(rows: Tensor) -> Tensor:
        if rows.dtype not in made:
            made[rows.dtype] = (
                _csr(indptr, indices, (num_rows, num_cols), rows.dtype),
                _csr(back, row_of[order], (num_cols, num_rows), rows.dtype),
            )
        return _CsrSum.apply(rows, *made[rows.dtype])  # type: ignore[no-any-return, no-untyped-call]

    return apply


def _csr(indptr: Tensor, indices: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that CSR tensors are in beta
        return torch.sparse_csr_tensor(indptr, indices, torch.ones_like(indices, dtype=dtype), size=shape)


_MAKERS = MappingProxyType({"dgl": _dgl_sum, "torch": _torch_sum})
