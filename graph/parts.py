"""The pieces of a partitioned graph: what one rank owns, which rows it needs from others and which it sends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.base.records import require
from halocast.graph.graph import Columns, Floats, Graph, Ints, Labels, Mask

Assignment = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One part. The rows part i sends to j, in order, are exactly j's halo rows owned by i, in order."""

    rank: int
    num_parts: int
    inner: Ints  # global ids, ascending
    halo: Ints  # global ids, grouped by owner, ascending inside an owner
    halo_offsets: Ints  # the rows owned by part i are halo[halo_offsets[i] : halo_offsets[i + 1]]
    indptr: Ints
    indices: Columns  # local columns, ascending in a row: inner nodes first, then halo nodes
    send_rows: Ints  # local inner rows, grouped by receiver
    send_offsets: Ints
    in_degree: Ints  # of the whole graph, for every column
    out_degree: Ints
    features: Floats
    labels: Labels
    train_mask: Mask
    val_mask: Mask
    test_mask: Mask
    num_train_total: int
    num_classes: int

    @property
    def num_inner(self) -> int:
        """Number of nodes the part owns."""
        return len(self.inner)

    @property
    def num_halo(self) -> int:
        """Number of nodes the part needs from others."""
        return len(self.halo)

    @property
    def num_edges(self) -> int:
        """Number of local entries, self-loops included."""
        return len(self.indices)

    @property
    def num_train(self) -> int:
        """Number of train nodes among the inner nodes."""
        return int(np.count_nonzero(self.train_mask))

    @property
    def multilabel(self) -> bool:
        """Whether a node may have several labels."""
        return self.labels.ndim == 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Borders:
    """Who owns and who needs what, for all parts at once; small beside the parts themselves."""

    inner: tuple[Ints, ...]
    halo: tuple[Ints, ...]
    offsets: Ints  # [receiver, owner + 1], into the receiver's halo

    @property
    def matrix(self) -> Ints:
        """H[i, j] = number of nodes of part i that part j needs."""
        return np.ascontiguousarray(np.diff(self.offsets, axis=1).T)


def check_assignment(graph: Graph, assignment: Assignment) -> int:
    """The number of parts of an assignment that covers the graph with non-empty parts."""
    n = graph.num_nodes
    if assignment.shape != (n,) or assignment.dtype.kind not in "iu":
        raise InputError(f"{graph.name}: an assignment must be int[{n}], got {assignment.dtype}{assignment.shape}")
    require(int(assignment.min()) >= 0, f"{graph.name}: part {assignment.min()} in the assignment is negative")
    sizes = np.bincount(assignment)
    empty = np.flatnonzero(sizes == 0)
    require(len(empty) == 0, f"{graph.name}: part {empty[:1]} of {len(sizes)} in the assignment is empty")
    return len(sizes)


def borders(graph: Graph, assignment: Assignment) -> Borders:
    """Inner and halo nodes of every part."""
    k = check_assignment(graph, assignment)
    order = np.argsort(assignment, kind="stable")
    inner = np.split(order, np.cumsum(np.bincount(assignment, minlength=k))[:-1])
    halo = [_halo_nodes(graph, assignment, rank, own) for rank, own in enumerate(inner)]
    owners = [np.searchsorted(assignment[h], np.arange(k + 1)) for h in halo]
    return Borders(inner=tuple(inner), halo=tuple(halo), offsets=np.stack(owners).astype(np.int64))


def _halo_nodes(graph: Graph, assignment: Assignment, rank: int, inner: Ints) -> Ints:
    # A flag per node finds the distinct sources without sorting the part's edges.
    needed = np.zeros(graph.num_nodes, np.bool_)
    needed[row_columns(graph, inner)] = True
    needed[inner] = False
    halo = np.flatnonzero(needed)
    return halo[np.argsort(assignment[halo], kind="stable")]


def row_columns(graph: Graph, rows: Ints) -> Columns:
    """The column lists of some rows, one after the other."""
    starts, lengths = graph.indptr[rows], graph.indptr[rows + 1] - graph.indptr[rows]
    ends = np.cumsum(lengths)
    where = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    columns: Columns = graph.indices[where]
    return columns


def iter_parts(graph: Graph, assignment: Assignment) -> Iterator[Part]:
    """The parts one at a time, so that only one is in memory beside the graph."""
    border = borders(graph, assignment)
    degrees = graph.in_degree, graph.out_degree
    for rank in range(len(border.inner)):
        yield part_of(graph, border, degrees, rank)


def build_parts(graph: Graph, assignment: Assignment) -> tuple[Part, ...]:
    """All parts of an assignment."""
    return tuple(iter_parts(graph, assignment))


def build_part(graph: Graph, assignment: Assignment, rank: int) -> Part:
    """The part of one rank alone."""
    border = borders(graph, assignment)
    k = len(border.inner)
    require(0 <= rank < k, f"{graph.name}: part {rank} is outside [0, {k})")
    return part_of(graph, border, (graph.in_degree, graph.out_degree), rank)


def part_of(graph: Graph, border: Borders, degrees: tuple[Ints, Ints], rank: int) -> Part:
    """One part, from the borders of all and the degrees (in, out) of all nodes."""
    inner, halo = border.inner[rank], border.halo[rank]
    columns = np.concatenate((inner, halo))
    indptr, indices = _local_rows(graph, inner, columns)
    send_rows, send_offsets = _send_lists(border, rank)
    return Part(
        rank=rank,
        num_parts=len(border.inner),
        inner=inner,
        halo=halo,
        halo_offsets=border.offsets[rank],
        indptr=indptr,
        indices=indices,
        send_rows=send_rows,
        send_offsets=send_offsets,
        in_degree=degrees[0][columns],
        out_degree=degrees[1][columns],
        features=graph.features[inner],
        labels=graph.labels[inner],
        train_mask=graph.train_mask[inner],
        val_mask=graph.val_mask[inner],
        test_mask=graph.test_mask[inner],
        num_train_total=graph.num_train,
        num_classes=graph.num_classes,
    )


def _local_rows(graph: Graph, inner: Ints, columns: Ints) -> tuple[Ints, Columns]:
    local = np.empty(graph.num_nodes, np.int32)  # only the entries of `columns` are ever read
    local[columns] = np.arange(len(columns), dtype=np.int32)
    lengths = graph.indptr[inner + 1] - graph.indptr[inner]
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    # Row and column in one key: an in-place sort orders the columns inside every row.
    keys = np.repeat(np.arange(len(inner), dtype=np.int64) * len(columns), lengths)
    keys += local[row_columns(graph, inner)]
    keys.sort()
    return indptr, (keys % len(columns)).astype(np.int32)


def _send_lists(border: Borders, rank: int) -> tuple[Ints, Ints]:
    """The receivers' halo rows owned by `rank`, as local rows: one order at both ends by construction."""
    spans = border.offsets[:, rank : rank + 2]
    wanted = [halo[low:high] for halo, (low, high) in zip(border.halo, spans, strict=True)]
    offsets = np.concatenate(([0], np.cumsum(spans[:, 1] - spans[:, 0]))).astype(np.int64)
    rows = np.searchsorted(border.inner[rank], np.concatenate(wanted))
    return rows.astype(np.int64, copy=False), offsets


def halo_matrix(parts: Sequence[Part]) -> Ints:
    """H[i, j] = number of nodes of part i that part j needs."""
    return np.stack([np.diff(part.halo_offsets) for part in parts], axis=1)


def check_parts(parts: Sequence[Part]) -> None:
    """Raise InputError unless the parts are a complete set in rank order whose send lists meet the halo rows."""
    for rank, part in enumerate(parts):
        if (part.rank, part.num_parts) != (rank, len(parts)):
            raise InputError(f"part {part.rank} of {part.num_parts} found at place {rank} of {len(parts)}")
    for owner in parts:
        for receiver, (low, high) in enumerate(pairwise(owner.send_offsets)):
            other = parts[receiver]
            expected = other.halo[other.halo_offsets[owner.rank] : other.halo_offsets[owner.rank + 1]]
            sent = owner.inner[owner.send_rows[low:high]]
            require(np.array_equal(sent, expected), f"part {owner.rank} sends other rows than {receiver} expects")


def save_part(path: Path, part: Part) -> None:
    """Write one part as npz; the file appears whole or not at all."""
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **{f.name: np.asarray(getattr(part, f.name)) for f in fields(part)})


def load_part(path: Path) -> Part:
    """Read what `save_part` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            values = {name: stored[name] for name in stored.files}
        scalars = {name: int(value) for name, value in values.items() if value.ndim == 0}
        return Part(**{**values, **scalars})
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile) as error:
        raise InputError(f"{path}: not a part written by save_part ({error})") from None
