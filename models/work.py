"""FLOPs and bytes of a kernel by its kind and dims."""

from collections.abc import Callable
from types import MappingProxyType

Dims = tuple[int, ...]
Kernels = tuple[tuple[str, Dims], ...]
STREAMING = ("elementwise", "dropout", "norm", "norm_back", "softmax", "update", "draw")  # (numel, passes)
INDEXED = ("gather", "scatter")  # (rows, width)


def flops(kind: str, dims: Dims) -> int:
    return _FLOPS[kind](dims)


def bytes_moved(kind: str, dims: Dims, itemsize: int) -> int:
    """Bytes read and written if every operand is touched once; spmm reads a source row per edge."""
    return _BYTES[kind](dims, itemsize)


_FLOPS: MappingProxyType[str, Callable[[Dims], int]] = MappingProxyType(
    {
        "gemm": lambda d: 2 * d[0] * d[1] * d[2],
        "spmm": lambda d: 2 * d[2] * d[3],
        "sddmm": lambda d: 2 * d[2] * d[3],
        "loss": lambda d: d[0] * d[1],
        **dict.fromkeys(STREAMING, lambda d: d[0]),
        **dict.fromkeys(INDEXED, lambda d: 0),
    }
)
_BYTES: MappingProxyType[str, Callable[[Dims, int], int]] = MappingProxyType(
    {
        "gemm": lambda d, s: s * (d[0] * d[1] + d[1] * d[2] + d[0] * d[2]),
        **dict.fromkeys(("spmm", "sddmm"), lambda d, s: s * (d[2] * d[3] + d[0] * d[3]) + 4 * d[2] + 8 * d[0]),
        "loss": lambda d, s: 4 * s * d[0] * d[1],  # log-softmax, the picked entries, and back
        **dict.fromkeys(STREAMING, lambda d, s: s * d[0] * d[1]),
        **dict.fromkeys(INDEXED, lambda d, s: 2 * s * d[0] * d[1] + 8 * d[0]),
    }
)
