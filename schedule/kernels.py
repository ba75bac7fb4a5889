"""Kinds of kernels and the dims of each: what a model computes, told apart where machines do it at other rates."""

from collections.abc import Mapping
from types import MappingProxyType

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
