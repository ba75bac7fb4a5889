"""The grid of `halocast validate`: which scenarios are both predicted and run, and how each is predicted.

A *case* is one scenario; a *cell* holds the cases that differ in the method only, so that methods can be put in order.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

from halocast.base.errors import unknown
from halocast.base.records import require
from halocast.calibrate.profile import Profile, calibrated
from halocast.cluster.catalogue import Cluster, list_clusters, load_cluster
from halocast.reports.metrics import default_warmup
from halocast.schedule.ir import Schedule
from halocast.schedule.passes import hyperperiod, steady_epochs
from halocast.schedule.text import format_schedule
from halocast.study.scenario import Scenario, format_scenario, load_scenario
from halocast.study.workload import Workload

OWN = "own"  # links: this machine as it is
LOOPBACK = "cpu-local"  # what describes it where it has no GPUs
DIVIDED_RANKS = 4  # the fewest for stages of several ways

# Options with short cycles (every 4 epochs), so that a run of a dozen epochs has whole ones.
METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vanilla": ("method.name=vanilla",),
        "pipegcn": ("method.name=pipegcn",),
        "pipegcn-gf": ("method.name=pipegcn-gf",),
        "bns": ("method.name=bns", "method.rate=0.1"),
        "psc": ("method.name=psc", "method.eps=0.3", "method.refresh=4"),
        "digest": ("method.name=digest", "method.interval=4"),
        "digest-a": ("method.name=digest-a", "method.interval=4"),
        "gnnpipe": ("method.name=gnnpipe", "method.freeze=4"),
        "gnnpipe-hybrid": ("method.name=gnnpipe", "method.freeze=4", "method.ways=2"),
    }
)
LINKS: Mapping[str, str] = MappingProxyType(
    {"200mbit": "cpu-4x1-200mbit", "1gbit": "cpu-4x1-1gbit", "unlimited": "cpu-4x1-unlimited", OWN: LOOPBACK}
)
MODELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sage": ("model.kind=sage",),
        "gcn": ("model.kind=gcn",),
        "gat": ("model.kind=gat",),
    }
)
# Edges between communities so few that rows travel about as long as they take to compute.
GRAPHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sparse": ("graph.nodes=20000", "graph.degree=12", "graph.mixing=0.02", "graph.features=64"),
        "dense": ("graph.nodes=6000", "graph.degree=80", "graph.mixing=0.02", "graph.features=64"),
    }
)
COMMON = ("model.layers=4", "model.hidden=64", "run.threads=1")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """One scenario of the grid, by the words the user chooses it with."""

    link: str
    ranks: int
    model: str
    graph: str
    method: str

    @property
    def cell(self) -> tuple[str, int, str, str]:
        return self.link, self.ranks, self.model, self.graph

    @property
    def name(self) -> str:
        """Also of its files: a graph or a cluster may be a path."""
        parts = (self.link, f"x{self.ranks}", self.model, self.graph, self.method)
        return "_".join(part.strip("/").replace("/", "-") for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    methods: tuple[str, ...] = tuple(METHODS)
    links: tuple[str, ...] = ("200mbit", "1gbit", "unlimited")
    ranks: tuple[int, ...] = (2, 4)
    models: tuple[str, ...] = ("sage", "gcn")
    graphs: tuple[str, ...] = tuple(GRAPHS)
    epochs: int = 12
    rounds: int = 3

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise unknown("method", name, METHODS, "--methods")
        for name in self.models:
            if name not in MODELS:
                raise unknown("model", name, MODELS, "--models")
        for name in self.links:
            if name not in LINKS and name not in list_clusters() and not name.endswith(".toml"):
                raise unknown("link", name, LINKS, "--links: one of these, or a cluster")
        for ranks in self.ranks:
            require(ranks >= 2, f"--ranks {ranks}: communication needs at least 2")
        require(self.epochs >= 2, f"--epochs {self.epochs}: needs to be at least 2, the first ones are warm-up")
        require(self.rounds >= 1, f"--rounds {self.rounds}: needs to be at least 1")

    def cells(self) -> list[list[Case]]:
        """The cases of each cell; stages of two ways need four ranks."""
        places = product(self.links, self.ranks, self.models, self.graphs)
        return [
            [
                Case(link=link, ranks=ranks, model=model, graph=graph, method=method)
                for method in self.methods
                if not (method == "gnnpipe-hybrid" and ranks < DIVIDED_RANKS)
            ]
            for link, ranks, model, graph in places
        ]


QUICK = Grid(
    methods=("vanilla", "pipegcn", "bns", "psc", "digest", "gnnpipe"),
    links=("200mbit", "unlimited"),
    models=("sage",),
    graphs=("sparse",),
    epochs=10,
    rounds=2,
)


def case_scenario(case: Case, overrides: Iterable[str] = ()) -> Scenario:
    graph = GRAPHS.get(case.graph, (f"graph.dataset={case.graph}", "graph.source=data"))
    chosen = (*graph, *MODELS[case.model], *COMMON, *METHODS[case.method], *overrides)
    return load_scenario("demo", [*chosen, f"cluster.name={LOOPBACK}", f"cluster.gpus={case.ranks}"])


def case_cluster(case: Case, num_cores: int | None, profile: Profile | None = None) -> Cluster:
    """As described or measured, on as many cores as one machine has; ranks on GPUs have a device each, and where no
    number is given, hosts are machines of their own."""
    found = load_cluster(LINKS.get(case.link, case.link), gpus=case.ranks)
    here = found if found.staged or num_cores is None else replace(found, shared_cores=num_cores)
    return here if profile is None else calibrated(here, profile)


def measured_epochs(schedule: Schedule, at_least: int) -> tuple[int, int]:
    """(warm-up epochs, epochs in all), of the run and of its simulation: whole cycles before and after the warm-up."""
    period, (steady, _) = hyperperiod(schedule), steady_epochs(schedule)
    warmup = period * -(-max(steady, default_warmup(at_least)) // period)
    return warmup, warmup + period * -(-max(1, at_least - warmup) // period)


def with_epochs(workload: Workload, at_least: int) -> Workload:
    _, epochs = measured_epochs(workload.schedule, at_least)
    scenario = replace(workload.scenario, run=replace(workload.scenario.run, epochs=epochs))
    return replace(workload, scenario=scenario)


def fingerprint(workload: Workload, cluster: Cluster) -> str:
    """Of all that a run depends on: a result of other settings is not taken for one of these.

    Kernels are left out: they say what an op costs, not what it does.
    """
    rates = [] if cluster.nic is None else [cluster.nic.bytes_per_s] * cluster.num_hosts
    ops = tuple(replace(op, work=replace(op.work, kernels=())) for op in workload.schedule.ops)
    schedule = format_schedule(replace(workload.schedule, ops=ops, buffers=()))
    burst_s = 0.0 if cluster.nic is None else cluster.nic.burst_s
    text = f"{format_scenario(workload.scenario)}{schedule}{rates}{burst_s}{cluster.num_hosts}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def chosen_from(grid: Grid, texts: Mapping[str, str], *, epochs: int | None = None, rounds: int | None = None) -> Grid:
    """The grid with the comma-separated choices that were made, the others as they are."""
    words = {name: tuple(word.strip() for word in text.split(",") if word.strip()) for name, text in texts.items()}
    return Grid(
        methods=words.get("methods") or grid.methods,
        links=words.get("links") or grid.links,
        ranks=_numbers(words.get("ranks", ())) or grid.ranks,
        models=words.get("models") or grid.models,
        graphs=words.get("graphs") or grid.graphs,
        epochs=grid.epochs if epochs is None else epochs,
        rounds=grid.rounds if rounds is None else rounds,
    )


def _numbers(words: tuple[str, ...]) -> tuple[int, ...]:
    for word in words:
        require(word.isdecimal(), f"--ranks {word}: needs to be whole numbers such as 2,4")
    return tuple(int(word) for word in words)
