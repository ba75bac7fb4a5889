"""What deep models launch beside a GCN's kernels: the mixtures of GCNII, the sums of a residual GCN."""

from halocast.models.spec import ModelSpec

Launched = list[tuple[str, tuple[int, ...]]]


def mix_first(spec: ModelSpec, layer: int, n: int) -> Launched:
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


def mix_first_back(spec: ModelSpec, layer: int, n: int) -> Launched:
    """The steps of `mix_first` in reverse; a mixture's gradient is two scaled tensors, layer 0's rows add up theirs."""
    wide, out = spec.hidden, spec.widths[layer + 1]
    kernels: Launched = []
    if layer == spec.layers - 1:
        kernels += [("gemm", (wide, n, out)), ("gemm", (n, out, wide)), ("elementwise", (n * wide, 3))]
        kernels += [("elementwise", (n * wide, 3))] if spec.dropout > 0 else []
    scaled: Launched = [("elementwise", (n * wide, 2))] * 2
    products: Launched = [("gemm", (wide, n, wide)), ("gemm", (n, wide, wide))]
    added: Launched = [("elementwise", (n * wide, 3))]
    return [*kernels, *scaled, *products, *added, *scaled, *added]


def add_input(spec: ModelSpec, layer: int, n: int) -> Launched:
    """Adding the input to the output, or its gradient to the other one's."""
    return [("elementwise", (n * spec.widths[layer], 3))] if spec.adds_input(layer) else []
