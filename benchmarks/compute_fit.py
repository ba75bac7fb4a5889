"""Fits the cost model's constants to half of a table of measured chunk times and prints its error on the other half.

The table: milliseconds of forward, recompute and backward of METIS chunks on an RTX A5000 (logs of the GNNPipe
authors), for the first, a middle and the last layer of a GCN and a GCNII. What such a layer launches is written below
as our kernels, after the released code: the GCN's first layer multiplies before it aggregates, the others aggregate
first; every gradient is computed, the features' too, and is added to a buffer that was cleared.

The columns a chunk gathers from are not in the table: its own vertices and the mean halo of the dataset's card.
Chunks of even index are fitted, those of odd index are held out, so a chunk that appears in several files of the
logs is on one side only.
"""

import argparse
import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, median, quantiles
from typing import NamedTuple

from halocast.cluster.catalogue import Device, load_device
from halocast.graph.card import card_volume, load_card
from halocast.schedule.ir import Kernel
from halocast.sim.cost import kernel_seconds

LAYER_TYPES = 3
QUANTUM_S = 1e-5  # times are printed with two decimals of a millisecond
SOFTMAX_SWEEPS = 3  # the row's maximum, its sum, the quotient


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
def card_sizes(dataset: str, num_parts: int) -> tuple[int, int, int]:
    """Features, classes and the mean number of halo nodes of a part."""
    card = load_card(dataset)
    return card.features, card.classes, card_volume(card.full, num_parts) // num_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    dataset: str
    num_vertices: int
    num_edges: int
    hidden: int
    num_parts: int

    def kernels(self, model: str, layer_type: int) -> Counter[Kernel]:
        """What forward, recompute and backward of the layer launch, and how often."""
        features, classes, halo = card_sizes(self.dataset, self.num_parts)
        widths = {"f": features, "h": self.hidden, "c": classes}
        launched: list[Kernel] = []
        for op in LAYERS[model, layer_type]:
            name, ends = op.split()
            s = Shape(self.num_vertices, self.num_vertices + halo, self.num_edges, widths[ends[0]], widths[ends[1]])
            cleared = elementwise(s.rows * s.wide, 1)
            launched += [*FORWARD[name](s) * 2, *BACKWARD[name](s), *cleared]
        return Counter(launched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured time; `fitted` tells the half it belongs to."""

    groups: tuple[str, ...]  # what it is reported under
    fitted: bool
    kernels: Counter[Kernel]
    measured_s: float

    def error(self, device: Device) -> float:
        return total_seconds(self.kernels, device) / self.measured_s - 1


def total_seconds(kernels: Counter[Kernel], device: Device) -> float:
    return sum(count * kernel_seconds(kernel, device) for kernel, count in kernels.items())


def read_samples(path: Path) -> list[Sample]:
    with path.open(newline="") as file:
        return [sample for row in csv.DictReader(file) for sample in _samples(row)]


def _samples(row: dict[str, str]) -> Iterable[Sample]:
    chunk = Chunk(
        dataset=row["dataset"],
        num_vertices=round(float(row["vertices_k"]) * 1e3),
        num_edges=round(float(row["edges_m"]) * 1e6),
        hidden=int(row["hidden"]),
        num_parts=int(row["n_chunks"]),
    )
    for layer_type in range(LAYER_TYPES):
        yield Sample(
            groups=(row["dataset"], row["model"], f"LT{layer_type}", f"width {chunk.hidden}", f"K={chunk.num_parts}"),
            fitted=int(row["chunk"]) % 2 == 0,
            kernels=chunk.kernels(row["model"], layer_type),
            measured_s=float(row[f"LT{layer_type}_ms"]) * 1e-3,
        )


Times = list[tuple[Counter[Kernel], list[float]]]  # per list of kernels what was measured; chunks of a size share it


def times(samples: Iterable[Sample]) -> Times:
    grouped: dict[frozenset[tuple[Kernel, int]], tuple[Counter[Kernel], list[float]]] = {}
    for sample in samples:
        key = frozenset(sample.kernels.items())
        grouped.setdefault(key, (sample.kernels, []))[1].append(sample.measured_s)
    return list(grouped.values())


def loss(measured: Times, device: Device) -> float:
    """Mean relative error; a time near the printed quantum counts less."""
    weighed: list[float] = []
    for kernels, times_s in measured:
        predicted_s = total_seconds(kernels, device)
        weighed += [abs(predicted_s - time_s) / (time_s + QUANTUM_S) for time_s in times_s]
    return mean(weighed)


# The fitted constants: where the search starts, the least and the most they may be. No kernel streams above 0.9 of the
# peak, no cache is slower than memory.
CONSTANTS = {
    "launch_us": (10.0, 0.0, math.inf),
    "flops": (0.5, 0.0, 1.0),
    "stream": (0.8, 0.0, 0.9),
    "spmm_hit": (4.0, 1.0, math.inf),
}
FIRST_STEP, LAST_STEP = 0.3, 0.004  # of the logarithm


def with_constants(device: Device, values: dict[str, float]) -> Device:
    rates = {name: value for name, value in values.items() if name != "launch_us"}
    efficiency = replace(device.efficiency, **rates)  # type: ignore[arg-type]
    return replace(device, launch_s=values["launch_us"] / 1e6, efficiency=efficiency)


def fit(measured: Times, device: Device) -> dict[str, float]:
    """Pattern search: the best of all neighbours a step away, in one or two constants, until the step is small."""
    best = {name: start for name, (start, _, _) in CONSTANTS.items()}
    best_loss = loss(measured, with_constants(device, best))
    step = FIRST_STEP
    while step > LAST_STEP:
        found = [(loss(measured, with_constants(device, near)), near) for near in _neighbours(best, step)]
        least, near = min(found, key=lambda item: item[0])
        if least < best_loss:
            best_loss, best = least, near
        else:
            step /= 2
    return {name: float(f"{value:.2g}") for name, value in best.items()}


def _neighbours(values: dict[str, float], step: float) -> Iterable[dict[str, float]]:
    names = list(values)
    for i, a in enumerate(names):
        for b in names[i:]:
            for up_a in (-step, step):
                for up_b in (-step, step) if a != b else (0.0,):
                    moved = values | {a: values[a] * math.exp(up_a)}
                    moved |= {b: moved[b] * math.exp(up_b)}
                    yield {name: _legal(name, value) for name, value in moved.items()}


def _legal(name: str, value: float) -> float:
    _, least, most = CONSTANTS[name]
    return min(max(value, least), most)


def constants_of(device: Device) -> dict[str, float]:
    return {
        name: round(device.launch_s * 1e6, 6) if name == "launch_us" else getattr(device.efficiency, name)
        for name in CONSTANTS
    }


def held_out(samples: list[Sample]) -> list[Sample]:
    return [sample for sample in samples if not sample.fitted]


def line(name: str, samples: list[Sample], device: Device) -> str:
    errors = [sample.error(device) for sample in samples]
    sizes = [abs(error) for error in errors]
    p90 = quantiles(sizes, n=10)[-1]
    return f"{name:10} {len(sizes):5} {median(sizes):8.1%} {p90:8.1%} {median(errors):+8.1%}"


def report(samples: list[Sample], device: Device) -> None:
    print(f"{'held out':10} {'rows':>5} {'median':>8} {'p90':>8} {'bias':>8}")
    print(line("all", samples, device))
    for group in sorted({group for sample in samples for group in sample.groups}):
        print(line(group, [sample for sample in samples if group in sample.groups], device))


def across_datasets(samples: list[Sample], device: Device) -> None:
    """The harder split: fit on the other datasets, look at this one. Flickr alone says little of cache hits."""
    for name in sorted({sample.groups[0] for sample in samples}):
        others = [sample for sample in samples if sample.groups[0] != name]
        fitted = with_constants(device, fit(times(others), device))
        print(line(f"new {name}"[:10], [sample for sample in samples if sample.groups[0] == name], fitted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="the CSV of chunk times")
    samples = read_samples(parser.parse_args().table)
    device = load_device("a5000")
    fitted = fit(times(sample for sample in samples if sample.fitted), device)
    same = fitted == constants_of(device)
    print("fitted   ", fitted)
    print("catalogue", constants_of(device), "the same" if same else "DIFFERENT")
    report(held_out(samples), with_constants(device, fitted))
    across_datasets(samples, device)


if __name__ == "__main__":
    main()
