"""Predicted against measured scenarios: their figures, the errors, the order of methods, and what is to blame.

Both sides are traces of one schedule over the same epochs, and every figure comes from one function for both. An epoch
is the median over cycles (of a schedule that repeats every epoch: over epochs) of all runs, of the slowest rank.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import mean, median, quantiles
from typing import Any

from halocast.reports.blame import Account, Blame, TimeUse, account, by_verb, join, mean_account
from halocast.reports.metrics import measure, pacing
from halocast.schedule.ir import Schedule
from halocast.schedule.passes import hyperperiod
from halocast.schedule.trace import Trace

CLEAR = 0.1  # methods that differ by less have no order worth predicting
AIMED_MEAN, AIMED_MOST = 0.08, 0.2  # absolute errors of epochs that we aim at


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds and bytes of one epoch of a scenario, predicted or measured."""

    epoch_s: float
    compute_s: float
    exposed_comm_s: float
    bytes_total: float
    low_s: float  # quartiles of its cycles
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedScenario:
    """One scenario; without figures, the reason why there are none."""

    case: dict[str, Any]  # link, ranks, model, graph, method
    predicted: Figures | None = None
    measured: Figures | None = None
    num_runs: int = 0
    reference_s: float | None = None  # what a small kernel took between the runs: the machine's own pace
    blame: tuple[Blame, ...] = ()  # by op
    reason: str = ""

    @property
    def error(self) -> float | None:
        """The error of the predicted epoch, relative to the measured one."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted.epoch_s / self.measured.epoch_s - 1

    @property
    def cell(self) -> tuple[Any, ...]:
        return tuple(value for name, value in self.case.items() if name != "method")

    def as_dict(self) -> dict[str, Any]:
        figures = {
            f"{side}_{name}": value
            for side, of_side in (("predicted", self.predicted), ("measured", self.measured))
            for name, value in (asdict(of_side) if of_side is not None else {}).items()
        }
        rest = {"error": self.error, "runs": self.num_runs, "reference_s": self.reference_s, "reason": self.reason}
        return {**self.case, **figures, **rest}


def figures(traces: Sequence[Trace], schedule: Schedule, warmup_epochs: int) -> Figures:
    """The figures of one or several runs of a schedule over the same epochs."""
    ranks = [
        [seconds for trace in traces for seconds in cycle_seconds(trace, rank, warmup_epochs, hyperperiod(schedule))]
        for rank in range(schedule.num_ranks)
    ]
    slowest = max(ranks, key=median)
    low, _, high = quantiles(slowest, n=4) if len(slowest) > 1 else slowest * 3
    metrics = [measure(trace, schedule, warmup_epochs) for trace in traces]
    return Figures(
        epoch_s=median(slowest),
        compute_s=median(run.mean("compute_s") for run in metrics),
        exposed_comm_s=median(run.mean("exposed_comm_s") for run in metrics),
        bytes_total=float(mean(run.bytes_total for run in metrics)),
        low_s=low,
        high_s=high,
    )


def cycle_seconds(trace: Trace, rank: int, warmup_epochs: int, period: int) -> list[float]:
    """Seconds per epoch of every whole cycle after the warm-up, from end to end on the rank's compute lane."""
    ends: dict[int, float] = defaultdict(float)
    for span in pacing(list(trace.of_rank(rank))):
        ends[span.epoch] = max(ends[span.epoch], span.end_s)
    marks = range(warmup_epochs - 1, trace.num_epochs, period)
    return [float(ends[k + period] - ends[k]) / period for k in marks[:-1]]


def blame_of(predicted: Trace, measured: Sequence[Trace], schedule: Schedule, warmup_epochs: int) -> tuple[Blame, ...]:
    runs = mean_account([account(trace, schedule, warmup_epochs) for trace in measured])
    return join(account(predicted, schedule, warmup_epochs), runs)


def summarise_rows(rows: Sequence[ValidatedScenario], profile: str | None = None) -> dict[str, Any]:
    """Errors of epochs, exposed communication and bytes; the order of methods; what is to blame; the machine's pace.
    `profile` is what the predictions were made with, if the machine was measured."""
    done = [row for row in rows if row.error is not None]
    sizes = [abs(row.error) for row in done if row.error is not None]
    order = ordered(done)
    return {
        "profile": profile,
        "scenarios": len(rows),
        "compared": len(done),
        "mean_error": mean(sizes) if sizes else None,
        "median_error": median(sizes) if sizes else None,
        "max_error": max(sizes, default=None),
        "lean": median(row.error for row in done if row.error is not None) if done else None,
        "worst": max(done, key=lambda row: abs(row.error or 0.0)).case if done else None,
        "within_aim": sum(size <= AIMED_MOST for size in sizes),
        "bytes_equal": sum(_same_bytes(row) for row in done),
        "exposed_error": _exposed(done),
        "rank_correlation": _correlation(done),
        "order": order,
        "by": {name: _errors_by(done, name) for name in ("method", "link", "ranks", "model", "graph")},
        "blame": blame_table(done),
        "machine": machine_pace(rows),
        "failed": [{**row.case, "reason": row.reason} for row in rows if row.reason],
    }


def _same_bytes(row: ValidatedScenario) -> bool:
    """Whether bytes are equal within a hundredth: draws differ from their expectation."""
    assert row.predicted is not None
    assert row.measured is not None
    return abs(row.predicted.bytes_total - row.measured.bytes_total) <= 0.01 * row.measured.bytes_total


def _exposed(rows: Sequence[ValidatedScenario]) -> float | None:
    """The mean absolute difference of exposed communication, as a share of the measured epoch."""
    differences = [
        abs(row.predicted.exposed_comm_s - row.measured.exposed_comm_s) / row.measured.epoch_s
        for row in rows
        if row.predicted is not None and row.measured is not None
    ]
    return mean(differences) if differences else None


def _errors_by(rows: Sequence[ValidatedScenario], name: str) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.error is not None:
            groups[str(row.case[name])].append(row.error)
    return {
        key: {"num": len(errors), "mean": mean(map(abs, errors)), "max": max(map(abs, errors)), "lean": median(errors)}
        for key, errors in groups.items()
    }


def _cells(rows: Iterable[ValidatedScenario]) -> list[list[ValidatedScenario]]:
    cells: dict[tuple[Any, ...], list[ValidatedScenario]] = defaultdict(list)
    for row in rows:
        if row.error is not None:
            cells[row.cell].append(row)
    return list(cells.values())


def _times(row: ValidatedScenario) -> tuple[float, float]:
    assert row.predicted is not None
    assert row.measured is not None
    return row.predicted.epoch_s, row.measured.epoch_s


def ordered(rows: Sequence[ValidatedScenario]) -> dict[str, Any]:
    """Count, of every two methods of a cell whose measured epochs differ clearly, where the faster is predicted so."""
    pairs = [pair for cell in _cells(rows) for pair in combinations(sorted(cell, key=lambda row: _times(row)[1]), 2)]
    clear = [(a, b) for a, b in pairs if _times(b)[1] > (1 + CLEAR) * _times(a)[1]]
    wrong = [(a, b) for a, b in clear if _times(a)[0] >= _times(b)[0]]
    described = [{**a.case, "method": f"{a.case['method']} before {b.case['method']}"} for a, b in wrong]
    return {"pairs": len(clear), "right": len(clear) - len(wrong), "wrong": described}


def _correlation(rows: Sequence[ValidatedScenario]) -> float | None:
    """Spearman's correlation of the methods of a cell; the mean over cells with at least three."""
    correlations = [spearman([_times(row) for row in cell]) for cell in _cells(rows) if len(cell) > 2]
    return mean(correlations) if correlations else None


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """The correlation of ranks; 0 where one side is all the same, which has no order to compare."""
    from scipy.stats import spearmanr  # half a second that only this needs

    first, second = zip(*pairs, strict=True)
    if len(set(first)) == 1 or len(set(second)) == 1:
        return 0.0
    return float(spearmanr(first, second).statistic)


def blame_table(rows: Sequence[ValidatedScenario]) -> list[dict[str, Any]]:
    """Predicted, measured and missed time of verbs by part, over all scenarios, as shares of the measured epoch.

    `miss` is the mean with its sign, `size` without; the misses of a scenario add up to its error.
    """
    sums: dict[tuple[str, TimeUse], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        assert row.measured is not None
        for entry in verbs(row.blame):
            shares = entry.predicted_s / row.measured.epoch_s, entry.measured_s / row.measured.epoch_s
            sums[entry.op, entry.part].append(shares)
    table = [
        {
            "verb": verb,
            "part": str(part),
            "predicted": sum(a for a, _ in pairs) / len(rows),
            "measured": sum(b for _, b in pairs) / len(rows),
            "miss": sum(a - b for a, b in pairs) / len(rows),
            "size": sum(abs(a - b) for a, b in pairs) / len(rows),
        }
        for (verb, part), pairs in sums.items()
    ]
    return sorted(table, key=lambda row: -row["size"])


def verbs(blame: Sequence[Blame]) -> tuple[Blame, ...]:
    """Blame by verb: forward.0 and forward.1 are both forward."""
    sides: list[Account] = [
        by_verb({(entry.op, entry.part): entry.predicted_s for entry in blame}),
        by_verb({(entry.op, entry.part): entry.measured_s for entry in blame}),
    ]
    return join(*sides)


def machine_pace(rows: Sequence[ValidatedScenario]) -> dict[str, float] | None:
    """The machine's own pace while the scenarios ran: a small kernel's median time, and how far it wandered."""
    references = [row.reference_s for row in rows if row.reference_s is not None]
    if not references:
        return None
    return {
        "reference_s": median(references),
        "fastest": min(references) / median(references),
        "slowest": max(references) / median(references),
    }
