"""The arithmetic of a model on one part: the kernels of every step, their FLOPs and bytes, the tensors kept.

A kernel is (kind, dims): gemm (m, k, n), spmm (rows, cols, nnz, width), elementwise (numel, passes) where passes
counts the tensors read and written, gather (rows, width). Kernel lists follow what the torch modules launch.
"""

from dataclasses import dataclass

from halocast.base.kernels import Dims as Dims
from halocast.base.kernels import Kernels as Kernels
from halocast.base.kernels import bytes_moved as bytes_moved
from halocast.base.kernels import flops as flops
from halocast.models.spec import ModelKind, ModelSpec, Norm

Launched = list[tuple[str, Dims]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSize:
    num_inner: int
    num_halo: int
    num_edges: int  # local nonzeros, self-loops included


def forward(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """Kernels of one layer's forward: join rows, dropout, aggregate, multiply, normalise."""
    return (*aggregate(spec, layer, size), *transform(spec, layer, size))


def backward(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """Kernels of one layer's backward: the transposed steps; with recompute, after the forward."""
    again = forward(spec, layer, size) if spec.recompute else ()
    return (*again, *transform_back(spec, layer, size), *aggregate_back(spec, layer, size))


def aggregate(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """A layer's forward up to its sum over neighbours: join rows, dropout, the sum if it has one.

    An attention is in here as a whole: its matrix comes before the sum, and its softmax needs all neighbours at once.
    """
    wide = spec.widths[layer]
    kernels: Launched = []
    if _num_copied(spec, layer, size):
        kernels += copy_rows(_num_joined(spec, layer, size), wide)  # inner and halo rows into one tensor
    kernels += _drop(spec, _num_dropped(spec, layer, size), wide)
    if spec.attends(layer):
        kernels += _attend(spec, layer, size)
    elif spec.aggregates(layer):
        kernels += _sum(spec, size.num_inner, _num_joined(spec, layer, size), size.num_edges, wide)
    return tuple(kernels)


def transform(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """A layer's forward after its sum over neighbours: multiply, normalise, activate, add the input if it does."""
    n, out = size.num_inner, spec.widths[layer + 1]
    kernels: Launched = [] if spec.attends(layer) else _products(spec, layer, n)
    return (*kernels, *_finish(spec, layer, n, out, backward=False), *_add_input(spec, layer, n))


def transform_back(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """Kernels from the gradient of a layer's output to those of its weights, above layer 0 also of its sum and rows."""
    n, out = size.num_inner, spec.widths[layer + 1]
    kernels: Launched = [] if spec.attends(layer) else _products_back(spec, layer, n)
    return (*_finish(spec, layer, n, out, backward=True), *_add_input(spec, layer, n), *kernels)


def aggregate_back(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """Kernels from the gradient of a layer's sum to those of the rows it summed; layer 0's input needs none.

    Attention has weights in its sum, so there is something to do in layer 0, too.
    """
    joined, wide = _num_joined(spec, layer, size), spec.widths[layer]
    kernels: Launched = _attend_back(spec, layer, size) if spec.attends(layer) else []
    if layer > 0 and spec.aggregates(layer) and not spec.attends(layer):
        kernels += _aggregate_back(spec, joined, size, wide)
    return (*kernels, *(_drop_back(spec, joined, wide) if layer > 0 else ()))


def add_columns(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """A piece of a layer's sum over neighbours: the halo rows of `size` alone, summed and added to the rest."""
    wide = spec.widths[layer]
    summed = _sum(spec, size.num_inner, size.num_halo, size.num_edges, wide)
    return (*_drop(spec, size.num_halo, wide), *summed, *blend_rows(size.num_inner, wide))


def add_columns_back(spec: ModelSpec, layer: int, size: PartSize) -> Kernels:
    """Kernels from the gradient of a layer's sum to that of the halo rows of `size`."""
    wide = spec.widths[layer]
    summed = _sum_back(spec, size.num_inner, size.num_halo, size.num_edges, wide)
    return (*summed, *_drop_back(spec, size.num_halo, wide))


def loss(spec: ModelSpec, num_inner: int) -> Kernels:
    """Log-softmax, the picked entries, and back: a handful of passes over the logits."""
    return (("loss", (num_inner, spec.num_classes)),)


def step(spec: ModelSpec, num_weights: int | None = None) -> Kernels:
    """Adam reads and writes weights (all, or so many), their gradients and two moments, and clears the gradients."""
    return (("update", (spec.num_weights if num_weights is None else num_weights, 8)),)


def copy_rows(num_rows: int, width: int) -> Kernels:
    """Kernels of copying rows that lie together: read and written."""
    return (("elementwise", (num_rows * width, 2)),) if num_rows * width else ()


def blend_rows(num_rows: int, width: int) -> Kernels:
    """A running mean of rows: two read, one written."""
    return (("elementwise", (num_rows * width, 3)),) if num_rows * width else ()


def add_rows(num_rows: int, width: int) -> Kernels:
    """Kernels of adding received gradients to the rows they belong to."""
    return (("scatter", (num_rows, width)),)


def pack_rows(num_rows: int, width: int) -> Kernels:
    """Kernels of copying the rows to be sent into one buffer."""
    return (("gather", (num_rows, width)),)


def _num_gemms(spec: ModelSpec, layer: int) -> int:
    return 2 if spec.kind is ModelKind.SAGE and not spec.is_linear(layer) else 1


def _multiply(spec: ModelSpec, layer: int, n: int) -> Launched:
    """The matrices of a layer; the products of own rows and neighbours are added."""
    wide, out = spec.widths[layer], spec.widths[layer + 1]
    gemm: tuple[str, Dims] = ("gemm", (n, wide, out))
    return [gemm, gemm, ("elementwise", (n * out, 3))] if _num_gemms(spec, layer) == 2 else [gemm]


def _multiply_back(spec: ModelSpec, layer: int, n: int) -> Launched:
    """The gradients of the matrices and biases and, unless of layer 0, of what they multiplied."""
    wide, out = spec.widths[layer], spec.widths[layer + 1]
    grads: Launched = [("sum_rows", (n, out)), ("gemm", (wide, n, out))] * _num_gemms(spec, layer)
    return grads + ([("gemm", (n, out, wide))] * _num_gemms(spec, layer) if layer > 0 else [])


def _products(spec: ModelSpec, layer: int, n: int) -> Launched:
    return _mix_first(spec, layer, n) if spec.mixes_first(layer) else _multiply(spec, layer, n)


def _products_back(spec: ModelSpec, layer: int, n: int) -> Launched:
    return _mix_first_back(spec, layer, n) if spec.mixes_first(layer) else _multiply_back(spec, layer, n)


def _sum(spec: ModelSpec, num_rows: int, num_columns: int, num_edges: int, width: int) -> Kernels:
    """Sums over those neighbours that are among some columns of a local graph, scaled by degrees."""
    scale: Launched = [("elementwise", (num_rows * width, 2))]
    if spec.kind is not ModelKind.SAGE:  # both ends of an edge are normalised
        scale.append(("elementwise", (num_columns * width, 2)))
    return (("spmm", (num_rows, num_columns, num_edges, width)), *scale)


def _sum_back(spec: ModelSpec, num_rows: int, num_columns: int, num_edges: int, width: int) -> Kernels:
    """Kernels from the gradient of `_sum` to that of its columns: the transposed product, and the scales."""
    transposed = _sum(spec, num_columns, num_rows, num_edges, width)
    return transposed if spec.kind is not ModelKind.SAGE else (("elementwise", (num_rows * width, 2)), transposed[0])


def _drop(spec: ModelSpec, num_rows: int, width: int) -> Kernels:
    return (("dropout", (num_rows * width, 3)),) if spec.dropout > 0 else ()


def _drop_back(spec: ModelSpec, num_rows: int, width: int) -> Kernels:
    return (("elementwise", (num_rows * width, 3)),) if spec.dropout > 0 else ()


def _aggregate_back(spec: ModelSpec, joined: int, size: PartSize, width: int) -> Launched:
    """The transposed product, scaled first; where own rows are used apart, their gradient is added to the sum's."""
    kernels: Launched = [*_sum_back(spec, size.num_inner, joined, size.num_edges, width)]
    if spec.kind is ModelKind.SAGE:
        kernels += [("elementwise", (joined * width, 1)), ("elementwise", (joined * width, 3))]
    return kernels


def _attend(spec: ModelSpec, layer: int, size: PartSize) -> Launched:
    """Attention: all rows through the matrix, a score per end, per edge and head the softmax, the weighted sum."""
    n, joined, edges = size.num_inner, _num_joined(spec, layer, size), size.num_edges
    wide, head_columns, scores = spec.widths[layer], spec.heads * spec.head_width(layer), edges * spec.heads
    return [
        ("gemm", (joined, wide, head_columns)),
        ("gemm", (joined, head_columns, 2 * spec.heads)),
        ("gather", (edges, spec.heads)),  # the scores of both ends; those of the targets lie in order
        ("elementwise", (scores, 2)),  # leaky ReLU
        ("softmax", (scores, 1)),  # a row's highest
        ("softmax", (scores, 2)),  # less it
        ("softmax", (scores, 2)),  # exp
        ("softmax", (scores, 1)),  # a row's sum
        ("softmax", (scores, 3)),  # divided by it, and read by the product
        ("spmm_weighted", (n, joined, edges, head_columns)),
        *_merge_heads(spec, layer, n),
        ("elementwise", (n * spec.widths[layer + 1], 2)),  # bias
    ]


def _attend_back(spec: ModelSpec, layer: int, size: PartSize) -> Launched:
    """The steps of `_attend` in reverse. A weight's gradient is a product of two rows per edge, which reads what a
    sparse product reads. All of it is needed in layer 0, too, for the gradients of the weights."""
    n, joined, edges = size.num_inner, _num_joined(spec, layer, size), size.num_edges
    wide, head_columns, scores = spec.widths[layer], spec.heads * spec.head_width(layer), edges * spec.heads
    rows = [("gemm", (joined, head_columns, wide))] if layer > 0 else []
    return [
        ("sum_rows", (n, spec.widths[layer + 1])),  # bias
        *_merge_heads(spec, layer, n),
        ("spmm_weighted", (joined, n, edges, head_columns)),  # gradients of the values
        ("sddmm", (n, joined, edges, head_columns)),  # gradients of the weights
        ("elementwise", (scores, 5)),  # both read or write a number per edge; times the weights
        ("softmax", (scores, 1)),  # a row's sum
        ("softmax", (scores, 3)),  # less its share
        ("elementwise", (scores, 3)),  # leaky ReLU
        ("elementwise", (scores, 1)),  # sums at the targets
        ("scatter", (edges, spec.heads)),  # and at the sources
        ("gemm", (joined, 2 * spec.heads, head_columns)),
        ("gemm", (head_columns, joined, 2 * spec.heads)),
        ("elementwise", (joined * head_columns, 3)),  # both gradients of the values
        ("gemm", (wide, joined, head_columns)),
        *rows,
    ]


def _merge_heads(spec: ModelSpec, layer: int, rows: int) -> Launched:
    """The mean over heads, or its reverse; heads side by side are one row already."""
    head_columns, out = spec.heads * spec.head_width(layer), spec.widths[layer + 1]
    return [("elementwise", (rows * (head_columns + out), 1))] if head_columns > out else []


def _mix_first(spec: ModelSpec, layer: int, n: int) -> Launched:
    """A convolution of GCNII after its sum: two mixtures of two tensors around a product; at last the classifier."""
    wide, out = spec.hidden, spec.widths[layer + 1]
    kernels: Launched = [
        ("elementwise", (n * wide, 3)),
        ("gemm", (n, wide, wide)),
        ("elementwise", (n * wide, 3)),
    ]
    if layer < spec.layers - 1:
        return kernels
    kernels.append(("elementwise", (n * wide, 2)))
    kernels += [("dropout", (n * wide, 3))] if spec.dropout > 0 else []
    return [*kernels, ("gemm", (n, wide, out))]


def _mix_first_back(spec: ModelSpec, layer: int, n: int) -> Launched:
    """The steps of `_mix_first` in reverse; a mixture's gradient is two scaled tensors, and layer 0's rows add up."""
    wide, out = spec.hidden, spec.widths[layer + 1]
    kernels: Launched = []
    if layer == spec.layers - 1:
        kernels += [("gemm", (wide, n, out)), ("gemm", (n, out, wide)), ("elementwise", (n * wide, 3))]
        kernels += [("elementwise", (n * wide, 3))] if spec.dropout > 0 else []
    scaled: Launched = [("elementwise", (n * wide, 2))] * 2
    products: Launched = [("gemm", (wide, n, wide)), ("gemm", (n, wide, wide))]
    added: Launched = [("elementwise", (n * wide, 3))]
    return [*kernels, *scaled, *products, *added, *scaled, *added]


def _add_input(spec: ModelSpec, layer: int, n: int) -> Launched:
    """Kernels of adding a layer's input to its output, or the one's gradient to the other's."""
    return [("elementwise", (n * spec.widths[layer], 3))] if spec.adds_input(layer) else []


def _finish(spec: ModelSpec, layer: int, rows: int, width: int, backward: bool) -> Launched:
    if layer == spec.layers - 1:
        return []
    relu: tuple[str, Dims] = ("elementwise", (rows * width, 3 if backward else 2))
    return [*_norm(spec, rows, width, backward), relu]


def _norm(spec: ModelSpec, rows: int, width: int, backward: bool) -> Launched:
    if spec.norm is Norm.LAYER:
        return [("norm_back" if backward else "norm", (rows, width))]
    return [("elementwise", (rows * width, 9 if backward else 3))] if spec.norm is Norm.L2 else []


def kept_numel(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Numbers a layer's forward keeps for its backward, beside its input, its halo rows and its output.

    The joined rows, where there are halo rows to join; with dropout the mask and what is multiplied with the weights;
    the aggregate; of an attention its rows after the matrix, and per edge and head the score and the weight; what the
    normalisation or the activation after it has read. Layer 0's input needs no gradient, so no mask is kept there.
    """
    wide, out, n = spec.widths[layer], spec.widths[layer + 1], size.num_inner
    joined = _num_joined(spec, layer, size)
    drops, attends = spec.dropout > 0, spec.attends(layer)
    linear = spec.is_linear(layer)
    kept = _num_copied(spec, layer, size) * wide
    if spec.recompute:
        return kept
    if drops:
        own_is_used = attends or linear or spec.kind is ModelKind.SAGE
        kept += joined * wide * (int(layer > 0) + int(own_is_used))
    if attends:
        kept += (joined * spec.head_width(layer) + 2 * size.num_edges) * spec.heads
    elif spec.aggregates(layer) or (drops and not linear):  # a precomputed one is kept anyway, unless dropped out
        kept += n * wide
    if layer < spec.layers - 1 and spec.norm is not Norm.NONE:
        kept += n * out
    if spec.mixes_first(layer) and layer == spec.layers - 1:  # what the classifier multiplies, and how it was made
        kept += n * wide * (3 if drops else 1)
    if spec.adds_input(layer):  # what the activation made, apart from the sum
        kept += n * out
    return kept


def kept_bytes(spec: ModelSpec, layer: int, size: PartSize, itemsize: int) -> int:
    """Bytes that stay alive between a layer's forward and its backward, beside its input features and its halo rows.

    kept_numel, and the output of the activation, which its derivative reads. A mask counts one byte per number, as
    torch's dropout on a GPU keeps it (the CPU's keeps numbers).
    """
    if spec.recompute:
        return kept_numel(spec, layer, size) * itemsize
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
    if spec.attends(layer):
        return _attend_scratch(spec, layer, size)
    wide, out, n = spec.widths[layer], spec.widths[layer + 1], size.num_inner
    joined, drops, sums = _num_joined(spec, layer, size), spec.dropout > 0, spec.aggregates(layer)
    sage = sums and spec.kind is ModelKind.SAGE
    partial = joined * (2 if sage else 1 if sums or drops else 0)
    freed = (n if sums else 0) + (joined if drops and (sage or not sums) else 0)
    dropped = joined if drops and sums and not sage else 0
    # with dropout, the layer above has freed as much by then
    finish = 2 * n * out - joined * wide if layer < spec.layers - 1 and not drops else 0
    return max(0, (partial - freed) * wide, dropped * wide, finish)


def _attend_scratch(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Backward of the softmax: three numbers per edge and head beside the gradient of the values; or later, when that
    gradient meets the scores' and what was kept per edge is free. Or before, of activation and normalisation. The
    gradient of the input does not exist yet.
    """
    last = layer == spec.layers - 1
    if spec.dropout > 0 and not last:  # the layer above has freed as much by then
        return 0
    joined, scores = _num_joined(spec, layer, size), size.num_edges * spec.heads
    values = joined * spec.heads * spec.head_width(layer)
    finish = 0 if last else size.num_inner * spec.widths[layer + 1] * (1 if spec.norm is Norm.NONE else 2)
    attend = max(3 * scores + values, 2 * values - 2 * scores) - finish  # what `finish` read is free, too
    return max(0, max(finish, attend) - joined * spec.widths[layer])


def _num_joined(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Rows a layer works on: its inner rows, and the halo rows if it aggregates."""
    return size.num_inner + (size.num_halo if spec.aggregates(layer) or spec.attends(layer) else 0)


def _num_copied(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Rows joined in every epoch: none if there is no halo, or if the layer is precomputed."""
    return _num_joined(spec, layer, size) if size.num_halo and spec.aggregates(layer) else 0


def num_precomputed(spec: ModelSpec, size: PartSize) -> int:
    """Rows a precomputed layer 0 keeps: a row of neighbours per inner node; for attention the rows themselves."""
    return _num_joined(spec, 0, size) if spec.precompute else 0


def _num_dropped(spec: ModelSpec, layer: int, size: PartSize) -> int:
    """Rows that dropout passes over; a precomputed GraphSAGE layer drops its own rows and their aggregate."""
    if not spec.dropout:
        return 0
    both = layer == 0 and spec.precompute and spec.kind is ModelKind.SAGE
    return _num_joined(spec, layer, size) * (2 if both else 1)
