"""The sizes of a scenario's graph in parts, which decide how much an approximation matters, as a task of a pool."""

from dataclasses import dataclass

import numpy as np

from halocast.base.errors import InputError
from halocast.graph.card import load_card
from halocast.graph.graph import Graph
from halocast.methods import METHODS
from halocast.reports.curves import GraphFigures
from halocast.study.clusters import scenario_cluster
from halocast.study.scenario import MethodSection, Scenario
from halocast.study.workload import Workload, prepare

GRAPH = "graph"  # the task's name
PLAIN = "vanilla"  # whose parts are those of all graph-parallel methods


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGraph:
    """A graph's figures, and the score of the best constant answer; none where labels are not here."""

    figures: GraphFigures
    chance: float | None


def known_graph(scenario: Scenario, *, data: bool = False) -> KnownGraph:
    """The figures of a scenario's graph in as many parts as its cluster has ranks; `data`: of the graph itself."""
    plain = MethodSection(name=PLAIN, options=METHODS[PLAIN].options())
    chosen = Scenario(graph=scenario.graph, model=scenario.model, method=plain, cluster=scenario.cluster)
    workload = prepare(chosen, scenario_cluster(scenario).num_ranks, data=data)
    graph = workload.whole or workload.graph
    return KnownGraph(figures=_figures(workload), chance=None if graph is None else _chance(graph))


def _figures(workload: Workload) -> GraphFigures:
    halo, graph = workload.halo, workload.graph
    nodes, edges = int(halo.num_inner.sum()), int(halo.num_edges.sum())
    return GraphFigures(
        name=workload.scenario.graph.dataset if graph is None else graph.name,
        nodes=nodes,
        degree=edges / nodes - 1,
        degree_sigma=_card_sigma(workload) if graph is None else _sigma(graph),
        features=halo.num_features,
        classes=halo.num_classes,
        parts=halo.num_parts,
        cut_share=None if graph is None else float(halo.cut_edges().sum()) / max(1, edges - nodes),
        halo_ratio=halo.volume / nodes,
        train_share=float(halo.num_train.sum()) / nodes,
    )


def _card_sigma(workload: Workload) -> float:
    section = workload.scenario.graph
    return load_card(section.dataset).training_graph(inductive=section.inductive).degree_sigma


def _sigma(graph: Graph) -> float:
    """The standard deviation of ln(degree) over nodes that have neighbours."""
    degrees = graph.in_degree - 1
    return float(np.log(degrees[degrees > 0]).std()) if (degrees > 0).any() else 0.0


def _chance(graph: Graph) -> float:
    """The share of the validation nodes that one answer for all gets right; 0 where a node has several labels."""
    labels = graph.labels[graph.val_mask]
    if not len(labels):
        raise InputError(f"graph {graph.name} has no val nodes: there is nothing to select by")
    if graph.multilabel:
        return 0.0
    return float(np.bincount(labels[labels >= 0]).max(initial=0) / max(1, (labels >= 0).sum()))
