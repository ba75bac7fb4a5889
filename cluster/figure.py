"""A cluster as a figure: the tree of `drawing`, with all other links as arcs and a legend of rates."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from halocast.base.errors import unknown
from halocast.base.files import whole_file
from halocast.cluster.drawing import (
    DEVICES,
    NAMES,
    Branch,
    called,
    describe_link,
    forest,
    kind_of,
    places,
    spanning_tree,
)
from halocast.cluster.machine import Cluster, LinkKind
from halocast.cluster.topology import build_topology

if TYPE_CHECKING:
    import networkx as nx

FORMATS = (".png", ".svg")
MOST_DEVICES = 32  # more hosts than have these are not drawn
COLOURS: Mapping[LinkKind | None, str] = MappingProxyType(
    {LinkKind.PCIE: "#3b6fb6", LinkKind.NVLINK: "#3d9a50", LinkKind.NETWORK: "#c4513c", None: "#777777"}
)
FILLS: Mapping[str, str] = MappingProxyType({"gpu": "#e8f0da", "copy": "#e8f0da", "host": "#f4ead2"})
GAPS: Mapping[str, float] = MappingProxyType({"host": 0.6, "pcie": 0.3})  # after the last child of such a node

BELOW = -0.85  # NVSwitches, under the devices at 0

Place = tuple[float, float]


def draw_figure(cluster: Cluster, path: Path) -> None:
    """Write a figure of the cluster as .png or .svg."""
    import matplotlib as mpl  # slow to import, and only figures need it
    from matplotlib.figure import Figure

    if path.suffix not in FORMATS:
        raise unknown("kind of figure", path.suffix, FORMATS, str(path))
    shown, more = first_hosts(cluster)
    graph = places(build_topology(shown))
    where = layout(forest(shown, graph), graph)
    right, top = (max(place[k] for place in where.values()) for k in (0, 1))
    bottom = min(y for _, y in where.values()) - 0.65
    mpl.rcParams["svg.hashsalt"] = "halocast"  # the same figure twice is the same file
    figure = Figure(figsize=(max(6.5, 0.62 * (right + 1.2)), 0.95 * (top - bottom) + 1.5), layout="constrained")
    axis = figure.add_subplot()
    axis.set_axis_off()
    axis.set_xlim(-0.7, right + 0.7)
    axis.set_ylim(bottom - 0.2, top + 0.4)
    _draw_links(axis, graph, where)
    _draw_nodes(axis, graph, where)
    _draw_devices(axis, shown, where, bottom)
    left_out = f" (the first {shown.num_hosts} hosts; {more} more are not drawn)" if more else ""
    figure.suptitle(f"{cluster.name}{left_out}", fontsize=11)
    _draw_legend(figure, graph, where)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def first_hosts(cluster: Cluster) -> tuple[Cluster, int]:
    """The cluster cut to as many hosts as can be drawn, at least one; and how many are left out."""
    used = cluster.hosts[: cluster.num_ranks]
    last = max(used[: MOST_DEVICES + 1][-1] - 1, 0) if len(used) > MOST_DEVICES else used[-1]
    return replace(cluster, devices=cluster.devices[: used.index(last) + used.count(last)]), used[-1] - last


def layout(branches: Iterable[Branch], graph: "nx.Graph") -> dict[str, Place]:
    """Devices in a row at the bottom, every other node above the middle of its children; NVSwitches below."""
    branches = list(branches)
    levels = max(_depth(branch) for branch in branches)
    where: dict[str, Place] = {}
    at = 0.0
    for branch in branches:
        at = _put(branch, at, levels - 1, where)
    for node in graph:
        if node not in where:
            near = [where[other][0] for other in graph[node] if other in where]
            where[node] = sum(near) / max(1, len(near)), BELOW
    return where


def _depth(branch: Branch) -> int:
    return 1 + max((_depth(child) for child in branch.children), default=0)


def _put(branch: Branch, at: float, level: int, where: dict[str, Place]) -> float:
    """Place a branch from `at` on; returns where the next one may begin."""
    first = at
    for child in branch.children:
        at = _put(child, at, level - 1, where)
    middle = [where[child.node][0] for child in branch.children]
    x = (middle[0] + middle[-1]) / 2 if middle else first
    where[branch.node] = x, 0.0 if kind_of(branch.node) in DEVICES else float(level)
    return max(at, first + 1) + GAPS.get(kind_of(branch.node), 0.0)


def _draw_links(axis: Any, graph: "nx.Graph", where: Mapping[str, Place]) -> None:
    from matplotlib.patches import FancyArrowPatch

    tree = spanning_tree(graph)
    for a, b, kind in graph.edges(data="kind"):
        (low, y_low), (high, y_high) = sorted((where[a], where[b]), key=lambda place: (place[1], place[0]))
        if y_low == BELOW:  # straight down onto a switch that is as wide as its devices
            low = high
        straight = tree.has_edge(a, b) or y_low == BELOW
        bend = 0.0 if straight else 0.45 if y_low == y_high else 0.08 * (1 if low > high else -1)
        line = FancyArrowPatch((low, y_low), (high, y_high), arrowstyle="-", connectionstyle=f"arc3,rad={bend}")
        line.set(color=COLOURS[kind], alpha=1 if straight else 0.6, linewidth=1.6, zorder=1)
        axis.add_patch(line)


def _draw_nodes(axis: Any, graph: "nx.Graph", where: Mapping[str, Place]) -> None:
    from matplotlib.patches import FancyBboxPatch

    for node, (x, y) in where.items():
        label = called(node).replace(" ", "\n") if kind_of(node) in DEVICES else called(node)
        colours = {"facecolor": FILLS.get(kind_of(node), "#ececec"), "edgecolor": "#555555"}
        if y == BELOW:
            left, right = (end(where[other][0] for other in graph[node]) for end in (min, max))
            bar = FancyBboxPatch((left - 0.3, y - 0.15), right - left + 0.6, 0.3, "round,pad=0,rounding_size=0.1")
            bar.set(zorder=2, **colours)
            axis.add_patch(bar)
        box = None if y == BELOW else {"boxstyle": "round,pad=0.35", **colours}
        axis.text(x, y, label, ha="center", va="center", fontsize=8, bbox=box, zorder=3)


def _draw_devices(axis: Any, cluster: Cluster, where: Mapping[str, Place], y: float) -> None:
    """Write below the devices of each host what they are."""
    ranks = [(cluster.host(rank), device.name, rank) for rank, device in enumerate(cluster.devices)]
    kind = "gpu" if cluster.staged else "copy"
    for (_, name), run in groupby(ranks, key=lambda rank: rank[:2]):
        xs = [where[f"{kind} {rank}"][0] for _, _, rank in run]
        axis.text(sum(xs) / len(xs), y, f"{len(xs)} x {name}", ha="center", va="center", fontsize=9)


def _draw_legend(figure: Any, graph: "nx.Graph", where: Mapping[str, Place]) -> None:
    from matplotlib.lines import Line2D

    entries = dict(sorted(_legend(graph, where), key=lambda entry: list(COLOURS).index(entry[1])))
    lines = [Line2D([], [], color=COLOURS[kind], linewidth=2) for kind in entries.values()]
    figure.legend(lines, list(entries), loc="outside lower center", ncols=2, frameon=False, fontsize=8)


def _legend(graph: "nx.Graph", where: Mapping[str, Place]) -> Iterator[tuple[str, LinkKind | None]]:
    for *ends, kind in graph.edges(data="kind"):
        low, high = sorted(ends, key=lambda node: abs(where[node][1]))
        kinds = " - ".join(NAMES.get(kind_of(node), kind_of(node)) for node in (low, high))
        yield f"{kinds}: {describe_link(graph, low, high)}", kind
