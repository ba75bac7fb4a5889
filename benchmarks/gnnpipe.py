"""Prints predicted against published epochs of a 32-layer GCN and GCNII on 2 hosts x 4 A5000: whole graph per layer
(vanilla) and pipelines of 8 stages and 32 chunks, from the logs of the GNNPipe authors.

The predictions are those of `halocast published`; how the authors' code was set up is said in
`study/published_rows.py`. Parts of an epoch as they print them: compute, communication (halo exchange or stage to
stage, with waits for slower peers),
bubble (fill and drain), imbalance (waits within a slot).
"""

import argparse
from collections import defaultdict
from pathlib import Path

from halocast.study.published import predict_rows
from halocast.study.published_rows import Row, own_figures, params_of, read_rows

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
Seconds = dict[str, float]


def is_asked(row: Row) -> bool:
    return row["source"] == "mithril-log" and row["metric"] in SUMMED and params_of(row).get("ways") in (1, 8)


def table(path: Path) -> dict[Key, tuple[Seconds, Seconds]]:
    """Ours and theirs, by part of the epoch."""
    found: dict[Key, tuple[Seconds, Seconds]] = defaultdict(
        lambda: (dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0))
    )
    for result in predict_rows([row for row in read_rows(path) if is_asked(row)]):
        row = result.row
        ours, theirs = found[row["dataset"], row["model"], row["method"]]
        assert result.predicted is not None, result.reason
        assert result.published is not None
        ours[SUMMED[row["metric"]]] += result.predicted
        theirs[SUMMED[row["metric"]]] += result.published
    return dict(found)


def cell(ours: float, theirs: float) -> str:
    error = f"{ours / theirs - 1:+8.0%}" if theirs > 1e-3 else f"{'':8}"
    return f"{1e3 * ours:8.1f}{1e3 * theirs:8.1f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, nargs="?", default=own_figures()[0], help="a CSV of published figures")
    rows = table(parser.parse_args().table)
    print(f"{'':24}" + "".join(f"{part:>24}" for part in PARTS))
    print(f"{'ms':24}" + f"{'ours':>8}{'theirs':>8}{'error':>8}" * len(PARTS))
    for (dataset, model, method), (ours, theirs) in sorted(rows.items()):
        print(f"{f'{dataset} {model} {method}':24}" + "".join(cell(ours[part], theirs[part]) for part in PARTS))


if __name__ == "__main__":
    main()
