"""Which graph is trained where the scenario's has no data: one that was named, or one that looks like its card."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from halocast.base.errors import InputError
from halocast.base.files import cache_dir
from halocast.graph.card import load_card
from halocast.graph.formats.loaders import is_here
from halocast.graph.standin import CACHE_FORMAT, stand_in
from halocast.study.scenario import GraphSection, Source
from halocast.study.workload import Say, is_card

LIKE = "like"  # in place of a file: a graph that is generated to look like the scenario's card


def stand_in_for(section: GraphSection, named: str | None, num_parts: int, say: Say) -> str | None:
    """The dataset that is trained in place of a scenario's; none where its own data is here.

    `named` is a file or a name, or `like` with a number of nodes if wanted (`like:50000`).
    """
    word, colon, nodes = (named or "").partition(":")
    if named is not None and word != LIKE:
        return named
    if named is None and (not is_card(section) or is_here(section.dataset)):
        return None
    if not is_card(section):
        raise InputError(f"stand_in = {named}: {section.dataset} has no card that a graph could look like")
    if colon and not nodes.isdecimal():
        raise InputError(f"stand_in = {named}: expected a number of nodes, for example {LIKE}:50000")
    return str(_generated(section, int(nodes) if colon else None, num_parts, say))


def _generated(section: GraphSection, nodes: int | None, num_parts: int, say: Say) -> Path:
    """The file of a generated graph, made once."""
    card = load_card(section.dataset)
    how: dict[str, Any] = {
        "nodes": nodes,
        "parts": max(2, num_parts),
        "objective": str(section.objective),
        "inductive": section.inductive,
        "seed": section.seed,
    }
    key = hashlib.sha256(json.dumps([CACHE_FORMAT, asdict(card), how], sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "stand-ins" / key / f"twin of {card.name}.npz"
    if not path.exists():
        say(f"making a graph that looks like {card.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        stand_in(card, **how).save(path)
    return path


def trained_source(dataset: str) -> dict[str, Any]:
    """The keys of [graph] that name a dataset whose data is here."""
    return {"dataset": dataset, "source": str(Source.DATA)}
