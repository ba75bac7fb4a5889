"""Predicted against published figures: errors by source and method, and the order of methods."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import mean, median
from typing import Any

from halocast.reports.table import aligned

ORDERED = ("epoch_s", "throughput", "speedup")  # metrics that put methods in order
CLOSE = 0.1  # published figures that differ by less hardly show an order
ERRORS_HEAD = ("source", "method", "metric", "rows", "median", "mean", "lean")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """A published row and its prediction in the row's unit, or the reason why there is none."""

    row: dict[str, str]
    published: float | None = None
    predicted: float | None = None
    reason: str = ""
    how: str = ""  # where sizes and constants come from
    ignored: tuple[str, ...] = ()  # params that say nothing to us
    workload: str = ""  # equal for rows that differ in the method only
    setting: str = ""  # equal for rows of one scenario
    facts: Mapping[str, str] = field(default_factory=dict)  # what the error may depend on: code, device, ...
    in_sample: bool = False  # a constant was chosen from its run
    band: tuple[float, float] | None = None  # of an epoch, in the row's unit
    out_of_memory: bool | None = None  # the verdict of the prediction

    @property
    def error(self) -> float | None:
        """The error relative to the published figure; a published zero has none."""
        if self.predicted is None or not self.published:
            return None
        return self.predicted / self.published - 1

    @property
    def off_s(self) -> float:
        """By how much the prediction is off, in the row's unit."""
        assert self.predicted is not None
        return self.predicted - (self.published or 0.0)

    def as_dict(self) -> dict[str, Any]:
        ours = {"predicted": self.predicted, "error": self.error, "reason": self.reason, "in_sample": self.in_sample}
        ours |= {"low": self.band[0] if self.band else None, "high": self.band[1] if self.band else None}
        return {**self.row, **ours, "facts": dict(self.facts), "how": self.how, "ignored": " ".join(self.ignored)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two settings that differ in the method only, the one with the smaller published figure first."""

    metric: str
    first: PublishedResult
    second: PublishedResult
    published: tuple[float, float]

    @property
    def right(self) -> bool:
        assert self.first.predicted is not None
        assert self.second.predicted is not None
        return self.first.predicted < self.second.predicted

    @property
    def clear(self) -> bool:
        return self.published[1] > (1 + CLOSE) * self.published[0]


def pairs(results: Iterable[PublishedResult]) -> list[Pair]:
    """Every two methods of one source on one workload; repeated measurements of a setting count once, as their mean."""
    groups: dict[tuple[str, ...], dict[str, list[PublishedResult]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result.predicted is not None and result.row["metric"] in ORDERED and result.setting:
            group = (result.row["source"], result.row["metric"], result.workload)
            groups[group][result.setting].append(result)
    return [pair for (_, metric, _), settings in groups.items() for pair in _pairs(metric, settings.values())]


def _pairs(metric: str, settings: Iterable[list[PublishedResult]]) -> Iterator[Pair]:
    measured = [
        (mean(result.published for result in same if result.published is not None), same[0]) for same in settings
    ]
    for (value, setting), (other_value, other) in combinations(measured, 2):
        if value < other_value:
            yield Pair(metric=metric, first=setting, second=other, published=(value, other_value))
        elif value > other_value:
            yield Pair(metric=metric, first=other, second=setting, published=(other_value, value))


def summarise_published(results: Sequence[PublishedResult]) -> dict[str, Any]:
    """Errors in all, by metric, and by source, method and metric; the order of methods; what was not predicted."""
    compared = pairs(results)
    epochs = errors_of(result for result in results if result.row["metric"] == "epoch_s")
    return {
        "rows": len(results),
        "predicted": sum(result.predicted is not None for result in results),
        "epoch_s": epochs,
        "order": order_of(compared) | {"clear": order_of([pair for pair in compared if pair.clear])},
        "wrong_order": [_describe(pair) for pair in compared if not pair.right],
        "by_metric": _grouped(results, ("metric",)),
        "by_source": _grouped(results, ("source", "method", "metric")),
        "not_predicted": dict(Counter(result.reason for result in results if result.reason).most_common()),
    }


def order_of(compared: Sequence[Pair]) -> dict[str, Any]:
    right = sum(pair.right for pair in compared)
    return {"pairs": len(compared), "right": right, "share": right / len(compared) if compared else None}


def _describe(pair: Pair) -> dict[str, Any]:
    row, predicted = pair.first.row, [pair.first.predicted, pair.second.predicted]
    place = {name: row[name] for name in ("source", "dataset", "model", "testbed", "gpus")}
    methods = [f"{one.row['method']} {one.row['params']}" for one in (pair.first, pair.second)]
    return {**place, "metric": pair.metric, "methods": methods, "published": pair.published, "predicted": predicted}


def _grouped(results: Sequence[PublishedResult], names: tuple[str, ...]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[PublishedResult]] = defaultdict(list)
    for result in results:
        if result.error is not None:
            groups[tuple(result.row[name] for name in names)].append(result)
    return [{**dict(zip(names, key, strict=True)), **errors_of(group)} for key, group in sorted(groups.items())]


def errors_of(results: Iterable[PublishedResult]) -> dict[str, Any]:
    """The number of rows with an error, and its size; the sign of the median tells which way they lean."""
    errors = [result.error for result in results if result.error is not None]
    sizes = [abs(error) for error in errors]
    if not errors:
        return {"num": 0, "median": None, "mean": None, "lean": None}
    return {"num": len(errors), "median": median(sizes), "mean": mean(sizes), "lean": median(errors)}


def text_summary(summary: dict[str, Any]) -> str:
    """Errors by source, method and metric for a terminal, then what they come to."""
    cells = [[row["source"], row["method"], row["metric"], *shown_errors(row)] for row in summary["by_source"]]
    cells += [["all", "all", row["metric"], *shown_errors(row)] for row in summary["by_metric"]]
    return "\n".join([aligned([ERRORS_HEAD, *cells]), "", *verdict(summary)])


def shown_errors(row: dict[str, Any]) -> list[str]:
    return [str(row["num"]), f"{row['median']:.0%}", f"{row['mean']:.0%}", f"{row['lean']:+.0%}"]


def verdict(summary: dict[str, Any]) -> list[str]:
    """Sentences that say what the errors of published figures come to."""
    epochs, order = summary["epoch_s"], summary["order"]
    said = [f"{summary['predicted']} of {summary['rows']} rows are predicted."]
    if epochs["num"]:
        median_error, mean_error = f"{epochs['median']:.0%}", f"{epochs['mean']:.0%}"
        said.append(f"epoch_s: median absolute error {median_error}, mean {mean_error} over {epochs['num']} rows.")
    if order["pairs"]:
        clear = order["clear"]
        said.append(
            f"Order of methods: right in {order['right']} of {order['pairs']} pairs ({order['share']:.0%}); "
            f"in {clear['right']} of the {clear['pairs']} whose published figures differ by more than {CLOSE:.0%}."
        )
    return said
