"""What a comparison consists of: predictions, runs, methods that could not be compared, predictions at other sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from halocast.reports.curves import Converged
from halocast.reports.summary import SIMULATED, Summary
from halocast.schedule.approximation import Approximation
from halocast.schedule.ir import Kernel, Schedule
from halocast.schedule.trace import Trace

FAILED = "failed"  # the source of a row without figures
KernelWork = Callable[[Kernel], tuple[int, int]]  # (kernel, bytes per number) -> FLOPs, bytes it moves


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MethodResult:
    """One method, predicted or run."""

    summary: Summary
    trace: Trace
    schedule: Schedule

    @property
    def method(self) -> str:
        return self.summary.method

    @property
    def is_exact(self) -> bool:
        """Whether it computes what one device computes."""
        return self.summary.approximation is Approximation.EXACT

    @property
    def name(self) -> str:
        """The result's name as part of a file's name."""
        parts = (self.method, self.summary.source, self.summary.cluster)
        return "-".join("".join(c if c.isalnum() or c in "-._" else "-" for c in part) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A method that cannot be compared, and why."""

    method: str
    cluster: str
    reason: str
    source: str = FAILED

    def as_dict(self) -> dict[str, Any]:
        """The row of a results file, with a reason in place of figures."""
        return {"method": self.method, "source": self.source, "cluster": self.cluster, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """A method's predicted epoch on the first `ranks` devices of the cluster, or the reason why there is none."""

    method: str
    ranks: int
    epoch_s: float | None = None
    fits: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """All of a report's content; the first method is the one the others are compared with."""

    results: tuple[MethodResult, ...]
    scenario: str  # TOML with every key
    command: str  # that makes this report again, beside its scenario.toml
    failures: tuple[NotCompared, ...] = ()
    scaling: tuple[ScalePoint, ...] = ()
    made: str = ""  # when and by which version
    assumptions: tuple[str, ...] = ()
    kernel_work: KernelWork | None = None  # for formats that say how much a kernel computes
    alone: Summary | NotCompared | None = None  # the whole graph on one device of the cluster
    converge: str = "halocast converge scenario.toml"  # the command that trains the methods, beside its scenario.toml
    converged: Converged | None = None  # scores of trained methods over predicted time

    @property
    def predicted(self) -> list[MethodResult]:
        """Predictions on the scenario's cluster."""
        return [r for r in self.results if r.summary.source == SIMULATED and r.summary.predicts is None]

    @property
    def measured(self) -> list[tuple[MethodResult | None, MethodResult]]:
        """Every real run beside its prediction for the machine it ran on."""
        here = {r.method: r for r in self.results if r.summary.predicts is not None}
        return [(here.get(r.method), r) for r in self.results if r.summary.is_run]

    @property
    def summaries(self) -> list[Summary]:
        return [result.summary for result in self.results]

    @property
    def lines(self) -> list[Summary | NotCompared]:
        """The summaries, and a reason for every method that has none."""
        return [*self.summaries, *self.failures]


def exact_first(results: Sequence[MethodResult]) -> list[MethodResult]:
    """The results in two lists, one after the other: exact methods by their epoch, then approximate ones by theirs.

    Those that do not fit come last.
    """
    return sorted(results, key=lambda r: (not r.summary.fits, not r.is_exact, r.summary.epoch_s))


def family(method: str) -> str:
    """The family of a method, which figures give one colour: pipegcn-gf is a variant of pipegcn."""
    return method.partition("-")[0]
