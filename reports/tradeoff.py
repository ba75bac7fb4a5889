"""Figures of plans: time against price, and two methods over one variable."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halocast.base.errors import InputError
from halocast.base.files import whole_file

FORMATS = (".png", ".svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    epoch_s: float
    price: float
    label: str
    on_front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    name: str
    xs: Sequence[float]
    epochs_s: Sequence[float]


def require_figure(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: a figure ends in {' or '.join(FORMATS)}")


def draw_front(path: Path, points: Sequence[Point], currency: str) -> None:
    """Every choice as a dot, those that no other beats joined and named."""
    figure, axes = _axes(f"price of an epoch, {currency}", "time of an epoch, s")
    others = [point for point in points if not point.on_front]
    axes.scatter([p.price for p in others], [p.epoch_s for p in others], color="0.7", s=12, label="beaten in both")
    front = sorted((point for point in points if point.on_front), key=lambda point: point.price)
    axes.plot([p.price for p in front], [p.epoch_s for p in front], "o-", color="tab:blue", label="best trade-offs")
    for point in front:
        axes.annotate(point.label, (point.price, point.epoch_s), (4, 5), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize=8)
    _save(figure, path)


def draw_curves(path: Path, curves: Sequence[Curve], variable: str, crossings: Sequence[float], log: bool) -> None:
    figure, axes = _axes(variable, "time of an epoch, s")
    for curve in curves:
        axes.plot(curve.xs, curve.epochs_s, ".-", label=curve.name)
    for crossing in crossings:
        axes.axvline(crossing, color="0.5", linestyle=":", label=f"break-even at {crossing:.4g}")
    axes.set_ylim(bottom=0)
    if log:
        axes.set_xscale("log")
    axes.legend(fontsize=8)
    _save(figure, path)


def _axes(x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # a second that only figures need

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    with whole_file(path) as place:
        figure.savefig(place, dpi=120)
        place.chmod(0o644)
