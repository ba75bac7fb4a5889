"""Whose program the figures of a source were measured with: the one place where a source's name means something."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from halocast.base.records import read_toml
from halocast.codes.catalogue import OWN


@cache
def _codes() -> dict[str, str]:
    return dict(read_toml(Path(str(files("halocast.study"))) / "sources.toml")["code"])


def is_known(source: str) -> bool:
    """Whether it is known whose program a source measured."""
    return source in _codes()


def code_of(source: str) -> str:
    """The implementation behind a source's figures; ours where nothing is known."""
    return _codes().get(source, OWN)
