"""Dataset cards: the published sizes and halo volumes of graphs that need not be on this machine."""

from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np

from halocast.base.errors import InputError, unknown
from halocast.base.records import read_toml, record, require
from halocast.graph.graph import Reals

# METIS volume ÷ random volume, measured on cora, pubmed, squirrel, amazon-computers, coauthor-cs and -physics (pymetis
# 2025.2, seed 0, volume objective): medians at k = 2, 4, 8, 16, 32 are 0.24, 0.20, 0.19, 0.19, 0.20.
DEFAULT_METIS_RATIO = {2: 0.24, 4: 0.20, 32: 0.20}
QUANTILES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainGraph:
    """The sizes of one training graph and the published halo volumes of its partitions."""

    nodes: int
    edges: int  # directed edges as trained on, plus one self-loop per node
    train_nodes: int
    degree_sigma: float  # standard deviation of ln(degree), the skew of a lognormal degree law
    metis: dict[str, int] = field(default_factory=dict)  # number of parts -> Vol
    metis_cut: dict[str, int] = field(default_factory=dict)  # METIS that makes cut edges few instead of the volume
    random: dict[str, int] = field(default_factory=dict)
    # unevenness of METIS parts, see spread.shares; the defaults are means over the six graphs at 8 parts
    halo_spread: float = 0.44
    halo_bend: float = 0.0
    edge_spread: float = 0.34
    edge_bend: float = 0.0
    cut_share: dict[str, float] = field(default_factory=dict)  # number of METIS parts -> share of edges between them

    def __post_init__(self) -> None:
        require(self.nodes >= 1, f"nodes = {self.nodes}; at least 1")
        require(self.edges >= self.nodes, f"edges = {self.edges}; at least one self-loop per node ({self.nodes})")
        require(0 <= self.train_nodes <= self.nodes, f"train_nodes = {self.train_nodes}; legal: 0 to {self.nodes}")
        require(self.degree_sigma >= 0, f"degree_sigma = {self.degree_sigma}; legal: 0 or more")
        require(min(self.halo_spread, self.edge_spread) >= 0, "a spread is 0 or more")
        require(max(abs(self.halo_bend), abs(self.edge_bend)) <= 0.5, "a bend is between -0.5 and 0.5")
        for table in (self.metis, self.metis_cut, self.random):
            _check_volumes(table, self.nodes)
        for parts, share in self.cut_share.items():
            require(0 < share < 1, f"cut_share = {share} at {parts} parts; legal: above 0 and below 1")

    def cut(self) -> "TrainGraph":
        """The same graph with volumes of partitions that make cut edges few, where those are known."""
        return replace(self, metis=self.metis_cut, cut_share={}) if self.metis_cut else self

    @property
    def mean_degree(self) -> float:
        """Mean number of in-neighbours, self-loop not counted."""
        return self.edges / self.nodes - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known of a dataset; `inductive` is the subgraph on the train nodes, where papers train on it."""

    name: str
    features: int
    classes: int
    multilabel: bool
    full: TrainGraph
    inductive: TrainGraph | None = None
    # what stand-ins need beside that, where it is known
    homophily: float | None = None  # share of the edges whose ends have one label
    feature_score: float | None = None  # see task.linear_score: what features alone tell
    class_shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("homophily", "feature_score"):
            value = getattr(self, name)
            require(value is None or 0 <= value <= 1, f"{name} = {value}; legal: 0 to 1")
        given = len(self.class_shares)
        require(given in (0, self.classes), f"class_shares has {given} entries; expected {self.classes}, one per class")
        require(all(share > 0 for share in self.class_shares), "a share of class_shares is above 0")

    def training_graph(self, *, inductive: bool = False) -> TrainGraph:
        """The full graph or the inductive one."""
        if not inductive:
            return self.full
        if self.inductive is None:
            raise InputError(f"card {self.name!r} has no inductive training graph; use the full graph")
        return self.inductive

    def cut(self) -> "Card":
        """The same dataset, partitioned for few cut edges."""
        return replace(self, full=self.full.cut(), inductive=self.inductive and self.inductive.cut())


def _check_volumes(table: dict[str, int], nodes: int) -> None:
    for parts, vol in table.items():
        require(parts.isdecimal() and int(parts) >= 2, f"a volume is keyed by a number of parts ≥ 2, got {parts!r}")
        limit = (int(parts) - 1) * nodes
        require(0 < vol <= limit, f"volume {vol} at {parts} parts; legal: 1 to (parts − 1)·nodes = {limit}")
    ordered = sorted(table.items(), key=lambda item: int(item[0]))
    for (low, before), (high, after) in pairwise(ordered):
        require(before < after, f"volumes must grow with parts: {before} at {low}, {after} at {high}")


def card_names() -> tuple[str, ...]:
    """The names of the cards that come with the package."""
    names = (entry.name for entry in files("halocast.graph.cards").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_card(name_or_path: str | Path) -> Card:
    """A card by name, or from a TOML file of the same form."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if str(name_or_path) not in card_names():
            fault = unknown("dataset card", str(name_or_path), card_names())
            raise InputError(f"{fault}; a path to a .toml card works too")
        path = Path(str(files("halocast.graph.cards"))) / f"{name_or_path}.toml"
    return record(Card, read_toml(path), str(path.name))


def card_volume(graph: TrainGraph, num_parts: int, partitioner: str = "metis") -> int:
    """Vol of a partition into num_parts.

    Random: Σ_v (k−1)(1 − (1−1/k)^deg(v)) over a lognormal degree law. METIS: that times a ratio, straight in
    (log k, log ratio) through the published points (else through DEFAULT_METIS_RATIO), constant below the first
    and rising to 1 at k = nodes, where every partition has the same volume. Published volumes come out exactly.
    """
    require(1 <= num_parts <= graph.nodes, f"{num_parts} parts; legal: 1 to the number of nodes, {graph.nodes}")
    if partitioner not in ("metis", "random"):
        raise unknown("partitioner", partitioner, ("metis", "random"))
    if num_parts == 1:
        return 0
    table = graph.metis if partitioner == "metis" else graph.random
    if str(num_parts) in table:
        return table[str(num_parts)]
    ratio = _ratio_at(num_parts, _ratio_points(graph, partitioner))
    return min(round(ratio * random_volume(graph, num_parts)), graph.edges - graph.nodes)


def random_volume(graph: TrainGraph, num_parts: int) -> float:
    """The expected Vol of a random partition, in closed form."""
    k = num_parts
    return float(graph.nodes * (k - 1) * np.mean(1 - (1 - 1 / k) ** degree_quantiles(graph)))


def degree_quantiles(graph: TrainGraph) -> Reals:
    """Quantiles of the lognormal degree law, scaled to the mean; no degree above the number of other nodes."""
    normal = NormalDist()
    z = np.array([normal.inv_cdf((i + 0.5) / QUANTILES) for i in range(QUANTILES)])
    raw = np.exp(graph.degree_sigma * z)
    return np.asarray(np.minimum(raw * (graph.mean_degree / raw.mean()), graph.nodes - 1))


def _ratio_points(graph: TrainGraph, partitioner: str) -> dict[int, float]:
    table = graph.metis if partitioner == "metis" else graph.random
    points = {int(k): vol / random_volume(graph, int(k)) for k, vol in sorted(table.items())}
    if not points:
        points = {2: 1.0} if partitioner == "random" else dict(DEFAULT_METIS_RATIO)
    if graph.nodes > max(points):
        points[graph.nodes] = 1.0
    return points


def _ratio_at(num_parts: int, points: dict[int, float]) -> float:
    ordered = sorted(points)
    logs = np.log([points[k] for k in ordered])
    return float(np.exp(np.interp(np.log(num_parts), np.log(ordered), logs)))
