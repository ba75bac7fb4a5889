"""FLOPs and bytes of a kernel by its kind and dims."""

from collections.abc import Callable
from types import MappingProxyType

Dims = tuple[int, ...]
Kernels = tuple[tuple[str, Dims], ...]
STREAMING = ("elementwise", "dropout", "softmax", "update", "draw")  # (numel, passes)
SPARSE = ("spmm", "spmm_weighted", "sddmm")  # (rows, cols, nnz, width)
# (rows, width), and how often the numbers are read or written: a loss is a log-softmax, the picked entries, and back
PASSES = MappingProxyType({"loss": 4, "norm": 3, "norm_back": 4, "sum_rows": 1})
INDEXED = ("gather", "scatter", "build")  # (rows, width)


def flops(kind: str, dims: Dims) -> int:
    return _FLOPS[kind](dims)


def bytes_moved(kind: str, dims: Dims, itemsize: int) -> int:
    """Bytes read and written if every operand is touched once; spmm reads a source row per edge."""
    return _BYTES[kind](dims, itemsize)


def _passes(number: int) -> Callable[[Dims, int], int]:
    return lambda d, s: number * s * d[0] * d[1]


_FLOPS: MappingProxyType[str, Callable[[Dims], int]] = MappingProxyType(
    {
        "gemm": lambda d: 2 * d[0] * d[1] * d[2],
        **dict.fromkeys(SPARSE, lambda d: 2 * d[2] * d[3]),
        **dict.fromkeys(PASSES, lambda d: d[0] * d[1]),
        **dict.fromkeys(STREAMING, lambda d: d[0]),
        **dict.fromkeys(INDEXED, lambda d: 0),
    }
)
_BYTES: MappingProxyType[str, Callable[[Dims, int], int]] = MappingProxyType(
    {
        "gemm": lambda d, s: s * (d[0] * d[1] + d[1] * d[2] + d[0] * d[2]),
        **dict.fromkeys(SPARSE, lambda d, s: s * (d[2] * d[3] + d[0] * d[3]) + 4 * d[2] + 8 * d[0]),
        **{kind: _passes(passes) for kind, passes in PASSES.items()},
        **dict.fromkeys(STREAMING, lambda d, s: s * d[0] * d[1]),
        **dict.fromkeys(INDEXED, lambda d, s: 2 * s * d[0] * d[1] + 8 * d[0]),
    }
)


def built_rows(num_edges: int, num_kept: int) -> int:
    """Rows of a `build` of some of a graph's edges: marks of all are looked up, the kept ones renumbered, counted by
    row, and sorted by source for the way back."""
    return num_edges + 3 * num_kept
