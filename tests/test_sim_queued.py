"""Queued links: exact where everything starts together, close to fair sharing elsewhere."""

import numpy as np
import pytest
import simpy

from halocast.cluster.catalogue import load_cluster
from halocast.reports.metrics import measure
from halocast.sim.engine import simulate
from halocast.sim.network.links import SharedLinks
from halocast.sim.network.queued import SHARED_RANKS, QueuedLinks, links_for
from halocast.study.predict import scenario_cluster
from halocast.study.scenario import load_scenario
from halocast.study.workload import prepare


def ends(links: type[SharedLinks], sizes: list[int]) -> dict[int, float]:
    """Rank 0 sends these bytes to ranks 1, 2, ... of one host."""
    env = simpy.Environment()
    network = links(env, load_cluster("t4-x8-g4dn", transport="nccl"))
    found: dict[int, float] = {}
    targets = np.arange(1, len(sizes) + 1)
    network.send(
        0, targets, np.array(sizes), lambda names, times: found.update(zip(names.tolist(), times.tolist(), strict=True))
    )
    env.run()
    return found


def test_messages_that_start_together_end_when_the_last_would_under_fair_sharing() -> None:
    sizes = [10**9, 2 * 10**9, 5 * 10**8]
    assert max(ends(QueuedLinks, sizes).values()) == pytest.approx(max(ends(SharedLinks, sizes).values()), rel=1e-9)


def test_small_clusters_share_exactly_and_large_ones_queue() -> None:
    assert links_for(SHARED_RANKS) is SharedLinks
    assert links_for(SHARED_RANKS + 1) is QueuedLinks


@pytest.mark.parametrize(
    ("cluster", "dataset", "gpus"),
    [("rtx2080ti-x10-pcie3", "reddit", 8), ("a5000-2x4-pcie4-ib200", "reddit", 8), ("t4-3x2-15gbe", "yelp", 6)],
)
def test_a_vanilla_epoch_with_queues_is_close_to_one_with_sharing(cluster: str, dataset: str, gpus: int) -> None:
    overrides = [f"graph.dataset={dataset}", f"cluster.name={cluster}", f"cluster.gpus={gpus}"]
    scenario = load_scenario("demo", overrides)
    machine = scenario_cluster(scenario)
    workload = prepare(scenario, gpus)
    seconds = []
    for links in (SharedLinks, QueuedLinks):
        trace = simulate(workload.schedule, machine, 4, network=lambda env, links=links: links(env, machine))  # type: ignore[misc]
        seconds.append(measure(trace, workload.schedule, 2).epoch_s)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.15)


def test_no_exchange_is_faster_than_its_busiest_link() -> None:
    """192 ranks send a million bytes to each other: every NIC carries what its six ranks send to other hosts."""
    cluster = load_cluster("v100-32x6", transport="gloo")
    env = simpy.Environment()
    network = QueuedLinks(env, cluster)
    ends: list[float] = []
    for source in range(192):
        targets = np.array([rank for rank in range(192) if rank != source])
        network.send(source, targets, np.full(191, 10**6), lambda _, times: ends.append(float(times.max())))
    assert cluster.nic is not None
    assert max(ends) >= 6 * 186 * 1e6 / cluster.nic.bytes_per_s
