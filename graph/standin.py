"""Stand-ins: graphs to train on in place of one of which only a card is here, alike in what makes rows stale and cut.

A card has no data. A stand-in has the card's degrees, skew, widths, classes and train share at a size that trains here,
and its knobs are turned until METIS parts of it have the halo/inner ratio and the share of cut edges of the card. It is
another graph all the same: scores on it are not the card's. `likeness.py` says how well it matches.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from halocast.base.files import cache_dir, whole_file
from halocast.base.records import require
from halocast.graph.card import Card, card_volume
from halocast.graph.graph import Graph, Reals, induced
from halocast.graph.halo import from_card
from halocast.graph.partition import assign
from halocast.graph.recipe import Knobs, Recipe, make_graph, make_task, skeleton
from halocast.graph.sizes import sizes_of_graph
from halocast.graph.task import linear_score

USUAL_NODES = 20_000
MOST_DEGREE = 60.0  # neighbours per node: an epoch of 20,000 nodes then takes less than a second of one core
MOST_FEATURES = 1024  # 80 MB at 20,000 nodes
USUAL_HOMOPHILY = 0.8  # median of six graphs: amazon-computers, coauthor-cs, coauthor-physics, cora, pubmed, squirrel
USUAL_FEATURE_SCORE = 0.54  # of the way from always guessing the largest class to 1: the mean of the same graphs
MOST_TURNS = 8
# Of partner communities, as many have the same class as edges join nodes of one label; where METIS then finds too few
# edges to cut, fewer.
NEARER = (1.0, 0.75, 0.5, 0.25, 0.0)
CLOSE = (0.04, 0.15)  # ends the turning: log of halo ratio and cut share over those wanted
GOOD = 0.15  # of `_badness`: more is worth another try
LOW, HIGH = np.log([0.004, 0.03]), np.log([0.9, 12.0])  # of stubs and partners
STEP = 0.7  # the largest, in logs
# d log(halo ratio, cut share) / d log(stubs, partners) where the turning begins; it learns the rest
SLOPES = ((0.54, 0.57), (0.9, 0.36))
FLAT = 0.05  # a smaller determinant of slopes says nothing
SIGNALS = (0.1, 30.0)
HALVINGS = 9
FEATURES_TRIED = 256  # as many tell how strong the signal has to be
CACHE_FORMAT = 1  # counts changes of what is made from the same knobs


class Request(NamedTuple):
    """What a stand-in is asked for with."""

    card: Card
    nodes: int
    parts: int
    objective: str
    inductive: bool
    seed: int


def stand_in(
    card: Card,
    *,
    nodes: int | None = None,
    parts: int = 8,
    seed: int = 0,
    objective: str = "vol",
    inductive: bool = False,
) -> Graph:
    """A graph that stands in for a card's, matched at so many METIS parts; the same for the same arguments.

    `nodes` is 20,000, or the card's if that has fewer. `objective` is METIS's, as in `assign`. With `inductive` the
    subgraph on its train nodes is what matches. What knobs gave the match is kept on disk, the graph is made anew.
    """
    size = min(USUAL_NODES, card.full.nodes) if nodes is None else nodes
    request = Request(card, size, 2 if parts == 1 else parts, objective, inductive, seed)  # of one part nothing is cut
    wanted = wanted_of(request)
    path = _cache_path(request)
    knobs = _read(path)
    if knobs is None:
        knobs = find_knobs(wanted, request)
        _write(path, knobs)
    return make_graph(wanted, knobs, seed)


def wanted_of(request: Request) -> Recipe:
    """The figures a stand-in is to have, bounded by what trains here."""
    card, nodes, parts = request.card, request.nodes, request.parts
    _check(request)
    card = card.cut() if request.objective == "cut" else card
    seen = card.training_graph(inductive=request.inductive)
    return Recipe(
        name=f"stand-in for {card.name}",
        nodes=nodes,
        degree=min(card.full.mean_degree, MOST_DEGREE, nodes / (4 * parts)),
        degree_sigma=card.full.degree_sigma,
        features=min(card.features, MOST_FEATURES),
        classes=card.classes,
        class_shares=card.class_shares,
        multilabel=card.multilabel,
        train_share=card.full.train_nodes / card.full.nodes,
        homophily=USUAL_HOMOPHILY if card.homophily is None else card.homophily,
        parts=parts,
        halo_ratio=card_volume(seen, parts) / seen.nodes,
        cut_share=_cut_share(card, request),
    )


def _check(request: Request) -> None:
    card, nodes, parts = request.card, request.nodes, request.parts
    name = f"stand-in for {card.name}"
    require(card.features >= 1, f"{name}: the card has no features, so there is nothing to learn from")
    require(card.classes >= 2, f"{name}: the card has {card.classes} classes; at least 2 are needed")
    least = max(10 * card.classes, 50 * parts)
    why = f"10 per class ({card.classes}) and 50 per part ({parts})"
    require(nodes >= least, f"{name}: nodes = {nodes}; at least {least}: {why}")
    require(nodes <= card.full.nodes, f"{name}: nodes = {nodes}; at most those of the card, {card.full.nodes}")
    require(parts >= 1, f"{name}: parts = {parts}; at least 1")
    require(request.seed >= 0, f"{name}: seed = {request.seed}; legal: 0 or more")
    left = card.full.nodes - card.full.train_nodes
    require(left >= 2, f"{name}: all nodes of the card are train nodes; validation and test need some")
    require(card.full.mean_degree > 0, f"{name}: the card has no edges")


def _cut_share(card: Card, request: Request) -> float:
    """What the card says, else what its law of edges per halo row gives."""
    graph = card.training_graph(inductive=request.inductive)
    said = graph.cut_share.get(str(request.parts)) if request.objective == "vol" else None
    if said is not None:
        return said
    cut = from_card(card, request.parts, inductive=request.inductive).cut_edges()
    return float(cut.sum()) / (graph.edges - graph.nodes)


def find_knobs(wanted: Recipe, request: Request) -> Knobs:
    """Turn the knobs until the figures are those wanted, or as near as they come."""
    best = (np.inf, _start(wanted, request))
    for part in NEARER:
        knobs = replace(best[1], near=part * wanted.homophily)
        best = min(best, _turned(knobs, wanted, request), key=lambda turned: turned[0])
        if best[0] <= GOOD:
            break
    return replace(best[1], signal=_signal(wanted, best[1], request))


def _start(wanted: Recipe, request: Request) -> Knobs:
    """Few enough communities that what does not fit into them is no more than is to be cut."""
    for each in (4, 2, 1):
        knobs = Knobs(
            communities=each * wanted.parts,
            stubs=1.5 * wanted.cut_share,
            partners=1.5 * wanted.halo_ratio,
            near=wanted.homophily,
        )
        bare = replace(knobs, stubs=0.0, partners=0.0)
        if each == 1 or (_misses(bare, wanted, request) < np.log(0.7)).all():
            break
    return knobs


def _turned(knobs: Knobs, wanted: Recipe, request: Request) -> tuple[float, Knobs]:
    """Broyden's method in logarithms, bounded: the best of all turns, and how bad it is."""
    slopes = np.array(SLOPES)
    at = np.clip(np.log([knobs.stubs, knobs.partners]), LOW, HIGH)
    misses = _misses(_set(knobs, at), wanted, request)
    best = (_badness(misses), at)
    for _ in range(MOST_TURNS):
        if (np.abs(misses) <= CLOSE).all():
            break
        step = np.clip(np.linalg.solve(slopes, -misses), -STEP, STEP)
        step = np.clip(at + step, LOW, HIGH) - at
        if not step.any():
            break
        at, before = at + step, misses
        misses = _misses(_set(knobs, at), wanted, request)
        best = min(best, (_badness(misses), at), key=lambda turn: turn[0])
        changed = slopes + np.outer(misses - before - slopes @ step, step) / (step @ step)
        slopes = changed if abs(np.linalg.det(changed)) > FLAT else slopes
    return best[0], _set(knobs, best[1])


def _set(knobs: Knobs, at: Reals) -> Knobs:
    stubs, partners = np.exp(at).tolist()
    return replace(knobs, stubs=stubs, partners=partners)


def _badness(misses: Reals) -> float:
    """Halo rows count most: they are what is stale or left out, and published; cut edges mostly follow from a law."""
    return float(abs(misses[0]) + 0.25 * abs(misses[1]))


def _misses(knobs: Knobs, wanted: Recipe, request: Request) -> Reals:
    """Logs of halo ratio and cut share of METIS parts over those wanted."""
    graph = make_graph(replace(wanted, features=1), knobs, request.seed)
    seen = induced(graph, graph.train_mask) if request.inductive else graph
    sizes = sizes_of_graph(seen, assign(seen, wanted.parts, objective=request.objective, cache=False))
    least = 1e-6  # a graph that falls apart has none
    return np.log([sizes.halo_ratio / wanted.halo_ratio + least, (sizes.cut_share or 0) / wanted.cut_share + least])


def wanted_score(card: Card, largest: float) -> float:
    """What a linear classifier is to score on features alone; the largest class has that share of the nodes."""
    return largest + USUAL_FEATURE_SCORE * (1 - largest) if card.feature_score is None else card.feature_score


def _signal(wanted: Recipe, knobs: Knobs, request: Request) -> float:
    """The strength of features at which a linear classifier of classes scores on them what is wanted.

    Nodes with several labels have one class all the same, which decides those.
    """
    wanted = replace(wanted, features=min(wanted.features, FEATURES_TRIED))
    labels = skeleton(wanted, knobs, request.seed).labels
    score = wanted_score(request.card, float(np.bincount(labels).max()) / wanted.nodes)
    low, high = np.log(SIGNALS)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        lesson = make_task(wanted, labels, float(np.exp(middle)), request.seed)
        if linear_score(lesson.features, labels, lesson.train, lesson.test) < score:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def _cache_path(request: Request) -> Path:
    import pymetis

    words = (CACHE_FORMAT, *request, pymetis.version, np.__version__)
    key = hashlib.blake2b(repr(words).encode(), digest_size=16).hexdigest()
    return cache_dir() / "stand-ins" / f"{key}.json"


def _write(path: Path, knobs: Knobs) -> None:
    """Keep the knobs; a cache that cannot be written costs time later, not the run now."""
    with suppress(OSError), whole_file(path) as temporary:
        temporary.write_text(json.dumps(asdict(knobs)), encoding="utf-8")


def _read(path: Path) -> Knobs | None:
    """Stored knobs, or None where there are none or broken ones: the caller then writes them anew."""
    try:
        return Knobs(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
