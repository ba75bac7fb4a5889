"""What an implementation does, as a record: the program whose epochs are predicted, apart from method and machine.

A method says what happens and in which order, a cluster what the hardware is. The same schedule takes another time in
another program: it launches other kernels, spends host time on every message, sums weights tensor by tensor, keeps
other buffers. `catalogue` reads such records from TOML; `halocast.sim.lower` applies them to a schedule.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from halocast.base.errors import unknown
from halocast.base.records import ByteRate, Bytes, Checked, Seconds, Share, require
from halocast.codes.steps import STEPS, LayerStep, parse_step
from halocast.models.spec import ModelKind


class AllToAll(StrEnum):
    TOGETHER = "together"  # to all peers at once
    ROUNDS = "rounds"  # round k to the k-th next rank and from the k-th before; the next one when both are done


class Tensors(StrEnum):
    """What one call of a collective sums."""

    FLAT = "flat"  # all weights, as one tensor
    EACH = "each"  # one tensor after the other


class Counts(StrEnum):
    """What an implementation's own figure of memory counts."""

    ALLOCATED = "allocated"  # what its allocator has given out at most
    DEVICE = "device"  # what the driver shows: context, transport, libraries and all


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts(Checked):
    """Host time of communications, on the thread of their lane, before bytes leave."""

    exchange_s: Seconds = 0.0  # of an exchange, however many peers it has
    message_s: Seconds = 0.0  # of a message of an exchange, for every peer
    send_s: Seconds = 0.0  # of a message between two ranks by itself, at either end
    collective_s: Seconds = 0.0  # of a call of a collective
    barrier_s: Seconds = 0.0  # of a barrier
    store_s: Seconds = 0.0  # of a push or a pull
    partial_bytes_per_s: ByteRate | None = None  # of sums among some ranks only, where these pass the host's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimiser(Checked):
    """What sums and steps of weights launch."""

    tensors: Tensors = Tensors.FLAT
    step_s: Seconds = 0.0  # of a step, beside its kernels: of each tensor, where each is stepped by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Checked):
    """Time of the loss, where it is not that of its kernels: the rest of the rank stands still meanwhile."""

    base_s: Seconds
    class_s: Seconds  # more for every class


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers(Checked):
    """Steps of a model's layers by their place: the first, the second, those in between, the last."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    middle: tuple[str, ...]
    last: tuple[str, ...]

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for words in (self.first, self.second, self.middle, self.last):
            for word in words:
                if parse_step(word).name not in STEPS:
                    raise unknown("step", word, STEPS)

    def steps(self, layer: int, num_layers: int) -> tuple[LayerStep, ...]:
        """The steps of a layer, of so many."""
        places = {0: self.first, 1: self.second, num_layers - 1: self.last}
        return tuple(parse_step(word) for word in places.get(layer, self.middle))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules(Checked):
    """What an implementation keeps on a device otherwise than the schedule says.

    With lists of layers, what a layer keeps for its backward are the outputs of its steps, but for those that are
    computed again, the states that its dropouts copy, and gradients: of this share of all outputs.
    """

    counts: Counts = Counts.ALLOCATED
    libraries_bytes: Bytes | None = None  # beside the context
    gradients: Share = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation(Checked):
    """A program that trains. Without lists of layers, it launches the kernels that the schedule names."""

    name: str
    description: str
    source: str
    calibrated: bool = False  # its costs are what `halocast calibrate` measures: a profile stands in their place
    exchange: AllToAll = AllToAll.TOGETHER
    timers: str = ""  # what its own stopwatches count
    host: HostCosts = field(default_factory=HostCosts)
    optimiser: Optimiser = field(default_factory=Optimiser)
    memory: MemoryRules = field(default_factory=MemoryRules)
    loss: Loss | None = None
    drop_state_bytes: Bytes | None = None  # copied at every dropout
    layers: dict[str, Layers] = field(default_factory=dict)  # by model

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for kind in self.layers:
            if kind not in list(ModelKind):
                raise unknown("model", kind, map(str, ModelKind), "layers")

    def layers_of(self, kind: ModelKind) -> Layers | None:
        """The steps of a model's layers; none if those of the schedule are meant."""
        if not self.layers:
            return None
        require(kind in self.layers, f"{self.name} has no {kind} (it has: {', '.join(self.layers)})")
        return self.layers[kind]


BARE = Implementation(
    name="bare",
    description="A program that takes nothing of its host: kernels as the schedule names them, and bytes",
    source="the limit in which a schedule and a machine are all there is",
    calibrated=True,
)
