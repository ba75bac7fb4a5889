"""Machine files: what is in the catalogue, what a file means in SI units, and what is refused."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from halocast.base.errors import InputError
from halocast.base.kernels import Numbers
from halocast.cluster.catalogue import (
    Device,
    Efficiency,
    Gloo,
    LeafSpine,
    Nccl,
    Nic,
    Nvlink,
    Pcie,
    Per,
    Summing,
    Transport,
    list_clusters,
    list_devices,
    load_cluster,
    load_device,
)
from halocast.cluster.machine import Streams

GOOD = """
description = "two boxes"
source = "a test"
num_hosts = 2
devices_per_host = 3
device = "t4"
transport = "gloo"
pcie = { gbytes_per_s = 12, latency_us = 10 }
nvlink = { gbytes_per_s = 40, latency_us = 5 }
nic = { gbit_per_s = 10, latency_us = 30 }
gloo = { stream_gbytes_per_s = 0.5, host_gbytes_per_s = 11, latency_us = 80 }
nccl = { efficiency = 0.75, latency_us = 20, remote_gbytes_per_s = 0.25 }
"""

PUBLISHED_GPUS = {  # testbed -> the most GPUs a published row has there
    "rtx2080ti-x10-pcie3": 10,
    "mi60-10gbe": 32,
    "v100-32x6": 192,
    "a5000-2x4-pcie4-ib200": 8,
    "a100-ib100": 12,
    "t4-3x2-15gbe": 6,
    "t4-x8-g4dn": 8,
    "sylvie-pcie3": 4,
}


def written(tmp_path: Path, old: str = "", new: str = "") -> Path:
    assert old in GOOD
    path = tmp_path / "boxes.toml"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    return path


def refusal(path: Path | str, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        load_cluster(path, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_becomes_bytes_and_seconds(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path))
    assert cluster.name == "boxes"
    assert cluster.pcie == Pcie(bytes_per_s=12e9, latency_s=1e-5)
    assert cluster.nvlink == Nvlink(bytes_per_s=40e9, latency_s=5e-6)
    assert cluster.nic == Nic(bytes_per_s=1.25e9, latency_s=3e-5)
    assert cluster.gloo == Gloo(stream_bytes_per_s=5e8, host_bytes_per_s=1.1e10, latency_s=8e-5)
    assert cluster.nccl == Nccl(efficiency=0.75, latency_s=2e-5, remote_bytes_per_s=2.5e8)


@pytest.mark.parametrize("keys", ["bytes_per_s = 1.25e9, latency_s = 3e-5", "gbytes_per_s = 1.25, latency_us = 30"])
def test_links_can_be_given_in_si_units_and_in_other_units(tmp_path: Path, keys: str) -> None:
    path = written(tmp_path, "gbit_per_s = 10, latency_us = 30", keys)
    assert load_cluster(path).nic == Nic(bytes_per_s=1.25e9, latency_s=3e-5)


def test_a_rate_given_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "gbit_per_s = 10", "gbit_per_s = 10, gbytes_per_s = 1.25")
    said = "gbit_per_s and gbytes_per_s are one quantity in two units: give one of them"
    assert refusal(path) == f"{path}.nic: {said}"


STAGED = Gloo(
    stream_bytes_per_s=1.3e9,
    host_bytes_per_s=11e9,
    latency_s=8e-5,
    rank_bytes_per_s=5.2e9,
    streams=Streams.PAIR,
)


def joints(name: str) -> tuple[object, ...]:
    cluster = load_cluster(name)
    return (cluster.pcie, cluster.nvlink, cluster.nic, cluster.network, cluster.gloo, cluster.nccl)


def test_clusters_of_the_catalogue_are_literally_these() -> None:
    """To the last bit: simulated traces are compared exactly."""
    assert joints("cpu-4x1-1gbit") == (
        None,
        None,
        Nic(bytes_per_s=1.25e8, latency_s=2e-5, payload=0.9927, burst_s=0.001),
        None,
        Gloo(stream_bytes_per_s=1.3e9, host_bytes_per_s=1.3e9, latency_s=8e-5),
        None,
    )
    assert joints("mixed-4-hosts-leaf-spine") == (
        Pcie(bytes_per_s=25e9, latency_s=1e-5, devices_per_switch=2, switch_bytes_per_s=25e9),
        None,
        Nic(bytes_per_s=12.5e9, latency_s=3e-6),
        LeafSpine(hosts_per_leaf=2, oversubscription=2.0, latency_s=5e-7),
        STAGED,
        Nccl(efficiency=0.79, latency_s=2e-5, step_s=5e-6, compute_slowdown=1.2),
    )
    assert joints("a5000-2x4-pcie4-ib200") == (
        Pcie(bytes_per_s=25e9, latency_s=1e-5, devices_per_switch=2, switch_bytes_per_s=50e9, root_bytes_per_s=42e9),
        None,
        Nic(bytes_per_s=23e9, latency_s=3e-6, shared=True),
        None,
        STAGED,
        Nccl(efficiency=0.79, latency_s=2e-5, step_s=5e-6, remote_bytes_per_s=7.2e9, compute_slowdown=1.2),
    )
    assert joints("h100-4x8-nvlink-ib400") == (
        Pcie(bytes_per_s=50e9, latency_s=1e-5),
        Nvlink(bytes_per_s=450e9, latency_s=5e-6),
        Nic(bytes_per_s=50e9, latency_s=3e-6, per=Per.DEVICE),
        None,
        STAGED,
        Nccl(efficiency=0.84, latency_s=2e-5, step_s=5e-6, compute_slowdown=1.2),
    )


def test_a_device_of_the_catalogue_is_literally_this() -> None:
    efficiency = Efficiency(
        flops=0.87,
        flops_shared=0.65,
        matrix=0.78,
        gemm_tile=32,
        stream=0.85,
        gather=0.5,
        degree_sigma=1.0,
        spmm_columns=128,
        spmm_entry_clocks=16,
        spmm_row_clocks=24,
        spmm_store=0.59,
        spmm_skew=0.097,
        spmm_blend=3,
    )
    assert load_device("cpu") == Device(
        name="cpu",
        source="measured: one core of a Xeon at 2.80 GHz, torch 2.13 on one thread",
        memory_bytes=4_000_000_000,
        fp32_flops_per_s=1.79e11,
        fp64_flops_per_s=8.96e10,
        memory_bytes_per_s=8e9,
        cache_bytes=1.25e6,
        launch_s=2e-6,
        efficiency=efficiency,
        cache_bytes_per_s=14.5e9,
        fmas_shared=True,
        transports=(Transport.GLOO,),
    )
    h100 = load_device("h100")
    assert (h100.memory_bytes, h100.launch_s, h100.pcie_bytes_per_s) == (80_000_000_000, 8.5e-6, 16 * 3.938e9)
    assert (h100.cache_rate, h100.unit_clocks_per_s, h100.matrix_share) == (9.8e12, 67e12 / 256, 0.8)


def test_a_cache_of_unknown_rate_is_as_fast_as_memory() -> None:
    gaudi = load_device("gaudi2")
    assert gaudi.cache_bytes_per_s is None
    assert gaudi.cache_rate == gaudi.memory_bytes_per_s == 2.46e12


def test_a_transport_says_how_it_overlaps_and_reduces(tmp_path: Path) -> None:
    gloo = "latency_us = 80, chunk_mbytes = 2, compute_slowdown = 1.5, transfer_slowdown = 1.25"
    cluster = load_cluster(written(tmp_path, "latency_us = 80", gloo))
    assert cluster.gloo is not None
    assert (cluster.gloo.chunk_bytes, cluster.gloo.compute_slowdown, cluster.gloo.transfer_slowdown) == (2e6, 1.5, 1.25)
    cluster = load_cluster(written(tmp_path, "latency_us = 20", 'latency_us = 20, allreduce = "tree"'))
    assert cluster.nccl is not None
    assert cluster.nccl.allreduce is Summing.TREE


def test_ranks_fill_hosts_in_order(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path))
    assert cluster.num_ranks == 6
    assert [cluster.host(rank) for rank in range(6)] == [0, 0, 0, 1, 1, 1]
    assert cluster.same_host(0, 2)
    assert not cluster.same_host(2, 3)
    assert {cluster.device(rank).name for rank in range(6)} == {"t4"}


def test_gpus_cuts_the_cluster_to_its_first_ranks(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path), gpus=4)
    assert [cluster.host(rank) for rank in range(cluster.num_ranks)] == [0, 0, 0, 1]


def test_a_rank_that_is_not_in_use_has_no_device(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"rank 4 is not in 0\.\.3"):
        load_cluster(written(tmp_path), gpus=4).device(4)


def test_the_transport_of_the_file_can_be_replaced(tmp_path: Path) -> None:
    assert load_cluster(written(tmp_path)).transport is Transport.GLOO
    assert load_cluster(written(tmp_path), transport="nccl").transport is Transport.NCCL


@pytest.mark.parametrize("name", PUBLISHED_GPUS)
def test_every_published_testbed_loads_with_its_gpus(name: str) -> None:
    gpus = PUBLISHED_GPUS[name]
    assert load_cluster(name, gpus=gpus).num_ranks == load_cluster(name).num_ranks == gpus


def test_the_catalogue_has_the_testbeds_this_machine_and_some_to_plan_with() -> None:
    extra = {"cpu-local", "h100-4x8-nvlink-ib400", "l4-8x1-25gbe", "mixed-4-hosts-leaf-spine"}
    assert extra | PUBLISHED_GPUS.keys() <= set(list_clusters())
    assert list_clusters() == tuple(sorted(list_clusters()))


@pytest.mark.parametrize("name", list_clusters())
def test_every_cluster_of_the_catalogue_is_described(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert len(cluster.description) > 20
    assert len(cluster.source) > 20


@pytest.mark.parametrize("name", [name for name in list_clusters() if name != "v100-32x6" and load_cluster(name).pcie])
def test_no_host_link_is_faster_than_the_slot_of_its_device(name: str) -> None:
    """Power9 reaches its V100s by NVLink."""
    cluster = load_cluster(name)
    assert cluster.pcie is not None
    for device in cluster.devices:
        assert device.pcie_bytes_per_s is not None
        assert cluster.pcie.bytes_per_s <= device.pcie_bytes_per_s


@pytest.mark.parametrize("name", list_devices())
def test_every_device_loads_with_plausible_figures(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    assert device.source.startswith(("spec sheet: ", "data sheet, ", "second hand, not verified: ", "measured: "))
    assert 4e9 <= device.memory_bytes <= 300e9
    assert device.fp64_flops_per_s <= device.fp32_flops_per_s <= 250e12
    assert device.cache_bytes < 3e8 < device.memory_bytes_per_s < 9e12
    assert 1e-6 <= device.launch_s <= 1e-5
    assert 1 <= device.cache_rate / device.memory_bytes_per_s < 7
    if device.unit_clocks_per_s is not None:  # a GPU has 20 to 320 units at 0.9 to 3 GHz
        assert 20 * 0.9e9 < device.unit_clocks_per_s < 320 * 3e9
    for fast in filter(None, (device.tf32_flops_per_s, device.bf16_flops_per_s)):
        assert device.fp32_flops_per_s <= fast <= 40 * device.fp32_flops_per_s


def test_a_device_is_its_spec_sheet_in_si_units() -> None:
    device = load_device("rtx-2080ti")
    assert device.memory_bytes == 11_000_000_000
    assert device.flops_per_s(Numbers.FLOAT32) == pytest.approx(13.45e12)
    assert device.flops_per_s(Numbers.FLOAT64) == pytest.approx(0.42e12)
    assert device.memory_bytes_per_s == 616e9
    assert device.cache_bytes == 5.5e6
    assert device.pcie_bytes_per_s == pytest.approx(15.76e9)
    cpu = load_device("cpu")
    assert cpu.pcie_bytes_per_s is None
    assert cpu.launch_s == 2e-6
    assert (device.transports, cpu.transports) == (tuple(Transport), (Transport.GLOO,))


def test_the_catalogue_shares_one_set_of_efficiencies() -> None:
    assert len({load_device(name).efficiency for name in list_devices()}) == 1


def test_a_device_without_tensor_rates_computes_bf16_and_tf32_products_at_its_fp32_rate() -> None:
    device = load_device("t4")
    assert device.flops_per_s(Numbers.BFLOAT16) == device.flops_per_s(Numbers.TF32) == pytest.approx(8.1e12)


def test_an_a100_has_the_dense_rates_of_its_tensor_cores() -> None:
    device = load_device("a100-80")
    rates = [device.flops_per_s(numbers) for numbers in (Numbers.FLOAT32, Numbers.TF32, Numbers.BFLOAT16)]
    assert rates == pytest.approx([19.5e12, 156e12, 312e12])


@pytest.mark.parametrize(
    ("old", "new", "place", "problem"),
    [
        ("gbit_per_s = 10", "gbits_per_s = 10", ".nic", "unknown key 'gbits_per_s'; did you mean 'gbit_per_s'?"),
        ("devices_per_host", "device_per_host", "", "unknown key 'device_per_host'; did you mean 'devices_per_host'?"),
        ("num_hosts = 2", 'num_hosts = "2"', ".num_hosts", "expected a whole number, got '2'"),
        ("latency_us = 10", "latency_us = true", ".pcie.latency_us", "expected a number, got True"),
        ("num_hosts = 2", "num_hosts = 0", "", "num_hosts = 0: needs to be a number above 0"),
        ("gbytes_per_s = 12", "gbytes_per_s = -1", ".pcie", "gbytes_per_s = -1.0: needs to be a number above 0"),
        ("gbit_per_s = 10", "gbit_per_s = 0", ".nic", "gbit_per_s = 0.0: needs to be a number above 0"),
        ("gbit_per_s = 10", "gbit_per_s = nan", ".nic.gbit_per_s", "expected a finite number, got nan"),
        ("latency_us = 30", "latency_us = -3", ".nic", "latency_us = -3.0: needs to be a number at least 0"),
        ("efficiency = 0.75", "efficiency = 1.5", ".nccl", "efficiency = 1.5: a fraction of a peak needs to be at"),
        ("s = 0.25", "s = -2", ".nccl", "remote_gbytes_per_s = -2.0: needs to be a number above 0"),
        ('device = "t4"', 'device = "a500"', ".device", "unknown device 'a500'; did you mean 'a5000'?"),
        ('transport = "gloo"', 'transport = "glo"', ".transport", "unknown value 'glo'; did you mean 'gloo'?"),
        ("us = 80", "us = 80, chunk_mbytes = 0", ".gloo", "chunk_mbytes = 0.0: needs to be a number above 0"),
        (
            "us = 80",
            "us = 80, compute_slowdown = 0.5",
            ".gloo",
            "compute_slowdown = 0.5: needs to be a number at least 1",
        ),
        ("us = 20", "us = 20, transfer_slowdown = 0.5", ".nccl", "transfer_slowdown = 0.5: needs to be a number at le"),
        ("us = 20", 'us = 20, allreduce = "rings"', ".nccl.allreduce", "unknown value 'rings'; did you mean 'ring'?"),
        ('source = "a test"', "", "", "missing key 'source'"),
        ("nic = {", "#", "", "num_hosts = 2 needs a [nic] table"),
        ("pcie = {", "#", "", "[nccl] needs a [pcie] table"),
        ("gloo = {", "#", "", "transport 'gloo' needs a [gloo] table (the file has: [nccl])"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, old: str, new: str, place: str, problem: str) -> None:
    path = written(tmp_path, old, new)
    assert refusal(path).startswith(f"{path}{place}: {problem}")


def test_a_latency_of_zero_is_legal(tmp_path: Path) -> None:
    assert load_cluster(written(tmp_path, "latency_us = 30", "latency_us = 0")).nic == Nic(
        bytes_per_s=1.25e9, latency_s=0
    )


@pytest.mark.parametrize("gpus", [-1, 0, 7])
def test_gpus_outside_the_cluster_name_the_maximum(tmp_path: Path, gpus: int) -> None:
    path = written(tmp_path)
    assert refusal(path, gpus=gpus) == f"gpus = {gpus}: cluster boxes has 1 to 6 ({path})"


def test_an_unknown_transport_is_refused(tmp_path: Path) -> None:
    said = refusal(written(tmp_path), transport="ncll")
    assert said == "unknown transport 'ncll'; did you mean 'nccl'? (known: gloo, nccl)"


def test_a_transport_the_machine_lacks_is_refused() -> None:
    assert re.search(r"transport 'nccl' needs a \[nccl\] table", refusal("mi60-10gbe", transport="nccl"))
    said = refusal("cpu-local", transport="nccl")
    assert said.endswith("cpu-local.toml: device cpu does not support transport 'nccl' (it has: gloo)")


def test_a_missing_file_and_an_unknown_name_are_told_apart(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.toml"
    assert refusal(missing) == refusal(str(missing)) == f"no such file: {missing}"
    assert "unknown cluster 'a100-ib10'; did you mean 'a100-ib100'?" in refusal("a100-ib10")
    assert "unknown cluster 'devices'" in refusal("devices")  # the one file there that is no cluster


def test_an_unknown_device_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^unknown device 'a500'; did you mean 'a5000'\?"):
        load_device("a500")


def test_importing_the_simulator_does_not_import_torch() -> None:
    code = (
        "import sys; import halocast.cluster.catalogue, halocast.sim.cost, halocast.sim.network.links; "
        "print(sorted({'torch', 'dgl', 'halocast.sim.network.links'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['halocast.sim.network.links']"
