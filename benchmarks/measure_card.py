"""Prints the dataset card of graphs that are here, as TOML: `measure_card.py GRAPH.npz...`; all is counted in the data.

Volumes are those of METIS with the volume objective and of random parts, seed 0. Spreads and bends are fitted at 8
parts to the law of `halo.shares`.
"""

import argparse
from pathlib import Path

import numpy as np

from halocast.graph import Graph, assign, from_assignment, load, volume
from halocast.graph.graph import Ints
from halocast.graph.halo import REFERENCE_PARTS, shares
from halocast.graph.sizes import homophily, log_spread, sizes_of_graph
from halocast.graph.task import linear_score

PARTS = (2, 4, 8, 16, 32)
RANDOM_PARTS = (2, 4, 8)
BENDS = np.arange(-5, 6) / 10


def unevenness(sizes: Ints) -> tuple[float, float]:
    """The coefficient of variation, and the bend whose law is nearest."""
    relative = np.sort(sizes / sizes.mean())
    spread = float(relative.std())
    misfit = [np.square(shares(REFERENCE_PARTS, spread, bend) - relative).sum() for bend in BENDS]
    return spread, float(BENDS[int(np.argmin(misfit))])


def card(graph: Graph, version: str) -> str:
    metis = {k: assign(graph, k, cache=False) for k in PARTS}
    cuts = {k: sizes_of_graph(graph, parts).cut_share or 0.0 for k, parts in metis.items()}
    halo = from_assignment(graph, metis[REFERENCE_PARTS])
    random = {k: volume(graph, assign(graph, k, partitioner="random")) for k in RANDOM_PARTS}
    (halo_spread, halo_bend), (edge_spread, edge_bend) = unevenness(halo.num_halo), unevenness(halo.num_edges)
    labelled = graph.labels[graph.labels >= 0]
    by_class = ", ".join(f"{share:.4f}" for share in np.bincount(labelled) / len(labelled))
    score = linear_score(graph.features, graph.labels, graph.train_mask, graph.test_mask)
    edges = graph.num_edges - graph.num_nodes
    return f"""# Counted in the data unless said otherwise, with METIS of pymetis {version}, volume objective, seed 0.
# Edges are directed edges as trained on plus one self-loop per node.
name = "{graph.name}"
features = {graph.num_features}
classes = {graph.num_classes}
multilabel = {str(graph.multilabel).lower()}
homophily = {homophily(graph):.3f}
feature_score = {score:.3f}  # ridge regression on features alone, on the stored split
class_shares = [{by_class}]

[full]
nodes = {graph.num_nodes:_}
edges = {graph.num_edges:_}  # {edges:,} + self-loops
train_nodes = {graph.num_train:_}  # of the stored split
degree_sigma = {log_spread(graph.in_degree - 1):.3f}
metis = {{ {", ".join(f"{k} = {volume(graph, parts):_}" for k, parts in metis.items())} }}
random = {{ {", ".join(f"{k} = {vol:_}" for k, vol in random.items())} }}
cut_share = {{ {", ".join(f"{k} = {share:.3f}" for k, share in cuts.items())} }}
halo_spread = {halo_spread:.2f}  # at 8 parts, as are the next
halo_bend = {halo_bend:.1f}
edge_spread = {edge_spread:.2f}
edge_bend = {edge_bend:.1f}
"""


def main() -> None:
    import pymetis

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, help="write a file per graph into this directory instead")
    args = parser.parse_args()
    for path in args.graphs:
        graph = load(path)
        text = card(graph, pymetis.version)
        if args.into:
            (args.into / f"{graph.name}.toml").write_text(text, encoding="utf-8")
        print(text)


if __name__ == "__main__":
    main()
