"""DIGEST: hidden rows of halo nodes come from a store that is written and read every N epochs; no gradients travel.

Every rank steps from the same weights and the results are averaged. DIGEST-A lets ranks run freely: each takes the
newest weights from the store and adds its own step to them when it is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from halocast.base.records import require
from halocast.graph.halo import Halo
from halocast.methods.skeleton import After, Epoch, assemble, meta_of, parts_of
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import (
    NO_BOUND,
    SHARED,
    AllReduce,
    Buffer,
    Lane,
    Numbers,
    Op,
    Payload,
    Pull,
    Push,
    Role,
    Schedule,
)

WEIGHTS = "server"  # the weights in the store


class Average(StrEnum):
    """The rule for how much a rank's weights count in the average."""

    TRAIN = "train"  # as its share of the train nodes: with plain gradient descent, the step of the whole gradient
    PLAIN = "plain"  # all alike


class ServerStep(StrEnum):
    """The rule for how much of a rank's step the weights in the store take on."""

    FULL = "full"  # all of it, as in the paper: with P ranks, P steps where others take one
    SHARE = "share"  # as much as the rank counts in an average


_PAPER: Mapping[str, Any] = MappingProxyType({"interval": 10, "average": Average.PLAIN, "model.norm": "l2"})
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({"paper": _PAPER})
ASYNC_PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({"paper": {**_PAPER, "bound": NO_BOUND}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    interval: int = 10  # N: epochs from pull to pull, and from push to push
    average: Average = Average.TRAIN

    def __post_init__(self) -> None:
        require(self.interval >= 1, f"interval = {self.interval}: needs to be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOptions(Options):
    bound: int = NO_BOUND  # epochs a rank may be ahead of the slowest; -1: any number
    step: ServerStep = ServerStep.FULL

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        require(self.bound >= NO_BOUND, f"bound = {self.bound}: needs to be at least 0, or -1 for none")


def digest(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    return _schedule(halo, spec, options, numbers, "digest")


def digest_a(halo: Halo, spec: ModelSpec, options: AsyncOptions, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    return _schedule(halo, spec, options, numbers, "digest-a")


def _schedule(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers, name: str) -> Schedule:
    parts = parts_of(halo, spec, numbers, through_store=True)
    epochs = [_Stored(part=part, options=options) for part in parts]
    return assemble(epochs, meta_of(name, halo), shared=_store(epochs[0]))


def _store(first: "_Stored") -> list[Buffer]:
    """Rows of all nodes for every layer that pulls, and the weights where ranks run freely.

    Ranks that push and pull in every epoch need room for two epochs: a fast one pushes before a slow one has pulled
    what it pushed an epoch ago. With a longer interval the average of the weights lies between the two.
    """
    part = first.part
    num_rows = int(part.halo.num_inner.sum()) * (2 if first.options.interval == 1 and not first.free else 1)
    layers = [layer for layer in range(part.spec.layers) if part.exchanges(layer)]
    tables = [(f"store.{layer}", num_rows * part.spec.widths[layer] * part.itemsize) for layer in layers]
    if first.free:
        tables.append((WEIGHTS, part.weight_bytes))
    kept = {WEIGHTS: (Role.WEIGHTS, part.numbers.master.bits)}
    return [
        Buffer(name=name, rank=SHARED, num_bytes=num_bytes, role=role, bits=bits, persistent=True)
        for name, num_bytes in tables
        for role, bits in [kept.get(name, (Role.ROWS, part.numbers.bits))]
    ]


@dataclass(frozen=True, kw_only=True)
class _Stored(Epoch):
    """One rank's epoch: rows come from the store and go there, and every rank steps by itself."""

    options: Options

    @property
    def free(self) -> bool:
        """Whether this rank waits for nobody."""
        return isinstance(self.options, AsyncOptions) and not self.part.alone

    @property
    def begins(self) -> After:
        """The waits of an epoch's beginning: the weights."""
        if self.part.alone:
            return ()
        return (("fetch", 0),) if self.free else (("average", 1),)

    def begin(self) -> list[Op]:
        return [self._fetch()] if self.free else []

    def fetch(self, layer: int) -> list[Op]:
        """The ops that push own rows into the store beside the layer, and pull halo rows beside the layer before."""
        return [self._push(layer), self._pull(layer)] if self.part.exchanges(layer) else []

    def forward(self, layer: int) -> Op:
        pulled = ((f"pull.{layer}", 0),) if self.part.exchanges(layer) else ()
        return self.part.forward(layer, (*(self.begins if layer == 0 else ()), *pulled))

    def end(self) -> list[Op]:
        shared = [] if self.part.alone else [self._deliver() if self.free else self._average()]
        return [self.part.step(), *shared]

    def _pull(self, layer: int) -> Op:
        """The op that pulls what was pushed up to the epoch before; synchronous ranks average after all have pushed."""
        begins = ((f"forward.{layer - 2}", 0),) if layer >= 2 else self.begins
        waits = ((f"push.{layer}", 1), *begins)
        num_bytes = self.part.size.num_halo * self.part.spec.widths[layer] * self.part.itemsize
        names = (f"store.{layer}", f"halo.{layer}")
        op = self._stored(f"pull.{layer}", Lane.STORE, Pull(num_bytes=num_bytes), names, waits)
        return replace(op, every=self.options.interval)

    def _push(self, layer: int) -> Op:
        num_bytes = self.part.size.num_inner * self.part.spec.widths[layer] * self.part.itemsize
        waits = ((f"forward.{layer - 1}", 0),)
        names = (f"h.{layer}", f"store.{layer}")
        op = self._stored(f"push.{layer}", Lane.HALO, Push(num_bytes=num_bytes), names, waits)
        return replace(op, every=self.options.interval, offset=1 % self.options.interval)

    def _fetch(self) -> Op:
        """The op that pulls the newest weights, once the own last step is among them."""
        assert isinstance(self.options, AsyncOptions)
        work = Pull(num_bytes=self.part.weight_bytes, bound=self.options.bound)
        return self._stored("fetch", Lane.REDUCE, work, (WEIGHTS, "weights"), (("deliver", 1),))

    def _deliver(self) -> Op:
        assert isinstance(self.options, AsyncOptions)
        scale = {ServerStep.FULL: 1.0, ServerStep.SHARE: self._share}[self.options.step]
        work = Push(num_bytes=self.part.weight_bytes, scale=scale)
        return self._stored("deliver", Lane.REDUCE, work, ("weights", WEIGHTS), self._ends)

    def _average(self) -> Op:
        return Op(
            name="average",
            rank=self.part.rank,
            lane=Lane.REDUCE,
            work=AllReduce(num_bytes=self.part.weight_bytes, scale=self._share),
            reads=("weights",),
            writes=("weights",),
            after=self._ends,
        )

    @property
    def _ends(self) -> After:
        """The waits of an epoch's end: whoever sees the weights that come of it also finds the rows pushed in it."""
        layers = [layer for layer in range(1, self.part.spec.layers) if self.part.exchanges(layer)]
        return (("step", 0), *((f"push.{layer}", 0) for layer in layers))

    def loss(self) -> list[Op]:
        """The mean loss of the rank's own train nodes, not its share of the global one: it steps by itself."""
        op, train = self.part.loss(), self.part.halo.num_train
        own = int(train[self.part.rank])
        return [replace(op, work=replace(op.work, scale=float(train.sum()) / own)) if own else op]

    @property
    def _share(self) -> float:
        train = self.part.halo.num_train
        shares = {Average.TRAIN: train[self.part.rank] / train.sum(), Average.PLAIN: 1 / self.part.halo.num_parts}
        return float(shares[self.options.average])

    def _stored(
        self,
        name: str,
        lane: Lane,
        work: Payload,
        moves: tuple[str, str],
        after: After,
    ) -> Op:
        return Op(
            name=name,
            rank=self.part.rank,
            lane=lane,
            work=work,
            reads=moves[:1],
            writes=moves[1:],
            after=after,
        )
