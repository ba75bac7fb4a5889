"""Clusters by the names that published figures use: `a5000-1x4-pcie4-ib200` is the a5000 cluster with another size."""

import re
from dataclasses import replace

from halocast.base.errors import InputError, unknown
from halocast.base.records import require
from halocast.cluster.catalogue import Cluster, list_clusters, load_cluster
from halocast.cluster.topology import require_reachable

SIZE = re.compile(r"(?P<hosts>\d*)x(?P<devices>\d+)")  # 2x4: hosts and devices of each; x10: one host
MOST_RANKS = 4096  # beyond any published run; a slip would fill the memory


def load_testbed(name: str, *, gpus: int | None, hosts: int | None) -> Cluster:
    """The cluster of a testbed, with as many hosts and GPUs as a run used.

    The size in the name counts where the run's own is not given, that of the cluster's file where neither is.
    """
    cluster = load_cluster(_cluster_name(name))
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


def _cluster_name(testbed: str) -> str:
    """The cluster whose name, but for its size, has all the words of the testbed's."""
    if testbed in list_clusters():
        return testbed
    words = _words(testbed)
    matching = [name for name in list_clusters() if words and words <= _words(name)]
    if len(matching) != 1:
        raise unknown("testbed", testbed, list_clusters())
    return matching[0]


def _words(name: str) -> set[str]:
    return {word for word in name.lower().split("-") if not SIZE.fullmatch(word)}


def _named_size(name: str) -> tuple[int, int] | None:
    for word in name.split("-"):
        if match := SIZE.fullmatch(word):
            return int(match["hosts"] or 1), int(match["devices"])
    return None
