"""The arithmetic of a model on one part: the kernels of every step, their FLOPs and bytes, the tensors kept.

A kernel is (kind, dims): gemm (m, k, n), spmm (rows, cols, nnz, width), elementwise (numel, passes) where passes
counts the tensors read and written, gather (rows, width). Kernel lists follow what the torch modules launch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from halocast.models.spec import ModelKind, ModelSpec, Norm

Dims = tuple[int, ...]
Kernels = tuple[tuple[str, Dims], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSize:
    num_inner: int
    num_halo: int
    num_edges: int  # local nonzeros, self-loops included


def flops(kind: str, dims: Dims) -> int:
    return _FLOPS[kind](dims)


def bytes_moved(kind: str, dims: Dims, itemsize: int) -> int:
    """Bytes read and written if every operand is touched once; spmm reads a source row per edge."""
    return _BYTES[kind](dims, itemsize)


_FLOPS: MappingProxyType[str, Callable[[Dims], int]] = MappingProxyType(
    {
        "gemm": lambda d: 2 * d[0] * d[1] * d[2],
        "spmm": lambda d: 2 * d[2] * d[3],
        "elementwise": lambda d: d[0],
        "gather": lambda d: 0,
    }
)
_BYTES: MappingProxyType[str, Callable[[Dims, int], int]] = MappingProxyType(
    {
        "gemm": lambda d, s: s * (d[0] * d[1] + d[1] * d[2] + d[0] * d[2]),
        "spmm": lambda d, s: s * (d[2] * d[3] + d[0] * d[3]) + 4 * d[2] + 8 * d[0],
        "elementwise": lambda d, s: s * d[0] * d[1],
        "gather": lambda d, s: 2 * s * d[0] * d[1] + 8 * d[0],
    }
)


def forward(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """Kernels of one layer's forward: join rows, dropout, aggregate, multiply, normalise."""
    wide, out, n = spec.widths[layer], spec.widths[layer + 1], size.num_inner
    graph = layer < spec.num_graph_layers
    joined = _num_joined(spec, layer, size)
    kernels: list[tuple[str, Dims]] = []
    if joined > n:
        kernels.append(("elementwise", (joined * wide, 2)))  # inner and halo rows into one tensor
    if spec.dropout > 0:
        kernels.append(("elementwise", (_num_dropped(spec, layer, size) * wide, 3)))
    if spec.aggregates(layer):
        kernels += _aggregate(spec, size, joined, wide)
    kernels += [("gemm", (n, wide, out))] * _num_gemms(spec, graph)
    return (*kernels, *_finish(spec, layer, n, out, passes=2))


def backward(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """Kernels of one layer's backward: the transposed steps; layer 0's input needs no gradient."""
    wide, out, n = spec.widths[layer], spec.widths[layer + 1], size.num_inner
    graph = layer < spec.num_graph_layers
    joined = _num_joined(spec, layer, size)
    kernels = list(_finish(spec, layer, n, out, passes=3))
    kernels += [("gemm", (wide, n, out))] * _num_gemms(spec, graph)
    if layer > 0:
        kernels += [("gemm", (n, out, wide))] * _num_gemms(spec, graph)
        if spec.aggregates(layer):
            kernels += _aggregate(spec, PartSize(num_inner=joined, num_halo=0, num_edges=size.num_edges), n, wide)
        if spec.dropout > 0:
            kernels.append(("elementwise", (joined * wide, 3)))
        if joined > n:
            kernels.append(("elementwise", (joined * wide, 2)))  # split into inner and halo gradients
    return tuple(kernels)


def loss(spec: ModelSpec, num_inner: int) -> Kernels:
    """Log-softmax, the picked entries, and back: a handful of passes over the logits."""
    return (("elementwise", (num_inner * spec.num_classes, 4)),)


def step(spec: ModelSpec) -> Kernels:
    """Adam reads and writes the weight, its gradient and two moments, and clears the gradient."""
    return (("elementwise", (spec.num_weights, 8)),)


def add_rows(num_rows: int, width: int) -> Kernels:
    """Adding received gradients to the rows they belong to."""
    return (("gather", (num_rows, width)),)


def pack_rows(num_rows: int, width: int) -> Kernels:
    """Copying the rows to be sent into one buffer."""
    return (("gather", (num_rows, width)),)


def _num_gemms(spec: ModelSpec, graph: bool) -> int:
    return 2 if graph and spec.kind is ModelKind.SAGE else 1


def _aggregate(spec: ModelSpec, size: PartSize, cols: int, width: int) -> list[tuple[str, Dims]]:
    rows = size.num_inner
    scale: list[tuple[str, Dims]] = [("elementwise", (rows * width, 2))]
    if spec.kind is ModelKind.GCN:  # both ends of an edge are normalised
        scale.append(("elementwise", (cols * width, 2)))
    return [("spmm", (rows, cols, size.num_edges, width)), *scale]


def _finish(spec: ModelSpec, layer: int, rows: int, width: int, passes: int) -> list[tuple[str, Dims]]:
    if layer == spec.layers - 1:
        return []
    norm: list[tuple[str, Dims]] = [("elementwise", (rows * width, passes + 1))] if spec.norm is Norm.LAYER else []
    return [*norm, ("elementwise", (rows * width, passes))]


def kept_numel(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Numbers a layer's forward keeps for its backward, beside its input, its halo rows and its output.

    The joined rows, where there are halo rows to join; with dropout the mask and what is multiplied with the weights;
    the aggregate; the input of the normalisation. Layer 0's input needs no gradient, so no mask is kept there.
    """
    wide, out, n = spec.widths[layer], spec.widths[layer + 1], size.num_inner
    joined = _num_joined(spec, layer, size)
    drops, sums = spec.dropout > 0, spec.aggregates(layer)
    kept = joined * wide if joined > n else 0
    if drops:
        own_is_used = layer >= spec.num_graph_layers or spec.kind is ModelKind.SAGE
        kept += joined * wide * (int(layer > 0) + int(own_is_used))
    if sums or (drops and layer < spec.num_graph_layers):  # a precomputed aggregate is kept anyway, unless dropped out
        kept += n * wide
    if layer < spec.layers - 1 and spec.norm is Norm.LAYER:
        kept += n * out
    return kept


def _num_joined(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Rows a layer works on: its inner rows, and the halo rows if it aggregates."""
    return size.num_inner + (size.num_halo if spec.aggregates(layer) else 0)


def _num_dropped(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Rows that dropout passes over; a precomputed GraphSAGE layer drops its own rows and their aggregate."""
    if not spec.dropout:
        return 0
    both = layer == 0 and spec.precompute and spec.kind is ModelKind.SAGE
    return _num_joined(spec, layer, size) * (2 if both else 1)
