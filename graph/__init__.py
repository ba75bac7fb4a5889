"""Graphs, their partitions and the sizes of both: importing this loads neither torch, dgl nor pymetis."""

from halocast.graph.card import Card, TrainGraph, card_names, card_volume, load_card
from halocast.graph.formats.loaders import load
from halocast.graph.graph import Graph, content_hash, from_edges, induced, stratified_masks, validate
from halocast.graph.halo import Halo, from_assignment, from_card, from_parts
from halocast.graph.likeness import Likeness, Match, match
from halocast.graph.partition import assign, volume
from halocast.graph.parts import (
    Assignment,
    Part,
    build_part,
    build_parts,
    check_parts,
    halo_matrix,
    iter_parts,
    load_part,
    save_part,
)
from halocast.graph.sizes import GraphSizes, sizes_of_card, sizes_of_graph
from halocast.graph.standin import stand_in
from halocast.graph.synthetic import synthetic

__all__ = [
    "Assignment",
    "Card",
    "Graph",
    "GraphSizes",
    "Halo",
    "Likeness",
    "Match",
    "Part",
    "TrainGraph",
    "assign",
    "build_part",
    "build_parts",
    "card_names",
    "card_volume",
    "check_parts",
    "content_hash",
    "from_assignment",
    "from_card",
    "from_edges",
    "from_parts",
    "halo_matrix",
    "induced",
    "iter_parts",
    "load",
    "load_card",
    "load_part",
    "match",
    "save_part",
    "sizes_of_card",
    "sizes_of_graph",
    "stand_in",
    "stratified_masks",
    "synthetic",
    "validate",
    "volume",
]
