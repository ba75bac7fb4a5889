"""The methods: each file turns (halo, model, options) into a schedule; METHODS is where they are found."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from halocast.graph.halo import Halo
from halocast.methods import bns, digest, gnnpipe, pipegcn, psc, vanilla
from halocast.models.spec import ModelSpec
from halocast.schedule.ir import Numbers, Schedule


@dataclass(frozen=True, slots=True)
class Method:
    """How to make a method's schedule; `options` is the record its [method] keys are checked against.

    Where parts are chunks, not one per rank, `fit` settles the options that depend on the ranks and layers; `choices`
    are all legal ones, of which a planner may pick. `ranges` are values of options that papers tried, for a planner;
    `share` is the option that says how much is kept of what a method samples. `presets` are options by one word, as its
    paper or its released code has them; a key of another section is written with it ("model.norm").
    """

    make: Callable[[Halo, ModelSpec, Any, Numbers], Schedule]
    options: type[Any]
    summary: str
    fit: Callable[[Any, int, int], Any] | None = None
    choices: Callable[[Any, int, int], Iterator[Any]] | None = None
    ranges: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    share: str | None = None
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def chunks(self) -> bool:
        """Whether parts are chunks: as many as the options say, cut to cost alike, all of them on every rank."""
        return self.fit is not None


METHODS = MappingProxyType(
    {
        "vanilla": Method(
            vanilla.vanilla,
            vanilla.Options,
            "exchange every layer's halo rows and wait for them",
            presets=vanilla.PRESETS,
        ),
        "pipegcn": Method(
            pipegcn.pipegcn,
            pipegcn.Options,
            "exchange while the next epoch computes; rows are stale",
            presets=pipegcn.PRESETS,
        ),
        "pipegcn-f": Method(
            pipegcn.pipegcn, pipegcn.OptionsF, "pipegcn with smoothed features", presets=pipegcn.PRESETS
        ),
        "pipegcn-g": Method(
            pipegcn.pipegcn, pipegcn.OptionsG, "pipegcn with smoothed gradients", presets=pipegcn.PRESETS
        ),
        "digest": Method(
            digest.digest,
            digest.Options,
            "stale rows through a store every N epochs; weights averaged",
            ranges={"interval": (1, 5, 10)},
            presets=digest.PRESETS,
        ),
        "digest-a": Method(
            digest.digest_a,
            digest.AsyncOptions,
            "digest without waiting: weights through the store too",
            ranges={"interval": (1, 5, 10)},
            presets=digest.ASYNC_PRESETS,
        ),
        "bns": Method(
            bns.bns,
            bns.Options,
            "a random share of the halo rows in every epoch, scaled",
            ranges={"rate": (0.01, 0.1, 0.3)},
            share="rate",
            presets=bns.PRESETS,
        ),
        "gnnpipe": Method(
            gnnpipe.gnnpipe,
            gnnpipe.Options,
            "stages of layers, chunks of the graph flow through them",
            fit=gnnpipe.fit,
            choices=gnnpipe.choices,
            presets=gnnpipe.PRESETS,
        ),
        "psc": Method(
            psc.psc,
            psc.Options,
            "rows that sampled edges need, sent tau epochs ahead, features cached",
            ranges={"eps": (0.1, 0.3)},
            share="eps",
            presets=psc.PRESETS,
        ),
        "pipegcn-gf": Method(pipegcn.pipegcn, pipegcn.OptionsGF, "pipegcn with both smoothed", presets=pipegcn.PRESETS),
    }
)


def families() -> list[str]:
    """The first method of each family, in order: variants share the function that makes their schedules."""
    firsts: dict[Any, str] = {}
    for name, method in METHODS.items():
        firsts.setdefault(method.make, name)
    return list(firsts.values())
