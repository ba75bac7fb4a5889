"""Prints published seconds to an accuracy, as ratios between methods of one testbed, beside predicted ones.

Two predictions: that of epochs alone, as if every method took equally many, and that of a training in virtual time: on
a small stand-in, epochs to 98 % of vanilla's best validation score, times predicted seconds of an epoch of the graph
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
from halocast.graph import load_card, stand_in
from halocast.reports.table import aligned
from halocast.study.predict import predict_on
from halocast.study.published_rows import Row, Setting, read_rows, setting_of, value_of
from halocast.study.scenario import RunSettings, Scenario, Source
from halocast.study.training import train_alone, trainable
from halocast.study.workload import prepare

METRICS = ("convergence_s", "time_to_accuracy_s", "total_train_s")
FILES = ("measured.csv", "more.csv")
BASE = "vanilla"
SHARE, SEED = 0.98, 0
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
        tell(f"{row['source']}, {row['dataset']}, {row['method']}: {error}\n")
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
        run=RunSettings(epochs=args.epochs, eval_every=2, seed=SEED),
    )


def table(rows: Sequence[Row], args: argparse.Namespace) -> tuple[list[list[str]], list[tuple[float, float, float]]]:
    """Lines of a group, and logs of its ratios to vanilla: published, by epochs alone, by training."""
    known = [one for row in rows if (one := timed(row)) is not None]
    base = next((one for one in known if one.row["method"] == BASE), None)
    if base is None:
        return [], []
    curves: dict[str, Curves] = {one.row["method"]: (curve(one, args),) for one in known}
    target = SHARE * best(curves[BASE])
    first = epochs_to(curves[BASE], target)
    lines, logs = [], []
    for one in (one for one in known if one is not base):
        epochs = epochs_to(curves[one.row["method"]], target)
        published, alone = value_of(base.row) / value_of(one.row), base.epoch_s / one.epoch_s
        to_target = alone * first / epochs if first and epochs else None
        lines.append(_line(one.row, published, alone, to_target, (first, epochs)))
        if to_target is not None:
            logs.append((log(published), log(alone), log(to_target)))
    return lines, logs


def _line(
    row: Row, published: float, alone: float, to_target: float | None, epochs: tuple[float | None, float | None]
) -> list[str]:
    shown = "–".join("none" if one is None else f"{one:g}" for one in epochs)
    reached = "not reached" if to_target is None else f"{to_target:.2f}"
    place = f"{row['testbed']} x{row['gpus']}"
    return [row["source"], row["dataset"], place, row["method"], f"{published:.2f}", f"{alone:.2f}", reached, shown]


def verdict(logs: Sequence[tuple[float, float, float]]) -> list[str]:
    """How often each prediction says who is faster, and by which factor it errs."""
    said = []
    for name, at in (("epochs alone", 1), ("training on a stand-in", 2)):
        right = sum(one[0] * one[at] > 0 for one in logs)
        factor = exp(mean(abs(one[at] - one[0]) for one in logs)) if logs else 1.0
        said.append(
            f"{name}: {right} of {len(logs)} on the right side of vanilla, ratios off by a factor of {factor:.2f}"
        )
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, default=Path("../shared/published"), help="directory of the rows")
    parser.add_argument("--nodes", type=int, default=4000, help="of a stand-in")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--results", type=Path, default=Path("reports-out/published-curves.json"))
    args = parser.parse_args()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    heads = ["source", "dataset", "testbed", "method", "published ×", "epochs alone ×", "to target ×", "epochs"]
    found = [table(rows, args) for rows in groups(args.published)]
    lines = [line for some, _ in found for line in some]
    if not lines:
        sys.exit(f"no rows of {', '.join(METRICS)} in {args.published} that can be predicted")
    print(aligned([heads, *lines]), "", *verdict([one for _, logs in found for one in logs]), sep="\n")


if __name__ == "__main__":
    main()
