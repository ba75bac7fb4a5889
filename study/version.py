"""What a prediction or a training depends on besides its scenario: the version, the code and the constants of it.

A prediction is of all code and constants. A training takes minutes where a prediction takes moments, so it depends on
no more than the code that trains: a new command or figure leaves it as it is.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

MADE_OF = (".py", ".toml", ".csv")  # code, and the constants, cards and figures that it reads
TRAINS = (
    "base",
    "schedule",
    "graph",
    "models",
    "methods",
    "exec",
    "study/workload.py",
    "study/training.py",
)  # run by a training
FIGURES = (  # code and constants that figures of published runs are made by: what reports make of them is not among it
    *("base", "schedule", "graph", "models", "methods", "cluster", "codes", "sim", "calibrate/profile.py"),
    *("reports/timers.py", "reports/summary.py", "reports/metrics.py", "study/predict.py", "study/workload.py"),
    *("study/published_figures.py", "study/published_rows.py", "study/published_cards.py", "study/testbeds.py"),
    *("study/scenario.py", "study/sources.py", "study/sources.toml", "study/codes.py"),
)
TRAINED = ("graph", "model", "method", "run", "world")  # sections that a training reads
RANKS = ("gpus", "hosts", "name", "file")  # keys of [cluster] that may say how many ranks train
IRRELEVANT = {("run", "timeout_s"), ("graph", "dataset")}  # a file is known by its content, wherever it is


@cache
def prediction_version() -> str:
    """The package's version and a fingerprint of all its code and constants."""
    return f"{metadata.version('halocast')}+{fingerprint_of(Path(str(files('halocast.base'))).parent)}"


@cache
def training_version() -> str:
    """A fingerprint of the code that trains."""
    return training_fingerprint_of(Path(str(files("halocast.base"))).parent)


@cache
def figures_version() -> str:
    """A fingerprint of the code and constants that figures of published runs are made by."""
    root = Path(str(files("halocast.base"))).parent
    places = [root / place for place in FIGURES]
    return _fingerprint(root, [path for path in package_files(root) if any(path.is_relative_to(p) for p in places)])


def fingerprint_of(root: Path) -> str:
    """A fingerprint, twelve hex digits, of every file that a package in this directory is made of."""
    return _fingerprint(root, package_files(root))


def training_fingerprint_of(root: Path) -> str:
    """A fingerprint, twelve hex digits, of the modules in this directory that a training runs."""
    places = [root / place for place in TRAINS]
    modules = [path for path in package_files(root) if path.suffix == ".py"]
    return _fingerprint(root, [path for path in modules if any(path.is_relative_to(place) for place in places)])


def _fingerprint(root: Path, paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def package_files(root: Path) -> list[Path]:
    """Files of a package's own modules and subpackages, in order.

    Beside them an editable installation has tests, documents and environments: directories without an __init__.py.
    """
    subpackages = sorted(path.parent for path in root.glob("*/__init__.py"))
    paths = [*root.glob("*.py"), *(path for package in subpackages for path in package.rglob("*"))]
    return sorted(path for path in paths if path.suffix in MADE_OF and path.is_file())


def scenario_key(tables: Mapping[str, Any]) -> str:
    """The name of a prediction: equal scenarios, files and versions have equal names."""
    said = json.dumps([prediction_version(), tables, _files(tables)], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def training_key(tables: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """The name of a training: equal scenarios, graphs by their content, and code that trains have equal names.

    One that a clock drives is also of the clock's scenario, and of the code and constants that predict it.
    """
    said = {
        section: {key: value for key, value in tables.get(section, {}).items() if (section, key) not in IRRELEVANT}
        for section in TRAINED
    }
    ranks = [tables.get("cluster", {}).get(key) for key in RANKS]
    graph = _content(str(tables.get("graph", {}).get("dataset", "")))
    clock = asked.get("clock")
    driven = [asked.get("patience"), clock and scenario_key(clock)]
    text = json.dumps([training_version(), said, ranks, graph, driven], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _content(dataset: str) -> str:
    """The content of a graph's file; a name, and a directory, stand for themselves."""
    path = Path(dataset)
    return _digest(path, path.stat().st_mtime_ns) if path.is_file() else dataset


@cache
def _digest(path: Path, changed_ns: int) -> str:
    """The fingerprint of a file, read once as long as it does not change."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files(tables: Mapping[str, Any]) -> list[str]:
    """Fingerprints of files that a scenario names: of a cluster's text, and the age of data, which may be large."""
    cluster, dataset = tables.get("cluster", {}), Path(str(tables.get("graph", {}).get("dataset", "")))
    named = [Path(str(cluster[key])) for key in ("file", "profile") if cluster.get(key)]
    fingerprints = [hashlib.sha256(path.read_bytes()).hexdigest() for path in named if path.is_file()]
    if dataset.is_absolute() or len(dataset.parts) > 1:
        state = dataset.stat() if dataset.exists() else None
        fingerprints.append(f"{state.st_mtime_ns} {state.st_size}" if state else "missing")
    return fingerprints
