"""Clusters asked to be otherwise: other rates, devices, hosts and sizes; and what an epoch costs."""

from dataclasses import replace
from pathlib import Path

import pytest

from halocast.base.errors import InputError
from halocast.cluster.catalogue import Cluster, load_cluster
from halocast.study.clusters import scenario_cluster
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario

MACHINES = Path(__file__).parents[1] / "cluster" / "machines"


def cluster(*overrides: str, name: str = "t4-3x2-15gbe") -> Cluster:
    return scenario_cluster(load_scenario("demo", [f"cluster.name={name}", "cluster.gpus=4", *overrides]))


def test_without_overrides_it_is_the_cluster_of_the_catalogue() -> None:
    assert cluster() == load_cluster("t4-3x2-15gbe", gpus=4)


def test_the_nics_may_have_another_rate() -> None:
    nic = cluster("cluster.network_gbps=100").nic
    assert nic is not None
    assert nic.bytes_per_s == 12.5e9


def test_factors_scale_what_they_name_and_nothing_else() -> None:
    before, after = cluster(), cluster("cluster.device_speed=2", "cluster.memory_size=3", "cluster.pcie_speed=4")
    assert before.pcie is not None
    assert after.pcie is not None
    assert after.device(0).fp32_flops_per_s == 2 * before.device(0).fp32_flops_per_s
    assert after.device(0).memory_bytes_per_s == 2 * before.device(0).memory_bytes_per_s
    assert after.device(0).launch_s == before.device(0).launch_s
    assert after.device(0).memory_bytes == 3 * before.device(0).memory_bytes
    assert after.pcie.bytes_per_s == 4 * before.pcie.bytes_per_s
    assert after.nic == before.nic


def test_faster_staging_is_faster_processors_for_gloo() -> None:
    before, after = cluster().gloo, cluster("cluster.staging_speed=2").gloo
    assert before is not None
    assert after is not None
    assert before.rank_bytes_per_s is not None
    rates = (after.stream_bytes_per_s, after.host_bytes_per_s, after.rank_bytes_per_s)
    assert rates == (2 * before.stream_bytes_per_s, 2 * before.host_bytes_per_s, 2 * before.rank_bytes_per_s)
    assert after.latency_s == before.latency_s


def test_a_faster_network_also_lifts_what_one_nccl_flow_reaches() -> None:
    before = cluster(name="a5000-2x4-pcie4-ib200")
    after = cluster("cluster.network_speed=2", name="a5000-2x4-pcie4-ib200")
    assert before.nic is not None
    assert after.nic is not None
    assert after.nic.bytes_per_s == 2 * before.nic.bytes_per_s
    assert before.nccl is not None
    assert after.nccl is not None
    if before.nccl.remote_bytes_per_s is not None:
        assert after.nccl.remote_bytes_per_s == 2 * before.nccl.remote_bytes_per_s


def test_links_that_a_file_names_are_scaled_by_their_kind() -> None:
    before = cluster(name="mixed-4-hosts-leaf-spine")
    after = cluster("cluster.network_speed=2", name="mixed-4-hosts-leaf-spine")
    for old, new in zip(before.links, after.links, strict=True):
        assert new.bytes_per_s == old.bytes_per_s * (2 if old.kind == "network" else 1)


def test_hosts_without_gpus_are_full_and_with_gpus_share_them() -> None:
    full = scenario_cluster(load_scenario("demo", ["cluster.name=t4-3x2-15gbe", "cluster.hosts=5", "cluster.gpus=10"]))
    assert (full.num_hosts, full.num_ranks) == (5, 10)
    assert [cluster("cluster.hosts=4").host(rank) for rank in range(4)] == [0, 1, 2, 3]


def test_another_device_is_everywhere() -> None:
    assert {device.name for device in cluster("cluster.device=h100").devices} == {"h100"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["cluster.network_gbps=-1"], "network_gbps = -1.0: needs to be above 0"),
        (["cluster.pcie_speed=0"], "pcie_speed = 0.0: needs to be above 0"),
        (["cluster.transport=nccl", "cluster.staging_speed=2"], "staging_speed = 2.0: nccl goes from device to device"),
        (["cluster.device=h300"], "unknown device 'h300'"),
        (["cluster.nvlink_speed=2"], "nvlink_speed = 2.0: t4-3x2-15gbe has no such links"),
        (["cluster.name=cpu-local", "cluster.network_gbps=10"], "network_gbps = 10.0: cpu-local has no such links"),
        (["cluster.name=t4-x8-g4dn", "cluster.hosts=2"], "hosts = 2: t4-x8-g4dn has no network between hosts"),
        (["cluster.hosts=1"], "gpus = 4: with hosts = 1, t4-3x2-15gbe has 1 to 2"),
        (["cluster.name=mixed-4-hosts-leaf-spine", "cluster.hosts=2"], "has one size only"),
    ],
)
def test_what_a_cluster_does_not_have_cannot_be_changed(overrides: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        cluster(*overrides)


def test_an_epoch_costs_the_whole_hosts_for_its_time() -> None:
    summary = predict(load_scenario("demo", ["cluster.name=l4-8x1-25gbe", "cluster.gpus=3"]), lean=True).summary
    price = load_cluster("l4-8x1-25gbe").price
    assert price is not None
    assert summary.price is not None
    assert summary.price.price_per_epoch == pytest.approx(3 * price.per_host_hour * summary.epoch_s / 3600)
    assert predict(load_scenario("demo"), lean=True).summary.price is None


def test_a_negative_price_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = (MACHINES / "l4-8x1-25gbe.toml").read_text(encoding="utf-8")
    file.write_text(text.replace("per_host_hour = 2.0144", "per_host_hour = -2"), encoding="utf-8")
    with pytest.raises(InputError, match=r"mine.toml.price: per_host_hour = -2.0: needs to be a number above 0"):
        load_cluster(file)


@pytest.mark.parametrize("method", ["vanilla", "pipegcn", "bns", "psc", "digest-a", "gnnpipe"])
def test_a_lean_prediction_has_the_same_figures(method: str) -> None:
    scenario = load_scenario("demo", ["graph.dataset=reddit", "cluster.gpus=4", f"method.name={method}"])
    whole, lean = predict(scenario).summary, predict(scenario, lean=True).summary
    assert set(whole.as_dict()) - set(lean.as_dict()) == {"critical_path", "bytes_by_link", "link_utilisation"}
    assert lean == replace(whole, critical_path=None, link_load=None)
