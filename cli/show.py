"""`list` and `show`: the catalogues, and what a scenario turns into."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halocast.base.errors import unknown
from halocast.base.records import require
from halocast.cluster.catalogue import Cluster, list_clusters, list_devices, load_cluster, load_device
from halocast.cluster.drawing import draw_text
from halocast.cluster.figure import draw_figure
from halocast.codes.catalogue import list_codes, load_code
from halocast.graph.card import card_names, load_card
from halocast.methods import METHODS
from halocast.models.spec import ModelKind
from halocast.reports.summary import staleness_table
from halocast.reports.table import aligned, size, text_table
from halocast.schedule.text import format_schedule
from halocast.sim.lower import lower
from halocast.sim.memory import device_memory, pinned_bytes
from halocast.study.constants import Constant, Origin, first_sentence, found_constants
from halocast.study.pipelines import settled
from halocast.study.predict import scenario_cluster, scenario_code
from halocast.study.run import summarise_job
from halocast.study.scenario import format_scenario, load_scenario
from halocast.study.workload import Workload, prepare

MOST_VALUES = 4  # of a constant, in a line


def _scenarios() -> list[str]:
    return sorted(path.stem for path in Path(str(files("halocast.study.scenarios"))).glob("*.toml"))


_LISTS: MappingProxyType[str, Callable[[], list[str]]] = MappingProxyType(
    {
        "methods": lambda: list(METHODS),
        "models": lambda: [str(kind) for kind in ModelKind],
        "datasets": lambda: list(card_names()),
        "clusters": lambda: list(list_clusters()),
        "devices": lambda: list(list_devices()),
        "codes": lambda: list(list_codes()),
        "scenarios": _scenarios,
        "constants": lambda: sorted({constant.name for constant in found_constants()}),
    }
)


def list_names(what: str) -> dict[str, list[str]]:
    if what and what not in _LISTS:
        raise unknown("list", what, _LISTS)
    return {kind: names() for kind, names in _LISTS.items() if what in ("", kind)}


def constants_table(constants: Sequence[Constant]) -> str:
    """A line per constant: its values, where it comes from, and the measured figures that chose it."""
    lines = [("constant", "values", "files", "origin", "fitted on", "provenance")]
    for constant in constants:
        values = ", ".join(constant.values[:MOST_VALUES]) + (", …" if len(constant.values) > MOST_VALUES else "")
        fitted = str(constant.num_fitted) if constant.num_fitted else "-"
        lines.append(
            (
                constant.name,
                values,
                str(len(constant.places)),
                str(constant.origin),
                fitted,
                first_sentence(constant.why),
            )
        )
    chosen = [constant for constant in constants if constant.origin is Origin.FITTED]
    num_values = sum(len(constant.values) for constant in chosen)
    said = f"{len(constants)} constants; {len(chosen)} of them were fitted ({num_values} values)."
    return f"{aligned(lines)}\n\n{said}"


def show_thing(what: str, name: str | None, overrides: list[str], figure: Path | None = None) -> str:
    require(figure is None or what == "cluster", f"--figure {figure}: only a cluster is drawn, not a {what}")
    if what == "job":
        assert name is not None
        return text_table([summarise_job(Path(name))])
    if what == "cluster":
        assert name is not None
        return _describe_cluster(load_cluster(name), figure)
    if what in _CATALOGUE:
        assert name is not None
        return describe(_CATALOGUE[what](name))
    if what == "scenario":
        return format_scenario(settled(load_scenario(name, overrides))).rstrip()
    if what not in _WORKLOAD:
        raise unknown("thing to show", what, ["cluster", *_CATALOGUE, "job", "scenario", *_WORKLOAD])
    scenario = settled(load_scenario(name, overrides))
    return _WORKLOAD[what](prepare(scenario, scenario_cluster(scenario).num_ranks))


def _describe_cluster(cluster: Cluster, figure: Path | None) -> str:
    if figure is not None:
        draw_figure(cluster, figure)
    drawn = f"\nfigure: {figure}" if figure is not None else ""
    return f"{describe(cluster)}\n\n{draw_text(cluster)}{drawn}"


def describe(thing: Any, indent: str = "") -> str:
    """A record as `key: value` lines, nested records indented, equal devices of a cluster counted."""
    lines = []
    for f in (f for f in fields(thing) if f.repr):
        value = getattr(thing, f.name)
        if is_dataclass(value):
            lines += [f"{indent}{f.name}:", describe(value, indent + "  ")]
        elif isinstance(value, dict) and any(map(is_dataclass, value.values())):
            lines.append(f"{indent}{f.name}:")
            lines += [f"{indent}  {key}:\n{describe(item, indent + '    ')}" for key, item in value.items()]
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            counts = {item.name: sum(other == item for other in value) for item in value}
            lines.append(f"{indent}{f.name}: {', '.join(f'{count} × {name}' for name, count in counts.items())}")
        elif value is not None:
            lines.append(f"{indent}{f.name}: {_plain(value)}")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


EQUAL_SPEEDS = "Ranks run freely: these are the ages where all are equally fast; those of a run are counted by the run."


def _staleness(workload: Workload) -> str:
    reads = staleness_table(workload.schedule)
    if not reads:
        return "nothing remote is read"
    said = (f"{read.op} reads {read.reads}: {list(read.ages)} epochs old" for read in reads)
    return "\n".join([*said, *([EQUAL_SPEEDS] if any(read.free for read in reads) else [])])


def _memory(workload: Workload) -> str:
    cluster, code = scenario_cluster(workload.scenario), scenario_code(workload.scenario)
    schedule = lower(workload.schedule, code, workload.spec)
    lines = []
    for rank in range(schedule.num_ranks):
        memory = device_memory(schedule, cluster, rank, code)
        largest = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in memory.contributors[:6])
        used, have = size(memory.total_bytes), size(memory.capacity_bytes)
        fits = "fits" if memory.fits else "DOES NOT FIT"
        lines.append(f"rank {rank}: {used} of {have} at {memory.at}, {fits}: {largest}")
    pinned = [size(num_bytes) for num_bytes in pinned_bytes(schedule, cluster)]
    return "\n".join([*lines, *(f"host {host}: {num_bytes} pinned" for host, num_bytes in enumerate(pinned))])


_CATALOGUE: MappingProxyType[str, Callable[[str], Any]] = MappingProxyType(
    {"device": load_device, "dataset": load_card, "code": load_code}
)
_WORKLOAD: MappingProxyType[str, Callable[[Workload], str]] = MappingProxyType(
    {
        "schedule": lambda workload: format_schedule(workload.schedule).rstrip(),
        "staleness": _staleness,
        "memory": _memory,
    }
)
