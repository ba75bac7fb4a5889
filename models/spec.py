"""ModelSpec: a GNN as numbers, without torch: what methods, the arithmetic and the modules agree on."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from halocast.base.records import require

MAX_LAYERS, MAX_WIDTH = 1000, 2**16  # beyond anything trained; a slip of the keyboard otherwise fills the memory


class ModelKind(StrEnum):
    SAGE = "sage"
    GCN = "gcn"


class Norm(StrEnum):
    LAYER = "layer"
    NONE = "none"


ITEMSIZE: Mapping[str, int] = MappingProxyType({"float32": 4, "float64": 8})  # the precisions one can train in
# what the models were published with: GraphSAGE's training scripts normalise between layers, GCN's paper does not
USUAL_NORM: Mapping[ModelKind, Norm] = MappingProxyType({ModelKind.SAGE: Norm.LAYER, ModelKind.GCN: Norm.NONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """`layers` in all, the last `num_linear` of them plain linear; widths[l] is what layer l consumes."""

    kind: ModelKind
    layers: int
    hidden: int
    num_features: int
    num_classes: int
    num_linear: int = 0
    dropout: float = 0.5
    norm: Norm = Norm.LAYER
    precompute: bool = False

    def __post_init__(self) -> None:
        require(1 <= self.layers <= MAX_LAYERS, f"layers = {self.layers}: needs 1 <= layers <= {MAX_LAYERS}")
        require(1 <= self.hidden <= MAX_WIDTH, f"hidden = {self.hidden}: needs 1 <= hidden <= {MAX_WIDTH}")
        require(
            0 <= self.num_linear < self.layers,
            f"num_linear = {self.num_linear}: needs 0 <= num_linear < layers = {self.layers}",
        )
        require(0.0 <= self.dropout <= 0.99, f"dropout = {self.dropout}: needs 0 <= dropout <= 0.99")
        require(self.num_features >= 1, f"{self.num_features} features: a model needs at least one")
        require(self.num_classes >= 1, f"{self.num_classes} classes: a model needs at least one")

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.num_features, *[self.hidden] * (self.layers - 1), self.num_classes)

    @property
    def num_graph_layers(self) -> int:
        return self.layers - self.num_linear

    @property
    def exchanged_layers(self) -> tuple[int, ...]:
        """The layers whose input rows travel every epoch: all graph layers, less layer 0 if precomputed."""
        return tuple(range(1 if self.precompute else 0, self.num_graph_layers))

    def aggregates(self, layer: int) -> bool:
        """Whether the layer aggregates neighbours in every epoch."""
        return layer in self.exchanged_layers

    @property
    def num_weights(self) -> int:
        return sum(self.layer_weights(layer) for layer in range(self.layers))

    def layer_weights(self, layer: int) -> int:
        wide, out = self.widths[layer], self.widths[layer + 1]
        graph = layer < self.num_graph_layers
        matrices = 2 if graph and self.kind is ModelKind.SAGE else 1
        norm = 2 * out if self.norm is Norm.LAYER and layer < self.layers - 1 else 0
        return matrices * (wide * out + out) + norm
