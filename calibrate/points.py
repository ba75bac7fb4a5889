"""Measured points: what `measure` gives and `fit` takes, one per thing that was timed."""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from halocast.base.records import require
from halocast.cluster.measured import Dims

EMULATED = "emulated "  # before a group's name: measured between hosts that are namespaces of one machine
CPU = "cpu"  # the device whose ranks compute and communicate on the same cores


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One measured thing: its kind, its dims, the lower quartile of its seconds, and how far the median is from it."""

    group: str
    kind: str
    dims: Dims
    seconds: float
    spread: float = 0.0
    repeats: int = 1
    itemsize: int = 4
    note: dict[str, Any] = field(default_factory=dict)  # what else there was to it: a skew, the op's kernels

    def __post_init__(self) -> None:
        legal = isfinite(self.seconds) and self.seconds > 0
        require(legal, f"{self.group}: a point of {self.kind} {self.dims} took {self.seconds} s")
