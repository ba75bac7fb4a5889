"""Error bands: within what factor of its prediction an epoch lies in eight of ten cases, and what says so.

A band is made of measured cases of other groups than its own. How far predictions like it were off (of the same code,
method, transport and device; then of fewer of these, each width shrunk to the next wider one's) is a first width.
What that width is worth where something was never measured is itself measured: every dataset, model, testbed, code,
transport, device and method is left out in turn, and what is left out is within so many widths of its prediction in
eight of ten cases. A conformal band, with groups in place of rows: rows of one log err alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from halocast.reports.summary import Summary

SHARE = 0.8  # of cases that a band is to hold
LEAST = 8  # groups of rows without which nothing is said
SHRINK = 4.0  # groups that a wider set of cases counts as
NARROWEST = 0.02  # a width below the noise between equal runs says nothing
Mask = NDArray[np.bool_]
Reals = NDArray[np.float64]


class Sure(StrEnum):
    """The origin of a cluster's constants."""

    CALIBRATED = "calibrated"
    QUICK = "quick"  # calibrated, by few and small points
    SPEC = "spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a prediction is of, as far as its error may depend on it; what is not known is empty."""

    kind: str
    code: str = ""
    method: str = ""
    transport: str = ""
    device: str = ""
    testbed: str = ""
    dataset: str = ""
    model: str = ""
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A predicted epoch beside its measurement: predicted / measured - 1."""

    situation: Situation
    source: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The factors between which measured / predicted lies in eight of ten cases; 1 is always one of them."""

    low: float
    high: float
    num: int  # epochs that it is made of
    evidence: str

    def around(self, predicted_s: float) -> tuple[float, float]:
        """The shortest and the longest that the epoch is if its prediction errs like eight of ten did."""
        return predicted_s * self.low, predicted_s * self.high


GROUPED = tuple(column.name for column in fields(Situation) if column.name not in ("kind", "gpus"))
# From the narrowest set of cases to the widest: what they have in common with the situation.
RUNGS: tuple[tuple[str, ...], ...] = (
    ("code", "method", "transport", "device"),
    ("code", "method", "transport"),
    ("method", "transport"),
    ("transport",),
    (),
)
NAMES: Mapping[str, str] = MappingProxyType({"dataset": "graph", "testbed": "machine"})
MORE_GPUS = "gpus"
INSIDE = "run"  # nothing is new but the run itself


def family_of(method: str) -> str:
    """The family of a method, to which its variants belong: pipegcn-gf is a pipegcn."""
    return VARIANTS.get(method, method.partition("-")[0])


VARIANTS: Mapping[str, str] = MappingProxyType(
    {"dropedge": "bns", "bes": "bns", "single-gpu-chunked": "gnnpipe"} | {"single-gpu": "vanilla"}
)


def sure_of(summary: Summary) -> Sure:
    """Whether a prediction's constants were measured."""
    calibrated = summary.basis is not None and summary.basis.calibrated
    return Sure.CALIBRATED if calibrated else Sure.SPEC


@dataclass(frozen=True, eq=False)
class Evidence:
    """Measured cases of one kind, as columns."""

    cases: tuple[Case, ...]
    _columns: dict[str, NDArray[np.str_]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        columns = {axis: np.array([getattr(case.situation, axis) for case in self.cases]) for axis in GROUPED}
        object.__setattr__(self, "_columns", columns)

    @cached_property
    def _sizes(self) -> Reals:
        """How far off predictions were: the logarithm of the factor."""
        return np.array([abs(np.log1p(case.error)) for case in self.cases])

    @cached_property
    def _gpus(self) -> NDArray[np.int64]:
        return np.array([case.situation.gpus for case in self.cases], dtype=np.int64)

    @cached_property
    def _cells(self) -> NDArray[np.int64]:
        """Numbers of groups of cases that err alike: one source's, on one machine, graph and model, with one method."""
        said = [
            (c.source, c.situation.testbed, c.situation.dataset, c.situation.model, c.situation.method)
            for c in self.cases
        ]
        return np.unique(np.array([" ".join(cell) for cell in said]), return_inverse=True)[1].astype(np.int64)

    def like(self, situation: Situation, axes: Sequence[str]) -> Mask:
        mask = np.ones(len(self.cases), dtype=bool)
        for axis in axes:
            mask &= self._columns[axis] == getattr(situation, axis)
        return mask

    def width(self, situation: Situation, among: Mask) -> float:
        """How far predictions like this one were off, among some cases, from the widest set to the narrowest."""
        width = 0.0
        for rung, axes in enumerate(reversed(RUNGS)):
            mask = among & self.like(situation, axes)
            groups = len(np.unique(self._cells[mask]))
            if groups:
                own = self._quantile(self._sizes, mask, SHARE)
                width = own if rung == 0 else (groups * own + SHRINK * width) / (groups + SHRINK)
        return max(width, NARROWEST)

    def _quantile(self, values: Reals, mask: Mask, share: float) -> float:
        """The weighted quantile in which every group counts as much as the others."""
        chosen, cells = values[mask], self._cells[mask]
        weights = 1.0 / np.bincount(cells)[cells]
        order = np.argsort(chosen, kind="stable")
        reached = np.cumsum(weights[order]) / weights.sum()
        return float(chosen[order][min(int(np.searchsorted(reached, share)), len(chosen) - 1)])

    @cached_property
    def widenings(self) -> Mapping[str, float]:
        """Widths within which eight of ten cases lie where their own group is left out, by what is left out."""
        widths = {name: self._widening(left) for name, left in self._left_out().items()}
        inside = widths[INSIDE] or 1.0
        return {name: max(inside, value or inside) for name, value in widths.items()}

    def _left_out(self) -> dict[str, Callable[[int], Mask]]:
        """For every axis, the cases that are left when the group of a case is taken out."""
        others = {axis: (lambda k, column=column: column != column[k]) for axis, column in self._columns.items()}
        return {
            **others,
            MORE_GPUS: lambda k: self._gpus < self._gpus[k],
            INSIDE: lambda k: self._cells != self._cells[k],
        }

    def _widening(self, left: Callable[[int], Mask]) -> float | None:
        ratios, known = np.zeros(len(self.cases)), np.zeros(len(self.cases), dtype=bool)
        for k, case in enumerate(self.cases):
            among = left(k)
            if len(np.unique(self._cells[among])) >= LEAST:
                ratios[k], known[k] = self._sizes[k] / self.width(case.situation, among), True
        if len(np.unique(self._cells[known])) < LEAST:
            return None
        groups = len(np.unique(self._cells[known]))
        by_group = self._quantile(ratios, known, min(1.0, SHARE * (groups + 1) / groups))
        return max(by_group, float(np.quantile(ratios[known], SHARE)))  # of groups, and of rows

    def new(self, situation: Situation, among: Mask) -> list[str]:
        """What of a situation none of these cases has."""
        unseen = [axis for axis in GROUPED if getattr(situation, axis) not in self._columns[axis][among]]
        return unseen + ([MORE_GPUS] if among.any() and situation.gpus > int(self._gpus[among].max()) else [])

    def band(self, situation: Situation, among: Mask | None = None) -> Band | None:
        """The band of a prediction, from all cases or some; none where there are too few."""
        mask = np.ones(len(self.cases), dtype=bool) if among is None else among
        if not len(self.cases) or len(np.unique(self._cells[mask])) < LEAST:
            return None
        new = self.new(situation, mask)
        factor = max([self.widenings[INSIDE], *(self.widenings[axis] for axis in new)])
        half = factor * self.width(situation, mask)
        return Band(
            low=float(np.exp(-half)),
            high=float(np.exp(half)),
            num=int(mask.sum()),
            evidence=self._said(situation, mask, new),
        )

    def _said(self, situation: Situation, mask: Mask, new: Sequence[str]) -> str:
        """The evidence in words: the narrowest set of cases, and what of the situation was never measured."""
        axes = next(axes for axes in RUNGS if (mask & self.like(situation, axes)).any())
        chosen = mask & self.like(situation, axes)
        values = [str(getattr(situation, axis)) for axis in axes if getattr(situation, axis)]
        places = sorted(set(self._columns["testbed"][chosen].tolist()))
        what = f"{int(chosen.sum())} epochs{' of ' + ', '.join(values) if values else ''} on {_listed(places)}"
        if "method" not in axes:
            over = f" over {situation.transport}" if situation.transport else ""
            what = f"no measured epoch of {situation.method or 'this method'}{over}; from {what}"
        else:
            what = f"from {what}"
        never = [f"{NAMES.get(axis, axis)} {getattr(situation, axis)}" for axis in new if axis not in (*axes, "method")]
        return what + (f"; never measured: {', '.join(never)}" if never else "")


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
