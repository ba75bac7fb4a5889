"""The sizes of a scenario's graph in parts, which decide how much an approximation matters, as a task of a pool."""

from dataclasses import asdict, dataclass

import numpy as np

from halocast.base.errors import InputError
from halocast.graph.card import load_card
from halocast.graph.graph import Graph
from halocast.graph.sizes import GraphSizes, sizes_of_card, sizes_of_graph
from halocast.methods import METHODS
from halocast.reports.curves import GraphFigures
from halocast.study.clusters import scenario_cluster
from halocast.study.scenario import GraphSection, MethodSection, Objective, Scenario
from halocast.study.workload import Workload, is_card, prepare

GRAPH = "graph"  # the task's name
PLAIN = "vanilla"  # whose parts are those of all graph-parallel methods


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGraph:
    """A graph's figures, and the score of the best constant answer; none where labels are not here."""

    figures: GraphFigures
    chance: float | None


def known_graph(scenario: Scenario, *, data: bool = False) -> KnownGraph:
    """The figures of a scenario's graph in as many parts as its cluster has ranks; `data`: of the graph itself."""
    num_parts = scenario_cluster(scenario).num_ranks
    if not data and is_card(scenario.graph):
        return KnownGraph(figures=_figures(_card_sizes(scenario.graph, num_parts)), chance=None)
    plain = MethodSection(name=PLAIN, options=METHODS[PLAIN].options())
    chosen = Scenario(graph=scenario.graph, model=scenario.model, method=plain, cluster=scenario.cluster)
    workload = prepare(chosen, num_parts, data=True)
    return KnownGraph(figures=_figures(_data_sizes(workload)), chance=_chance(workload))


def _card_sizes(section: GraphSection, num_parts: int) -> GraphSizes:
    card = load_card(section.dataset)
    card = card.cut() if section.objective is Objective.CUT else card
    return sizes_of_card(card, num_parts, section.partitioner, inductive=section.inductive)


def _data_sizes(workload: Workload) -> GraphSizes:
    assert workload.graph is not None
    assert workload.assignment is not None
    return sizes_of_graph(workload.graph, workload.assignment)


def _figures(sizes: GraphSizes) -> GraphFigures:
    return GraphFigures(**asdict(sizes))


def _chance(workload: Workload) -> float:
    graph = workload.whole or workload.graph
    assert graph is not None
    return chance(graph)


def chance(graph: Graph) -> float:
    """The share of the validation nodes that one answer for all gets right; 0 where a node has several labels."""
    labels = graph.labels[graph.val_mask]
    if not len(labels):
        raise InputError(f"graph {graph.name} has no val nodes: there is nothing to select by")
    if graph.multilabel:
        return 0.0
    return float(np.bincount(labels[labels >= 0]).max(initial=0) / max(1, (labels >= 0).sum()))
