"""Prints the error of a mean over neighbours by sampling rule and rate, as a share of the mean itself (Table 2 of the
BNS-GCN paper has bounds of it): boundary rows by three rules, renormalised, and as many edges dropped in two ways.

Rows are the input features; every rule drops as many edges on average, so that only what it drops differs.
"""

import argparse

import numpy as np

from halocast.graph import Graph, Part, assign, build_parts, load, synthetic
from halocast.graph.graph import Reals
from halocast.graph.variance import Estimate, drawn_error, expected_error, squared_means


def relative_error(parts: list[tuple[Part, Reals]], rate: float, rule: Estimate, num_draws: int) -> float:
    """E‖ẑ − z‖² ÷ ‖z‖² over all nodes; from draws where there is no formula."""
    closed = rule is not Estimate.RENORMALISED
    errors = [
        expected_error(part, rows, rate, rule) if closed else drawn_error(part, rows, rate, rule, num_draws=num_draws)
        for part, rows in parts
    ]
    return sum(errors) / sum(squared_means(part, rows) for part, rows in parts)


def chosen_graph(name: str) -> Graph:
    if name != "synthetic":
        return load(name)
    return synthetic(nodes=6000, degree=12, skew=1, classes=8, features=32, mixing=0.2, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="synthetic", help="a file or a name that graph.dataset knows")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.1, 0.3, 0.5])
    parser.add_argument("--draws", type=int, default=30, help="for rules without a formula")
    args = parser.parse_args()
    graph = chosen_graph(args.graph)
    local = build_parts(graph, assign(graph, args.parts))
    parts = [(part, graph.features[np.concatenate((part.inner, part.halo))].astype(np.float64)) for part in local]
    print(f"{graph}: {args.parts} parts, error of neighbour means as a share of their squares")
    print("rule".ljust(14) + "".join(f"{f'rate {rate:g}':>12}" for rate in args.rates))
    for rule in Estimate:
        shares = [relative_error(parts, rate, rule, args.draws) for rate in args.rates]
        print(rule.ljust(14) + "".join(f"{share:12.4f}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
