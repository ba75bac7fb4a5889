"""How well a stand-in matches: for every figure what was wanted, what came out, and why where that is another."""

from dataclasses import dataclass

import numpy as np

from halocast.graph.card import Card
from halocast.graph.graph import Graph, induced
from halocast.graph.partition import assign
from halocast.graph.sizes import GraphSizes, homophily, sizes_of_card, sizes_of_graph
from halocast.graph.standin import MOST_DEGREE, MOST_FEATURES, Request, wanted_of, wanted_score
from halocast.graph.task import linear_score

TOLERANCES = {
    "degree": 0.05,
    "degree_sigma": 0.1,
    "halo_ratio": 0.1,
    "cut_share": 0.25,
    "features": 0.0,
    "classes": 0.0,
    "train_share": 0.1,
    "homophily": 0.1,
    "feature_score": 0.1,
}
REASONS = {
    "degree": f"at most {MOST_DEGREE:.0f}, so that it trains here, and a quarter of a part's nodes",
    "degree_sigma": "few nodes leave no room for the rarest, largest degrees",
    "halo_ratio": "no community structure of so many nodes was found that METIS cuts so",
    "cut_share": "halo rows come first, and as many of them took other edges",
    "features": f"at most {MOST_FEATURES} columns, so that it fits in memory",
    "train_share": "every class has a node to train, to validate and to test",
    "homophily": "so many rows between parts take edges between classes",
    "feature_score": "found on fewer columns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """One figure of a card and of what stands in for it."""

    figure: str
    wanted: float
    got: float
    tolerance: float  # relative
    known: bool  # whether the card tells it; if not, a usual value or one that follows from a law was wanted

    @property
    def close(self) -> bool:
        """Whether it is within its tolerance."""
        return abs(self.got - self.wanted) <= self.tolerance * abs(self.wanted)

    @property
    def reason(self) -> str:
        """Why it is not close; nothing where it is."""
        return "" if self.close else REASONS.get(self.figure, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A card and what stands in for it, figure by figure, in so many METIS parts."""

    card: GraphSizes
    stand_in: GraphSizes
    figures: tuple[Likeness, ...]

    @property
    def missed(self) -> tuple[Likeness, ...]:
        """What is not as wanted."""
        return tuple(figure for figure in self.figures if not figure.close)


def match(card: Card, graph: Graph, *, parts: int, objective: str = "vol", inductive: bool = False) -> Match:
    """Compare a stand-in with its card; another number of parts than it was made for may be asked for, too."""
    wanted = wanted_of(Request(card, graph.num_nodes, parts, objective, inductive, 0))
    seen = induced(graph, graph.train_mask) if inductive else graph
    got = sizes_of_graph(seen, assign(seen, parts, objective=objective))
    said = sizes_of_card(card.cut() if objective == "cut" else card, parts, inductive=inductive)
    pairs: dict[str, tuple[float, float, bool]] = {
        "degree": (said.degree, got.degree, True),
        "degree_sigma": (said.degree_sigma, got.degree_sigma, True),
        "halo_ratio": (said.halo_ratio, got.halo_ratio, True),
        "cut_share": (wanted.cut_share, got.cut_share or 0.0, said.cut_share is not None),
        "features": (card.features, graph.num_features, True),
        "classes": (card.classes, graph.num_classes, True),
        "train_share": (said.train_share, got.train_share, True),
    }
    if not graph.multilabel:
        score = linear_score(graph.features, graph.labels, graph.train_mask, graph.test_mask)
        largest = float(np.bincount(graph.labels).max()) / graph.num_nodes
        pairs["homophily"] = (wanted.homophily, homophily(graph), card.homophily is not None)
        pairs["feature_score"] = (wanted_score(card, largest), score, card.feature_score is not None)
    figures = (
        Likeness(figure=name, wanted=said_value, got=got_value, tolerance=TOLERANCES[name], known=known)
        for name, (said_value, got_value, known) in pairs.items()
    )
    return Match(card=said, stand_in=got, figures=tuple(figures))
