"""A schedule as an implementation runs it: the kernels that it launches, and calls tensor by tensor where it sums so.

A pass over a schedule like any other: ops, waits and what travels stay as the method has them. Ops are told apart by
their verbs, and how many rows they work on is read off the kernels that they have.
"""

from collections.abc import Iterator
from dataclasses import replace

from halocast.base.kernels import SPARSE
from halocast.base.records import require
from halocast.codes.implementation import Implementation, Layers, Tensors
from halocast.codes.steps import At, backward_kernels, forward_kernels, kept_numel
from halocast.models.arithmetic import PartSize
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Buffer, Kernel, Kind, Op, Rows, Schedule

CALLS = "calls"  # the word of a collective, or of a step of weights, that is done in so many
LAYER = {  # what lists of layers replace, by verb
    "forward": forward_kernels,
    "forward_chunk": forward_kernels,
    "backward": backward_kernels,
    "backward_chunk": backward_kernels,
}
STEP, PRODUCTS = "step", ("fc", "mix")


def lower(schedule: Schedule, code: Implementation, spec: ModelSpec) -> Schedule:
    """The schedule with an implementation's kernels and calls; of one that launches what it names, the same."""
    layers = code.layers_of(spec.kind)
    ops, buffers = schedule.ops, schedule.buffers
    if layers is not None:
        buffers = tuple(_kept_buffers(schedule, code, layers, spec))
        ops = tuple(_with_kernels(op, code, layers, spec) for op in ops)
    if code.optimiser.tensors is Tensors.EACH:
        held = [held_layers(schedule, rank) for rank in range(schedule.num_ranks)]
        calls = [sum(num_tensors(spec, layer, layers) for layer in mine) for mine in held]
        ops = tuple(_in_calls(op, max(1, calls[op.rank])) for op in ops)
    return schedule if ops is schedule.ops else replace(schedule, ops=ops, buffers=buffers)


def _kept_buffers(schedule: Schedule, code: Implementation, layers: Layers, spec: ModelSpec) -> Iterator[Buffer]:
    """The schedule's buffers, with other sizes where they hold what a layer keeps for its backward."""
    kept: dict[tuple[int, str], int] = {}
    for op in (op for op in schedule.ops if LAYER.get(op.verb) is forward_kernels and op.work.kernels):
        at = _at(op, code, spec)
        # halo rows of a part have rows in its tables, those of a chunk are rows of other chunks
        rows = at.size.num_inner + (0 if op.verb.endswith("chunk") else at.size.num_halo)
        at = replace(at, size=replace(at.size, num_inner=rows))
        num_bytes = op.work.kernels[0].numbers.itemsize * kept_numel(
            layers.steps(op.index[0], spec.layers), at, code.memory.gradients
        )
        kept |= {(op.rank, name): num_bytes for name in op.writes}
    for buffer in schedule.buffers:
        num_bytes = kept.get((buffer.rank, buffer.name), -1)
        yield buffer if num_bytes < 0 or buffer.rows is not Rows.NONE else replace(buffer, num_bytes=num_bytes)


def held_layers(schedule: Schedule, rank: int) -> tuple[int, ...]:
    """The layers that a rank computes."""
    return tuple(sorted({op.index[0] for op in schedule.by_rank[rank] if op.verb in LAYER}))


def num_tensors(spec: ModelSpec, layer: int, layers: Layers | None) -> int:
    """Tensors of a layer's weights: those of the torch modules, or one of every product of a list."""
    if layers is None:
        return spec.layer_tensors(layer)
    return max(1, sum(step.name in PRODUCTS for step in layers.steps(layer, spec.layers)))


def num_calls(op: Op) -> int:
    return int(dict(op.work.params).get(CALLS, 1))


def _in_calls(op: Op, calls: int) -> Op:
    """An op that sums or steps weights, in so many calls; others are as they were."""
    if op.verb != STEP and op.kind is not Kind.ALLREDUCE:
        return op
    work = replace(op.work, params=(*op.work.params, (CALLS, str(calls))))
    kernels = tuple(kernel for whole in work.kernels for kernel in _split(whole, calls))
    return replace(op, work=replace(work, kernels=kernels))


def _split(kernel: Kernel, calls: int) -> tuple[Kernel, ...]:
    """An update of all weights as one of each tensor, as large as they are on average."""
    if kernel.kind != "update":
        return (kernel,)
    numel, passes = kernel.dims
    return (replace(kernel, dims=(-(-numel // calls), passes)),) * calls


def _with_kernels(op: Op, code: Implementation, layers: Layers, spec: ModelSpec) -> Op:
    if op.verb not in LAYER or not op.work.kernels:
        return op
    numbers = op.work.kernels[0].numbers
    kernels = LAYER[op.verb](layers.steps(op.index[0], spec.layers), _at(op, code, spec))
    return replace(op, work=replace(op.work, kernels=tuple(Kernel(kind, dims, numbers) for kind, dims in kernels)))


def _at(op: Op, code: Implementation, spec: ModelSpec) -> At:
    wide, out = spec.widths[op.index[0] : op.index[0] + 2]
    return At(size=part_size(op), wide=wide, out=out, width=wide, state_bytes=code.drop_state_bytes or 0.0)


def part_size(op: Op) -> PartSize:
    """The rows and edges of a layer's op, read off its kernels: of its sparse product, else of a dense one."""
    back = LAYER[op.verb] is backward_kernels
    for kernel in op.work.kernels:
        if kernel.kind in SPARSE:
            rows, columns, edges, _ = kernel.dims
            inner, joined = (columns, rows) if back else (rows, columns)
            return PartSize(num_inner=inner, num_halo=joined - inner, num_edges=edges)
    product = next((kernel for kernel in op.work.kernels if kernel.kind == "gemm"), None)
    require(product is not None, f"{op.label}: its kernels do not say how many rows it works on")
    assert product is not None
    return PartSize(num_inner=product.dims[1 if back else 0], num_halo=0, num_edges=0)
