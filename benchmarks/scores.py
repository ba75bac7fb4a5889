"""Prints what every method costs in score on real graphs, against vanilla of the same setting, and draws the curves.

A study of convergence per graph (`halocast converge`): every case gets the best of three learning rates on
validation. Features of more than 256 columns are projected to 256 by a seeded random matrix, or two cores would take
hours: scores are not comparable with published ones, differences to vanilla are. What is finished is kept: run again to
go on, or with --render-only to see what there is.
"""

import argparse
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from halocast.base.files import whole_file
from halocast.reports.figures import Panel, draw_panels
from halocast.reports.score_table import answer, score_panels, score_table
from halocast.reports.scores import CaseScores
from halocast.study.converge import converge
from halocast.study.convergence import Convergence
from halocast.study.own_scores import format_scores, own_scores, read_scores, shipped_scores
from halocast.study.scenario import build_scenario, load_tables


@dataclass(frozen=True, slots=True)
class Setting:
    """A graph's share of the study; as many epochs as it takes to learn it, and as two cores have time for."""

    layers: int
    epochs: int


GRAPHS = {
    "pubmed": Setting(2, 150),
    "amazon-computers": Setting(3, 150),
    "coauthor-cs": Setting(2, 120),
    "coauthor-physics": Setting(2, 100),
    "squirrel": Setting(2, 200),
}
STRAGGLER = "digest-a with straggler"
CASES = (
    "vanilla",
    "pipegcn",
    "pipegcn-gf",
    "bns rate=0.1",
    "digest interval=10",
    STRAGGLER + ": digest-a interval=10 world.speed={0=0.333}",
    "gnnpipe",
    "psc preset=code",
    "psc preset=paper",
)
MODEL = ("model.kind=sage", "model.hidden=64", "model.dropout=0.5", "model.precompute=false", "cluster.gpus=2")
RUN = ("run.timeout_s=1200",)  # a shared machine may stand still for minutes
LEARNING_RATES = (0.003, 0.01, 0.03)
EVERY, WIDEST = 5, 256
WITHIN = 0.5  # points below vanilla that count as as good
ROOT = Path(__file__).parents[1]


def projected(path: Path, place: Path, widest: int = WIDEST) -> Path:
    """The graph's file, or a copy of it whose features are few enough, made once."""
    copy = place / f"{path.stem}-{widest}.npz"
    if copy.exists():
        return copy
    arrays = dict(np.load(path))
    if arrays["x_shape"][1] <= widest:
        return path
    parts = tuple(arrays.pop(f"x_{name}") for name in ("data", "indices", "indptr"))
    features = sp.csr_matrix((parts[0].astype(np.float32), *parts[1:]), shape=tuple(arrays.pop("x_shape")))
    columns = np.random.default_rng(0).normal(size=(features.shape[1], widest)) / np.sqrt(widest)
    with whole_file(copy) as temporary:
        np.savez(temporary, x=(features @ columns).astype(np.float32), **arrays)
        temporary.chmod(0o644)
    return copy


def study(name: str, path: Path, args: argparse.Namespace) -> Convergence:
    setting = GRAPHS[name]
    own = (f"graph.dataset={path}", f"model.layers={setting.layers}", f"run.epochs={args.epochs or setting.epochs}")
    tables = load_tables(None, [*MODEL, *RUN, *own, f"run.eval_every={EVERY}"])
    return converge(
        tables,
        cases=CASES,
        tune={"run.lr": LEARNING_RATES},
        seeds=args.seeds,
        tune_seeds=2,
        patience=0,
        results=args.results,
        jobs=args.jobs,
        train=not args.render_only,
        progress=lambda what, done, of: print(
            f"\r{name}: {what}, {done} of {of} ", end="", file=sys.stderr, flush=True
        ),
    )


def tell(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def cases_of(found: Convergence) -> list[CaseScores]:
    """The cases that were asked for: a study also trains on one device."""
    return [row for row in found.scores if row.label in CASES or row.label == STRAGGLER]


def heading(name: str, rows: list[CaseScores], args: argparse.Namespace) -> str:
    setting, wanted = GRAPHS[name], sum(row.wanted for row in rows)
    left = wanted - sum(len(row.seeds) for row in rows)
    missing = f"; {left} of {wanted} trainings are missing" if left else ""
    return f"{name}: {setting.layers} layers, {args.epochs or setting.epochs} epochs, {args.seeds} seeds{missing}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="directory of the graphs (.npz)")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=list(GRAPHS), help="which of them [all]")
    parser.add_argument("--epochs", type=int, help="of every training [as many as a graph takes]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, help="trainings side by side [one per core]")
    parser.add_argument("--results", type=Path, default=Path("reports-out/scores.sqlite"))
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "images" / "scores.png")
    parser.add_argument("--csv", type=Path, default=shipped_scores(), help="what `halocast published` reads")
    parser.add_argument("--render-only", action="store_true", help="train nothing: tell what the file has")
    args = parser.parse_args()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    panels: list[Panel] = []
    own = [score for score in read_scores(args.csv) if score.graph not in args.graphs]
    for name in args.graphs:
        found = study(name, projected(args.data / f"{name}.npz", args.results.parent), args)
        print(file=sys.stderr)
        rows = cases_of(found)
        print(heading(name, rows, args), answer(rows, WITHIN), "", score_table(rows), "", sep="\n", flush=True)
        panels += score_panels(rows, name)
        own += own_scores(name, rows, build_scenario(tomllib.loads(found.content.scenario), name))
    if own:  # a file without results says nothing about the scores that are kept
        args.csv.write_text(format_scores(own), encoding="utf-8")
    if panels:
        draw_panels(args.figure, panels)


if __name__ == "__main__":
    main()
