"""Descriptions of one's own beside the package's: directories of clusters and of dataset cards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from halocast.base.errors import InputError
from halocast.codes.catalogue import load_code

NONE: Mapping[str, Path] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptions:
    """Files of one's own by the name of the cluster or of the card, and where they are; `code` is an implementation to
    predict in place of the sources' own."""

    clusters: Mapping[str, Path] = field(default_factory=lambda: NONE)
    cards: Mapping[str, Path] = field(default_factory=lambda: NONE)
    clusters_in: Path | None = None
    cards_in: Path | None = None
    code: str | None = None


def read_descriptions(
    clusters: str | Path | None = None, cards: str | Path | None = None, code: str | None = None
) -> Descriptions:
    """The descriptions in two directories: every TOML file, by its name."""
    if code is not None:
        load_code(code)
    return Descriptions(
        clusters=_files(clusters, "clusters"),
        cards=_files(cards, "cards"),
        clusters_in=None if clusters is None else Path(clusters),
        cards_in=None if cards is None else Path(cards),
        code=code,
    )


def _files(directory: str | Path | None, what: str) -> Mapping[str, Path]:
    if directory is None:
        return NONE
    paths = {path.stem: path.resolve() for path in sorted(Path(directory).glob("*.toml"))}
    if not paths:
        raise InputError(f"--{what} {directory}: no directory with .toml files")
    return paths
