"""PipeGCN: halo rows and their gradients travel while the next epoch computes, and are used `lag` epochs later.

Smoothing uses a running mean of what was received instead of the newest: -F of features, -G of gradients, -GF of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from halocast.base.records import require
from halocast.graph.halo import Halo
from halocast.methods.common import PartOps, halo_matrix
from halocast.models import arithmetic
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Buffer, Lane, Numbers, Op, Rows, Schedule


class Warmup(StrEnum):
    """What stands for rows that have not travelled yet in the first epochs."""

    ZEROS = "zeros"
    EXACT = "exact"  # what a synchronous exchange at the initial weights would bring


class Smooth(StrEnum):
    NONE = "none"
    FEATURES = "f"
    GRADIENTS = "g"
    BOTH = "gf"


SUFFIX: Mapping[Smooth, str] = MappingProxyType({one: "" if one is Smooth.NONE else f"-{one}" for one in Smooth})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    lag: int = 1  # epochs; 0 is vanilla
    smooth: Smooth = Smooth.NONE
    gamma: float = 0.95  # of the running mean: mean <- gamma mean + (1 - gamma) received
    warmup: Warmup = Warmup.ZEROS

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
    parts = [
        _Pipelined(part=PartOps(rank=rank, halo=halo, spec=spec, numbers=numbers), options=options)
        for rank in range(halo.num_parts)
    ]
    return Schedule(
        num_ranks=halo.num_parts,
        matrices=(halo_matrix(halo),) if halo.num_parts > 1 else (),
        buffers=tuple(buffer for part in parts for buffer in part.buffers()),
        ops=tuple(op for part in parts for op in part.ops()),
        meta=(("method", "pipegcn" + SUFFIX[options.smooth]), ("sizes", halo.source)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipelined:
    part: PartOps
    options: Options

    def ops(self) -> list[Op]:
        part = self.part
        ops: list[Op] = []
        for layer in range(part.spec.layers):
            ops += self._layer(layer)
        ops.append(part.loss())
        for layer in reversed(range(part.spec.layers)):
            ops += self._layer_back(layer)
        if not part.alone:
            ops.append(part.allreduce((("backward.0", 0),)))
        ops.append(part.step((("allreduce", 0),) if not part.alone else ()))
        return ops

    def _layer(self, layer: int) -> list[Op]:
        part, lag = self.part, self.options.lag
        if not part.exchanges(layer):
            return [part.forward(layer)]
        sent = part.exchange(layer, ((f"forward.{layer - 1}", 0),) if layer else (("step", 1),))
        if not self._smooths(layer, Smooth.FEATURES):
            return [sent, part.forward(layer, ((sent.name, lag),))]
        mean = self._smooth(f"smooth.{layer}", f"halo.{layer}", part.size.num_halo, layer, (sent.name, lag))
        return [sent, mean, _instead(part.forward(layer), f"halo.{layer}")]

    def _layer_back(self, layer: int) -> list[Op]:
        """Backward of a layer, after adding what came back for its output rows; then its own halo's gradients leave."""
        part, lag = self.part, self.options.lag
        above, ops = layer + 1, []
        if not part.returns(above):
            ops.append(part.backward(layer))
        elif self._smooths(above, Smooth.GRADIENTS):
            came = (f"exchange_grad.{above}", lag)
            ops.append(self._smooth(f"smooth_grad.{above}", f"gsent.{above}", part.num_sent, above, came))
            ops.append(_instead(part.backward(layer), f"gsent.{above}"))
        else:
            ops.append(part.backward(layer, ((f"exchange_grad.{above}", lag),)))
        if part.returns(layer):
            sent = part.exchange_grad(layer, ((f"backward.{layer}", 0),))
            ops.append(replace(sent, lane=Lane.GRAD))  # rows and gradients do not wait for each other
        return ops

    def _smooths(self, layer: int, what: Smooth) -> bool:
        """Layer 0's rows never change, so there is nothing to smooth."""
        return layer > 0 and self.options.smooth in (what, Smooth.BOTH)

    def _smooth(self, name: str, received: str, num_rows: int, layer: int, came: tuple[str, int]) -> Op:
        width = self.part.spec.widths[layer]
        mean = f"mean.{received}"
        kernels = arithmetic.blend_rows(num_rows, width)
        op = self.part.compute(name, kernels, (received, mean), (mean,), (came,))
        return replace(op, carries=True, work=replace(op.work, scale=self.options.gamma))

    def buffers(self) -> tuple[Buffer, ...]:
        """The part's own, with their initial values, and a running mean for whatever is smoothed."""
        exact = self.options.warmup is Warmup.EXACT
        kept = [replace(b, exact=exact and b.rows in (Rows.HALO, Rows.SENT)) for b in self.part.buffers()]
        smoothed = {name for op in self.ops() if op.carries for name in op.reads if not name.startswith("mean.")}
        means = [replace(b, name=f"mean.{b.name}", persistent=True) for b in kept if b.name in smoothed]
        return (*kept, *means)


def _instead(op: Op, received: str) -> Op:
    """The op with the running mean in place of what was received."""
    return replace(op, reads=tuple(f"mean.{name}" if name == received else name for name in op.reads))
