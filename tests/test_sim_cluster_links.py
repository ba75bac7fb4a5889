"""Files that describe links: what they become, and what is refused, each in one line that names it."""

from pathlib import Path

import pytest

from halocast.base.errors import InputError
from halocast.cli import FAILED, run
from halocast.cluster.catalogue import LinkKind, Wire, load_cluster

FILE = """
description = "two boxes"
source = "a test"
transport = "nccl"
nccl = { efficiency = 0.75, latency_us = 20 }
gloo = { stream_gbytes_per_s = 0.5, host_gbytes_per_s = 11, latency_us = 80 }
"""
PLAIN = 'num_hosts = 2\ndevices_per_host = 2\ndevice = "t4"\n[pcie]\ngbytes_per_s = 12\nlatency_us = 10\n'
LINK = '[[links]]\nends = ["{}", "{}"]\nkind = "{}"\ngbytes_per_s = 12\nlatency_us = 1\n'
NIC = "[nic]\ngbit_per_s = 10\nlatency_us = 1\n"


def refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> str:
    path = tmp_path / "boxes.toml"
    path.write_text(FILE + text, encoding="utf-8")
    assert run(["show", "cluster", str(path)]) == FAILED
    return capsys.readouterr().err.replace(str(path), "PATH").strip()


@pytest.mark.parametrize(
    ("text", "said"),
    {
        "apart": (
            PLAIN + LINK.format("gpu 0", "gpu 1", "nvlink"),
            "cluster boxes: there is no way from gpu 0 to gpu 2",
        ),
        "cycle": (
            PLAIN + NIC + LINK.format("gpu 0", "gpu 1", "pcie"),
            "cluster boxes: PCIe is a tree, but these links are a cycle: host 0 - gpu 0 - gpu 1 - host 0",
        ),
        "zero": (PLAIN.replace("12", "0"), "PATH.pcie: gbytes_per_s = 0.0: needs to be a number above 0"),
        "zero link": (
            PLAIN + LINK.format("gpu 0", "gpu 1", "nvlink").replace("12", "0"),
            "PATH.links[0]: gbytes_per_s = 0.0: needs to be a number above 0",
        ),
        "no such gpu": (
            PLAIN + LINK.format("gpu 0", "gpu 4", "nvlink"),
            "PATH.links[0].ends: 'gpu 4': there are gpu 0 to gpu 3",
        ),
        "no such host": (
            PLAIN + LINK.format("host x", "gpu 0", "nvlink"),
            "PATH.links[0].ends: 'host x': there are host 0 to host 1",
        ),
        "one end": (
            PLAIN + LINK.format("gpu 0", "gpu 0", "nvlink"),
            "PATH.links[0]: ends = ['gpu 0', 'gpu 0']: a link joins two nodes",
        ),
        "kind": (
            PLAIN + LINK.format("gpu 0", "gpu 1", "nvlnk"),
            "PATH.links[0].kind: unknown value 'nvlnk'; did you mean 'nvlink'? (known: network, nvlink, pcie)",
        ),
        "switch": (
            PLAIN + "devices_per_switch = 2\n" + NIC,
            "PATH.pcie: devices_per_switch and switch_gbytes_per_s go together",
        ),
        "group": (
            PLAIN + NIC + "[nvlink]\ngbytes_per_s = 1\nlatency_us = 1\ngroups = [[0, 2]]\n",
            "PATH.nvlink.groups: [0, 2]: devices of a host are 0 to 1",
        ),
        "group of one": (
            PLAIN + NIC + "[nvlink]\ngbytes_per_s = 1\nlatency_us = 1\ngroups = [[0]]\n",
            "PATH.nvlink: groups: [0]: a group is two or more devices of a host, numbered from 0",
        ),
        "group twice": (
            PLAIN + NIC + "[nvlink]\ngbytes_per_s = 1\nlatency_us = 1\ngroups = [[0, 1], [1, 0]]\n",
            "PATH.nvlink: groups: devices 0 and 1 are in 2 groups; give their link once",
        ),
        "per": (
            PLAIN + NIC + 'per = "gpu"\n',
            "PATH.nic.per: unknown value 'gpu' (known: device, host)",
        ),
        "network": (
            PLAIN + LINK.format("host 0", "host 1", "network") + "[network]\nhosts_per_leaf = 2\n",
            "PATH: [network] needs a [nic] table",
        ),
        "oversubscription": (
            PLAIN + NIC + "[network]\nhosts_per_leaf = 2\noversubscription = 0.5\n",
            "PATH.network: oversubscription = 0.5: needs to be a number at least 1",
        ),
        "hosts twice": (
            PLAIN + NIC + '[[hosts]]\ndevices = ["t4"]\n',
            "PATH: num_hosts and [[hosts]] exclude each other",
        ),
        "no hosts": (PLAIN.replace("num_hosts = 2\n", ""), "PATH: missing key 'num_hosts' (or a [[hosts]] table)"),
        "empty host": ("[[hosts]]\ndevices = []\n", "PATH.hosts[0]: devices = []: a host needs at least one"),
        "slot": (
            PLAIN.replace("t4", "cpu").replace("nccl", "gloo") + NIC,
            "PATH.device: device cpu has no PCIe slot, but the file has a [pcie] table",
        ),
        "transport": (
            '[[hosts]]\ndevices = ["t4", "cpu"]\n' + LINK.format("gpu 0", "gpu 1", "nvlink"),
            "PATH: device cpu does not support transport 'nccl' (it has: gloo)",
        ),
    }.values(),
)
def test_a_wrong_topology_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert refusal(tmp_path, capsys, text) == f"error: {said}"


def test_only_ranks_in_use_need_to_reach_each_other(tmp_path: Path) -> None:
    path = tmp_path / "boxes.toml"
    path.write_text(FILE + PLAIN + LINK.format("gpu 0", "gpu 1", "nvlink"), encoding="utf-8")
    assert load_cluster(path, gpus=2).num_ranks == 2
    with pytest.raises(InputError, match="no way from host 0 to host 1"):
        load_cluster(path, transport="gloo")


def test_a_file_with_mixed_hosts_and_links_becomes_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "boxes.toml"
    hosts = '[[hosts]]\ncount = 2\ndevices = ["t4"]\n[[hosts]]\ndevices = ["l4", "a5000"]\n'
    one_way = LINK.format("gpu 2", "gpu 3", "nvlink") + "both = false\n"
    path.write_text(FILE + hosts + PLAIN.partition('"t4"\n')[2] + NIC + one_way, encoding="utf-8")
    cluster = load_cluster(path)
    assert cluster.hosts == (0, 1, 2, 2)
    assert [device.name for device in cluster.devices] == ["t4", "t4", "l4", "a5000"]
    assert cluster.links == (
        Wire(ends=("gpu 2", "gpu 3"), kind=LinkKind.NVLINK, both=False, bytes_per_s=12e9, latency_s=1e-6),
    )
