"""Vanilla partition parallelism: every exchange is waited for, so training equals a single device's exactly."""

from dataclasses import dataclass

from halocast.graph.halo import Halo
from halocast.methods.common import PartOps, halo_matrix
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Numbers, Op, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Vanilla has nothing to choose."""


def vanilla(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    parts = [PartOps(rank=rank, halo=halo, spec=spec, numbers=numbers) for rank in range(halo.num_parts)]
    return Schedule(
        num_ranks=halo.num_parts,
        matrices=(halo_matrix(halo),) if halo.num_parts > 1 else (),
        buffers=tuple(buffer for part in parts for buffer in part.buffers()),
        ops=tuple(op for part in parts for op in _rank_ops(part)),
        meta=(("method", "vanilla"), ("sizes", halo.source)),
    )


def _rank_ops(part: PartOps) -> list[Op]:
    ops: list[Op] = []
    for layer in range(part.spec.layers):
        if part.exchanges(layer):
            # the inputs are always there, but a vanilla epoch begins only when the one before has ended
            ops.append(part.exchange(layer, ((f"forward.{layer - 1}", 0),) if layer else (("step", 1),)))
        ops.append(part.forward(layer, ((f"exchange.{layer}", 0),) if part.exchanges(layer) else ()))
    ops.append(part.loss())
    for layer in reversed(range(part.spec.layers)):
        ops.append(part.backward(layer, ((f"exchange_grad.{layer + 1}", 0),) if part.returns(layer + 1) else ()))
        if part.returns(layer):
            ops.append(part.exchange_grad(layer, ((f"backward.{layer}", 0),)))
    if not part.alone:
        ops.append(part.allreduce((("backward.0", 0),)))
    ops.append(part.step((("allreduce", 0),) if not part.alone else ()))
    return ops
