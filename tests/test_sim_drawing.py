"""Drawings of clusters: golden text, and figures that are written."""

from dataclasses import replace
from pathlib import Path

import pytest

from halocast.cli import USAGE, run
from halocast.cluster.catalogue import Cluster, LinkKind, Wire, load_cluster
from halocast.cluster.drawing import draw_text
from halocast.cluster.figure import first_hosts

GOLDEN = {
    "rtx2080ti-x10-pcie3": """
host 0
└─ pcie switch 0.0..0.1 x 2: pcie 12 GB/s
   └─ gpu 0..4 x 5 (rtx-2080ti): pcie 12 GB/s, 10 us
""",
    "a5000-2x4-pcie4-ib200": """
network
└─ host 0..1 x 2: network 23 GB/s, 1.5 us
   └─ root 0: pcie 42 GB/s
      └─ pcie switch 0.0..0.1 x 2: pcie 50 GB/s
         └─ gpu 0..1 x 2 (a5000): pcie 25 GB/s, 10 us
""",
    "h100-4x8-nvlink-ib400": """
network
└─ nics 0..3 x 4: network 400 GB/s
   └─ host 0: network 400 GB/s, 1.5 us
      └─ gpu 0..7 x 8 (h100): pcie 50 GB/s, 10 us; nvlink 450 GB/s, 2.5 us to nvswitch; network 50 GB/s, 1.5 us to nics
""",
    "mixed-4-hosts-leaf-spine": """
spine
├─ leaf 0: network 12.5 GB/s, 0.5 us
│  └─ host 0..1 x 2: network 12.5 GB/s, 1.5 us
│     └─ pcie switch 0.0..0.1 x 2: pcie 25 GB/s
│        └─ gpu 0..1 x 2 (a100-40): pcie 25 GB/s, 10 us
└─ leaf 1: network 12.5 GB/s, 0.5 us
   └─ host 2..3 x 2: network 12.5 GB/s, 1.5 us
      └─ pcie switch 2.0: pcie 25 GB/s
         └─ gpu 8..9 x 2 (a5000): pcie 25 GB/s, 10 us; nvlink 50 GB/s, 5 us to gpu
""",
    "v100-32x6": """
network
└─ host 0..31 x 32: network 0.0625 GB/s, 15 us
   └─ gpu 0..5 x 6 (v100-16): pcie 45 GB/s, 10 us; nvlink 45 GB/s, 5 us to 2 x gpu
""",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_cluster_is_drawn_as_a_tree_with_equal_branches_once(name: str) -> None:
    assert draw_text(load_cluster(name)) == GOLDEN[name].strip()


def wired(*links: Wire) -> Cluster:
    return replace(load_cluster("t4-3x2-15gbe", gpus=4), links=links)


def test_a_cluster_that_is_cut_is_drawn_as_it_is_used() -> None:
    assert draw_text(load_cluster("rtx2080ti-x10-pcie3", gpus=6)).splitlines() == [
        "host 0",
        "├─ pcie switch 0.0: pcie 12 GB/s",
        "│  └─ gpu 0..4 x 5 (rtx-2080ti): pcie 12 GB/s, 10 us",
        "└─ pcie switch 0.1: pcie 12 GB/s",
        "   └─ gpu 5 (rtx-2080ti): pcie 12 GB/s, 10 us",
    ]


def test_cpu_processes_copy() -> None:
    local = load_cluster("cpu-local")
    core = replace(local.device(0), memory_bytes_per_s=8e9, efficiency=replace(local.device(0).efficiency, stream=0.5))
    assert draw_text(replace(local, devices=(core,) * 3)) == "host 0\n└─ process 0..2 x 3 (cpu): copies 2 GB/s"


def test_a_link_of_one_direction_says_which() -> None:
    camera = Wire(ends=("camera", "host 1"), kind=LinkKind.PCIE, bytes_per_s=1e9, latency_s=0.0, both=False)
    assert "   └─ camera: pcie 1 GB/s up" in draw_text(wired(camera)).splitlines()


def test_devices_that_only_meet_each_other_are_trees_of_their_own() -> None:
    link = Wire(ends=("gpu 0", "gpu 1"), kind=LinkKind.NVLINK, bytes_per_s=5e10, latency_s=0.0)
    pair = replace(load_cluster("t4-3x2-15gbe", gpus=2), pcie=None, nic=None, links=(link,))
    assert draw_text(pair).splitlines() == ["host 0", "gpu 0..1 x 2 (t4): nvlink 50 GB/s to gpu"]


@pytest.mark.parametrize(("gpus", "shown", "more"), [(192, 5, 27), (33, 5, 1), (30, 5, 0), (1, 1, 0)])
def test_a_figure_has_as_many_hosts_as_can_be_read(gpus: int, shown: int, more: int) -> None:
    cluster, left_out = first_hosts(load_cluster("v100-32x6", gpus=gpus))
    assert (cluster.num_hosts, left_out) == (shown, more)


def test_one_large_host_is_drawn_whole() -> None:
    large = load_cluster("cpu-local")
    cluster, left_out = first_hosts(replace(large, hosts=(0,) * 48, devices=large.devices * 3))
    assert (cluster.num_ranks, left_out) == (48, 0)


@pytest.mark.parametrize(("name", "start"), [("c.png", b"\x89PNG"), ("deep/c.svg", b"<?xml")])
def test_show_draws_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, start: bytes) -> None:
    path = tmp_path / name
    assert run(["show", "cluster", "h100-4x8-nvlink-ib400", "--figure", str(path)]) == 0
    assert path.read_bytes().startswith(start)
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"figure: {path}"
    assert "└─ nics 0..3 x 4" in out


def test_the_same_figure_twice_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert run(["show", "cluster", "t4-3x2-15gbe", "--figure", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["cluster", "t4-x8-g4dn", "--figure", "c.pdf"], "unknown kind of figure '.pdf' (known: .png, .svg)"),
        (["device", "t4", "--figure", "c.png"], "--figure c.png: only a cluster is drawn, not a device"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused(
    capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    assert run(["show", *args]) == USAGE
    assert said in capsys.readouterr().err
