"""The choices of a plan: the methods, options, machines, numbers of GPUs and partitioners that [plan] allows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halocast.base.records import require
from halocast.cluster.catalogue import Cluster, list_clusters, load_cluster
from halocast.methods import METHODS, families
from halocast.study.scenario import PlanSection, Scenario, tables_of

ALL = "all"
MOST_CANDIDATES = 100_000
Chosen = Mapping[str, Any]  # options of a method


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """One of the choices; `tables` are its scenario."""

    cluster: str
    gpus: int
    method: str
    options: Chosen
    partitioner: str
    tables: Mapping[str, Any]

    @property
    def group(self) -> tuple[str, str]:
        """The cluster and the method: of the choices that share both, the best is shown."""
        return self.cluster, self.method

    @property
    def chosen(self) -> str:
        """The chosen options as text, and the partitioner where it is not the usual one."""
        named = {**self.options, **({"partitioner": self.partitioner} if self.partitioner != "metis" else {})}
        return ", ".join(f"{key}={value}" for key, value in named.items())

    @property
    def label(self) -> str:
        chosen = self.chosen
        return f"{self.method}{f' ({chosen})' if chosen else ''} on {self.gpus} x {Path(self.cluster).stem}"


def candidates(scenario: Scenario) -> list[Candidate]:
    """All choices of a scenario's [plan], in order."""
    plan, listed = scenario.plan, []
    for name in _clusters(scenario):
        cluster = load_cluster(name, transport=scenario.cluster.transport)
        for gpus, method, partitioner in product(_gpus(plan, cluster), _methods(plan), plan.partitioners):
            for options in _options(plan, method):
                tables = _tables(scenario, name, gpus, method, options, partitioner)
                listed.append(
                    Candidate(
                        cluster=name,
                        gpus=gpus,
                        method=method,
                        options=options,
                        partitioner=str(partitioner),
                        tables=tables,
                    )
                )
                require(len(listed) <= MOST_CANDIDATES, f"more than {MOST_CANDIDATES:,} choices: narrow [plan]")
    require(bool(listed), "nothing to choose from: [plan] leaves no method, cluster or number of GPUs")
    return listed


def _clusters(scenario: Scenario) -> Sequence[str]:
    """The clusters that a plan names; without any, the scenario's own, and without that all of GPUs that are known."""
    own = scenario.cluster.file or scenario.cluster.name
    named = scenario.plan.clusters or ((own,) if own else (ALL,))
    if ALL not in named:
        return list(dict.fromkeys(named))
    known = {name: load_cluster(name) for name in list_clusters()}
    return [name for name, cluster in known.items() if cluster.staged and not cluster.guessed]


def _gpus(plan: PlanSection, cluster: Cluster) -> Iterator[int]:
    """Numbers of GPUs: those asked for that the cluster has; else powers of two and the most that is allowed."""
    most = min(plan.max_gpus, cluster.num_ranks)
    if plan.gpus:
        yield from sorted(num for num in set(plan.gpus) if num <= cluster.num_ranks)
        return
    yield from sorted({most, *(2**k for k in range(most.bit_length()))})


def _methods(plan: PlanSection) -> Sequence[str]:
    return list(dict.fromkeys(plan.methods)) or families()


def _options(plan: PlanSection, name: str) -> Iterator[Chosen]:
    """All combinations of the ranges of a method's options, but for those that keep too little."""
    method = METHODS[name]
    asked = plan.options.get(name, {})
    ranges = {**method.ranges, **asked}
    for chosen in product(*ranges.values()):
        options = dict(zip(ranges, chosen, strict=True))
        if method.share is None or method.share in asked or options[method.share] >= plan.min_rate:
            yield MappingProxyType(options)


def _tables(
    scenario: Scenario, cluster: str, gpus: int, method: str, options: Chosen, partitioner: str
) -> Mapping[str, Any]:
    """The scenario with these choices; options of its own method stay where they are not chosen."""
    tables: dict[str, Any] = dict(tables_of(scenario))
    own = tables["method"] if tables["method"]["name"] == method else {}
    tables["method"] = {**own, "name": method, **options}
    tables["graph"] = {**tables["graph"], "partitioner": str(partitioner)}
    rest = {key: value for key, value in tables["cluster"].items() if key not in ("name", "file")}
    is_file = cluster not in list_clusters()
    tables["cluster"] = {**rest, "file" if is_file else "name": cluster, "gpus": gpus}
    return tables
