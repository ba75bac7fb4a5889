"""Chunks: the parts of a graph that is held as a whole, one after the other in one table of rows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from halocast.graph.card import Card, TrainGraph, card_volume
from halocast.graph.graph import Graph, Ints
from halocast.graph.halo import Halo, from_assignment, from_card
from halocast.graph.parts import Assignment, Part


def chunks_from_card(card: Card, num_chunks: int, *, num_ways: int = 1, seed: int = 0, inductive: bool = False) -> Halo:
    """Sizes of chunks synthesised from a card: METIS's volume, and even sizes, since chunks are cut to cost alike.

    Several ways need of each other what as many parts do.
    """
    halo = _even_chunks(card, num_chunks, seed, inductive)
    if num_ways == 1:
        return halo
    vol = card_volume(card.training_graph(inductive=inductive), num_ways)
    shared = np.zeros((num_chunks, num_ways), np.int64)
    others = np.arange(num_chunks)[:, None] // (num_chunks // num_ways) != np.arange(num_ways)
    shared[others] = vol // others.sum() + (np.arange(others.sum()) < vol % others.sum())
    return with_ways(halo, np.minimum(shared, halo.num_inner[:, None]))


def _even_chunks(card: Card, num_chunks: int, seed: int, inductive: bool) -> Halo:
    full, induced = (_even(graph) for graph in (card.full, card.inductive))
    assert full is not None
    return from_card(replace(card, full=full, inductive=induced), num_chunks, "metis", seed, inductive=inductive)


def _even(graph: TrainGraph | None) -> TrainGraph | None:
    spreads = {"halo_spread": 0.0, "halo_bend": 0.0, "edge_spread": 0.0, "edge_bend": 0.0}
    return graph and replace(graph, **spreads)  # type: ignore[arg-type]  # they are all floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WayHalo(Halo):
    """The sizes of chunks that ways share: way g has chunks g K to (g + 1) K, and a row travels to a way once."""

    shared: Ints  # [chunk, way]: nodes of the chunk that chunks of the way need, zero for its own way


def with_ways(halo: Halo, shared: Ints) -> WayHalo:
    return WayHalo(**{f.name: getattr(halo, f.name) for f in fields(halo) if f.init}, shared=shared)


def ways_of_graph(graph: Graph, chunks: Assignment, num_ways: int) -> WayHalo:
    """The sizes of chunks and of what ways share, without building parts."""
    halo = from_assignment(graph, chunks)
    way, receiver = chunks // (halo.num_parts // num_ways), np.repeat(chunks, np.diff(graph.indptr))
    receiver //= halo.num_parts // num_ways
    shared = np.zeros((halo.num_parts, num_ways), np.int64)
    for other in range(num_ways):
        needed = np.zeros(graph.num_nodes, np.bool_)
        needed[graph.indices[receiver == other]] = True
        shared[:, other] = np.bincount(chunks[needed & (way != other)], minlength=halo.num_parts)
    return with_ways(halo, shared)


def needed_rows(parts: Sequence[Part], num_ways: int) -> list[list[Ints]]:
    """The rows of every chunk (from 0) that chunks of each way need, by chunk and way; none for its own way."""
    own, rows = len(parts) // num_ways, []
    for number, part in enumerate(parts):
        users = [_used(parts[way * own : (way + 1) * own], number) for way in range(num_ways)]
        users[number // own] = users[number // own][:0]
        rows.append([np.searchsorted(part.inner, nodes) for nodes in users])
    return rows


def _used(parts: Sequence[Part], owner: int) -> Ints:
    """The nodes of a chunk that are in the halo of any of these parts."""
    halos = [part.halo[part.halo_offsets[owner] : part.halo_offsets[owner + 1]] for part in parts]
    return np.unique(np.concatenate(halos))


def whole(parts: Sequence[Part], rank: int) -> Part:
    """All nodes, chunk after chunk, as the one part of a rank; without the edges, which the chunks hold."""
    none = np.zeros(0, np.int64)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name)[: part.num_inner] for part in parts])

    num_nodes = sum(part.num_inner for part in parts)
    return Part(
        rank=rank,
        num_parts=1,
        inner=joined("inner"),
        halo=none,
        halo_offsets=np.zeros(2, np.int64),
        indptr=np.zeros(num_nodes + 1, np.int64),
        indices=np.zeros(0, np.int32),
        send_rows=none,
        send_offsets=np.zeros(2, np.int64),
        in_degree=joined("in_degree"),
        out_degree=joined("out_degree"),
        features=joined("features"),
        labels=joined("labels"),
        train_mask=joined("train_mask"),
        val_mask=joined("val_mask"),
        test_mask=joined("test_mask"),
        num_train_total=parts[0].num_train_total,
        num_classes=parts[0].num_classes,
    )


def table_rows(parts: Sequence[Part]) -> list[np.ndarray]:
    """The places of every chunk's halo rows in the table of all nodes."""
    inner = np.concatenate([part.inner for part in parts])
    place = np.empty(len(inner), np.int64)
    place[inner] = np.arange(len(inner))
    return [place[part.halo] for part in parts]
