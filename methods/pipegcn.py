"""PipeGCN: halo rows and their gradients travel while the next epoch computes, and are used `lag` epochs later.

Smoothing uses a running mean of what was received instead of the newest: -F of features, -G of gradients, -GF of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from halocast.base.records import require
from halocast.graph.halo import Halo
from halocast.methods.common import halo_matrices
from halocast.methods.skeleton import Epoch, assemble, meta_of, parts_of
from halocast.models import arithmetic
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Buffer, Lane, Numbers, Op, Rows, Schedule


class Warmup(StrEnum):
    """The values that stand for rows that have not travelled yet in the first epochs."""

    ZEROS = "zeros"
    EXACT = "exact"  # what a synchronous exchange at the initial weights would bring


class Smooth(StrEnum):
    NONE = "none"
    FEATURES = "f"
    GRADIENTS = "g"
    BOTH = "gf"


class Lanes(StrEnum):
    """The number of exchanges that may be under way at once."""

    STREAM = "stream"  # one, of rows or of gradients: the paper's second stream
    ONE = "one"  # of rows one, of gradients one
    LAYER = "layer"  # those of all layers: the released code has a thread for each


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"paper": {"lanes": Lanes.STREAM, "gamma": 0.95}, "code": {"lanes": Lanes.LAYER}}
)
SUFFIX: Mapping[Smooth, str] = MappingProxyType({what: "" if what is Smooth.NONE else f"-{what}" for what in Smooth})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    lag: int = 1  # epochs; 0 is vanilla
    smooth: Smooth = Smooth.NONE
    gamma: float = 0.95  # of the running mean: mean <- gamma mean + (1 - gamma) received
    warmup: Warmup = Warmup.ZEROS
    lanes: Lanes = Lanes.ONE

    def __post_init__(self) -> None:
        require(self.lag >= 0, f"lag = {self.lag}: needs to be at least 0")
        require(0 <= self.gamma < 1, f"gamma = {self.gamma}: needs 0 <= gamma < 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsF(Options):
    smooth: Smooth = Smooth.FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsG(Options):
    smooth: Smooth = Smooth.GRADIENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsGF(Options):
    smooth: Smooth = Smooth.BOTH


def pipegcn(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    """The schedule of the skeleton with a lag, gradients beside rows, and running means of what arrives."""
    epochs = [_Pipelined(part=part, lag=options.lag, options=options) for part in parts_of(halo, spec, numbers)]
    return assemble(epochs, meta_of("pipegcn" + SUFFIX[options.smooth], halo), halo_matrices(halo))


@dataclass(frozen=True, kw_only=True)
class _Pipelined(Epoch):
    options: Options

    def fetch(self, layer: int) -> list[Op]:
        """The ops that send rows for a later epoch and, if they are smoothed, take the mean of those that have come."""
        sent = [replace(op, lane=self._lane(Lane.HALO, layer)) for op in super().fetch(layer)]
        if sent and self._smooths(layer, Smooth.FEATURES):
            return [*sent, self._smooth(f"smooth.{layer}", f"halo.{layer}", self.part.size.num_halo, sent[0])]
        return sent

    def forward(self, layer: int) -> Op:
        op = super().forward(layer)
        return _instead(op, f"halo.{layer}") if self._smooths(layer, Smooth.FEATURES) else op

    def backward(self, layer: int) -> Op:
        op, above = super().backward(layer), layer + 1
        return _instead(op, f"gsent.{above}") if self._smooths(above, Smooth.GRADIENTS) else op

    def give_back(self, layer: int) -> list[Op]:
        """The ops that send gradients, which rows do not wait for, nor they for rows; and take their mean."""
        sent = [replace(op, lane=self._lane(Lane.GRAD, layer)) for op in super().give_back(layer)]
        if sent and self._smooths(layer, Smooth.GRADIENTS):
            return [*sent, self._smooth(f"smooth_grad.{layer}", f"gsent.{layer}", self.part.num_sent, sent[0])]
        return sent

    def _lane(self, lane: Lane, layer: int) -> Lane:
        lanes = {Lanes.STREAM: Lane.HALO, Lanes.ONE: lane, Lanes.LAYER: Lane(lane.role, layer)}
        return lanes[self.options.lanes]

    def _smooths(self, layer: int, what: Smooth) -> bool:
        """Whether what travels of a layer is smoothed; layer 0's rows never change, so there is nothing to smooth."""
        travels = {Smooth.FEATURES: self.part.exchanges, Smooth.GRADIENTS: self.part.returns}[what](layer)
        return layer > 0 and travels and self.options.smooth in (what, Smooth.BOTH)

    def _smooth(self, name: str, received: str, num_rows: int, sent: Op) -> Op:
        """The op that takes the running mean of what an exchange has brought."""
        mean, width = _mean_of(received), self.part.spec.widths[sent.index[0]]
        kernels = arithmetic.blend_rows(num_rows, width)
        op = self.part.compute(name, kernels, (received, mean), (mean,), ((sent.name, self.lag),))
        return replace(op, carries=True, work=replace(op.work, scale=self.options.gamma))

    def buffers(self) -> tuple[Buffer, ...]:
        """Buffers of the part, with their initial values, and a running mean for whatever is smoothed."""
        exact = self.options.warmup == Warmup.EXACT
        kept = [replace(b, exact=exact and b.rows in (Rows.HALO, Rows.SENT)) for b in self.part.buffers()]
        smoothed = {op.reads[0] for op in self.ops() if op.carries}
        means = [replace(b, name=_mean_of(b.name), persistent=True) for b in kept if b.name in smoothed]
        return (*kept, *means)


def _mean_of(received: str) -> str:
    return f"mean.{received}"


def _instead(op: Op, received: str) -> Op:
    """The op with the running mean, which is made before it, in place of what was received."""
    return replace(op, reads=tuple(_mean_of(name) if name == received else name for name in op.reads), after=())
