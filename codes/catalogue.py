"""Implementations from TOML files: those that come with the package, and one's own."""

import os
from importlib.resources import files
from pathlib import Path

from halocast.base.errors import unknown
from halocast.base.records import read_toml, record
from halocast.codes.implementation import Implementation

OWN = "halocast"  # our executor: what every answer is about, unless another implementation is asked for


def list_codes() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


def load_code(name_or_path: str | os.PathLike[str]) -> Implementation:
    """An implementation of the catalogue or of a TOML file; it is called as the file is."""
    path = Path(name_or_path)
    if not (isinstance(name_or_path, os.PathLike) or path.suffix == ".toml" or len(path.parts) > 1):
        if name_or_path not in list_codes():
            raise unknown("code", str(name_or_path), list_codes(), "an implementation is a name or a .toml file")
        path = _folder() / f"{name_or_path}.toml"
    return record(Implementation, {"name": path.stem, **read_toml(path)}, str(path))


def _folder() -> Path:
    return Path(str(files("halocast.codes")))
