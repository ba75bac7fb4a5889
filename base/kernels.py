"""Kinds of kernels: the dims of each, its FLOPs and its bytes.

What a model computes, told apart where machines do it at other rates: the words that schedules, models, devices and
measurements share.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType


class Numbers(StrEnum):
    """What a kernel computes with: how many bytes a number has, and at which of a device's rates products run."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"  # numbers of 4 bytes, products of numbers rounded to 10 bits
    BFLOAT16 = "bfloat16"

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self]

    @property
    def bits(self) -> int:
        return 8 * self.itemsize

    @property
    def master(self) -> "Numbers":
        """The numbers in which weights and their steps are kept, where rows and products have these."""
        return Numbers.FLOAT32 if self is Numbers.BFLOAT16 else self


_ITEMSIZE: Mapping[str, int] = MappingProxyType({"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2})

KERNEL_DIMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("m", "k", "n"),
        "spmm": ("rows", "cols", "nnz", "width"),
        "spmm_weighted": ("rows", "cols", "nnz", "width"),  # entries with a value each
        "sddmm": ("rows", "cols", "nnz", "width"),  # a number per entry: the product of a row and a column
        "elementwise": ("numel", "passes"),
        "dropout": ("numel", "passes"),
        "norm": ("rows", "width"),  # of rows, by mean and deviation
        "norm_back": ("rows", "width"),
        "sum_rows": ("rows", "width"),  # into one
        "softmax": ("numel", "passes"),  # exponentials and sums over groups
        "loss": ("rows", "width"),  # and the scores
        "update": ("numel", "passes"),  # of weights, by the optimiser
        "draw": ("numel", "passes"),  # random numbers, and what they choose
        "gather": ("rows", "width"),
        "scatter": ("rows", "width"),  # rows added to the rows they belong to
        "build": ("rows", "width"),  # a sparse matrix from lists of its entries: looked up, renumbered, sorted
    }
)
# what a kind costs where nothing finer is known: as much as another with the same dims
KERNEL_LIKE: Mapping[str, str] = MappingProxyType(
    {
        "spmm_weighted": "spmm",
        "sddmm": "spmm",
        **dict.fromkeys(("dropout", "softmax", "update", "draw"), "elementwise"),
        **dict.fromkeys(("scatter", "build"), "gather"),
    }
)
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
