"""A profile is a file that comes back as it was, and replaces what a cluster says of its devices and transport."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import profiles
import pytest

from halocast.base.errors import InputError
from halocast.plan.predict import predict
from halocast.plan.scenario import load_scenario
from halocast.schedule.ir import Kernel, Kind, Lane, Op, Work
from halocast.sim.cluster import load_cluster
from halocast.sim.cost import op_seconds
from halocast.sim.profile import calibrated, format_profile, load_profile


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    table = profiles.profile_table(compute_slowdown=1.25)
    found = load_profile(profiles.write(tmp_path / "p.toml", table))
    assert found.table == table
    assert found.source == f"{tmp_path / 'p.toml'} (2026-01-02 03:04 UTC, here)"
    assert format_profile(found.table) == format_profile(table)


def test_ops_of_a_calibrated_cluster_cost_what_was_measured(tmp_path: Path) -> None:
    profile = load_profile(profiles.write(tmp_path / "p.toml"))
    one, two = (calibrated(load_cluster("cpu-local", gpus=gpus), profile) for gpus in (1, 2))
    kernels = (Kernel("spmm", (5, 5, 9, 8)), Kernel("dropout", (9, 3)), Kernel("gather", (0, 5)))
    op = Op(name="forward.0", rank=0, lane=Lane.COMPUTE, kind=Kind.COMPUTE, work=Work(kernels=kernels))
    assert op_seconds(op, one.device(0), 4) == pytest.approx(1e-4 + 2 * (1e-3 + 1e-5))
    assert op_seconds(op, two.device(0), 4) == pytest.approx(1e-4 + 2 * (1e-3 + 1e-5) + 0.5e-3)  # the other is busy too
    exchange = replace(op, name="exchange.0", lane=Lane.HALO, kind=Kind.EXCHANGE, work=Work())
    assert op_seconds(exchange, two.device(0), 4) == 2e-4


def test_the_transport_is_the_measured_one_and_the_nic_stays_the_clusters(tmp_path: Path) -> None:
    table = profiles.profile_table(compute_slowdown=2.0, transfer_slowdown=4.0)
    profile = load_profile(profiles.write(tmp_path / "p.toml", table))
    local, remote = load_cluster("cpu-local", gpus=2), load_cluster("cpu-2x1-200mbit")
    gloo = calibrated(local, profile).gloo
    assert gloo is not None
    assert (gloo.latency_s, gloo.stream_bytes_per_s, gloo.host_bytes_per_s) == (5e-5, 2e9, 3e9)
    assert (gloo.compute_slowdown, gloo.transfer_slowdown) == (2.0, 4.0)
    slow = calibrated(remote, profile)
    assert slow.nic == remote.nic
    assert slow.gloo is not None
    assert slow.gloo.compute_slowdown == pytest.approx(
        1 + 25e6 / 0.5e9
    )  # 200 Mbit/s of the 0.5 GB/s it was measured at


def test_a_profile_of_another_device_is_refused(tmp_path: Path) -> None:
    profile = load_profile(profiles.write(tmp_path / "p.toml", profiles.profile_table("t4")))
    with pytest.raises(InputError, match=r"measured on device 't4', cluster cpu-local has 'cpu'"):
        calibrated(load_cluster("cpu-local"), profile)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[kernels.gemm.range]\nm = [1, 1000000000]", "[kernels.gemm.range]", "kernels.gemm.range: needs m, k, n"),
        ("kernels.spmm", "kernels.spnm", "kernels.spnm: known are gemm"),
        ("kernels.spmm", "kernels.sddmm", "kernels.spmm is missing"),
        ("format = 1", "format = 7", "format = 7: this version reads format 1"),
        ("launch = 0.001", "launch = -1.0", "a price needs to be at least 0"),
        ("cores = 2", 'cores = "2"', "expected a whole number"),
    ],
)
def test_a_broken_profile_is_refused_with_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = profiles.write(tmp_path / "p.toml")
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_profile(path)


def test_a_prediction_says_its_profile_and_what_leaves_the_measured_range(tmp_path: Path) -> None:
    path = profiles.write(tmp_path / "p.toml", profiles.profile_table(high=5000, high_bytes=1000))
    chosen = ["cluster.name=cpu-local", "cluster.gpus=2", "graph.nodes=400", f"cluster.profile={path}"]
    summary = predict(load_scenario("demo", chosen)).summary
    assert summary["calibrated"].startswith(str(path))
    lines = {line.partition(":")[0]: line for line in summary["outside_range"]}
    assert {"dropout", "messages"} <= set(lines)
    assert "outside the measured range, the worst by" in lines["messages"]
    wide = predict(load_scenario("demo", [*chosen, f"cluster.profile={profiles.write(tmp_path / 'q.toml')}"]))
    assert wide.summary["outside_range"] == []
    plain = predict(load_scenario("demo", chosen[:3])).summary
    assert (plain["calibrated"], plain["outside_range"]) == (None, [])


def test_a_scenarios_profile_is_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    profiles.write(tmp_path / "mine.toml")
    scenario = tmp_path / "s.toml"
    scenario.write_text('[cluster]\nname = "cpu-local"\ngpus = 2\nprofile = "mine.toml"\n', encoding="utf-8")
    assert load_scenario(str(scenario)).cluster.profile == str(tmp_path / "mine.toml")


def test_loading_a_profile_imports_neither_torch_nor_scipy() -> None:
    code = "import sys, halocast.sim.profile; print({'torch', 'scipy.optimize'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
