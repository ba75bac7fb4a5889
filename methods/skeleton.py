"""The epoch of graph-parallel methods: forward through the layers, loss, backward, step; rows travel in between.

A method is an `Epoch` that says what differs: what it fetches before a layer (`fetch`) and gives back after it
(`give_back`), how many epochs later that is used (`lag`), and what comes first and last. As it stands, with lag 0, it
is the epoch of vanilla partition parallelism.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from halocast.graph.halo import Halo
from halocast.methods.common import PartOps
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Buffer, Matrix, Numbers, Op, Schedule

After = tuple[tuple[str, int], ...]
Meta = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One rank's epoch; methods of this class are the steps that a training method may do in its own way."""

    part: PartOps
    lag: int = 0  # epochs from sending rows or gradients to using them

    def ops(self) -> list[Op]:
        """The rank's ops in the order of the list, which is the order of every lane."""
        layers = range(self.part.spec.layers)
        ops = self.begin()
        for layer in layers:
            ops += [*self.fetch(layer), self.forward(layer)]
        ops += self.loss()
        for layer in reversed(layers):
            ops += [self.backward(layer), *self.give_back(layer)]
        return [*ops, *self.end()]

    def begin(self) -> list[Op]:
        """The ops before the first layer: none."""
        return []

    def fetch(self, layer: int) -> list[Op]:
        """The ops that bring a layer's halo rows: an exchange as soon as the layer before has made the rows."""
        return [self.part.exchange(layer, self.rows_made(layer))] if self.part.exchanges(layer) else []

    def rows_made(self, layer: int) -> After:
        """The waits of the rows that enter a layer. Features are always there, but belong to an epoch, which begins
        when the one before has ended."""
        return ((f"forward.{layer - 1}", 0),) if layer else (("step", 1),)

    def forward(self, layer: int) -> Op:
        """The op that runs a layer on its own rows and the halo rows sent `lag` epochs ago."""
        return self.part.forward(layer, ((f"exchange.{layer}", self.lag),) if self.part.exchanges(layer) else ())

    def loss(self) -> list[Op]:
        """The ops between forward and backward: the loss."""
        return [self.part.loss()]

    def backward(self, layer: int) -> Op:
        """The op of a layer's gradients, after adding what was given back `lag` epochs ago for its output rows."""
        above = layer + 1
        return self.part.backward(layer, ((f"exchange_grad.{above}", self.lag),) if self.part.returns(above) else ())

    def give_back(self, layer: int) -> list[Op]:
        """The ops that take the gradients of a layer's halo rows to the ranks that own them."""
        return [self.part.exchange_grad(layer, ((f"backward.{layer}", 0),))] if self.part.returns(layer) else []

    def end(self) -> list[Op]:
        """The ops that make an epoch's weights: the sum of all ranks' gradients, and a step with it."""
        if self.part.alone:
            return [self.part.step()]
        return [self.part.allreduce((("backward.0", 0),)), self.part.step((("allreduce", 0),))]

    def buffers(self) -> Sequence[Buffer]:
        """Everything the rank holds."""
        return self.part.buffers()


def parts_of(halo: Halo, spec: ModelSpec, numbers: Numbers, *, through_store: bool = False) -> list[PartOps]:
    """The makers of ops and buffers, one per part."""
    return [
        PartOps(rank=rank, halo=halo, spec=spec, numbers=numbers, through_store=through_store)
        for rank in range(halo.num_parts)
    ]


def meta_of(method: str, halo: Halo) -> Meta:
    """The entries in which a schedule speaks of itself: its method, and where its sizes come from."""
    return (("method", method), ("sizes", halo.source))


def assemble(
    epochs: Sequence[Epoch], meta: Meta, matrices: tuple[Matrix, ...] = (), shared: Sequence[Buffer] = ()
) -> Schedule:
    """A schedule of all ranks' epochs; `shared` are buffers in the store."""
    return Schedule(
        num_ranks=len(epochs),
        matrices=matrices,
        buffers=(*shared, *(buffer for epoch in epochs for buffer in epoch.buffers())),
        ops=tuple(op for epoch in epochs for op in epoch.ops()),
        meta=meta,
        degree_sigma=epochs[0].part.halo.degree_sigma,
    )
