"""Checked schedules from scenarios: sizes come from the dataset's card or from the partitioned graph."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from halocast.base.errors import InputError, unknown
from halocast.graph.card import Card, card_names, load_card
from halocast.graph.chunks import chunks_from_card, ways_of_graph
from halocast.graph.formats.loaders import load
from halocast.graph.graph import Graph, induced
from halocast.graph.halo import Halo, from_assignment, from_card
from halocast.graph.partition import assign, extended
from halocast.graph.parts import Assignment, Part, iter_parts
from halocast.graph.synthetic import synthetic
from halocast.methods import METHODS
from halocast.models.spec import USUAL_NORM, ModelKind, ModelSpec
from halocast.schedule.check import check
from halocast.schedule.ir import Schedule
from halocast.study.scenario import Balance, GraphSection, Objective, Scenario, Source

SYNTHETIC = "synthetic"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Workload:
    """A schedule and what else interpreters need; graph and assignment are there when the sizes come from data.

    `whole` is the graph that scores are of, where `graph`, which is trained on, is only its part of train nodes.
    """

    scenario: Scenario
    halo: Halo
    spec: ModelSpec
    schedule: Schedule
    graph: Graph | None = None
    assignment: Assignment | None = None
    whole: Graph | None = None

    def parts(self) -> Iterator[Part]:
        """The parts that ranks train on, one at a time."""
        assert self.graph is not None
        assert self.assignment is not None
        return iter_parts(self.graph, self.assignment)

    def scored(self) -> Iterator[Part]:
        """As many parts of what scores are of; none if that is what ranks train on."""
        assert self.assignment is not None
        if self.whole is None:
            return iter(())
        return iter_parts(self.whole, extended(self.whole, self.whole.train_mask, self.assignment))


def silent(text: str) -> None:
    """Say nothing."""


def prepare(
    scenario: Scenario,
    num_ranks: int,
    *,
    data: bool = False,
    graph: Graph | None = None,
    card: Card | None = None,
    say: Say = silent,
) -> Workload:
    """Sizes, model and schedule of a scenario.

    `data` asks for the graph itself (a real run needs it); `graph` is one from memory, in place of the scenario's, and
    `card` a description in place of the one that has its name.
    """
    if graph is not None:
        scenario = replace(scenario, graph=replace(scenario.graph, dataset=graph.name, source=Source.DATA))
    method, options = METHODS[scenario.method.name], scenario.method.options
    if method.fit is not None:
        options = method.fit(options, num_ranks, num_layers(scenario))
        scenario = replace(scenario, method=replace(scenario.method, options=options))
    num_parts = options.chunks if method.chunks else _num_parts(scenario.graph, num_ranks)
    assignment = whole = None
    if data and scenario.graph.source is Source.CARD:
        raise InputError("graph.source = card: to run, the data itself is needed (source = auto or data)")
    if not data and graph is None and (card is not None or is_card(scenario.graph)):
        section = scenario.graph
        card = load_card(section.dataset) if card is None else card
        card = card.cut() if section.objective is Objective.CUT else card
        if method.chunks:
            halo = chunks_from_card(card, num_parts, num_ways=options.ways, inductive=section.inductive)
        else:
            halo = from_card(card, num_parts, section.partitioner, section.seed, inductive=section.inductive)
    else:
        graph = load_graph(scenario.graph, say) if graph is None else graph
        if scenario.graph.inductive:
            graph, whole = induced(graph, graph.train_mask), graph
        balanced = replace(scenario.graph, balance=Balance.COST) if method.chunks else scenario.graph
        assignment = _assign(graph, balanced, num_parts, say)
        halo = ways_of_graph(graph, assignment, options.ways) if method.chunks else from_assignment(graph, assignment)
    spec = _spec(scenario, halo)
    return Workload(
        scenario=scenario,
        halo=halo,
        spec=spec,
        schedule=make_schedule(scenario, halo, spec),
        graph=graph,
        assignment=assignment,
        whole=whole,
    )


def make_schedule(scenario: Scenario, halo: Halo, spec: ModelSpec) -> Schedule:
    make = METHODS[scenario.method.name].make
    return check(make(halo, spec, scenario.method.options, scenario.run.numbers))


def load_graph(section: GraphSection, say: Say = silent) -> Graph:
    """The scenario's graph, generated or loaded."""
    if section.dataset == SYNTHETIC:
        say(f"generating {section.nodes:,} nodes")
        return synthetic(
            nodes=section.nodes,
            degree=section.degree,
            skew=section.skew,
            classes=section.classes,
            features=section.features,
            mixing=section.mixing,
            seed=section.seed,
        )
    say(f"loading {section.dataset}")
    return _load(section.dataset)


def _load(dataset: str) -> Graph:
    try:
        return load(dataset)
    except InputError as error:
        if dataset in card_names():
            raise InputError(
                f"of {dataset} only the card is here, enough to simulate but not to run: {error}"
            ) from None
        raise


def _assign(graph: Graph, section: GraphSection, num_parts: int, say: Say) -> Assignment:
    say(f"partitioning {graph.num_nodes:,} nodes, {graph.num_edges:,} edges into {num_parts}")
    return assign(
        graph,
        num_parts,
        partitioner=section.partitioner,
        objective=section.objective,
        balance=section.balance,
        seed=section.seed,
    )


def is_card(section: GraphSection) -> bool:
    """Whether sizes come from a dataset's card."""
    has_card = section.dataset in card_names()
    if section.source is Source.CARD and not has_card:
        raise unknown("card", section.dataset, card_names(), "graph.source = card")
    return has_card and section.source is not Source.DATA


def _num_parts(section: GraphSection, num_ranks: int) -> int:
    """The number of parts, one per rank; a method that divides otherwise will say so itself."""
    parts = num_ranks if section.parts is None else section.parts
    if parts < num_ranks:
        raise InputError(f"{num_ranks} ranks but graph.parts = {parts}: more ranks than parts, every rank needs one")
    if parts > num_ranks:
        raise InputError(f"graph.parts = {parts} but {num_ranks} ranks: every rank takes exactly one part")
    return parts


def num_layers(scenario: Scenario) -> int:
    """The number of layers of a scenario, with the projection before them, which a GCNII always has."""
    return scenario.model.layers + (scenario.model.projection or scenario.model.kind is ModelKind.GCNII)


def _spec(scenario: Scenario, halo: Halo) -> ModelSpec:
    model = scenario.model
    return ModelSpec(
        kind=model.kind,
        layers=num_layers(scenario),
        hidden=model.hidden,
        heads=model.heads,
        recompute=model.recompute,
        projection=model.projection,
        num_linear=model.num_linear,
        dropout=model.dropout,
        norm=model.norm or USUAL_NORM[model.kind],
        precompute=model.precompute,
        num_features=halo.num_features,
        num_classes=halo.num_classes,
    )
