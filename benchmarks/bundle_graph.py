"""Packs a graph into the package: `bundle_graph.py GRAPH.npz` writes graph/datasets/<name>.npz and prints its size."""

import argparse
from pathlib import Path

from halocast.graph import load
from halocast.graph.formats.packed import save_packed

DATASETS = Path(__file__).parents[1] / "graph" / "datasets"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    graph = load(parser.parse_args().graph)
    place = DATASETS / f"{graph.name}.npz"
    save_packed(graph, place)
    print(f"{place.name}: {graph!r}, {place.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
