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
    GAT = "gat"
    RESGCN = "resgcn"  # a GCN whose hidden layers add their input to their output
    GCNII = "gcnii"  # a projection, then convolutions that mix in its output and nearly are the identity


class Norm(StrEnum):
    LAYER = "layer"
    L2 = "l2"  # rows of a hidden layer's output have length 1
    NONE = "none"


# as published: the training scripts of GraphSAGE and GAT on parts normalise between layers, GCN's paper does not
USUAL_NORM: Mapping[ModelKind, Norm] = MappingProxyType(
    {
        ModelKind.SAGE: Norm.LAYER,
        ModelKind.GCN: Norm.NONE,
        ModelKind.GAT: Norm.LAYER,
        ModelKind.RESGCN: Norm.LAYER,
        ModelKind.GCNII: Norm.NONE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A GNN of `layers` in all, the last `num_linear` of them plain linear; widths[l] is what layer l consumes.

    The heads of an attention share a hidden width, side by side; in the last layer each has a column per class, and
    their mean is taken. A projection is the first of the `layers`. A GCNII always has one, and its last layer ends in
    the classifier: `layers` - 1 convolutions.
    """

    kind: ModelKind
    layers: int
    hidden: int
    num_features: int
    num_classes: int
    num_linear: int = 0
    dropout: float = 0.5
    norm: Norm = Norm.LAYER
    precompute: bool = False
    heads: int = 1  # of the attention
    first_share: float = 0.1  # GCNII's alpha: the share of the projection's rows in every convolution
    weight_decline: float = 0.5  # GCNII's lambda: the weights of convolution l count log(lambda / l + 1)
    recompute: bool = False  # backward runs a layer's forward again instead of keeping what it made
    projection: bool = False  # the first layer is plain linear, so that no layer aggregates features; gcnii: always

    def __post_init__(self) -> None:
        require(1 <= self.layers <= MAX_LAYERS, f"layers = {self.layers}: needs 1 <= layers <= {MAX_LAYERS}")
        require(1 <= self.hidden <= MAX_WIDTH, f"hidden = {self.hidden}: needs 1 <= hidden <= {MAX_WIDTH}")
        require(
            0 <= self.num_linear < self.layers,
            f"num_linear = {self.num_linear}: needs 0 <= num_linear < layers = {self.layers}",
        )
        require(0.0 <= self.dropout <= 0.99, f"dropout = {self.dropout}: needs 0 <= dropout <= 0.99")
        require(
            1 <= self.heads <= self.hidden and self.hidden % self.heads == 0,
            f"heads = {self.heads}: needs to divide hidden = {self.hidden}",
        )
        require(
            self.heads == 1 or self.kind is ModelKind.GAT,
            f"heads = {self.heads}: only {ModelKind.GAT} has heads, {self.kind} needs heads = 1",
        )
        if self.projects(0):
            require(self.layers >= 2, f"layers = {self.layers}: needs a projection and at least one convolution")
            require(not self.precompute, "precompute: a projection, the first layer, aggregates nothing")
        if self.kind is ModelKind.GCNII:
            require(
                self.num_linear == 0, f"num_linear = {self.num_linear}: the last layer of a gcnii ends linear anyway"
            )
        require(0 <= self.first_share <= 1, f"first_share = {self.first_share}: needs 0 <= first_share <= 1")
        require(self.weight_decline > 0, f"weight_decline = {self.weight_decline}: needs to be more than 0")
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
        """The layers whose input rows travel every epoch: graph layers, without a precomputed or projecting layer 0."""
        return tuple(range(1 if self.precompute or self.projects(0) else 0, self.num_graph_layers))

    def aggregates(self, layer: int) -> bool:
        """Whether the layer aggregates neighbours' rows that are new in every epoch."""
        return layer in self.exchanged_layers

    def attends(self, layer: int) -> bool:
        """Whether the layer weighs neighbours, in every epoch even if it is precomputed: the weights change."""
        return self.kind is ModelKind.GAT and not self.is_linear(layer)

    @property
    def symmetric(self) -> bool:
        """Whether neighbours' rows are divided by the roots of both degrees."""
        return self.kind in (ModelKind.GCN, ModelKind.RESGCN, ModelKind.GCNII)

    def projects(self, layer: int) -> bool:
        """Whether the layer only makes rows of the hidden width out of the features."""
        return layer == 0 and (self.projection or self.kind is ModelKind.GCNII)

    def is_linear(self, layer: int) -> bool:
        """Whether the layer is a matrix alone, without neighbours."""
        return layer >= self.num_graph_layers or self.projects(layer)

    def mixes_first(self, layer: int) -> bool:
        """Whether the layer mixes in the output rows of layer 0."""
        return self.kind is ModelKind.GCNII and layer > 0

    def adds_input(self, layer: int) -> bool:
        """Whether the layer adds its input rows to its output."""
        return self.kind is ModelKind.RESGCN and 0 < layer < min(self.num_graph_layers, self.layers - 1)

    def head_width(self, layer: int) -> int:
        """Columns a head of the layer makes."""
        out = self.widths[layer + 1]
        return out if layer == self.layers - 1 else out // self.heads

    @property
    def num_weights(self) -> int:
        return sum(self.layer_weights(layer) for layer in range(self.layers))

    def layer_weights(self, layer: int) -> int:
        wide, out = self.widths[layer], self.widths[layer + 1]
        norm = 2 * out if self.norm is Norm.LAYER and layer < self.layers - 1 else 0
        if self.attends(layer):  # a matrix, a vector per end of an edge, a bias
            return (wide + 2) * self.heads * self.head_width(layer) + out + norm
        if self.mixes_first(layer):  # a matrix without bias; after the last convolution the classifier
            return wide * wide + norm + (wide * out + out if layer == self.layers - 1 else 0)
        matrices = 2 if self.kind is ModelKind.SAGE and not self.is_linear(layer) else 1
        return matrices * (wide * out + out) + norm

    def layer_tensors(self, layer: int) -> int:
        """Tensors of weights: a matrix and a bias per product, two of a normalisation, four of an attention."""
        norm = 2 if self.norm is Norm.LAYER and layer < self.layers - 1 else 0
        if self.attends(layer):
            return 4 + norm
        if self.mixes_first(layer):
            return 1 + norm + (2 if layer == self.layers - 1 else 0)
        return 2 * (2 if self.kind is ModelKind.SAGE and not self.is_linear(layer) else 1) + norm
