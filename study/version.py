"""What a prediction depends on besides its scenario: the version, the code and the constants that made it."""

import hashlib
import json
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

MADE_OF = (".py", ".toml", ".csv")  # code, and the constants, cards and figures that it reads


@cache
def prediction_version() -> str:
    """The package's version and a fingerprint of all its code and constants."""
    return f"{metadata.version('halocast')}+{fingerprint_of(Path(str(files('halocast.base'))).parent)}"


def fingerprint_of(root: Path) -> str:
    """A fingerprint, twelve hex digits, of every file that a package in this directory is made of."""
    digest = hashlib.sha256()
    for path in package_files(root):
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


def scenario_key(tables: dict[str, Any]) -> str:
    """The name of a prediction: equal scenarios, files and versions have equal names."""
    said = json.dumps([prediction_version(), tables, _files(tables)], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def _files(tables: dict[str, Any]) -> list[str]:
    """Fingerprints of files that a scenario names: of a cluster's text, and the age of data, which may be large."""
    cluster, dataset = tables.get("cluster", {}), Path(str(tables.get("graph", {}).get("dataset", "")))
    named = [Path(str(cluster[key])) for key in ("file", "profile") if cluster.get(key)]
    fingerprints = [hashlib.sha256(path.read_bytes()).hexdigest() for path in named if path.is_file()]
    if dataset.is_absolute() or len(dataset.parts) > 1:
        state = dataset.stat() if dataset.exists() else None
        fingerprints.append(f"{state.st_mtime_ns} {state.st_size}" if state else "missing")
    return fingerprints
