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


def kept_bytes(spec: ModelSpec, layer: int, size: PartSize, itemsize: int) -> int:
    """What stays alive between a layer's forward and its backward, beside its input features and its halo rows.

    kept_numel, and the output of the activation, which its derivative reads. A mask counts one byte per number, as
    torch's dropout on a GPU keeps it (the CPU's keeps numbers).
    """
    joined, out = _num_joined(spec, layer, size), spec.widths[layer + 1]
    masked = joined * spec.widths[layer] if spec.dropout > 0 and layer > 0 else 0
    activated = size.num_inner * out if layer < spec.layers - 1 else 0
    return (kept_numel(spec, layer, size) - masked + activated) * itemsize + masked


def scratch_numel(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Numbers an op of the layer holds at its fullest beyond its operands, its results and what is kept.

    Backward, when the partial gradients of the joined rows exist: GraphSAGE adds the own rows' and the neighbours'
    into a third tensor, GCN scales one into another; the products are done, their kept operands free. Or backward of
    activation and normalisation, before there is a gradient of the input. Or a GCN's forward, which alone needs the
    rows after dropout. Layer 0's input needs no gradient, and little else is alive in its ops.
    """
    if layer == 0:
        return 0
    wide, out, n = spec.widths[layer], spec.widths[layer + 1], size.num_inner
    joined, drops, sums = _num_joined(spec, layer, size), spec.dropout > 0, spec.aggregates(layer)
    sage = sums and spec.kind is ModelKind.SAGE
    partial = joined * (2 if sage else 1 if sums or drops else 0)
    freed = (n if sums else 0) + (joined if drops and (sage or not sums) else 0)
    dropped = joined if drops and sums and not sage else 0
    # with dropout, the layer above has freed as much by then
    finish = 2 * n * out - joined * wide if layer < spec.layers - 1 and not drops else 0
    return max(0, (partial - freed) * wide, dropped * wide, finish)


def _num_joined(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Rows a layer works on: its inner rows, and the halo rows if it aggregates."""
    return size.num_inner + (size.num_halo if spec.aggregates(layer) else 0)


def _num_dropped(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Rows that dropout passes over; a precomputed GraphSAGE layer drops its own rows and their aggregate."""
    if not spec.dropout:
        return 0
    both = layer == 0 and spec.precompute and spec.kind is ModelKind.SAGE
    return _num_joined(spec, layer, size) * (2 if both else 1)
