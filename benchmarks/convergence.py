"""Prints what stale and sampled rows cost in accuracy, against vanilla after as many epochs, and draws the curves.

All methods of a graph share model, optimiser, epochs and seeds; nothing is chosen per method. Final accuracies are
exact evaluations of the weights a run ends with. Curves are of the training forward (dropout on, rows as stale as
they were): an evaluation in between would make ranks meet that otherwise run freely. In digest-a a rank that is done
leaves the others to train on their parts alone, and one that is ahead trains on its own; `bound` says by how many
epochs at most.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halocast.exec.launch.local import Run, execute
from halocast.graph.parts import iter_parts
from halocast.reports.figures import Panel, draw_panels
from halocast.study.run import make_job
from halocast.study.scenario import load_scenario
from halocast.study.workload import prepare

RANKS = 2
MODEL = ("model.kind=sage", "model.layers=3", "model.hidden=64", "model.dropout=0.5", "model.precompute=true")
RUN = ("run.lr=0.01", "run.threads=1", "run.timeout_s=1200")  # a shared machine may stand still for minutes
SYNTHETIC = ("graph.nodes=4000", "graph.degree=8", "graph.classes=6", "graph.features=32", "graph.mixing=0.3")
REAL = ("pubmed", "amazon-computers")
PLAIN = "model.precompute=false"
ERRORS_OF = ("pipegcn", "pipegcn-gf")


@dataclass(frozen=True, slots=True)
class Case:
    """A method with its options, and how many points of accuracy it may lose."""

    name: str
    settings: tuple[str, ...]
    allowed: float | None  # None: printed to be seen, promised by nobody
    base: str = "vanilla"  # the case it is compared with


CASES = (
    Case("vanilla", ("method.name=vanilla",), 0.0),
    *(Case(name, (f"method.name={name}",), 1.0) for name in ("pipegcn", "pipegcn-f", "pipegcn-g", "pipegcn-gf")),
    *(Case(f"digest N={n}", ("method.name=digest", f"method.interval={n}"), 2.0) for n in (1, 5, 10)),
    Case("digest-a bound 1", ("method.name=digest-a", "method.bound=1"), 2.0),
    Case("digest-a", ("method.name=digest-a",), None),
    *(Case(f"bns p={p}", ("method.name=bns", f"method.rate={p}"), 1.5) for p in (0.1, 0.01)),
    Case("bns p=0, random parts", ("method.name=bns", "method.rate=0", "graph.partitioner=random"), None),
    *(Case(f"psc tau={tau}", ("method.name=psc", f"method.tau={tau}"), 1.5) for tau in (1, 2)),
    # PSC-GCN's own setting: layer 0 is sampled, too
    Case("vanilla, no pre", ("method.name=vanilla", PLAIN), 0.0, "vanilla, no pre"),
    *(
        Case(f"psc tau={t}, no pre", ("method.name=psc", f"method.tau={t}", PLAIN), 1.5, "vanilla, no pre")
        for t in (1, 2)
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    case: Case
    final: tuple[float, ...]  # test accuracy in per cent, by seed
    curve: tuple[float, ...]  # of the training forward, mean over seeds

    @property
    def mean(self) -> float:
        return statistics.mean(self.final)


def train(settings: Sequence[str], seed: int) -> Run:
    scenario = load_scenario(None, [*MODEL, *RUN, *settings, f"run.seed={seed}", f"graph.seed={seed}"])
    workload = prepare(scenario, RANKS, data=True)
    assert workload.graph is not None
    assert workload.assignment is not None
    return execute(make_job(workload, "gloo"), iter_parts(workload.graph, workload.assignment))


def run_case(case: Case, graph: Sequence[str], num_epochs: int, seeds: Sequence[int]) -> Result:
    runs = [train([*graph, *case.settings, f"run.epochs={num_epochs}"], seed) for seed in seeds]
    curves = np.array([[100 * epoch["test"] for epoch in run.accuracy] for run in runs])
    final = tuple(100 * run.evaluated[num_epochs - 1]["test"] for run in runs)
    return Result(case=case, final=final, curve=tuple(curves.mean(axis=0).tolist()))


def compare(graph: Sequence[str], num_epochs: int, seeds: Sequence[int], cases: Sequence[Case] = CASES) -> list[Result]:
    """The cases in order; prints a row as soon as it is known, with its distance to the case it is compared with."""
    print(f"  {'method':23}{'test accuracy':>14}{'std':>7}{'to vanilla':>12}{'allowed':>9}   by seed", flush=True)
    results: dict[str, Result] = {}
    for case in cases:
        result = results[case.name] = run_case(case, graph, num_epochs, seeds)
        allowed = "" if case.allowed is None else f"{-case.allowed:.1f}"
        by_seed = " ".join(f"{value:.2f}" for value in result.final)
        spread = statistics.stdev(result.final) if len(seeds) > 1 else 0.0
        change = result.mean - results[case.base].mean
        print(f"  {case.name:23}{result.mean:14.2f}{spread:7.2f}{change:+12.2f}{allowed:>9}   {by_seed}", flush=True)
    return list(results.values())


def chosen_cases(starts: Sequence[str]) -> list[Case]:
    """Cases whose names start so, and what they are compared with; all where nothing is asked for."""
    found = [case for case in CASES if case.name.startswith(tuple(starts or [""]))]
    bases = {case.base for case in found}
    return [case for case in CASES if case in found or case.name in bases]


def accuracy_panel(title: str, results: Sequence[Result]) -> Panel:
    top = max(result.mean for result in results)
    return Panel(
        title=title,
        y_label="test accuracy while training, %  (•: exact, at the end)",
        curves={result.case.name: result.curve for result in results},
        final={result.case.name: result.mean for result in results},
        y_range=(top - 40, min(100.0, top + 3)),
    )


def relative_errors(run: Run, what: str) -> dict[int, list[float]]:
    """By layer, per epoch: the norm of (stale - fresh) over that of the fresh rows."""
    found: dict[int, list[float]] = {}
    for error in run.errors:
        if error.what == what and error.layer > 0 and error.squared_norm > 0:
            found.setdefault(error.layer, []).append(float(np.sqrt(error.squared_error / error.squared_norm)))
    return found


def error_panels(num_epochs: int) -> list[Panel]:
    """How far stale rows and gradients of the synthetic graph are from fresh ones, with and without smoothing."""
    settings = (*SYNTHETIC, "run.errors=true", f"run.epochs={num_epochs}")
    runs = {name: train([*settings, f"method.name={name}"], seed=0) for name in ERRORS_OF}
    print(f"relative error of stale rows, synthetic, mean of the last {num_epochs // 4} of {num_epochs} epochs")
    panels = []
    for what in ("features", "gradients"):
        curves = {
            f"{name}, layer {layer}": values
            for name, run in runs.items()
            for layer, values in relative_errors(run, what).items()
        }
        for name, values in curves.items():
            print(f"  {what:10} {name:22} {statistics.mean(values[-(num_epochs // 4) :]):6.3f}")
        panels.append(Panel(title=f"error of stale {what}", y_label="‖stale − fresh‖ / ‖fresh‖", curves=curves))
    return panels


def graphs(data: Path) -> dict[str, tuple[str, ...]]:
    """The synthetic graph, and of the real ones those that are there."""
    real = {name: (f"graph.dataset={data / name}.npz",) for name in REAL if (data / f"{name}.npz").exists()}
    return {"synthetic": SYNTHETIC, **real}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="directory of real graphs (.npz)")
    parser.add_argument("--graphs", nargs="+", default=["synthetic", *REAL], help="which of them, if they are there")
    parser.add_argument("--methods", nargs="*", default=[], help="beginnings of the cases' names [all]")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("reports-out/convergence.png"))
    args = parser.parse_args()
    panels = []
    for name, settings in graphs(args.data).items():
        if name not in args.graphs:
            continue
        print(f"{name}, {RANKS} METIS parts, {args.epochs} epochs, mean of {args.seeds} seeds")
        results = compare(settings, args.epochs, range(args.seeds), chosen_cases(args.methods))
        panels.append(accuracy_panel(name, results))
    panels += [] if args.methods else error_panels(args.epochs)
    draw_panels(args.out, panels)
    print(f"curves: {args.out}")


if __name__ == "__main__":
    main()
