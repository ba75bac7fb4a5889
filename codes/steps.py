"""The steps that layers are made of in an implementation's lists, and the kernels of each, forward and backward.

A word such as `fc` (a product with weights) is a step; `mix` is a product that keeps the width, `relu!` a step whose
output is not kept but computed again in backward. Lists stand in TOML; what a step launches stands here, since it is
arithmetic on sizes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from halocast.base.kernels import Dims, Kernels
from halocast.models.arithmetic import PartSize

AGAIN = "!"
# Passes over its numbers that a reduction by key takes: 0.04 ns per number on an RTX A5000 (768 GB/s) are 31 bytes.
REDUCED = 7


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A step of a layer; `again` says that backward computes its output once more."""

    name: str
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Where a step runs: on which rows, in a layer of which widths, on rows of which width, with how large states."""

    size: PartSize
    wide: int
    out: int
    width: int
    state_bytes: float = 0.0

    @property
    def numel(self) -> int:
        return self.size.num_inner * self.width

    @property
    def num_columns(self) -> int:
        return self.size.num_inner + self.size.num_halo


Launches = Callable[[At], Kernels]


@dataclass(frozen=True, slots=True)
class StepKernels:
    """What a step launches forward and backward."""

    forward: Launches
    backward: Launches


def parse_step(word: str) -> LayerStep:
    return LayerStep(word.removesuffix(AGAIN), word.endswith(AGAIN))


def forward_kernels(steps: tuple[LayerStep, ...], at: At) -> Kernels:
    """Kernels of a layer's steps in turn; `at` has the layer's widths."""
    return tuple(kernel for step, where in placed(steps, at) for kernel in STEPS[step.name].forward(where))


def backward_kernels(steps: tuple[LayerStep, ...], at: At) -> Kernels:
    """Kernels of the steps in reverse: what was not kept again, then the gradients of each output cleared and used."""
    kernels: list[tuple[str, Dims]] = []
    for step, where in reversed(placed(steps, at)):
        kernels += STEPS[step.name].forward(where) if step.again else ()
        kernels += _passes(_made(step, where), 1)
        kernels += STEPS[step.name].backward(where)
    return tuple(kernels)


def kept_numel(steps: tuple[LayerStep, ...], at: At, gradients: float) -> int:
    """Numbers that a layer keeps until its backward, beside its output and that one's gradient, which are its
    neighbours' too; states of generators are numbers of four bytes."""
    written = [(step, _made(step, where)) for step, where in placed(steps, at)]
    outputs = sum(numel for step, numel in written if not step.again)
    states = sum(step.name == "drop" for step in steps) * round(at.state_bytes / 4)
    rows = round(outputs + gradients * sum(numel for _, numel in written)) - 2 * at.size.num_inner * at.out
    return states + max(0, rows)


def placed(steps: tuple[LayerStep, ...], at: At) -> list[tuple[LayerStep, At]]:
    """Steps with the width of the rows that each works on: that of the layer's input up to the first product."""
    width, places = at.wide, []
    for step in steps:
        width = at.out if step.name == "fc" else width
        places.append((step, replace(at, width=width)))
    return places


def _made(step: LayerStep, at: At) -> int:
    """Numbers of a step's output."""
    return at.size.num_inner * (at.wide if step.name == "agg" else at.width)


def _passes(numel: int, *passes: int) -> Kernels:
    return tuple(("elementwise", (numel, one)) for one in passes)


def _fc(at: At) -> Kernels:
    return (("gemm", (at.size.num_inner, at.wide, at.out)),)


def _fc_back(at: At) -> Kernels:
    """Both gradients, of the input also in layer 0; each of the weights is cleared, added to and scaled."""
    n, wide, out = at.size.num_inner, at.wide, at.out
    return (("gemm", (wide, n, out)), ("gemm", (n, out, wide)), *_passes(wide * out, 1, 3, 2))


def _square(at: At) -> At:
    return replace(at, out=at.wide)


def _agg(at: At) -> Kernels:
    """Rows are summed where they lie: a small kernel divides them among blocks."""
    n, size = at.size.num_inner, at.size
    return (*_passes(n, 1), ("spmm", (n, at.num_columns, size.num_edges, at.wide)))


def _agg_back(at: At) -> Kernels:
    """The same the other way round, and the gradients of own rows added."""
    n, size = at.size.num_inner, at.size
    return (*_passes(n, 1), ("spmm", (at.num_columns, n, size.num_edges, at.wide)), *_passes(n * at.wide, 3))


def _drop(at: At) -> Kernels:
    """The states of the generators are copied, so that backward draws the same."""
    return (*_passes(int(at.state_bytes / 4), 2), ("dropout", (at.numel, 3)))


def _norm(at: At) -> Kernels:
    return (*_reduced(at) * 2, *_passes(at.numel, 2, 2, 2))


def _reduced(at: At) -> Kernels:
    """A reduction by key: over all numbers, then over what its blocks found."""
    return _passes(at.numel, REDUCED) + _passes(at.size.num_inner, 1)


STEPS: Mapping[str, StepKernels] = MappingProxyType(
    {
        "fc": StepKernels(_fc, _fc_back),
        "mix": StepKernels(lambda at: _fc(_square(at)), lambda at: _fc_back(_square(at))),
        "agg": StepKernels(_agg, _agg_back),
        "add": StepKernels(lambda at: _passes(at.numel, 2, 3), lambda at: _passes(at.numel, 3, 3)),
        "relu": StepKernels(lambda at: _passes(at.numel, 2), lambda at: _passes(at.numel, 4)),
        "drop": StepKernels(_drop, _drop),
        "affine": StepKernels(lambda at: _passes(at.numel, 2), lambda at: _passes(at.numel, 3)),
        "norm": StepKernels(_norm, lambda at: _reduced(at) * 4),
        "softmax": StepKernels(lambda at: _passes(at.numel, 4), lambda at: _passes(at.numel, 4)),
    }
)
