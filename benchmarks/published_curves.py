"""Prints published seconds to an accuracy, as ratios between methods of one testbed, beside predicted ones.

Two predictions: that of epochs alone, as if every method took equally many, and that of a training in virtual time: on
a small stand-in, epochs to 95 % of vanilla's best validation score, times predicted seconds of an epoch of the graph
itself on the described testbed. A paper's own rule of convergence is not known, and its targets are others.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import mean

from stand_ins import Curves, best, epochs_to, tell

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.exec.launch.job import RunSettings
from halocast.graph import load_card, stand_in
from halocast.reports.table import aligned
from halocast.study.predict import predict_on
from halocast.study.published_rows import Row, Setting, read_rows, setting_of, value_of
from halocast.study.scenario import Scenario, Source
from halocast.study.training import train_alone, trainable
from halocast.study.workload import prepare

METRICS = ("convergence_s", "time_to_accuracy_s", "total_train_s")
FILES = ("measured.csv", "more.csv")
BASE = "vanilla"
SHARE, SEED = 0.95, 0
EVERY = 2  # epochs between evaluations; a target that is met at the first one says nothing
MOST_HIDDEN = 64  # of what is trained: this is about rows, and wide layers would take hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A published row, and what is predicted of its epoch."""

    row: Row
    setting: Setting
    epoch_s: float


def timed(row: Row) -> Timed | None:
    """None where the row names what is not available here; said on stderr."""
    try:
        setting = setting_of(row)
        prediction = predict_on(prepare(setting.scenario, setting.cluster.num_ranks), setting.cluster)
    except InputError as error:
        tell(f"{row['source']}, {row['dataset']}, {row['method']}: {str(error).partition('; ')[0]}\n")
        return None
    return Timed(row=row, setting=setting, epoch_s=prediction.summary.epoch_s)


def groups(data: Path) -> list[list[Row]]:
    """Rows of one table, graph, testbed and metric."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in (row for name in FILES for row in read_rows(data / name)):
        if row["metric"] in METRICS:
            key = tuple(row[name] for name in ("source", "where", "dataset", "testbed", "gpus", "metric"))
            found.setdefault(key, []).append(row)
    return list(found.values())


def curve(one: Timed, args: argparse.Namespace) -> dict[int, float]:
    """Validation scores of the row's method on a stand-in for its graph, or what the file has of them."""
    setting, num_ranks = one.setting, one.setting.cluster.num_ranks
    key = json.dumps([setting.key, args.nodes, args.epochs, MOST_HIDDEN])
    known = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else {}
    if key not in known:
        tell(f"{one.row['dataset']}: {one.row['method']} on {num_ranks} ranks\n")
        found = train_alone(trainable(_trained(setting.scenario, num_ranks, args)))
        known[key] = {str(epoch + 1): scores["val"] for epoch, scores in found.evaluated.items()}
        with whole_file(args.results) as temporary:
            temporary.write_text(json.dumps(known), encoding="utf-8")
    return {int(epochs): score for epochs, score in known[key].items()}


def _trained(scenario: Scenario, num_ranks: int, args: argparse.Namespace) -> Scenario:
    """The same method and layers, less wide, on a stand-in's file."""
    card, section = load_card(scenario.graph.dataset), scenario.graph
    nodes = min(args.nodes, card.full.nodes)
    place = args.results.parent / f"stand-in-{card.name}-{nodes}-{num_ranks}-{section.objective}.npz"
    if not place.exists():
        graph = stand_in(card, nodes=nodes, parts=num_ranks, objective=section.objective, inductive=section.inductive)
        graph.save(place)
    return replace(
        scenario,
        graph=replace(section, dataset=str(place), source=Source.DATA),
        model=replace(scenario.model, hidden=min(scenario.model.hidden, MOST_HIDDEN)),
        cluster=replace(scenario.cluster, gpus=num_ranks),
        run=RunSettings(epochs=args.epochs, eval_every=EVERY, seed=SEED),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Vanilla's seconds over a method's: as published, by epochs alone, and to the target where that says something."""

    row: Row
    published: float
    alone: float
    epochs: tuple[float | None, float | None]  # vanilla's and the method's

    @property
    def to_target(self) -> float | None:
        first, own = self.epochs
        return self.alone * first / own if first and own and max(first, own) > EVERY else None

    def line(self) -> list[str]:
        row, value = self.row, self.to_target
        shown = " / ".join("none" if one is None else f"{one:g}" for one in self.epochs)
        place = f"{row['testbed']} x{row['gpus']}"
        figures = [f"{self.published:.2f}", f"{self.alone:.2f}", "-" if value is None else f"{value:.2f}", shown]
        return [row["source"], row["dataset"], place, row["method"], *figures]


def ratios(rows: Sequence[Row], args: argparse.Namespace) -> list[Ratio]:
    """The methods of a table against its vanilla; none without one."""
    known = [one for row in rows if (one := timed(row)) is not None]
    base = next((one for one in known if one.row["method"] == BASE), None)
    if base is None:
        return []
    curves: dict[str, Curves] = {one.row["method"]: (curve(one, args),) for one in known}
    target = SHARE * best(curves[BASE])
    first = epochs_to(curves[BASE], target)
    return [
        Ratio(
            row=one.row,
            published=value_of(base.row) / value_of(one.row),
            alone=base.epoch_s / one.epoch_s,
            epochs=(first, epochs_to(curves[one.row["method"]], target)),
        )
        for one in known
        if one is not base
    ]


def verdict(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    """How often a prediction says who is faster, and by which factor it errs."""
    right = sum(log(published) * log(predicted) > 0 for published, predicted in pairs)
    factor = exp(mean(abs(log(predicted / published)) for published, predicted in pairs)) if pairs else 1.0
    return f"{name}: {right} of {len(pairs)} on vanilla's right side, ratios off by a factor of {factor:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, default=Path("../shared/published"), help="directory of the rows")
    parser.add_argument("--nodes", type=int, default=4000, help="of a stand-in")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--results", type=Path, default=Path("reports-out/published-curves.json"))
    args = parser.parse_args()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    heads = ["source", "dataset", "testbed", "method", "published ×", "epochs alone ×", "to target ×", "epochs"]
    found = [ratio for rows in groups(args.published) for ratio in ratios(rows, args)]
    if not found:
        sys.exit(f"no rows of {', '.join(METRICS)} in {args.published} that can be predicted")
    alone = [(one.published, one.alone) for one in found]
    reached = [(one.published, one.to_target) for one in found if one.to_target is not None]
    print(aligned([heads, *(one.line() for one in found)]), "", sep="\n")
    print(verdict("epochs alone", alone), verdict("to a target on a stand-in", reached), sep="\n")


if __name__ == "__main__":
    main()
