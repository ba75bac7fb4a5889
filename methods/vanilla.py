"""Vanilla partition parallelism: every exchange is waited for, so training equals a single device's exactly."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from halocast.graph.halo import Halo
from halocast.methods.common import halo_matrices
from halocast.methods.skeleton import Epoch, assemble, meta_of, parts_of
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Numbers, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of vanilla, which has nothing to choose."""


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # no paper of its own


def vanilla(halo: Halo, spec: ModelSpec, options: Options, numbers: Numbers = Numbers.FLOAT32) -> Schedule:
    """The schedule of the skeleton as it stands: what is sent in an epoch is used in it."""
    epochs = [Epoch(part=part) for part in parts_of(halo, spec, numbers)]
    return assemble(epochs, meta_of("vanilla", halo), halo_matrices(halo))
