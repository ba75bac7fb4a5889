"""Curves side by side in one figure: accuracy over epochs, errors of stale rows, whatever is counted in epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from halocast.base.files import whole_file

PANELS_PER_ROW = 3
STYLES = ("-", "--", "-.", ":")  # a curve whose colour comes round again differs in its dashes
NUM_COLOURS = 10  # of matplotlib's cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves by name, a value per epoch; a final value is marked at its curve's end."""

    title: str
    y_label: str
    curves: Mapping[str, Sequence[float]]
    final: Mapping[str, float] = field(default_factory=dict)
    y_range: tuple[float, float] | None = None


def draw_curves(path: Path, panels: Sequence[Panel]) -> None:
    """Write the panels as a .png or .svg."""
    import matplotlib as mpl  # slow to import, and only figures need it
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "halocast"  # the same figure twice is the same file
    columns = min(PANELS_PER_ROW, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 4.2 * rows), layout="constrained")
    for k, panel in enumerate(panels):
        axis = figure.add_subplot(rows, columns, k + 1)
        for number, (name, values) in enumerate(panel.curves.items()):
            style = STYLES[number // NUM_COLOURS % len(STYLES)]
            colour = f"C{number % NUM_COLOURS}"
            axis.plot(range(1, len(values) + 1), values, style, color=colour, label=name, linewidth=1.2)
            if name in panel.final:
                axis.plot([len(values)], [panel.final[name]], "o", color=colour, markersize=4, clip_on=False)
        axis.set(title=panel.title, xlabel="epoch", ylabel=panel.y_label)
        if panel.y_range is not None:
            axis.set_ylim(*panel.y_range)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize="x-small")
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
