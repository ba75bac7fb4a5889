"""Rows of published figures as scenarios: whose testbed, dataset, model, method and params they are.

How a source's code was set up where its rows do not say stands in the tables below, and what its figures count; nothing
that a prediction depends on is chosen by row.
"""

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halocast.base.errors import InputError, unknown
from halocast.base.records import require
from halocast.cluster.catalogue import Cluster
from halocast.graph.card import Card
from halocast.methods import METHODS
from halocast.models.spec import ModelKind
from halocast.study.descriptions import Descriptions
from halocast.study.published_cards import find_card
from halocast.study.scenario import GraphSection, MethodSection, ModelSection, Scenario, build_scenario, format_scenario
from halocast.study.sources import code_of
from halocast.study.testbeds import load_testbed

Row = dict[str, str]
COLUMNS = (
    *("source", "where", "dataset", "train_graph", "model", "layers", "n_linear", "hidden", "testbed", "gpus"),
    *("nodes", "method", "params", "metric", "value", "unit", "note"),
)

# Other people's names of params -> ours; those that we call the same need no entry.
PARAMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"use_pp": ("precompute",), "p": ("rate",), "eps": ("rate",), "tau": ("lag",), "N": ("interval",)}
)
# Methods that are options of others here; how many edges two of them drop is said as a rate of bns.
VARIANTS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "dropedge": ("bns", {"what": "dropedge"}),
        "bes": ("bns", {"what": "edges"}),
        "gnnpipe-hybrid": ("gnnpipe", {}),  # with several ways
        "single-gpu": ("vanilla", {}),  # one rank: nobody to exchange with
        "single-gpu-chunked": ("gnnpipe", {}),  # one stage
    }
)
SAME_MODEL: Mapping[str, str] = MappingProxyType({"graphsage": "sage", "resgcn+": "resgcn"})
LATER = frozenset({"gin", "jknet", "jk-net", "graph-transformer"})  # models that there are not yet
SHIPPED = Descriptions()
SAME_COUNT = re.compile(r"same count as bns p=(?P<rate>[\d.]+)")
# The scripts of PipeGCN, BNS-GCN and what derives from them normalise every model; a pipeline has a thread for the
# exchanges of each layer. The code of the GNNPipe authors
# does not; it multiplies before it aggregates in the first layer; its stages meet after every slot; it copies all
# histories in every epoch, whether they are renewed or not; its backward computes nothing but activations again (their
# table of chunk times does: its sum is 305 ms per GPU of reddit's GCN, of which the logged epochs spent 222); and its
# halo exchange goes round by round, one peer at a time.
SCRIPTS: dict[str, Any] = {"norm": "layer", "lanes": "layer"}
MITHRIL: Mapping[str, Any] = MappingProxyType({"norm": "none", "projection": True, "lockstep": True, "freeze": 1})
# How parts were made. PSC-GCN's own volumes (its Table I) are those of METIS's default objective, see the cards. All
# other scripts ask METIS for a small volume, Sylvie's too: memory and the rates between its hosts say the same.
SETUP: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gnnpipe": MITHRIL,
        "mithril-log": MITHRIL,
        "psc": SCRIPTS | {"objective": "cut"},
    }
)
# Traffic: BNS-GCN's "Epoch Comm" is that of rows sent forward: of the 100,221 halo rows that logs of its code count on
# Reddit in 2 parts, x 0.1 x 256 x 4 bytes x 3 layers = 30.8 MB (30.4 printed); of 1,323,748 on ogbn-products in 5,
# x 0.1 x 128 x 4 x 2 = 135.6 MB (138.7 printed).
FORWARD_ONLY = frozenset({"bns"})
# What a speedup is over, where it is not named as one of our methods.
BASE = re.compile(r"\b(?:vs\.?|versus|over|relative to)\s+(?P<name>[\w-]+)")
SAME_BASE: Mapping[str, str] = MappingProxyType({"graph": "vanilla", "graph-parallel": "vanilla"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a row measured; `counts_all` says whether figures of traffic take in gradients and weights beside rows sent
    forward."""

    scenario: Scenario
    card: Card
    cluster: Cluster
    ignored: tuple[str, ...]  # params that say nothing to us
    counts_all: bool

    @property
    def key(self) -> str:
        """A key that is equal for settings that are predicted alike."""
        return f"{self._place} {self.counts_all} {self.card}\n{format_scenario(self.scenario)}"

    @property
    def workload_key(self) -> str:
        """A key that is equal for settings that differ in the method only."""
        return f"{self._place}\n{format_scenario(replace(self.scenario, method=MethodSection()))}"

    @property
    def _place(self) -> str:
        return f"{self.cluster.name} {self.cluster.num_hosts} {self.cluster.num_ranks}"


def own_figures() -> list[Path]:
    """The figures that come with the package."""
    return [Path(str(files("halocast.reports"))) / name for name in ("measured.csv", "more.csv")]


def read_rows(path: Path) -> list[Row]:
    """Every row of a file, good or bad; only a file without the columns is an error."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = list(csv.reader(file))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from None
    header = table[0] if table else []
    for name in COLUMNS:
        require(name in header, f"{path}: no column {name!r} (needs: {', '.join(COLUMNS)})")
    rows = (cells + [""] * (len(header) - len(cells)) for cells in table[1:] if cells)
    return [dict(zip(header, cells, strict=False)) for cells in rows]


def setting_of(row: Row, own: Descriptions = SHIPPED) -> Setting:
    """The scenario and the cluster of a row; what is not stated or not known is an InputError that says so."""
    params = params_of(row)
    name, options = method_of(row)
    kind = _known_model(row)
    source = row["source"]
    card = find_card(row["dataset"], params, own.cards)
    tables: dict[str, dict[str, Any]] = {
        "graph": {"dataset": card.name, "source": "card", "inductive": is_inductive(row)},
        "model": {
            "kind": kind,
            "layers": number(row, "layers"),
            "hidden": number(row, "hidden"),
            "num_linear": number(row, "n_linear", 0),
        },
        "method": {"name": name, **options},
    }
    known = {section: _known(section, name) for section in tables}
    tables["code"] = {"name": own.code or code_of(source)}
    for key, value in SETUP.get(source, SCRIPTS).items():
        _place(tables, known, key, value)
    ignored = [key for key, value in params.items() if not _place(tables, known, key, value)]
    nodes = number(row, "nodes") if row["nodes"] else None
    scenario = build_scenario(tables, f"{source}, {row['where']}")
    cluster = load_testbed(row["testbed"], gpus=number(row, "gpus"), hosts=nodes, own=own.clusters)
    return Setting(
        scenario=scenario,
        card=card,
        cluster=cluster,
        ignored=tuple(ignored),
        counts_all=source not in FORWARD_ONLY,
    )


def method_of(row: Row) -> tuple[str, dict[str, Any]]:
    """The name that a row's method has here, and the options that make it that method."""
    said = row["method"].lower()
    name, options = VARIANTS.get(said, (said, {}))
    if name not in METHODS:
        raise InputError(f"method {row['method']!r} is not available")
    same = SAME_COUNT.search(str(params_of(row).get("edges_dropped", "")))
    return name, {**options, **({"rate": float(same["rate"])} if same else {})}


def _known_model(row: Row) -> ModelKind:
    require(bool(row["model"]), "model: not stated")
    name = row["model"].lower()
    name = SAME_MODEL.get(name, name)
    if name in LATER:
        raise InputError(f"model {row['model']!r} needs a later version (there are: {', '.join(ModelKind)})")
    if name not in list(ModelKind):
        raise unknown("model", row["model"], map(str, ModelKind))
    return ModelKind(name)


def _known(section: str, method: str) -> set[str]:
    """Keys of a section that a row's params may set."""
    records = {"graph": GraphSection, "model": ModelSection, "method": METHODS[method].options}
    return {one.name for one in fields(records[section])} - {"source", "dataset", "inductive", "parts", "kind"}


def _place(tables: dict[str, dict[str, Any]], known: Mapping[str, set[str]], key: str, value: Any) -> bool:
    """Set what a param means in the section that knows it; the method's own come first."""
    for section in ("method", "model", "graph"):
        for name in (key, *PARAMS.get(key, ())):
            if name in known[section]:
                tables[section][name] = value
                return True
    return False


def params_of(row: Row) -> dict[str, Any]:
    try:
        params = json.loads(row["params"] or "{}")
    except json.JSONDecodeError as error:
        raise InputError(f"params = {row['params']!r}: not JSON ({error})") from None
    if not isinstance(params, dict):
        raise InputError(f"params = {row['params']!r}: expected an object")
    return params


def value_of(row: Row) -> float:
    """The published figure of a row, in its unit."""
    try:
        value = float(row["value"])
    except ValueError:
        raise InputError(f"value = {row['value']!r}: expected a number") from None
    require(isfinite(value), f"value = {row['value']!r}: expected a finite number")
    return value


def number(row: Row, key: str, default: int | None = None) -> int:
    """A whole number of a row; without a default it has to be stated."""
    text = row[key].strip()
    if not text and default is not None:
        return default
    require(bool(text), f"{key}: not stated")
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{key} = {text!r}: expected a whole number") from None


def is_inductive(row: Row) -> bool:
    legal = {"inductive": True, "full": False}
    require(bool(row["train_graph"]), "train_graph: not stated")
    if row["train_graph"] not in legal:
        raise unknown("train_graph", row["train_graph"], legal)
    return legal[row["train_graph"]]


def cuts_edges(row: Row) -> bool:
    """Whether the source's partitions make cut edges few, not the volume."""
    return SETUP.get(row["source"], SCRIPTS).get("objective") == "cut"


def base_of(row: Row) -> Row:
    """The row whose epoch a speedup is over: the same with the method that its params or its note name, or vanilla."""
    params = params_of(row)
    named = BASE.search(row["note"].lower())
    name = str(params.get("base") or (named["name"] if named else "vanilla"))
    name = SAME_BASE.get(name, name)
    if name not in METHODS:
        raise InputError(f"the base of the speedup, {name!r}, is not available")
    return row | {"method": name}
