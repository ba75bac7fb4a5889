"""Scenario files: one graph, model, method, cluster and run, as TOML; every key is checked.

Sections and keys are the fields of the records below; `[method]` takes `name`, the options of that method, and
`preset`, which stands for several of them (presets.py).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from halocast.base.errors import InputError, unknown
from halocast.base.records import read_toml, record, require
from halocast.exec.launch.job import RunSettings
from halocast.methods import METHODS
from halocast.models.spec import ModelKind, Norm
from halocast.sim.network.queued import Sharing
from halocast.study.presets import expand_preset
from halocast.study.worlds import WorldSection as WorldSection

DEFAULT = "demo"
# Of a cluster, what if; staging is what the hosts' processors do for gloo.
FACTORS = ("device_speed", "memory_size", "pcie_speed", "nvlink_speed", "network_speed", "staging_speed")


class Source(StrEnum):
    """Where sizes come from: the dataset's card if it has one (auto), only the card, or only the data."""

    AUTO = "auto"
    CARD = "card"
    DATA = "data"


class Partitioner(StrEnum):
    METIS = "metis"
    RANDOM = "random"


class Objective(StrEnum):
    VOL = "vol"
    CUT = "cut"


class Balance(StrEnum):
    NODE = "node"
    EDGE = "edge"
    COST = "cost"  # a node's edges and itself, by what they cost


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSection:
    dataset: str = "synthetic"  # a card's or DGL's name, a path, or synthetic
    source: Source = Source.AUTO
    inductive: bool = False  # train on the subgraph of the train nodes
    parts: int | None = None  # default: one per rank
    partitioner: Partitioner = Partitioner.METIS
    objective: Objective = Objective.VOL
    balance: Balance = Balance.NODE
    seed: int = 0
    nodes: int = 10_000  # from here on: the synthetic graph
    degree: float = 20.0
    skew: float = 1.0
    classes: int = 8
    features: int = 64
    mixing: float = 0.2

    def __post_init__(self) -> None:
        require(self.parts is None or self.parts >= 1, f"parts = {self.parts}: needs to be at least 1")
        require(0 <= self.seed < 2**31, f"seed = {self.seed}: needs 0 <= seed < 2147483648")
        require(self.nodes < 2**31, f"nodes = {self.nodes}: needs to be below 2147483648")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    kind: ModelKind = ModelKind.SAGE
    layers: int = 3
    hidden: int = 128
    num_linear: int = 0
    dropout: float = 0.5
    heads: int = 1  # of gat's attention
    recompute: bool = False  # backward runs forward again instead of keeping what it needs
    norm: Norm | None = None  # layer | l2 | none; default: as the model was published
    precompute: bool = False
    projection: bool = False  # a linear layer before the others, so that none aggregates features; gcnii: always


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSection:
    name: str | None = None
    file: str | None = None
    gpus: int | None = None
    transport: str | None = None
    links: Sharing = Sharing.AUTO  # shared, queued; auto: shared up to 16 ranks
    tolerance: float = 0.0  # of shared links: the fraction of its time by which a transfer may end early
    hosts: int | None = None  # from here on, what if: the ranks on so many hosts; without gpus, hosts full of devices
    device: str | None = None  # another device everywhere
    network_gbps: float | None = None  # another rate of the NICs, in Gb/s
    device_speed: float = 1.0  # times as fast as described: compute and memory
    memory_size: float = 1.0  # times as much device memory
    pcie_speed: float = 1.0
    staging_speed: float = 1.0
    nvlink_speed: float = 1.0
    network_speed: float = 1.0  # of the NICs, and with them of leaves and spine
    profile: str | None = None  # what `halocast calibrate` measured of the cluster's devices

    def __post_init__(self) -> None:
        require(0 <= self.tolerance < 1, f"tolerance = {self.tolerance}: needs 0 <= tolerance < 1")
        require(self.name is None or self.file is None, "give either name or file, not both")
        for key in ("gpus", "hosts"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"{key} = {value}: needs to be at least 1")
        for key in ("network_gbps", *FACTORS):
            value = getattr(self, key)
            require(value is None or value > 0, f"{key} = {value}: needs to be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSection:
    """The implementation that is predicted: one of the catalogue, or of a file."""

    name: str | None = None  # default: our own executor
    file: str | None = None

    def __post_init__(self) -> None:
        require(self.name is None or self.file is None, "give either name or file, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSection:
    """What `halocast plan` may choose from; empty means its defaults."""

    methods: tuple[str, ...] = ()  # all, one of each family of variants
    clusters: tuple[str, ...] = ()  # names or files; the scenario's own, else all with GPUs
    gpus: tuple[int, ...] = ()  # powers of two, and all of a cluster
    max_gpus: int = 16
    partitioners: tuple[Partitioner, ...] = (Partitioner.METIS,)
    options: dict[str, dict[str, tuple[Any, ...]]] = field(default_factory=dict)  # {bns = {rate = [0.1, 0.5]}}
    max_staleness: int | None = None  # epochs that rows may be old
    min_rate: float = 0.1  # of what a sampling method keeps

    def __post_init__(self) -> None:
        for name in (*self.methods, *self.options):
            if name not in METHODS:
                raise unknown("method", name, METHODS)
        for name, table in self.options.items():
            known = {one.name for one in fields(METHODS[name].options)}
            for key in table:
                if key not in known:
                    raise unknown("key", key, known, f"options.{name}")
        for num in (*self.gpus, self.max_gpus):
            require(num >= 1, f"gpus = {num}: needs to be at least 1")
        require(0 <= self.min_rate <= 1, f"min_rate = {self.min_rate}: needs 0 <= min_rate <= 1")
        legal = self.max_staleness is None or self.max_staleness >= 0
        require(legal, f"max_staleness = {self.max_staleness}: needs to be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSection:
    name: str = "vanilla"
    options: Any = field(default_factory=METHODS["vanilla"].options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    graph: GraphSection = field(default_factory=GraphSection)
    model: ModelSection = field(default_factory=ModelSection)
    method: MethodSection = field(default_factory=MethodSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    code: CodeSection = field(default_factory=CodeSection)
    run: RunSettings = field(default_factory=RunSettings)
    world: WorldSection = field(default_factory=WorldSection)
    plan: PlanSection = field(default_factory=PlanSection)

    @classmethod
    def load(cls, path: str | None = None, *overrides: str) -> "Scenario":
        """A scenario file or an embedded one, with keys overridden: `Scenario.load("demo", "cluster.gpus=4")`."""
        return load_scenario(path, overrides)


ALTERNATIVES = {"file": "name", "name": "file"}  # how to say which cluster, or which code
FILES = (("cluster", "file"), ("cluster", "profile"), ("code", "file"))
SECTIONS = tuple(f.name for f in fields(Scenario))
_RECORDS = {
    "graph": GraphSection,
    "model": ModelSection,
    "cluster": ClusterSection,
    "code": CodeSection,
    "run": RunSettings,
    "world": WorldSection,
    "plan": PlanSection,
}


def load_scenario(path: str | None = None, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario file (or the name of an embedded one), with `section.key=value` overrides on top."""
    return build_scenario(load_tables(path, overrides), path or DEFAULT)


def load_tables(path: str | None = None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A scenario file with overrides on top, as tables; only the overrides are checked."""
    file = _scenario_path(path or DEFAULT)
    tables = read_toml(file)
    for section, key in FILES:
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str(file.parent / table[key])  # as the scenario's author saw it; absolute paths stay
    for override in overrides:
        set_key(tables, *parse_override(override))
    return tables


def set_key(tables: dict[str, Any], section: str, key: str, value: Any) -> None:
    table = tables.setdefault(section, {})
    if section in ("cluster", "code") and key in ALTERNATIVES:
        table.pop(ALTERNATIVES[key], None)  # the one replaces the other
    table[key] = value


def _scenario_path(name: str) -> Path:
    folder = Path(str(files("halocast.study.scenarios")))
    embedded = sorted(path.stem for path in folder.glob("*.toml"))
    if name in embedded:
        return folder / f"{name}.toml"
    if not Path(name).exists():
        raise InputError(f"no such file: {name} (embedded scenarios: {', '.join(embedded)})")
    return Path(name)


def build_scenario(tables: Mapping[str, Any], where: str) -> Scenario:
    for section, table in tables.items():
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS, where)
        if not isinstance(table, Mapping):
            raise InputError(f"{where}: {section} is a section ([{section}]), got {table!r}")
    _require_method(tables.get("method", {}), f"{where} [method]")
    tables = expand_preset(tables, f"{where} [method]")
    records: dict[str, Any] = {
        name: record(_RECORDS[name], tables.get(name, {}), f"{where} [{name}]") for name in _RECORDS
    }
    return Scenario(**records, method=_method(tables.get("method", {}), f"{where} [method]"))


def _require_method(table: Mapping[str, Any], where: str) -> None:
    name = table.get("name", "vanilla")
    if not isinstance(name, str) or name not in METHODS:
        raise unknown("method", str(name), METHODS, where)


def _method(table: Mapping[str, Any], where: str) -> MethodSection:
    options = dict(table)
    name = options.pop("name", "vanilla")
    return MethodSection(name=name, options=record(METHODS[name].options, options, f"{where} {name}"))


def parse_override(text: str) -> tuple[str, str, Any]:
    """Parse an override: `graph.parts=4` -> ("graph", "parts", 4); a value that is not TOML is a string."""
    place, equals, value = text.partition("=")
    section, dot, key = place.strip().partition(".")
    if not (equals and dot and key):
        raise InputError(f"--set {text!r}: expected section.key=value, for example graph.dataset=cora")
    if section not in SECTIONS:
        raise unknown("section", section, SECTIONS, f"--set {text!r}")
    try:
        return section, key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return section, key, value.strip()


def tables_of(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """The scenario as tables again, every default written out, keys without a value left out."""
    tables = {name: asdict(getattr(scenario, name)) for name in _RECORDS}
    tables["method"] = {"name": scenario.method.name, **asdict(scenario.method.options)}
    return {name: {key: value for key, value in tables[name].items() if value is not None} for name in SECTIONS}


def changed_tables(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """The scenario as tables of what differs from its defaults: a preset put on top of them says the rest."""
    name = scenario.method.name
    usual = tables_of(Scenario(method=MethodSection(name=name, options=METHODS[name].options())))
    usual["method"].pop("name")
    return {
        section: {
            key: value for key, value in table.items() if key not in usual[section] or usual[section][key] != value
        }
        for section, table in tables_of(scenario).items()
    }


def format_scenario(scenario: Scenario) -> str:
    """The scenario as TOML, so that a report can say exactly what it answers."""
    return tomli_w.dumps(tables_of(scenario))
