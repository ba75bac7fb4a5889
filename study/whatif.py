"""What if: which resource, doubled, shortens the epoch most; and where one method becomes faster than another."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halocast.base.errors import InputError
from halocast.base.records import require
from halocast.reports.summary import Summary
from halocast.study.clusters import scenario_cluster
from halocast.study.pool import open_pool
from halocast.study.queries import Progress, complete, query_of
from halocast.study.results import ResultFile, Stored
from halocast.study.scenario import ClusterSection, Scenario, build_scenario, set_key, tables_of
from halocast.study.showable import Showable
from halocast.study.sweep import is_whole, key_place, result_path

POINTS = 9  # of a curve, before it is bisected
CLOSE = 1e-3  # of a variable: closer than this its crossing is known
MOST_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A resource that was doubled: the epoch then, or why that cannot be had."""

    resource: str
    figures: Summary | None
    reason: str
    before_s: float

    @property
    def speedup(self) -> float | None:
        """The epoch as it is over the epoch with the resource doubled: above 1 where that helps."""
        return self.before_s / self.figures.epoch_s if self.figures else None

    def as_dict(self) -> dict[str, Any]:
        """The gain with plain values only."""
        figures = self.figures
        return {
            "resource": self.resource,
            "epoch_s": figures and figures.epoch_s,
            "speedup": self.speedup,
            "fits": figures and figures.fits,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WhatIf(Showable):
    """The scenario as it is, and its gains, the largest first."""

    figures: Summary
    gains: tuple[Gain, ...]

    @property
    def bottleneck(self) -> Gain:
        return self.gains[0]

    def line(self) -> str:
        now = f"{self.figures.method} on {self.figures.ranks} x {self.figures.cluster}: {self.figures.epoch_s:.3g} s"
        return (
            f"{now} an epoch; twice the {self.bottleneck.resource}: {self.bottleneck.speedup or 1.0:.2f} times as fast"
        )

    def records(self) -> list[dict[str, Any]]:
        """A row per resource that was doubled, what helps most first."""
        return [gain.as_dict() for gain in self.gains]


Change = Callable[[Scenario], ClusterSection]
DOUBLED: Mapping[str, Change] = MappingProxyType(
    {
        "device speed": lambda s: replace(s.cluster, device_speed=2 * s.cluster.device_speed),
        "device memory": lambda s: replace(s.cluster, memory_size=2 * s.cluster.memory_size),
        "PCIe": lambda s: replace(s.cluster, pcie_speed=2 * s.cluster.pcie_speed),
        "staging by hosts (gloo)": lambda s: replace(s.cluster, staging_speed=2 * s.cluster.staging_speed),
        "NVLink": lambda s: replace(s.cluster, nvlink_speed=2 * s.cluster.nvlink_speed),
        "network": lambda s: replace(s.cluster, network_speed=2 * s.cluster.network_speed),
        "hosts, and with them GPUs": lambda s: _more_hosts(s),
    }
)


def _more_hosts(scenario: Scenario) -> ClusterSection:
    cluster = scenario_cluster(scenario)
    return replace(scenario.cluster, hosts=2 * cluster.num_hosts, gpus=2 * cluster.num_ranks)


def whatif(
    scenario: Scenario,
    *,
    results: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, of: None,
) -> WhatIf:
    """Double each resource in turn; what shortens the epoch most comes first, what cannot be doubled last."""
    named = {"": scenario, **{what: replace(scenario, cluster=change(scenario)) for what, change in DOUBLED.items()}}
    queries = {what: query_of(tables_of(one)) for what, one in named.items()}
    with result_path(results) as path, ResultFile(path) as file, open_pool(jobs) as pool:
        finished = complete(file, queries.values(), pool, progress)
    stored = finished[queries[""].key]
    now = stored.summary
    if now is None:
        raise InputError(stored.reason)
    gains = [_gain(what, finished[job.key], now.epoch_s) for what, job in queries.items() if what]
    return WhatIf(figures=now, gains=tuple(sorted(gains, key=lambda gain: -(gain.speedup or 0.0))))


def _gain(resource: str, stored: Stored, before_s: float) -> Gain:
    return Gain(resource=resource, figures=stored.summary, reason=stored.reason, before_s=before_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Epochs of two methods over one variable, and every value at which the faster one changes."""

    key: str
    names: tuple[str, str]
    xs: tuple[float, ...]
    epochs_s: tuple[tuple[float, ...], tuple[float, ...]]
    crossings: tuple[float, ...]
    is_log: bool


def break_even(
    scenario: Scenario,
    methods: tuple[Mapping[str, Any], Mapping[str, Any]],
    key: str,
    bounds: tuple[float, float],
    *,
    results: str | Path | None = None,
    jobs: int | None = None,
) -> BreakEven:
    """The epochs of two [method] tables with `key` between two values, and where they cross, by bisection.

    Values are spread evenly by ratio where both are above 0; whole numbers stay whole.
    """
    key_place(key)
    low, high = bounds
    require(low < high, f"{key}={low:g}:{high:g}: needs low < high")
    spread = _Spread(low > 0, is_whole(key))
    with result_path(results) as path, ResultFile(path) as file, open_pool(jobs) as pool:

        def epochs(values: Sequence[float]) -> list[tuple[float, float]]:
            queries = [[query_of(_tables(scenario, method, key, x)) for method in methods] for x in values]
            finished = complete(file, [job for both in queries for job in both], pool)
            return [
                (_epoch(finished[a.key], key, x), _epoch(finished[b.key], key, x))
                for x, (a, b) in zip(values, queries, strict=True)
            ]

        xs = spread.points(low, high)
        ys = epochs(xs)
        known = list(zip(xs, ys, strict=True))
        ends = [(left, right) for left, right in pairwise(known) if _sign(left[1]) * _sign(right[1]) < 0]
        crossings = [_bisect(left, right, spread, lambda x: epochs([x])[0]) for left, right in ends]
        crossings += [x for x, both in known if _sign(both) == 0]
    names = (str(methods[0]["name"]), str(methods[1]["name"]))
    return BreakEven(
        key=key,
        names=names,
        xs=tuple(xs),
        epochs_s=(tuple(a for a, _ in ys), tuple(b for _, b in ys)),
        crossings=tuple(sorted(crossings)),
        is_log=spread.by_ratio,
    )


@dataclass(frozen=True, slots=True)
class _Spread:
    """How values are spread between two others: by ratio or evenly, whole or not."""

    by_ratio: bool
    whole: bool

    def points(self, low: float, high: float) -> list[float]:
        spaced = [self.between(low, high, k / (POINTS - 1)) for k in range(POINTS)]
        return list(dict.fromkeys([low, *spaced[1:-1], high]))

    def between(self, low: float, high: float, part: float) -> float:
        value = exp(log(low) + part * log(high / low)) if self.by_ratio else low + part * (high - low)
        return round(value) if self.whole else value


Known = tuple[float, tuple[float, float]]


def _bisect(left: Known, right: Known, spread: _Spread, ask: Callable[[float], tuple[float, float]]) -> float:
    for _ in range(MOST_STEPS):
        middle = spread.between(left[0], right[0], 0.5)
        if middle in (left[0], right[0]) or abs(right[0] - left[0]) <= CLOSE * abs(right[0]):
            break
        probe = middle, ask(middle)
        if _sign(probe[1]) == 0:
            return middle
        left, right = (probe, right) if _sign(probe[1]) == _sign(left[1]) else (left, probe)
    return right[0] if spread.whole else spread.between(left[0], right[0], 0.5)


def _sign(both: tuple[float, float]) -> int:
    return (both[0] > both[1]) - (both[0] < both[1])


def _tables(scenario: Scenario, method: Mapping[str, Any], key: str, value: float) -> dict[str, Any]:
    tables: dict[str, Any] = deepcopy(dict(tables_of(scenario)))
    tables["method"] = dict(method)
    section, name = key_place(key)
    if section == "method" and name not in _options(method):
        return tables  # an option of the other method only: this one is level
    set_key(tables, section, name, value)
    return tables


def _options(method: Mapping[str, Any]) -> set[str]:
    whole = tables_of(build_scenario({"method": {"name": method["name"]}}, "method"))
    return set(whole["method"])


def _epoch(stored: Stored, key: str, value: float) -> float:
    summary = stored.summary
    if summary is None:
        raise InputError(f"{key} = {value:g}: {stored.reason}")
    return summary.epoch_s
