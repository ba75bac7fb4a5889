"""Fits the cost model's constants to measured times of kernels, which have to be the catalogue's, and prints its errors
on times that it was not fitted to: of each half of graphs and chunks with constants from the other half, of each card
with constants from the others. Beside them are those of the rule before this one.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from statistics import median, quantiles

from former_spmm import former_seconds
from kernel_times import Sample, all_samples

from halocast.cluster.catalogue import Device, load_device
from halocast.schedule.ir import Kernel
from halocast.sim.cost import kernel_seconds

QUANTUM_S = 1e-5  # times of chunks are printed with two decimals of a millisecond
# The fitted constants: where the search starts, the least and the most they may be. No kernel streams above 0.9 of the
# peak.
CONSTANTS = {
    "launch_us": (10.0, 0.0, math.inf),
    "stream": (0.8, 0.0, 0.9),
    "spmm_entry_clocks": (10.0, 0.0, math.inf),
    "spmm_row_clocks": (10.0, 0.0, math.inf),
    "spmm_store": (0.8, 0.0, 1.0),
    "spmm_skew": (0.1, 0.0, math.inf),
}
FIRST_STEP, LAST_STEP = 0.3, 0.004  # of the logarithm
FEW_BITS = 0.25  # weight of a table of fp16 times, beside 1 of others: evidence of the same graphs again
CARDS = ("rtx-3090", "rtx-4090", "a100-40", "a5000")
Predict = Callable[[Sample], float]


def predict(values: dict[str, float]) -> Predict:
    """Seconds of samples with such constants."""
    device = cache(lambda name, sigma: with_constants(known(name), values, sigma))
    return lambda sample: sample_seconds(sample, device(sample.device, sample.sigma))


known = cache(load_device)


def with_constants(device: Device, values: dict[str, float], sigma: float) -> Device:
    rates = {name: value for name, value in values.items() if name != "launch_us"} | {"degree_sigma": sigma}
    efficiency = replace(device.efficiency, **rates)  # type: ignore[arg-type]
    return replace(device, launch_s=values["launch_us"] / 1e6, efficiency=efficiency)


def sample_seconds(sample: Sample, device: Device) -> float:
    known_s = device.launch_s if sample.call_s is None else sample.call_s
    return total_seconds(sample.kernels, replace(device, launch_s=known_s))


def total_seconds(kernels: Counter[Kernel], device: Device) -> float:
    return sum(count * kernel_seconds(kernel, device) for kernel, count in kernels.items())


def before(sample: Sample) -> float:
    return former_seconds(sample.kernels, known(sample.device))


Alike = list[tuple[Sample, list[float], float]]  # a sample, the times of all alike, the weight of each


def alike(samples: Iterable[Sample]) -> Alike:
    """Samples that ran the same together: tables weigh the same, however many times they have."""
    samples = list(samples)
    sizes = Counter(sample.table for sample in samples)
    grouped: dict[object, tuple[Sample, list[float], float]] = {}
    for sample in samples:
        key = (sample.table, sample.sigma, frozenset(sample.kernels.items()))
        weight = (FEW_BITS if sample.table.endswith("fp16") else 1.0) / sizes[sample.table]
        grouped.setdefault(key, (sample, [], weight))[1].append(sample.measured_s)
    return list(grouped.values())


def loss(measured: Alike, values: dict[str, float]) -> float:
    """Mean relative error over tables; a time near the printed quantum counts less."""
    seconds = predict(values)
    total = 0.0
    for sample, times_s, weight in measured:
        predicted_s = seconds(sample)
        total += weight * sum(abs(predicted_s - time_s) / (time_s + QUANTUM_S) for time_s in times_s)
    return total


def fit(measured: Alike) -> dict[str, float]:
    """Pattern search: the best neighbour a step away, in one constant or else in two, until the step is small."""
    best = {name: start for name, (start, _, _) in CONSTANTS.items()}
    best_loss = loss(measured, best)
    step = FIRST_STEP
    while step > LAST_STEP:
        for near in (_neighbours(best, step), _neighbours(best, step, 2)):
            least, values = min(((loss(measured, values), values) for values in near), key=lambda item: item[0])
            if least < best_loss:
                best_loss, best = least, values
                break
        else:
            step /= 2
    return {name: float(f"{value:.2g}") for name, value in best.items()}


def _neighbours(values: dict[str, float], step: float, at_once: int = 1) -> Iterator[dict[str, float]]:
    for names in combinations(values, at_once):
        for ways in product((-step, step), repeat=at_once):
            moved = {name: values[name] * math.exp(way) for name, way in zip(names, ways, strict=True)}
            yield values | {name: _legal(name, value) for name, value in moved.items()}


def _legal(name: str, value: float) -> float:
    _, least, most = CONSTANTS[name]
    return min(max(value, least), most)


def catalogue() -> dict[str, float]:
    device = load_device("a5000")
    return {
        name: round(device.launch_s * 1e6, 6) if name == "launch_us" else getattr(device.efficiency, name)
        for name in CONSTANTS
    }


def errors(samples: Iterable[Sample], seconds: Predict) -> list[float]:
    return [seconds(sample) / sample.measured_s - 1 for sample in samples]


def line(name: str, samples: list[Sample], seconds: Predict) -> str:
    was, now = ([abs(e) for e in errors(samples, rule)] for rule in (before, seconds))
    p90 = quantiles(now, n=10)[-1] if len(now) > 1 else now[0]
    lean = median(errors(samples, seconds))
    return f"{name:28} {len(now):5} {median(was):8.1%} {median(now):8.1%} {p90:8.1%} {lean:+8.1%}"


def report(samples: list[Sample], seconds: Predict) -> None:
    print(line("spmm, fp32", [s for s in samples if s.table.endswith("fp32")], seconds))
    for table in dict.fromkeys(sample.table for sample in samples):
        mine = [sample for sample in samples if sample.table == table]
        print(line(table, mine, seconds))
        groups = {group for sample in mine for group in sample.groups[1:]} if not table.endswith("fp16") else set()
        for group in sorted(groups, key=lambda group: (len(group), group)) if len(groups) > 1 else ():
            print(line(f"  {group}", [sample for sample in mine if group in sample.groups], seconds))


def across(samples: list[Sample], fitted: dict[str, float]) -> Predict:
    """Seconds with constants from the half that a sample is not in; with `fitted` where nothing was fitted to it."""
    rules: dict[int | None, Predict] = {
        half: predict(fit(alike(s for s in samples if s.half == 1 - half))) for half in (0, 1)
    }
    rules[None] = predict(fitted)
    return lambda sample: rules[sample.half](sample)


def without(card: str, samples: list[Sample]) -> None:
    """The harder split: constants from the other cards only."""
    fitted = fit(alike(sample for sample in samples if sample.device != card))
    left_out = [sample for sample in samples if sample.device == card]
    for table in dict.fromkeys(sample.table for sample in left_out):
        print(line(table, [sample for sample in left_out if sample.table == table], predict(fitted)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path, help="the directory with kernels/ and published/")
    samples = all_samples(parser.parse_args().shared)
    used = [sample for sample in samples if sample.half is not None]
    fitted = fit(alike(used))
    print("fitted   ", fitted)
    print("catalogue", catalogue(), "the same" if fitted == catalogue() else "DIFFERENT")
    print(f"\n{'half of the graphs left out':28} {'times':>5} {'before':>8} {'median':>8} {'p90':>8} {'lean':>8}")
    report(samples, across(used, fitted))
    print("\neach card left out")
    for card in CARDS:
        without(card, used)


if __name__ == "__main__":
    main()
