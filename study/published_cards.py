"""Dataset cards by the names that published figures use, and of graphs whose sizes a row states itself."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halocast.base.errors import InputError, unknown
from halocast.graph.card import Card, TrainGraph, card_names, load_card
from halocast.study.descriptions import NONE

# Papers' names of graphs -> ours. Letters' case never counts.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("amazonproducts", "amazon-products", "saint-amazon"), "amazon"),
        "com-orkut": "orkut",
        "com-friendster": "friendster",
        "physics": "coauthor-physics",
        **{short: f"ogbn-{short}" for short in ("products", "arxiv", "papers100m", "proteins", "mag")},
    }
)
# Sizes that a row may state: of the matrix that its sums multiply by, so edges are counted as they are there.
NODES, ENTRIES, COLUMNS, CLASSES = "num_nodes", "nnz", "in_dim", "out_dim"
USUAL_SKEW = 1.2  # estimated, as on the card of ogbn-papers100M: between the measured 0.7 (cora) and 1.6 (squirrel)


def find_card(dataset: str, params: Mapping[str, Any], own: Mapping[str, Path] = NONE) -> Card:
    """The card of a row's graph: one's own, the package's, with the sizes that the row states, if it does."""
    card = _named(dataset, own)
    if not all(isinstance(params.get(key), int) for key in (NODES, ENTRIES)):
        if card is None:
            raise unknown("dataset card", dataset, _known(own).values())
        return card
    columns, classes = (_whole(params, key, card) for key in (COLUMNS, CLASSES))
    nodes = params[NODES]
    sizes = {"nodes": nodes, "edges": max(nodes, params[ENTRIES]), "train_nodes": nodes}
    if card is not None and card.full.nodes == nodes:
        return replace(card, features=columns, classes=classes, full=replace(card.full, **sizes))
    full = TrainGraph(**sizes, degree_sigma=USUAL_SKEW)
    return Card(name=dataset.lower(), features=columns, classes=classes, multilabel=False, full=full)


def _whole(params: Mapping[str, Any], key: str, card: Card | None) -> int:
    stated = params.get(key)
    if isinstance(stated, int):
        return stated
    if card is None:
        raise InputError(f"params: {NODES} and {ENTRIES} are stated, but not {key}, and there is no card")
    return card.features if key == COLUMNS else card.classes


def _named(dataset: str, own: Mapping[str, Path]) -> Card | None:
    known, name = _known(own), dataset.lower()
    place = known.get(name) or known.get(ALIASES.get(name, ""))
    if place is None:
        return None
    path = Path(place)
    return _load(place, path.stat().st_mtime_ns if path.suffix == ".toml" else 0)


def _known(own: Mapping[str, Path]) -> dict[str, str]:
    """Names or files of cards by name in small letters; one's own are meant first."""
    return {name.lower(): name for name in card_names()} | {name.lower(): str(path) for name, path in own.items()}


@cache
def _load(name_or_path: str, changed_ns: int) -> Card:
    """A card, read once as long as its file does not change."""
    return load_card(name_or_path)
