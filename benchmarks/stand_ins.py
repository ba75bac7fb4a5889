"""Prints whether what is learnt on a stand-in holds on the graph it stands in for: epochs to a target, by method.

For every graph that is here, a stand-in is made of its card alone; every method trains on both in virtual time, with
the same options and seeds. A target is the same share of vanilla's best validation score on each. For every pair of
methods the stand-in predicts the ratio of their epochs to the target; the guess to beat is that all take equally many.

Features are projected to few columns, else this would take an hour; the card is told so. What is finished is kept: run
again to go on.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from scores import projected

from halocast.base.files import whole_file
from halocast.graph import Card, Match, load, load_card, match, stand_in
from halocast.graph.task import linear_score
from halocast.reports.table import aligned
from halocast.study.cases import parse_case
from halocast.study.scenario import build_scenario, load_tables
from halocast.study.training import train_alone, trainable


class Effort(NamedTuple):
    """Of a graph's trainings; as many epochs as it takes to learn it, as many seeds as there is time for."""

    epochs: int
    seeds: int


GRAPHS = {
    "amazon-computers": Effort(epochs=100, seeds=2),
    "coauthor-physics": Effort(epochs=60, seeds=1),
    "pubmed": Effort(epochs=100, seeds=2),
}
CASES = (
    "vanilla",
    "pipegcn",
    "bns rate=0.1",
    "bns rate=0.01",
    "digest interval=10",
    "digest-a interval=10",
    "psc preset=code",
    "gnnpipe",
)
PARTS, COLUMNS, CLUSTER = 4, 128, "rtx2080ti-x10-pcie3"
SETTING = (
    f"cluster.name={CLUSTER}", f"cluster.gpus={PARTS}", "model.kind=sage", "model.layers=2", "model.hidden=32",
    "model.dropout=0.5", "run.lr=0.03", "run.eval_every=2",
)  # fmt: skip
SHARES = (0.9, 0.95, 0.98)  # of vanilla's best
FREE = "digest-a"  # whose ranks meet only in the store: the predicted order of events is trained
ALIKE = log(1.1)  # epochs that differ by less are no order


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Logs of the ratio of two methods' epochs to a target, on the graph and on its stand-in."""

    real: float
    predicted: float

    @property
    def is_ordered(self) -> bool:
        return abs(self.real) > ALIKE

    @property
    def is_right(self) -> bool:
        return self.real * self.predicted > 0


def card_of(name: str, path: Path) -> Card:
    """The card of a graph, told of the columns it is trained with here."""
    graph = load(path)
    score = linear_score(graph.features, graph.labels, graph.train_mask, graph.test_mask)
    return replace(load_card(name), features=graph.num_features, feature_score=score)


Curves = tuple[dict[int, float], ...]  # validation scores by epochs done, of every seed


def trained(path: Path, other: Path, effort: Effort, results: Path) -> dict[str, Curves]:
    """The curves of all cases on a graph that is trained, `other`, while seconds are those of the one at `path`."""
    return {
        case: tuple(_curve(_Training(case, seed, path, other, effort.epochs), results) for seed in range(effort.seeds))
        for case in CASES
    }


class _Training(NamedTuple):
    case: str
    seed: int
    timed: Path
    graph: Path  # that is trained
    epochs: int

    def tables(self, graph: Path) -> dict[str, dict[str, object]]:
        own = (f"graph.dataset={graph}", f"run.epochs={self.epochs}", f"run.seed={self.seed}")
        return parse_case(self.case).tables(load_tables(None, [*SETTING, *own]))


def _curve(training: _Training, results: Path) -> dict[int, float]:
    """One training, or what the file has of it."""
    key = json.dumps([training.case, training.seed, training.graph.stem, training.epochs, *SETTING])
    known = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    if key not in known:
        tell(f"{training.graph.stem}: {training.case}, seed {training.seed}\n")
        scenario = trainable(build_scenario(training.tables(training.graph), training.case))
        clock = training.tables(training.timed) if training.case.startswith(FREE) else None
        found = train_alone(scenario, clock=clock)
        known[key] = {str(epoch + 1): scores["val"] for epoch, scores in found.evaluated.items()}
        with whole_file(results) as temporary:
            temporary.write_text(json.dumps(known), encoding="utf-8")
    return {int(epochs): score for epochs, score in known[key].items()}


def tell(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def best(curves: Curves) -> float:
    return mean(max(curve.values()) for curve in curves)


def epochs_to(curves: Curves, target: float) -> float | None:
    """Of the middle seed; none if that does not meet the target."""
    middle = median(_first(curve, target) for curve in curves)
    return None if middle == float("inf") else middle


def _first(curve: Mapping[int, float], target: float) -> float:
    return next((float(epochs) for epochs, score in sorted(curve.items()) if score >= target), float("inf"))


def epochs_by_case(curves: Mapping[str, Curves], share: float) -> dict[str, float | None]:
    target = share * best(curves["vanilla"])
    return {label: epochs_to(curve, target) for label, curve in curves.items()}


def pairs_of(real: Mapping[str, float | None], predicted: Mapping[str, float | None]) -> list[Pair]:
    """Of all pairs of methods that meet the target on both graphs."""
    both = [label for label in real if real[label] and predicted.get(label)]
    return [Pair(real=_log_ratio(real, a, b), predicted=_log_ratio(predicted, a, b)) for a, b in combinations(both, 2)]


def _log_ratio(epochs: Mapping[str, float | None], a: str, b: str) -> float:
    one, other = epochs[a], epochs[b]
    assert one is not None
    assert other is not None
    return log(one / other)


def verdict(pairs: Sequence[Pair], missed: Sequence[tuple[bool, bool]]) -> list[str]:
    """Pairs, those with an order, how many are right, the typical factor of error, and that of guessing all alike."""
    ordered = [pair for pair in pairs if pair.is_ordered]
    right = sum(pair.is_right for pair in ordered)
    agree = sum(real == predicted for real, predicted in missed)
    return [
        str(len(pairs)),
        f"{right} of {len(ordered)}",
        _factor([pair.predicted - pair.real for pair in pairs]),
        _factor([pair.real for pair in pairs]),
        f"{agree} of {len(missed)}",
    ]


def _factor(logs: Sequence[float]) -> str:
    return f"{exp(mean(abs(one) for one in logs)):.2f}" if logs else "-"


def show_graph(name: str, found: Match, real: Mapping[str, Curves], twin: Mapping[str, Curves]) -> list[str]:
    """The figures of both graphs and the epochs of every method on both."""
    sizes = ", ".join(
        f"{one.figure.replace('_', ' ')} {one.wanted:.3g} → {one.got:.3g}"
        for one in found.figures
        if one.figure in ("degree", "degree_sigma", "halo_ratio", "cut_share", "homophily", "feature_score")
    )
    nodes = f"{found.card.nodes:,} → {found.stand_in.nodes:,} nodes"
    heads = ["epochs to", *(f"{share:.0%}: real  stand-in" for share in SHARES), "best: real  stand-in"]
    every = [(epochs_by_case(real, share), epochs_by_case(twin, share)) for share in SHARES]
    rows = [
        [
            label,
            *(f"{_said(one[label]):>4}  {_said(two[label]):>4}" for one, two in every),
            f"{100 * best(real[label]):.1f}  {100 * best(twin[label]):.1f}",
        ]
        for label in CASES
    ]
    return [f"{name}: {nodes}, {sizes}", aligned([heads, *rows]), ""]


def _said(epochs: float | None) -> str:
    return "-" if epochs is None else f"{epochs:g}"


def summary(every: Mapping[str, tuple[Mapping[str, Curves], Mapping[str, Curves]]]) -> list[str]:
    """A row per graph and target, and one over all."""
    heads = ["graph", "of best", "pairs", "order right", "error ×", "all alike ×", "met alike"]
    rows, all_pairs, all_missed = [], list[Pair](), list[tuple[bool, bool]]()
    for name, (real, twin) in every.items():
        for share in SHARES:
            one, two = epochs_by_case(real, share), epochs_by_case(twin, share)
            pairs = pairs_of(one, two)
            missed = [(one[label] is None, two[label] is None) for label in one]
            rows.append([name, f"{share:.0%}", *verdict(pairs, missed)])
            all_pairs += pairs
            all_missed += missed
    rows.append(["all", "", *verdict(all_pairs, all_missed)])
    return [aligned([heads, *rows])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="directory of the graphs (.npz)")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--results", type=Path, default=Path("reports-out/stand-ins.json"))
    args = parser.parse_args()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    every, shown = {}, []
    for name in args.graphs:
        path = projected(args.data / f"{name}.npz", args.results.parent, COLUMNS)
        card = card_of(name, path)
        graph = stand_in(card, parts=PARTS)
        twin = args.results.parent / f"stand-in-{name}.npz"
        graph.save(twin)
        real, predicted = (trained(path, other, GRAPHS[name], args.results) for other in (path, twin))
        every[name] = real, predicted
        shown += show_graph(name, match(card, graph, parts=PARTS), real, predicted)
    print("\n".join([*shown, *summary(every)]))


if __name__ == "__main__":
    main()
