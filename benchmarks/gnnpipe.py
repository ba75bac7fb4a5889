"""Prints predicted against published epochs of a 32-layer GCN and GCNII on 2 hosts x 4 A5000: whole graph per layer
(vanilla) and lockstep pipelines of 8 stages and 32 chunks, as the GNNPipe authors ran them.

Sizes come from the dataset cards. The released GCN multiplies before it aggregates in its first layer, so that no layer
aggregates more than 100 columns; here its first layer is precomputed, which is one such aggregation less. Their GCNII
has 32 convolutions behind a projection. Their parts of an epoch, as printed: compute, communication (halo exchange or
stage to stage, with waits for slower peers in it), bubble (fill and drain), imbalance (waits within a slot).

With --train instead: accuracy of a deep GCNII on a synthetic graph, trained here by two stages, with one chunk (exact),
with all three tricks, without each of them, and with doubled gradients across chunks.
"""

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from halocast.graph.card import load_card
from halocast.graph.chunks import chunks_from_card
from halocast.graph.halo import from_card
from halocast.methods import gnnpipe, vanilla
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.reports.metrics import Metrics, measure
from halocast.schedule.check import check
from halocast.schedule.ir import Kind, Lane, Schedule
from halocast.schedule.trace import Trace
from halocast.sim.cluster import load_cluster
from halocast.sim.engine import simulate

CLUSTER, STAGES, CHUNKS = "a5000-2x4-pcie4-ib200", 8, 32
PARTS = ("epoch", "compute", "communication", "bubble", "imbalance")
SUMMED = {
    "epoch_s": "epoch",
    "compute_s": "compute",
    "graph_comm_s": "communication",
    "layer_comm_s": "communication",
    "bubble_s": "bubble",
    "imbalance_s": "imbalance",
}
Key = tuple[str, str, str]  # dataset, model, method


def published(path: Path) -> dict[Key, dict[str, float]]:
    rows: dict[Key, dict[str, float]] = defaultdict(lambda: dict.fromkeys(PARTS, 0.0))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            known = row["source"] == "mithril-log" and row["where"] == "overall_performance"
            asked = json.loads(row["params"] or "{}").get("ways") in (1, 8) and row["metric"] in SUMMED
            if known and asked:
                rows[row["dataset"], row["model"], row["method"]][SUMMED[row["metric"]]] += float(row["value"])
    return dict(rows)


def schedule_of(dataset: str, model: str, method: str) -> Schedule:
    card, deep = load_card(dataset), model == "gcnii"
    spec = ModelSpec(
        kind=ModelKind(model),
        layers=33 if deep else 32,
        hidden=100,
        num_features=card.features,
        num_classes=card.classes,
        norm=Norm.NONE,
        precompute=not deep,
    )
    if method == "vanilla":
        return check(vanilla.vanilla(from_card(card, STAGES), spec, vanilla.Options()))
    options = gnnpipe.Options(stages=STAGES, lockstep=True, freeze=1)
    return check(gnnpipe.gnnpipe(chunks_from_card(card, CHUNKS), spec, options))


def predicted(schedule: Schedule, *, num_epochs: int = 3) -> dict[str, float]:
    trace = simulate(schedule, load_cluster(CLUSTER), num_epochs)
    found = measure(trace, schedule, 1)
    if not any(op.kind is Kind.BARRIER for op in schedule.ops):
        moved = found.mean("exposed_comm_s") + found.mean("wait_s")
        return _parts(found, moved, 0.0, 0.0)
    idle, late = _in_barriers(trace, schedule.num_ranks)
    return _parts(found, found.mean("exposed_comm_s"), idle, late)


def _parts(found: Metrics, moved_s: float, bubble_s: float, imbalance_s: float) -> dict[str, float]:
    values = (found.epoch_s, found.mean("compute_s"), moved_s, bubble_s, imbalance_s)
    return dict(zip(PARTS, values, strict=True))


def _in_barriers(trace: Trace, num_ranks: int) -> tuple[float, float]:
    """Seconds per epoch and rank that slots without work take, and waits at the end of slots with work."""
    idle_s = late_s = 0.0
    for rank in range(num_ranks):
        spans = [s for s in trace.spans if s.rank == rank and s.epoch > 0 and s.lane is Lane.COMPUTE]
        worked = False
        for span in sorted(spans, key=lambda s: (s.start_s, s.end_s)):
            seconds = span.end_s - span.start_s
            if span.kind is Kind.BARRIER:
                late_s, idle_s = (late_s + seconds, idle_s) if worked else (late_s, idle_s + seconds)
            worked = span.op.startswith(("forward_chunk", "backward_chunk", "loss_chunk"))
    share = num_ranks * (trace.num_epochs - 1)
    return idle_s / share, late_s / share


TRICKS: dict[str, dict[str, Any]] = {
    "exact (one chunk)": {"chunks": 1},
    "all tricks": {},
    "without shuffling": {"shuffle": False},
    "with late gradients": {"late_gradients": True},
    "without freezing": {"freeze": 1},
    "without any": {"shuffle": False, "late_gradients": True, "freeze": 1},
    "doubled across chunks": {"cross_factor": 2.0},
}
SEEDS = 1


def ablation(num_epochs: int) -> None:
    from halocast.exec.job import Job, Settings
    from halocast.exec.launch import execute
    from halocast.graph import assign, build_parts, from_parts, synthetic

    graph = synthetic(nodes=1000, degree=8, skew=1.0, classes=8, features=24, mixing=0.45, seed=1)
    spec = ModelSpec(
        kind=ModelKind.GCNII,
        layers=17,
        hidden=32,
        norm=Norm.NONE,
        dropout=0.3,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
    )
    print(f"{'GCNII of 16 convolutions':24}" + "".join(f"{name:>10}" for name in ("train", "val", "test")))
    for name, options in TRICKS.items():
        chosen = gnnpipe.Options(**{"stages": 2, "chunks": 8, **options})
        parts = build_parts(graph, assign(graph, chosen.chunks or 1, balance="cost"))
        schedule = check(gnnpipe.gnnpipe(from_parts(parts), spec, chosen))
        scores = []
        for seed in range(SEEDS):
            settings = Settings(num_epochs=num_epochs, seed=seed, lr=0.01, eval_every=max(1, num_epochs // 10))
            run = execute(Job(schedule=schedule, spec=spec, settings=settings), parts)
            scores.append(max(run.evaluated.values(), key=lambda found: found["val"]))
        cells = (mean(found[part] for found in scores) for part in ("train", "val", "test"))
        print(f"{name:24}" + "".join(f"{cell:10.1%}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, nargs="?", help="the CSV of published figures")
    parser.add_argument("--train", type=int, metavar="EPOCHS", help="train with and without the tricks instead")
    asked = parser.parse_args()
    if asked.train:
        ablation(asked.train)
        return
    if asked.table is None:
        parser.error("give the CSV of published figures, or --train")
    rows = published(asked.table)
    print(f"{'':24}" + "".join(f"{part:>24}" for part in PARTS))
    print(f"{'ms':24}" + f"{'ours':>8}{'theirs':>8}{'error':>8}" * len(PARTS))
    for (dataset, model, method), theirs in sorted(rows.items()):
        ours = predicted(schedule_of(dataset, model, method))
        cells = (_cell(ours[part], theirs[part]) for part in PARTS)
        print(f"{dataset + ' ' + model + ' ' + method:24}" + "".join(cells))


def _cell(ours: float, theirs: float) -> str:
    error = f"{ours / theirs - 1:+8.0%}" if theirs > 1e-3 else f"{'':8}"
    return f"{1e3 * ours:8.1f}{1e3 * theirs:8.1f}{error}"


if __name__ == "__main__":
    main()
