"""Descriptions of one's own beside the package's: directories of clusters and of dataset cards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from halocast.base.errors import InputError

NONE: Mapping[str, Path] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptions:
    """Files of one's own by the name of the cluster or of the card."""

    clusters: Mapping[str, Path] = field(default_factory=lambda: NONE)
    cards: Mapping[str, Path] = field(default_factory=lambda: NONE)


def read_descriptions(clusters: str | Path | None = None, cards: str | Path | None = None) -> Descriptions:
    """The descriptions in two directories: every TOML file, by its name."""
    return Descriptions(clusters=_files(clusters, "clusters"), cards=_files(cards, "cards"))


def _files(directory: str | Path | None, what: str) -> Mapping[str, Path]:
    if directory is None:
        return NONE
    found = {path.stem: path.resolve() for path in sorted(Path(directory).glob("*.toml"))}
    if not found:
        raise InputError(f"--{what} {directory}: no directory with .toml files")
    return found
