"""Measured times of kernels as samples: what ran, on which device and graph, and how long it took.

* `spmm_rtx.csv`: cuSPARSE on an RTX 3090 and an RTX 4090, fp32 and fp16, graphs with the variation of their degrees.
* `spmm_a100.csv`: torch.sparse.mm of uniform random matrices on an A100.
* `chunk_compute.csv`: milliseconds of forward, recompute and backward of METIS chunks on an RTX A5000 (logs of the
  GNNPipe authors), for the first, a middle and the last layer of a GCN and a GCNII. What such a layer launches is
  written below as our kernels, after the released code: the GCN's first layer multiplies before it aggregates, the
  others aggregate first; every gradient is computed, the features' too, and is added to a buffer that was cleared. The
  columns a chunk gathers from are not in the table: its own vertices and the mean halo of the dataset's card.
* `more.csv`, rows of Plexus: all sparse products of an epoch on a 3D grid of A100s, which nothing is fitted to. From
  layer to layer the axes of the grid swap roles (rows, columns and width of the product); blocks are taken to be equal.

Graphs are in two halves, every other one by name, and chunks by even and odd index, so that one that appears in several
files of the logs is on one side only.
"""

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from halocast.graph.card import card_volume, load_card
from halocast.schedule.ir import Kernel, Numbers

LAYER_TYPES = 3
SOFTMAX_SWEEPS = 3  # the row's maximum, its sum, the quotient
TORCH_CALL_S = 47e-6  # of torch.sparse.mm: the least times of that table are 40 to 110 us, whatever the matrix
UNIFORM = 0.0  # sigma of matrices without structure; synthetic graphs have it in their columns, as their times show
RTX = {"RTX 3090": "rtx-3090", "RTX 4090": "rtx-4090"}
FP16 = {"cusparse_fp32_ms": "fp32", "cusparse_fp16_ms": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured time, and the half it belongs to; of neither, nothing is fitted to it."""

    groups: tuple[str, ...]  # what it is reported under: the table first
    device: str
    sigma: float  # of the graph's degrees
    half: int | None
    kernels: Counter[Kernel]
    measured_s: float
    call_s: float | None = None  # of the program that measured it, in place of a launch

    @property
    def table(self) -> str:
        return self.groups[0]


class Shape(NamedTuple):
    """One op of a layer on a chunk: it turns `wide` columns into `out`."""

    rows: int
    cols: int
    edges: int
    wide: int
    out: int


def elementwise(numel: int, *passes: int) -> list[Kernel]:
    return [Kernel("elementwise", (numel, count)) for count in passes]


def spmm(s: Shape) -> list[Kernel]:
    return [Kernel("spmm", (s.rows, s.cols, s.edges, s.wide))]


def gradients(s: Shape) -> list[Kernel]:
    return [Kernel("gemm", (s.rows, s.out, s.wide)), Kernel("gemm", (s.wide, s.rows, s.out))]


FORWARD: dict[str, Callable[[Shape], list[Kernel]]] = {
    "aggregate": spmm,
    "multiply": lambda s: [Kernel("gemm", (s.rows, s.wide, s.out))],
    "relu": lambda s: elementwise(s.rows * s.out, 2),
    "dropout": lambda s: elementwise(s.rows * s.out, 3),
    "mix": lambda s: elementwise(s.rows * s.out, 2, 3),  # GCNII: a scaled sum of two tensors, one after the other
    "softmax": lambda s: elementwise(s.rows * s.out, 2) * SOFTMAX_SWEEPS,
}
BACKWARD: dict[str, Callable[[Shape], list[Kernel]]] = {
    "aggregate": spmm,
    "multiply": gradients,
    "relu": lambda s: elementwise(s.rows * s.out, 4),
    "dropout": lambda s: elementwise(s.rows * s.out, 3, 3),
    "mix": lambda s: elementwise(s.rows * s.out, 3, 3),
    "softmax": lambda s: elementwise(s.rows * s.out, 3) * SOFTMAX_SWEEPS,
}
# An op and the columns of its input and output: f features, h hidden, c classes.
GCN_II_MIDDLE = ("aggregate hh", "mix hh", "multiply hh", "mix hh", "relu hh", "dropout hh")
LAYERS = {
    ("gcn", 0): ("multiply fh", "aggregate hh", "relu hh", "dropout hh"),
    ("gcn", 1): ("aggregate hh", "multiply hh", "relu hh", "dropout hh"),
    ("gcn", 2): ("aggregate hh", "multiply hc", "softmax cc"),
    ("gcnii", 0): ("dropout ff", "multiply fh", "relu hh", "dropout hh"),
    ("gcnii", 1): GCN_II_MIDDLE,
    ("gcnii", 2): (*GCN_II_MIDDLE, "multiply hc", "softmax cc"),
}


@cache
def card_sizes(dataset: str, num_parts: int) -> tuple[int, int, int, float]:
    """Features, classes, the mean number of halo nodes of a part, and how unequal degrees are."""
    card = load_card(dataset)
    halo = card_volume(card.full, num_parts) // num_parts
    return card.features, card.classes, halo, card.full.degree_sigma


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    dataset: str
    num_vertices: int
    num_edges: int
    hidden: int
    num_parts: int

    def kernels(self, model: str, layer_type: int) -> Counter[Kernel]:
        """What forward, recompute and backward of the layer launch, and how often."""
        features, classes, halo, _ = card_sizes(self.dataset, self.num_parts)
        widths = {"f": features, "h": self.hidden, "c": classes}
        launched: list[Kernel] = []
        for op in LAYERS[model, layer_type]:
            name, ends = op.split()
            s = Shape(self.num_vertices, self.num_vertices + halo, self.num_edges, widths[ends[0]], widths[ends[1]])
            cleared = elementwise(s.rows * s.wide, 1)
            launched += [*FORWARD[name](s) * 2, *BACKWARD[name](s), *cleared]
        return Counter(launched)


def chunk_samples(path: Path) -> list[Sample]:
    return [sample for row in _rows(path) for sample in _chunk_layers(row)]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _chunk_layers(row: dict[str, str]) -> Iterator[Sample]:
    chunk = Chunk(
        dataset=row["dataset"],
        num_vertices=round(float(row["vertices_k"]) * 1e3),
        num_edges=round(float(row["edges_m"]) * 1e6),
        hidden=int(row["hidden"]),
        num_parts=int(row["n_chunks"]),
    )
    for layer_type in range(LAYER_TYPES):
        yield Sample(
            groups=("A5000 layers", row["dataset"], row["model"], f"LT{layer_type}", f"K={chunk.num_parts}"),
            device="a5000",
            sigma=card_sizes(chunk.dataset, chunk.num_parts)[3],
            half=int(row["chunk"]) % 2,
            kernels=chunk.kernels(row["model"], layer_type),
            measured_s=float(row[f"LT{layer_type}_ms"]) * 1e-3,
        )


def rtx_samples(path: Path) -> list[Sample]:
    rows = _rows(path)
    halves = _halves(row["dataset"] for row in rows)
    return [
        Sample(
            groups=(f"{row['gpu']} {numbers}", "synthetic" if synthetic else "real", f"width {row['width']}"),
            device=RTX[row["gpu"]],
            sigma=UNIFORM if synthetic else math.sqrt(math.log1p(float(row["cv_degree"]) ** 2)),
            half=halves[row["dataset"]],
            kernels=Counter([_spmm(row, Numbers.BFLOAT16 if numbers == "fp16" else Numbers.FLOAT32)]),
            measured_s=float(row[column]) * 1e-3,
        )
        for row in rows
        for synthetic in (row["synthetic"] == "True",)
        for column, numbers in FP16.items()
    ]


def a100_samples(path: Path) -> list[Sample]:
    rows = _rows(path)
    halves = _halves(f"{row['rows']:0>9} {row['cols']:0>9}" for row in rows)
    return [
        Sample(
            groups=("A100 fp32", "uniform", f"width {row['width']}"),
            device="a100-40",
            sigma=UNIFORM,
            half=halves[f"{row['rows']:0>9} {row['cols']:0>9}"],
            kernels=Counter([_spmm(row, Numbers.FLOAT32)]),
            measured_s=float(row["ms"]) * 1e-3,
            call_s=TORCH_CALL_S,
        )
        for row in rows
    ]


def plexus_samples(path: Path) -> list[Sample]:
    return [_grid(row) for row in _rows(path) if row["source"] == "plexus" and row["metric"] == "spmm_s"]


def _grid(row: dict[str, str]) -> Sample:
    grid = json.loads(row["params"])
    nodes, nnz, (x, y, z) = grid["num_nodes"], grid["nnz"], (grid[axis] for axis in "XYZ")
    launched = []
    for (rows, cols, columns), width in zip(((z, x, y), (x, y, z), (y, z, x)), grid["feats"], strict=True):
        block, entries, wide = (nodes // rows, nodes // cols), nnz // (rows * cols), max(1, width // columns)
        launched += [Kernel("spmm", (*way, entries, wide)) for way in (block, block[::-1])]
    return Sample(
        groups=("Plexus grids", row["dataset"]),
        device="a100-40",
        sigma=UNIFORM,  # rows and columns are shuffled
        half=None,
        kernels=Counter(launched),
        measured_s=float(row["value"]),
        call_s=TORCH_CALL_S,
    )


def _halves(graphs: Iterable[str]) -> dict[str, int]:
    return {graph: place % 2 for place, graph in enumerate(sorted(set(graphs)))}


def _spmm(row: dict[str, str], numbers: Numbers) -> Kernel:
    rows, cols, nnz, width = (int(row[dim]) for dim in ("rows", "cols", "nnz", "width"))
    return Kernel("spmm", (rows, cols, nnz, width), numbers)


def all_samples(shared: Path) -> list[Sample]:
    """Every table of the directory."""
    return [
        *rtx_samples(shared / "kernels/spmm_rtx.csv"),
        *a100_samples(shared / "kernels/spmm_a100.csv"),
        *chunk_samples(shared / "published/chunk_compute.csv"),
        *plexus_samples(shared / "published/more.csv"),
    ]
