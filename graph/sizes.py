"""The sizes of a partitioned graph that decide how much stale and sampled rows matter, of data and of cards."""

from dataclasses import dataclass

import numpy as np

from halocast.graph.card import Card, card_volume
from halocast.graph.graph import Graph, Mask, Reals
from halocast.graph.partition import volume
from halocast.graph.parts import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """A graph in some parts; self-loops are not counted."""

    name: str
    nodes: int
    degree: float  # mean number of neighbours
    degree_sigma: float  # standard deviation of ln(degree)
    features: int
    classes: int
    parts: int
    cut_share: float | None  # of the edges, between parts; None where a card does not say
    halo_ratio: float  # halo nodes over inner nodes, all parts together
    train_share: float


def sizes_of_graph(graph: Graph, assignment: Assignment) -> GraphSizes:
    """The sizes of a graph whose nodes are assigned to parts."""
    degrees = graph.in_degree - 1
    return GraphSizes(
        name=graph.name,
        nodes=graph.num_nodes,
        degree=float(degrees.mean()),
        degree_sigma=log_spread(degrees),
        features=graph.num_features,
        classes=graph.num_classes,
        parts=int(assignment.max()) + 1,
        cut_share=share_of_edges(graph, assignment[edge_targets(graph)] != assignment[graph.indices]),
        halo_ratio=volume(graph, assignment) / graph.num_nodes,
        train_share=graph.num_train / graph.num_nodes,
    )


def sizes_of_card(card: Card, parts: int, partitioner: str = "metis", *, inductive: bool = False) -> GraphSizes:
    """The sizes that a card tells of a graph in so many parts; halo nodes by `card_volume`."""
    graph = card.training_graph(inductive=inductive)
    return GraphSizes(
        name=card.name,
        nodes=graph.nodes,
        degree=graph.mean_degree,
        degree_sigma=graph.degree_sigma,
        features=card.features,
        classes=card.classes,
        parts=parts,
        cut_share=0.0 if parts == 1 else graph.cut_share.get(str(parts)) if partitioner == "metis" else 1 - 1 / parts,
        halo_ratio=card_volume(graph, parts, partitioner) / graph.nodes,
        train_share=graph.train_nodes / graph.nodes,
    )


def log_spread(degrees: Reals | np.ndarray) -> float:
    """The standard deviation of ln(degree), the skew that cards have; no neighbour counts as one."""
    return float(np.log(np.maximum(degrees, 1)).std())


def edge_targets(graph: Graph) -> np.ndarray:
    """The node that every stored edge leads to."""
    return np.repeat(np.arange(graph.num_nodes), graph.in_degree)


def share_of_edges(graph: Graph, marked: Mask) -> float:
    """The share of edges that are marked, self-loops left out."""
    proper = edge_targets(graph) != graph.indices
    return float(marked[proper].mean()) if proper.any() else 0.0


def homophily(graph: Graph) -> float:
    """The share of the edges whose ends have one label, or any in common where nodes have several."""
    ends = graph.labels[edge_targets(graph)], graph.labels[graph.indices]
    alike = (ends[0] * ends[1]).any(axis=1) if graph.multilabel else ends[0] == ends[1]
    return share_of_edges(graph, np.asarray(alike))
