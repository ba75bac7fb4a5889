"""Topologies: literal links, capacities and routes of small clusters, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import simpy

from halocast.base.errors import InputError
from halocast.cluster.catalogue import (
    Cluster,
    Gloo,
    LeafSpine,
    LinkKind,
    Nccl,
    Nic,
    Nvlink,
    Pcie,
    Per,
    Transport,
    Wire,
    enlarged,
    list_clusters,
    load_cluster,
    load_device,
)
from halocast.cluster.topology import build_topology
from halocast.sim.network.links import SharedLinks

STAR = Cluster(
    name="round",
    description="",
    source="",
    hosts=(0, 0, 0, 0, 1, 1, 1, 1),
    devices=(load_device("t4"),) * 8,
    transport=Transport.NCCL,
    pcie=Pcie(bytes_per_s=100.0, latency_s=0.5),
    nvlink=None,
    nic=Nic(bytes_per_s=10.0, latency_s=3.0),
    gloo=Gloo(stream_bytes_per_s=10.0, host_bytes_per_s=50.0, latency_s=1.0),
    nccl=Nccl(efficiency=0.5, latency_s=2.0),
)
SWITCHES = Pcie(bytes_per_s=100.0, latency_s=0.5, devices_per_switch=2, switch_bytes_per_s=120.0)
TREE = replace(STAR, pcie=SWITCHES)
ROOT = replace(STAR, pcie=replace(SWITCHES, root_bytes_per_s=150.0))
PORTS = replace(STAR, nic=Nic(bytes_per_s=10.0, latency_s=3.0, per=Per.DEVICE))


def names(cluster: Cluster, a: str, b: str) -> list[str]:
    topology = build_topology(cluster)
    return [topology.names[link] for link in topology.route(a, b)]


def rates(cluster: Cluster) -> dict[str, float]:
    topology = build_topology(cluster)
    return dict(zip(topology.names, topology.capacity, strict=True))


def wire(a: str, b: str, kind: LinkKind = LinkKind.NETWORK, *, both: bool = True, rate: float = 100.0) -> Wire:
    return Wire(ends=(a, b), kind=kind, both=both, bytes_per_s=rate, latency_s=1.0)


def copied(cluster: Cluster, ranks: Sequence[int]) -> list[float]:
    """When 100 bytes of each rank, all started at 0, are in the memory of host 0."""
    env = simpy.Environment()
    links = SharedLinks(env, cluster)
    ends: list[float] = []
    for rank in ranks:
        links.store(rank, 100, lambda: ends.append(round(env.now, 9)))
    env.run()
    return ends


def test_devices_of_a_star_meet_at_their_host() -> None:
    assert names(STAR, "gpu 0", "gpu 1") == ["gpu 0 > host 0", "host 0 > gpu 1"]
    assert names(STAR, "gpu 0", "gpu 4") == ["gpu 0 > host 0", "host 0 > network", "network > host 1", "host 1 > gpu 4"]
    assert build_topology(STAR).latency(build_topology(STAR).route("gpu 0", "gpu 4")) == 0.5 + 3 + 0.5


def test_peers_under_one_switch_do_not_touch_its_uplink() -> None:
    assert names(TREE, "gpu 0", "gpu 1") == ["gpu 0 > pcie 0.0", "pcie 0.0 > gpu 1"]
    assert names(TREE, "gpu 1", "gpu 2") == [
        "gpu 1 > pcie 0.0",
        "pcie 0.0 > host 0",
        "host 0 > pcie 0.1",
        "pcie 0.1 > gpu 2",
    ]
    assert rates(TREE)["pcie 0.0 > host 0"] == rates(TREE)["host 0 > pcie 0.0"] == 120


def test_a_root_complex_counts_bytes_in_and_bytes_out() -> None:
    assert names(ROOT, "gpu 1", "host 0") == ["gpu 1 > pcie 0.0", "pcie 0.0 > root 0 in", "root 0 in > host 0"]
    assert names(ROOT, "host 0", "gpu 1") == ["host 0 > root 0 out", "root 0 out > pcie 0.0", "pcie 0.0 > gpu 1"]
    between = names(ROOT, "gpu 1", "gpu 2")
    assert between[2:4] == ["root 0 in > host 0", "host 0 > root 0 out"]
    assert rates(ROOT)["root 0 in > host 0"] == rates(ROOT)["host 0 > root 0 out"] == 150
    assert names(ROOT, "gpu 0", "gpu 1") == ["gpu 0 > pcie 0.0", "pcie 0.0 > gpu 1"]


def test_two_devices_of_a_switch_get_half_of_its_uplink_each() -> None:
    assert copied(TREE, [0]) == [0.5 + 100 / 100]
    assert copied(TREE, [0, 1]) == [round(0.5 + 100 / 60, 9)] * 2
    assert copied(TREE, [0, 2]) == [0.5 + 100 / 100] * 2


def test_all_devices_of_a_host_share_its_root_complex() -> None:
    assert copied(ROOT, [0, 2]) == [round(0.5 + 100 / 75, 9)] * 2
    assert copied(ROOT, [0, 1, 2, 3]) == [round(0.5 + 100 / 37.5, 9)] * 4


@pytest.mark.parametrize(("groups", "least", "most"), [(((0, 1), (2, 3)), 156, 159), (((0, 1, 2, 3),), 99, 101.5)])
def test_all_to_all_within_a_host_is_as_fast_as_measured(
    groups: tuple[tuple[int, ...], ...], least: float, most: float
) -> None:
    """Measured on the A5000 testbed, Gb/s per GPU: 156 to 159 in pairs, 100 to 101.4 in fours."""
    env = simpy.Environment()
    links = SharedLinks(env, load_cluster("a5000-2x4-pcie4-ib200"))
    ends: list[float] = []
    for group in groups:
        sent = np.full(len(group) - 1, 10**10 // (len(group) - 1))
        for rank in group:
            others = np.array([other for other in group if other != rank])
            links.send(rank, others, sent, lambda _, times: ends.append(float(times.max())))
    env.run()
    assert least < 8 * 10 / max(ends) < most


def test_nvlink_is_a_switch_or_groups_of_direct_links() -> None:
    switch = replace(STAR, nvlink=Nvlink(bytes_per_s=400.0, latency_s=0.25))
    assert names(switch, "gpu 0", "gpu 3") == ["gpu 0 > nvswitch 0", "nvswitch 0 > gpu 3"]
    groups = replace(STAR, nvlink=Nvlink(bytes_per_s=400.0, latency_s=0.25, groups=((0, 1, 2),)))
    assert names(groups, "gpu 0", "gpu 2") == ["gpu 0 > gpu 2"]
    assert names(groups, "gpu 6", "gpu 5") == ["gpu 6 > gpu 5"]
    assert names(groups, "gpu 2", "gpu 3") == ["gpu 2 > host 0", "host 0 > gpu 3"]
    assert build_topology(groups).latency(build_topology(groups).route("gpu 0", "gpu 2")) == 0.25


def test_a_device_is_no_way_to_another() -> None:
    """gpu 0 - gpu 1 - gpu 2 by NVLink would be faster than PCIe, but gpu 1 does not forward."""
    chain = replace(STAR, nvlink=Nvlink(bytes_per_s=1e9, latency_s=0.0, groups=((0, 1), (1, 2))))
    assert names(chain, "gpu 0", "gpu 2") == ["gpu 0 > host 0", "host 0 > gpu 2"]


def test_a_port_per_device_leaves_host_memory_out() -> None:
    assert names(PORTS, "gpu 0", "gpu 4") == [
        "gpu 0 > nics 0",
        "nics 0 > network",
        "network > nics 1",
        "nics 1 > gpu 4",
    ]
    assert names(PORTS, "host 0", "host 1") == [
        "host 0 > nics 0",
        "nics 0 > network",
        "network > nics 1",
        "nics 1 > host 1",
    ]
    found = rates(PORTS)
    assert (found["gpu 0 > nics 0"], found["host 0 > nics 0"], found["nics 0 > network"]) == (10, 40, 40)
    assert build_topology(PORTS).latency(build_topology(PORTS).route("gpu 0", "gpu 4")) == 3


def test_ports_are_not_used_within_a_host() -> None:
    assert names(PORTS, "gpu 0", "gpu 1") == ["gpu 0 > host 0", "host 0 > gpu 1"]


def test_ports_of_devices_that_are_not_in_use_still_serve_their_host() -> None:
    assert rates(replace(PORTS, devices=PORTS.devices[:1]))["host 0 > nics 0"] == 40


@pytest.mark.parametrize(("per", "rate"), [(Per.HOST, 2 * 10 / 4), (Per.DEVICE, 2 * 4 * 10 / 4)])
def test_the_way_to_the_spine_is_oversubscribed(per: Per, rate: float) -> None:
    network = LeafSpine(hosts_per_leaf=2, oversubscription=4.0, latency_s=0.25)
    nic = Nic(bytes_per_s=10.0, latency_s=3.0, per=per)
    fat = enlarged(replace(STAR, nic=nic, network=network), 16)
    assert rates(fat)["leaf 0 > spine"] == rates(fat)["spine > leaf 1"] == rate
    port = "host" if per is Per.HOST else "nics"
    assert f"{port} 1 > leaf 0" in rates(fat)
    assert f"{port} 2 > leaf 1" in rates(fat)
    assert names(fat, "host 1", "host 2").count("leaf 0 > spine") == 1
    assert "leaf 0 > spine" not in names(fat, "host 0", "host 1")
    assert build_topology(fat).latency(build_topology(fat).route("host 1", "host 2")) == 3 + 2 * 0.25


def test_hosts_may_differ() -> None:
    t4, a5000 = load_device("t4"), load_device("a5000")
    mixed = replace(TREE, hosts=(0, 0, 0, 1), devices=(t4, t4, a5000, a5000))
    assert [mixed.host(rank) for rank in range(4)] == [0, 0, 0, 1]
    assert names(mixed, "gpu 2", "gpu 3")[:2] == ["gpu 2 > pcie 0.1", "pcie 0.1 > host 0"]
    assert [mixed.device(rank).name for rank in range(4)] == ["t4", "t4", "a5000", "a5000"]


def test_a_cluster_can_be_made_of_links_alone() -> None:
    bare = replace(STAR, pcie=None, nic=None, hosts=(0, 0, 1, 1), devices=STAR.devices[:4])
    cube = replace(
        bare,
        links=(
            *(wire(f"gpu {rank}", f"switch {'ab'[rank // 2]}", LinkKind.PCIE) for rank in range(4)),
            *(wire(f"switch {'ab'[host]}", f"host {host}", LinkKind.PCIE) for host in range(2)),
            wire("switch a", "core"),
            wire("core", "switch b", rate=5.0),
        ),
    )
    assert cube.staged
    assert not bare.staged
    assert names(cube, "gpu 0", "gpu 3") == [
        "gpu 0 > switch a",
        "switch a > core",
        "core > switch b",
        "switch b > gpu 3",
    ]
    assert names(cube, "host 1", "gpu 2") == ["host 1 > switch b", "switch b > gpu 2"]
    assert rates(cube)["core > switch b"] == 5


def test_a_link_may_go_one_way_only() -> None:
    one_way = replace(STAR, links=(wire("gpu 0", "gpu 1", LinkKind.NVLINK, both=False),))
    assert names(one_way, "gpu 0", "gpu 1") == ["gpu 0 > gpu 1"]
    assert names(one_way, "gpu 1", "gpu 0") == ["gpu 1 > host 0", "host 0 > gpu 0"]


def test_links_of_devices_that_are_not_in_use_are_left_out() -> None:
    cut = replace(STAR, devices=STAR.devices[:3], links=(wire("gpu 2", "gpu 3", LinkKind.NVLINK), wire("host 1", "x")))
    assert not {"gpu 2 > gpu 3", "host 1 > x"} & rates(cut).keys()


def test_a_ring_of_network_links_is_no_mistake() -> None:
    ring = replace(STAR, nic=None, links=tuple(wire(f"s{k}", f"s{(k + 1) % 4}") for k in range(4)))
    ring = replace(ring, links=(*ring.links, wire("host 0", "s0"), wire("s1", "host 1")))
    assert names(ring, "host 0", "host 1") == ["host 0 > s0", "s0 > s1", "s1 > host 1"]


def test_a_cycle_of_pcie_links_names_its_nodes() -> None:
    with pytest.raises(InputError, match="cluster round: PCIe is a tree, but these links are a cycle: ") as caught:
        build_topology(replace(ROOT, links=(wire("pcie 0.0", "pcie 0.1", LinkKind.PCIE),)))
    circle = str(caught.value).partition("cycle: ")[2].split(" - ")
    assert circle[0] == circle[-1]
    assert set(circle) == {"pcie 0.0", "pcie 0.1", "root 0"}


def test_a_second_link_between_two_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="there are two links from gpu 0 to host 0; give one with their sum"):
        build_topology(replace(STAR, links=(wire("gpu 0", "host 0", LinkKind.PCIE),)))


def test_a_route_to_nowhere_names_both_ends() -> None:
    apart = build_topology(replace(STAR, nic=None))
    with pytest.raises(InputError, match=r"^cluster round: there is no way from gpu 0 to gpu 4$"):
        apart.route("gpu 0", "gpu 4")
    with pytest.raises(InputError, match="no way from gpu 0 to host 7: there is no host 7"):
        apart.route("gpu 0", "host 7")


def test_routes_come_as_a_table_with_nothing_after_the_last_link() -> None:
    topology = build_topology(TREE)
    targets = ["gpu 0", "gpu 1", "gpu 5"]
    table = topology.routes_from("gpu 0", targets)
    assert table.shape == (3, 6)
    assert table[0].tolist() == [-1] * 6
    assert table[1].tolist() == [*topology.route("gpu 0", "gpu 1"), -1, -1, -1, -1]
    assert table[2].tolist() == list(topology.route("gpu 0", "gpu 5"))


def test_an_enlarged_cluster_repeats_its_hosts() -> None:
    mixed = replace(STAR, hosts=(0, 0, 1), devices=(load_device("t4"), load_device("t4"), load_device("l4")))
    large = enlarged(mixed, 7)
    assert large.hosts == (0, 0, 1, 2, 2, 3, 4, 4, 5)
    assert [large.device(rank).name for rank in range(7)] == ["t4", "t4", "l4", "t4", "t4", "l4", "t4"]
    assert large.num_hosts == 5
    assert names(large, "gpu 6", "host 3")[-1] == "network > host 3"


@pytest.mark.parametrize("name", list_clusters())
def test_all_ranks_of_the_catalogue_reach_each_other(name: str) -> None:
    cluster = load_cluster(name)
    topology = build_topology(cluster)
    kind = "gpu" if cluster.staged else "host"
    nodes = [f"{kind} {k}" for k in range(cluster.num_ranks if cluster.staged else cluster.num_hosts)]
    for node in nodes:
        assert topology.routes_from(node, nodes).shape[0] == len(nodes)
