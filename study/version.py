"""What a prediction depends on besides its scenario: the version, the code and the constants that made it."""

import hashlib
import json
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

# Packages, and modules of others, that a prediction runs through; TOML files in them are constants.
PREDICTING = ("base", "schedule", "graph", "models", "methods", "sim")
MODULES = (
    *("reports/metrics.py", "reports/intervals.py", "reports/summary.py"),
    *(
        "study/scenario.py",
        "study/clusters.py",
        "study/testbeds.py",
        "study/workload.py",
        "study/predict.py",
        "study/screen.py",
    ),
)


@cache
def prediction_version() -> str:
    """The package's version and a fingerprint of everything that predictions are made of."""
    digest = hashlib.sha256()
    root = Path(str(files("halocast.base"))).parent
    found = [path for package in PREDICTING for path in (root / package).rglob("*") if path.suffix in (".py", ".toml")]
    for path in sorted({*found, *(root / module for module in MODULES)}):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return f"{metadata.version('halocast')}+{digest.hexdigest()[:12]}"


def scenario_key(tables: dict[str, Any]) -> str:
    """The name of a prediction: equal scenarios, files and versions have equal names."""
    said = json.dumps([prediction_version(), tables, _files(tables)], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def _files(tables: dict[str, Any]) -> list[str]:
    """Files that a scenario names: the text of a cluster's, and the age of data, which may be large."""
    cluster, dataset = tables.get("cluster", {}), Path(str(tables.get("graph", {}).get("dataset", "")))
    named = [Path(str(cluster[key])) for key in ("file", "profile") if cluster.get(key)]
    found = [hashlib.sha256(path.read_bytes()).hexdigest() for path in named if path.is_file()]
    if dataset.is_absolute() or len(dataset.parts) > 1:
        state = dataset.stat() if dataset.exists() else None
        found.append(f"{state.st_mtime_ns} {state.st_size}" if state else "missing")
    return found
