"""Small answers of `converge` that report tests share: curves written by hand, no training and no simulation."""

from collections.abc import Sequence
from typing import Any

from halocast.reports.curves import Converged, Curve, GraphFigures, Point, SeedCurve
from halocast.schedule.approximation import Approximation

GRAPH = GraphFigures(
    name="pubmed",
    nodes=19717,
    degree=4.5,
    degree_sigma=0.9,
    features=500,
    classes=3,
    parts=8,
    cut_share=0.12,
    halo_ratio=0.31,
    train_share=0.003,
)


LATE = [0.1, 0.2, 0.3, 0.4]  # validation scores after each of four epochs; low ones


def seed_curve(vals: Sequence[float], *, seed: int = 0, epoch_s: float = 1.0, every: int = 1, **more: Any) -> SeedCurve:
    """A training evaluated after every so many epochs; its test scores are two points below validation."""
    points = tuple(
        Point(epochs=every * k, seconds=every * k * epoch_s, val=val, test=val - 0.02) for k, val in enumerate(vals, 1)
    )
    return SeedCurve(seed=seed, points=points, **more)


def curve(label: str = "vanilla", *trainings: Sequence[float], epoch_s: float | None = 1.0, **more: Any) -> Curve:
    """A curve of trainings given as validation scores after every epoch."""
    known = float("nan") if epoch_s is None else epoch_s
    usual: dict[str, Any] = {
        "method": label.partition(" ")[0],
        "approximation": Approximation.EXACT,
        "summary": "a method",
        "cluster": "a100x8",
        "gpus": 8,
        "setting": {},
        "epoch_low_s": epoch_s and 0.8 * epoch_s,
        "epoch_high_s": epoch_s and 1.5 * epoch_s,
        "price_per_s": 0.01,
        "seeds": tuple(seed_curve(vals, seed=k, epoch_s=known) for k, vals in enumerate(trainings)),
    }
    return Curve(label=label, epoch_s=epoch_s, **(usual | more))


def converged(*curves: Curve, **more: Any) -> Converged:
    usual: dict[str, Any] = {
        "target": 0.7,
        "target_text": "95 % of vanilla's best",
        "budget_s": 600.0,
        "max_epochs": 10,
        "timed": GRAPH,
        "trained": GRAPH,
        "num_seeds": max((len(one.seeds) for one in curves), default=0),
        "scenario": '[graph]\ndataset = "pubmed"\n',
        "command": "halocast converge scenario.toml",
    }
    return Converged(curves=curves, **(usual | more))
