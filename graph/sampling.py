"""Seeded samples of a part: boundary rows drawn by their owner, edges drawn by their receiver, and what then remains.

Every draw has a counter-based stream of its own, named by (seed, use, rank, epoch, layer): it does not depend on how
many processes there are, on the order of calls or on other draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import pairwise

import numpy as np

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.graph.graph import Columns, Ints, Mask, Reals
from halocast.graph.parts import Part


class Use(IntEnum):
    """The use of a random stream; those of different uses are independent. The numbers name them: never renumber."""

    BOUNDARY = 0
    EDGES = 1
    DROP = 2
    CACHE = 3


def stream(use: Use, seed: int, rank: int, epoch: int = 0, layer: int = 0) -> np.random.Generator:
    """The random generator of one draw: of a use, a seed, a rank, an epoch and, where layers draw apart, a layer."""
    require(min(seed, rank, epoch) >= 0, f"sampling: seed, rank, epoch = {seed}, {rank}, {epoch}; legal: 0 or more")
    key = (use, rank, epoch, layer) if layer else (use, rank, epoch)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """Some rows of every peer's list. An id is a place in the pair's list, so it means the same at both ends."""

    ids: Ints  # grouped by peer, ascending inside a peer
    offsets: Ints  # those of peer j are ids[offsets[j] : offsets[j + 1]]

    @property
    def counts(self) -> Ints:
        """Number of rows per peer."""
        return np.diff(self.offsets)

    def of(self, peer: int) -> Ints:
        """The ids that travel to or come from one peer."""
        return self.ids[self.offsets[peer] : self.offsets[peer + 1]]

    def places(self, lists: Ints) -> Ints:
        """Places of picked rows among all; `lists` is send_offsets at the owner, halo_offsets at the receiver."""
        return self.ids + np.repeat(lists[:-1], self.counts)


def joined(ids: Sequence[Ints]) -> Picked:
    """Join the ids of picked rows that came in one message per peer."""
    offsets = np.concatenate(([0], np.cumsum([len(some) for some in ids]))).astype(np.int64)
    return Picked(np.concatenate((np.empty(0, np.int64), *ids)), offsets)


def picked(rows: Ints, lists: Ints) -> Picked:
    """Ascending places among all rows (say, needed halo rows) as ids per peer; the inverse of `Picked.places`."""
    offsets = np.searchsorted(rows, lists)
    return Picked(rows - np.repeat(lists[:-1], np.diff(offsets)), offsets)


class Draw(StrEnum):
    """The rule by which an owner draws from its list of rows for a peer."""

    ROUNDED = "rounded"  # rate·count of them, rounded up or down at random: each travels with probability `rate`
    BERNOULLI = "bernoulli"  # each by itself, with probability `rate`
    FLOOR = "floor"  # ⌊rate·count⌋ of them: of a list shorter than 1/rate none, in any epoch


def drawn_counts(counts: Ints, rate: float) -> Ints:
    """The number ⌊rate·count⌋ of rows, the one rounding for owner, receiver and simulator.

    As for the decimal number that was typed: 0.29 of 100 is 29, although the product of floats is just below.
    """
    wanted = _wanted(counts, rate)
    return np.asarray(np.floor(wanted + 2 * np.spacing(wanted)), np.int64)  # two roundings of half a spacing each


def _wanted(counts: Ints, rate: float) -> Reals:
    require(0 <= rate <= 1, f"sampling: rate = {rate}; legal: 0 to 1")
    return rate * np.asarray(counts, np.float64)


def rounded_up(counts: Ints, rate: float) -> Reals:
    """The probability that a rounded draw takes one row more than ⌊rate·count⌋: what the rounding cuts off."""
    wanted = _wanted(counts, rate)
    rest = wanted - drawn_counts(counts, rate)
    return np.where(rest > 2 * np.spacing(wanted), rest, 0.0)


def travel_share(counts: Ints, rate: float, draw: Draw) -> Reals:
    """The probability with which a row of a list so long travels in an epoch."""
    if draw is Draw.FLOOR:
        return np.asarray(drawn_counts(counts, rate) / np.maximum(counts, 1))
    return np.full(np.shape(counts), float(rate))


def draw_boundary(
    send_offsets: Ints, rate: float, draw: Draw = Draw.ROUNDED, *, seed: int, rank: int, epoch: int
) -> Picked:
    """The rows `rank` sends in `epoch`, of every peer's list: uniform and, but for Bernoulli draws, of a set number."""
    rng = stream(Use.BOUNDARY, seed, rank, epoch)
    keys, lengths = rng.random(int(send_offsets[-1])), np.diff(send_offsets)
    wanted = drawn_counts(lengths, rate)
    if draw is Draw.BERNOULLI:
        return picked(np.flatnonzero(keys < rate), send_offsets)
    if draw is Draw.ROUNDED:
        wanted = wanted + (rng.random(len(lengths)) < rounded_up(lengths, rate))
    return joined([_smallest(keys[low:high], n) for (low, high), n in zip(pairwise(send_offsets), wanted, strict=True)])


def boundary_scale(drawn: Picked, lists: Ints, rate: float, draw: Draw) -> Reals:
    """The factor, per peer, that makes sums over its drawn rows right on average.

    Rows in the list ÷ rows drawn where there always are some; else 1 ÷ the probability of a row: a list of which
    nothing comes in some epochs has to count for more in the others.
    """
    always = (drawn_counts(np.diff(lists), rate) > 0) & (draw is not Draw.BERNOULLI)
    return np.where(always, np.diff(lists) / np.maximum(drawn.counts, 1), 1 / rate if rate else 1.0)


def _smallest(keys: Reals, count: int) -> Ints:
    """The places of the `count` smallest keys, ascending."""
    if count in (0, len(keys)):
        return np.arange(count, dtype=np.int64)
    return np.sort(np.argpartition(keys, count)[:count])


def inner_edges(part: Part) -> Mask:
    """Which local entries have an inner source, self-loops included."""
    return part.indices < part.num_inner


def self_loops(part: Part) -> Mask:
    """Which local entries join a node with itself."""
    rows = np.repeat(np.arange(part.num_inner, dtype=np.int32), np.diff(part.indptr))
    return np.equal(part.indices, rows)


def edges_of_rows(part: Part, halo_rows: Ints) -> Mask:
    """Which entries remain when only these halo rows arrive: theirs and all inner ones."""
    arrives = np.zeros(part.num_inner + part.num_halo, np.bool_)
    arrives[: part.num_inner] = True
    arrives[part.num_inner + halo_rows] = True
    edges: Mask = arrives[part.indices]
    return edges


def dropped_by_boundary(part: Part, rate: float, draw: Draw = Draw.ROUNDED) -> int:
    """How many edges `draw_boundary` at this rate takes from a part on average, to the nearest whole one."""
    lost = 1 - travel_share(np.diff(part.halo_offsets), rate, draw)
    ends = np.searchsorted(part.halo_offsets, part.indices[~inner_edges(part)] - part.num_inner, side="right") - 1
    return round(float(lost @ np.bincount(ends, minlength=len(lost))))


def drop(candidates: Mask, num_dropped: int, *, seed: int, rank: int, epoch: int) -> Mask:
    """Which edges stay when exactly `num_dropped` of the candidates go, uniformly.

    DropEdge: candidates ~self_loops(part). Boundary-edge sampling: candidates ~inner_edges(part).
    """
    places = np.flatnonzero(candidates)
    if not 0 <= num_dropped <= len(places):
        raise InputError(f"sampling: {num_dropped} edges to drop; legal: 0 to {len(places)}, those that may go")
    kept = np.ones(len(candidates), np.bool_)
    kept[places[_smallest(stream(Use.DROP, seed, rank, epoch).random(len(places)), num_dropped)]] = False
    return kept


def drop_probabilities(candidates: Mask, num_dropped: int) -> Reals:
    """The probability with which `drop` keeps every edge; its inverse is the unbiased weight."""
    share = num_dropped / max(int(np.count_nonzero(candidates)), 1)
    return np.where(candidates, 1 - share, 1.0)


def draw_edges(p: Reals, *, seed: int, rank: int, epoch: int, layer: int = 0) -> Mask:
    """Which edges are sampled: each by itself with its own probability."""
    return stream(Use.EDGES, seed, rank, epoch, layer).random(len(p)) < p


class Weighting(StrEnum):
    """The factor that a sampled term is multiplied by; the mean still divides by the full degree."""

    INVERSE = "inverse"  # 1/p: unbiased
    SAMPLED_DEGREE = "sampled_degree"  # degree ÷ sampled degree: the plain mean of what was sampled, biased


def edge_weights(weighting: Weighting, indptr: Ints, p: Reals, kept: Mask) -> Reals:
    """The weights of the kept edges, in their order."""
    return _WEIGHTS[weighting](indptr, p, kept)


def _inverse(indptr: Ints, p: Reals, kept: Mask) -> Reals:
    return 1 / p[kept]


def _sampled_degree(indptr: Ints, p: Reals, kept: Mask) -> Reals:
    sampled = np.diff(np.searchsorted(np.flatnonzero(kept), indptr))
    return np.repeat(np.diff(indptr) / np.maximum(sampled, 1), sampled)


_WEIGHTS: dict[Weighting, Callable[[Ints, Reals, Mask], Reals]] = {
    Weighting.INVERSE: _inverse,
    Weighting.SAMPLED_DEGREE: _sampled_degree,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalGraph:
    """The local graph of one epoch: the kept edges over all inner nodes and the halo rows that arrive."""

    indptr: Ints
    indices: Columns  # inner nodes keep their columns; halo row halo[k] is column num_inner + k
    edges: Ints  # which of the part's entries were kept
    halo: Ints  # which of the part's halo rows are needed, ascending


def needed_halo(part: Part, kept: Mask) -> Ints:
    """The halo rows with at least one kept edge, ascending."""
    used = np.zeros(part.num_inner + part.num_halo, np.bool_)
    used[part.indices[kept]] = True
    return np.flatnonzero(used[part.num_inner :])


def keep_edges(part: Part, kept: Mask) -> LocalGraph:
    """The part's rows with only the kept edges and without the halo rows that nothing needs."""
    edges = np.flatnonzero(kept)
    halo = needed_halo(part, kept)
    columns = np.empty(part.num_inner + part.num_halo, np.int32)  # of rows nothing needs: never read
    columns[: part.num_inner] = np.arange(part.num_inner)
    columns[part.num_inner + halo] = np.arange(part.num_inner, part.num_inner + len(halo))
    indptr = np.searchsorted(edges, part.indptr)
    return LocalGraph(indptr=indptr, indices=columns[part.indices[edges]], edges=edges, halo=halo)
