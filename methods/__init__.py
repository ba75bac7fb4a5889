"""The methods: each file turns (halo, model, options) into a schedule; METHODS is where they are found."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from halocast.graph.halo import Halo
from halocast.methods import digest, pipegcn, vanilla
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Schedule


@dataclass(frozen=True, slots=True)
class Method:
    """How to make a method's schedule; `options` is the record its [method] keys are checked against."""

    make: Callable[[Halo, ModelSpec, Any, int], Schedule]
    options: type[Any]
    summary: str


METHODS = MappingProxyType(
    {
        "vanilla": Method(vanilla.vanilla, vanilla.Options, "exchange every layer's halo rows and wait for them"),
        "pipegcn": Method(pipegcn.pipegcn, pipegcn.Options, "exchange while the next epoch computes; rows are stale"),
        "pipegcn-f": Method(pipegcn.pipegcn, pipegcn.OptionsF, "pipegcn with smoothed features"),
        "pipegcn-g": Method(pipegcn.pipegcn, pipegcn.OptionsG, "pipegcn with smoothed gradients"),
        "digest": Method(digest.digest, digest.Options, "stale rows through a store every N epochs; weights averaged"),
        "digest-a": Method(
            digest.digest_a, digest.AsyncOptions, "digest without waiting: weights through the store too"
        ),
        "pipegcn-gf": Method(pipegcn.pipegcn, pipegcn.OptionsGF, "pipegcn with both smoothed"),
    }
)
