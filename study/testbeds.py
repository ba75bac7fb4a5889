"""Clusters by the names that published figures use: `a5000-1x4-pcie4-ib200` is the a5000 cluster with another size."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from halocast.base.errors import InputError, unknown
from halocast.base.records import require
from halocast.cluster.catalogue import Cluster, list_clusters, load_cluster
from halocast.cluster.topology import require_reachable
from halocast.study.descriptions import NONE

SIZE = re.compile(r"(?P<hosts>\d*)x(?P<devices>\d+)")  # 2x4: hosts and devices of each; x10: one host
REMARK = re.compile(r"\s*\(.*\)\s*$")  # perlmutter (A100 x4 per node)
UNSTATED = frozenset({"", "none"})
MOST_RANKS = 4096  # beyond any published run; a slip would fill the memory


def load_testbed(name: str, *, gpus: int | None, hosts: int | None, own: Mapping[str, Path] = NONE) -> Cluster:
    """The cluster of a testbed, with as many hosts and GPUs as a run used; `own` has files of one's own by name.

    The size in the name counts where the run's own is not given, that of the cluster's file where neither is.
    """
    cluster = _described(*_description(name, own))
    named = _named_size(name)
    require(hosts is None or hosts >= 1, f"nodes = {hosts}: needs to be at least 1")
    if gpus is None:
        gpus = named[0] * named[1] if named else cluster.num_ranks
    require(1 <= gpus <= MOST_RANKS, f"gpus = {gpus}: needs 1 <= gpus <= {MOST_RANKS}")
    most_per_host = named[1] if named else cluster.hosts.count(0)
    if hosts is None:
        hosts = -(-gpus // most_per_host)
    require(hosts <= gpus, f"nodes = {hosts}: more than gpus = {gpus}")
    return resized(cluster, num_hosts=hosts, num_ranks=gpus)


def resized(cluster: Cluster, *, num_hosts: int, num_ranks: int) -> Cluster:
    """The same machine with its ranks spread over so many hosts, as evenly as they come."""
    if cluster.links or len(set(cluster.devices)) > 1:
        raise InputError(f"cluster {cluster.name} names its links or mixes devices, so it has one size only")
    per_host = -(-num_ranks // num_hosts)
    hosts = tuple(rank // per_host for rank in range(num_ranks))
    changed = replace(cluster, hosts=hosts, devices=cluster.devices[:1] * num_ranks)
    require_reachable(changed)
    return changed


@cache
def _described(name: str | Path, changed_ns: int) -> Cluster:
    """A cluster, read once as long as its file does not change."""
    return load_cluster(name)


def _description(testbed: str, own: Mapping[str, Path]) -> tuple[str | Path, int]:
    """The file or the name of the cluster that has the testbed's name, or all of its words but the size; and when its
    file changed. One's own come first; a cluster with no words beyond the testbed's is meant before one with more."""
    known: dict[str, str | Path] = {**{name: name for name in list_clusters()}, **own}
    wanted = REMARK.sub("", testbed).lower()
    require(wanted not in UNSTATED, f"testbed = {testbed!r}: not stated")
    exact = [name for name in known if name.lower() == wanted]
    words = _words(wanted)
    same = [name for name in known if words and words == _words(name)]
    wider = [name for name in known if words and words < _words(name)]
    for matching in (exact, same, wider):
        if len(matching) == 1:
            place = known[matching[0]]
            return place, place.stat().st_mtime_ns if isinstance(place, Path) else 0
    raise unknown("testbed", testbed, known)


def _words(name: str) -> set[str]:
    return {word for word in name.lower().split("-") if not SIZE.fullmatch(word)}


def _named_size(name: str) -> tuple[int, int] | None:
    for word in REMARK.sub("", name).lower().split("-"):
        if match := SIZE.fullmatch(word):
            return int(match["hosts"] or 1), int(match["devices"])
    return None
