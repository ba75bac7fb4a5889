"""Which part owns which node: METIS or random, balanced by nodes or by edges, remembered on disk."""

import hashlib
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import scipy.sparse as sp

from halocast.base.errors import unknown
from halocast.base.files import cache_dir, whole_file
from halocast.base.records import require
from halocast.graph.graph import Graph, Ints, Mask, adjacency, content_hash
from halocast.graph.parts import Assignment

PARTITIONERS = ("metis", "random")
OBJECTIVES = ("vol", "cut")
BALANCES = ("node", "edge", "cost")
NODE_COST = 20  # edges that cost as much as a node: passes over its row per two sparse products, forward and backward
RANDOM_STREAM = 1


def assign(
    graph: Graph,
    num_parts: int,
    *,
    partitioner: str = "metis",
    objective: str = "vol",
    balance: str = "node",
    seed: int = 0,
    cache: bool = True,
) -> Assignment:
    """The owner of every node; no part is empty. `objective` and `balance` concern METIS only.

    "vol" minimises Vol (exactly, for a symmetric graph; a directed one is symmetrised first), "cut" the cut edges.
    balance "node" evens out node counts, "edge" local edge counts, "cost" what a layer does with both. "random" gives
    parts whose sizes differ by ≤ 1.
    """
    _check(graph, num_parts, partitioner, objective, balance, seed)
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    if partitioner == "random":
        return random_assignment(graph.num_nodes, num_parts, seed)
    if not cache:
        return _metis_repaired(graph, num_parts, objective, balance, seed)
    path = _cache_path(graph, num_parts, objective, balance, seed)
    stored = _read(path, graph.num_nodes, num_parts)
    if stored is None:
        stored = _metis_repaired(graph, num_parts, objective, balance, seed)
        _write(path, stored)
    return stored


def _check(graph: Graph, num_parts: int, partitioner: str, objective: str, balance: str, seed: int) -> None:
    n = graph.num_nodes
    require(seed >= 0, f"{graph.name}: seed = {seed}; legal: 0 or more")
    require(1 <= num_parts <= n, f"{graph.name}: {num_parts} parts; legal: 1 to the number of nodes, {n}")
    chosen = (("partitioner", partitioner, PARTITIONERS), ("objective", objective, OBJECTIVES))
    for what, value, legal in (*chosen, ("balance", balance, BALANCES)):
        if value not in legal:
            raise unknown(what, value, legal)


def random_assignment(num_nodes: int, num_parts: int, seed: int) -> Assignment:
    """Assign nodes to parts by a shuffle of equal shares."""
    # A stream of its own: with the bare seed, the shuffle would repeat the communities of a synthetic graph.
    rng = np.random.default_rng((seed, RANDOM_STREAM))
    return rng.permutation(np.arange(num_nodes, dtype=np.int32) % np.int32(num_parts))


def metis(graph: Graph, num_parts: int, objective: str, balance: str, seed: int) -> tuple[int, Assignment]:
    """Run METIS k-way: its objective value (Vol or cut edges) and the assignment, which may leave a part empty."""
    import pymetis  # here, so that importing halocast.graph stays light

    kind = pymetis.ObjType.VOL if objective == "vol" else pymetis.ObjType.CUT
    width = pymetis.zero_copy_dtype()
    matrix = _symmetric(graph)
    degrees = np.diff(graph.indptr).astype(width)
    weights = {"node": None, "edge": degrees, "cost": degrees + degrees.dtype.type(NODE_COST)}[balance]
    cut = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(matrix.indptr.astype(width), matrix.indices.astype(width)),
        vweights=weights,
        recursive=False,  # recursive bisection, the default up to 8 parts, refuses the volume objective
        options=pymetis.Options(objtype=kind, seed=seed),
    )
    return int(cut.edge_cuts), np.asarray(cut.vertex_part, dtype=np.int32)


def _symmetric(graph: Graph) -> sp.csr_matrix:
    """Both directions of every edge, without self-loops: what METIS accepts."""
    matrix = adjacency(graph)
    if not graph.is_symmetric():
        matrix = (matrix + matrix.T).tocsr()
    rows = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), np.diff(matrix.indptr))
    keep = rows != matrix.indices
    lengths = np.diff(matrix.indptr) - 1  # every node has exactly one self-loop
    indptr = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return sp.csr_matrix((np.ones(indptr[-1], np.int8), matrix.indices[keep], indptr), shape=matrix.shape)


def _metis_repaired(graph: Graph, num_parts: int, objective: str, balance: str, seed: int) -> Assignment:
    return fill_empty(metis(graph, num_parts, objective, balance, seed)[1], num_parts)


def fill_empty(assignment: Assignment, num_parts: int) -> Assignment:
    """Give every empty part one node: the last of the part that is largest at that moment (ties: lowest rank)."""
    sizes = np.bincount(assignment, minlength=num_parts)
    repaired = assignment.copy()
    for part in np.flatnonzero(sizes == 0):
        donor = int(np.argmax(sizes))
        node = np.flatnonzero(repaired == donor)[-1]
        repaired[node] = part
        sizes[donor] -= 1
        sizes[part] += 1
    return repaired


def extended(graph: Graph, mask: Mask, assignment: Assignment) -> Assignment:
    """An assignment of all nodes, from one of the nodes of a mask, which keep their parts.

    Any other node goes where most of the neighbours it reads are; one that reads none of the mask's, anywhere.
    """
    num_parts, others = int(assignment.max()) + 1, np.flatnonzero(~mask)
    member = sp.csr_matrix((np.ones(len(assignment), np.int32), (np.arange(len(assignment)), assignment)))
    counts = (adjacency(graph)[others][:, mask] @ member).toarray()
    parts = np.empty(graph.num_nodes, np.int32)
    parts[mask] = assignment
    parts[others] = np.where(counts.any(axis=1), counts.argmax(axis=1), others % num_parts)
    return parts


def volume(graph: Graph, assignment: Assignment) -> int:
    """Vol of an assignment, by distinct (receiver, source) pairs."""
    target = np.repeat(assignment, np.diff(graph.indptr))
    cut = target != assignment[graph.indices]
    pairs: Ints = target[cut].astype(np.int64) * graph.num_nodes + graph.indices[cut]
    return len(np.unique(pairs))


def _cache_path(graph: Graph, num_parts: int, objective: str, balance: str, seed: int) -> Path:
    import pymetis

    words = (content_hash(graph), num_parts, "metis", objective, balance, seed, pymetis.version)
    key = hashlib.blake2b(repr(words).encode(), digest_size=16).hexdigest()
    return cache_dir() / "partitions" / f"{key}.npz"


def _write(path: Path, assignment: Assignment) -> None:
    """Keep an assignment; a cache that cannot be written costs time later, not the run now."""
    with suppress(OSError), whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, assignment=assignment)


def _read(path: Path, num_nodes: int, num_parts: int) -> Assignment | None:
    """A stored assignment, or None where there is none or a broken one: the caller then writes it anew."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            assignment = stored["assignment"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    fits = assignment.dtype == np.int32 and assignment.shape == (num_nodes,)
    if not fits or not np.array_equal(np.unique(assignment), np.arange(num_parts)):
        return None
    return np.asarray(assignment, dtype=np.int32)
