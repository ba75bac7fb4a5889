"""Measuring: samples until the spread is known, groups kept as they end, and ranks that measure together."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halocast.base.errors import RunError
from halocast.base.kernels import KERNEL_DIMS, KERNEL_LIKE
from halocast.calibrate.measure.alone import ALONE
from halocast.calibrate.measure.bench import FEWEST, MOST, Limits, is_known, summary, time_it
from halocast.calibrate.measure.machine import GROUPS, OWN, Wanted, measure_here, merged
from halocast.calibrate.measure.messages import COMMUNICATION
from halocast.exec.launch.emulate import Emulation, can_emulate
from halocast.study.calibrate import last_cache_bytes

WHY_NOT = can_emulate()


def test_the_time_taken_is_the_lower_quartile_which_others_do_not_disturb() -> None:
    timing = summary([1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0])
    assert (timing.seconds, timing.repeats) == (1.0, 7)


def test_samples_end_when_their_spread_is_known_and_not_before() -> None:
    assert not is_known([1.0] * (FEWEST - 1))
    assert is_known([1.0] * FEWEST)
    assert not is_known([1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0])


def test_a_sample_repeats_what_is_short_and_warms_up_first() -> None:
    calls: list[str] = []
    timing = time_it(lambda: calls.append("run"), Limits(most_s=0.02, batch_s=1e-4, warmup_s=0.001))
    assert FEWEST <= timing.repeats < len(calls)
    cold: list[str] = []
    timing = time_it(
        lambda: cold.append("run"), Limits(most_s=0.02, warmup_s=0.0), before=lambda: cold.append("before")
    )
    assert cold[:2] == ["run", "run"]
    assert cold[2:] == ["before", "run"] * timing.repeats
    assert timing.repeats <= MOST


def measured(group: str, seconds: float, size: int = 4) -> dict[str, Any]:
    return {"group": group, "kind": group, "dims": [size], "seconds": seconds}


def test_of_several_rounds_the_least_disturbed_time_counts_and_of_ratios_the_middle_one() -> None:
    assert merged([[measured("messages", s), measured("messages", 9 - s, 8)] for s in (3, 1, 2)]) == [
        measured("messages", 1),
        measured("messages", 6, 8),
    ]
    assert merged([[measured("overlap", s)] for s in (3, 1, 2)]) == [measured("overlap", 2)]


def test_every_kind_of_kernel_is_measured_or_like_one_that_is() -> None:
    assert set(OWN) == set(ALONE) | set(COMMUNICATION)
    kinds = {"norm_back", "scatter", "sum_rows", "sddmm", "softmax"} | set(ALONE)  # in groups with other names
    assert {kind for kind in KERNEL_DIMS if kind not in kinds and KERNEL_LIKE.get(kind) not in kinds} == set()


def test_two_processes_measure_messages_and_kernels_and_skip_what_is_done() -> None:
    wanted = {"interpreter", "update", "messages"}
    found: dict[str, list[dict[str, Any]]] = {}
    said: list[str] = []
    measure_here(
        Wanted(num_ranks=2, backend="gloo", device="cpu", quick=True, groups=tuple(wanted)),
        found.__setitem__,
        said.append,
    )
    assert set(found) == wanted
    assert [point["kind"] for point in found["interpreter"]] == ["op", "communication_op"]
    sizes = [point["dims"][0] for point in found["messages"]]
    assert sizes == sorted(sizes)
    assert sizes[0] == 4
    assert all(point["seconds"] > 0 for points in found.values() for point in points)
    assert "update: 1 points" in said
    json.dumps(found)


def test_graphs_built_anew_and_rows_of_a_store_are_measured() -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    wanted = Wanted(num_ranks=1, backend="gloo", device="cpu", quick=True, groups=("build", "store"))
    measure_here(wanted, found.__setitem__, lambda text: None)
    assert {point["kind"] for point in found["build"]} == {"build"}
    assert {bool(point["note"].get("warm")) for point in found["build"]} == {True, False}
    small, large = min(found["build"], key=size), max(found["build"], key=size)
    assert small["seconds"] < large["seconds"]
    assert {point["kind"] for point in found["store"]} == {"store"}


def size(point: dict[str, Any]) -> int:
    return int(point["dims"][0])


@pytest.mark.skipif(WHY_NOT != "", reason=f"no emulated hosts here: {WHY_NOT}")
def test_messages_between_emulated_hosts_are_a_group_of_their_own() -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    wanted = Wanted(num_ranks=2, backend="gloo", device="cpu", quick=True, groups=("emulated allreduces",))
    with Emulation((12.5e9, 12.5e9)) as hosts:
        measure_here(wanted, found.__setitem__, lambda text: None, hosts)
    (points,) = found.values()
    assert {(point["group"], point["kind"]) for point in points} == {("emulated allreduces", "allreduce")}


def test_a_rank_that_fails_is_told_with_its_reason() -> None:
    with pytest.raises(RunError, match=r"rank 0: backend nccl needs CUDA devices|rank 1: backend nccl"):
        measure_here(
            Wanted(num_ranks=2, backend="nccl", device="cuda", quick=True), lambda name, points: None, lambda text: None
        )


def test_an_interruption_keeps_the_groups_that_have_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from profiles import made

    from halocast.study.calibrate import kept_groups, measure_groups

    def interrupted(wanted: Wanted, on_group: Any, say: Any) -> Iterator[None]:
        assert wanted.groups == OWN
        on_group("update", [point])
        raise KeyboardInterrupt

    point = {"group": "update", "kind": "update", "dims": [10, 8], "seconds": 1e-4}
    monkeypatch.setattr("halocast.calibrate.measure.machine.measure_here", interrupted)
    path, machine = tmp_path / "p.points.jsonl", made()
    with pytest.raises(KeyboardInterrupt):
        measure_groups(machine, {}, path, lambda text: None)
    kept = kept_groups(path, machine)
    assert [p.dims for p in kept["update"]] == [(10, 8)]
    assert kept_groups(path, made(ranks=4)) == {}  # another choice: nothing is taken over
    with path.open("a", encoding="utf-8") as file:
        file.write('{"group": "gemm", "poi')  # killed while writing
    assert set(kept_groups(path, machine)) == {"update"}


def test_torchrun_measures_as_well_and_its_first_rank_writes_the_profile(tmp_path: Path) -> None:
    """All groups but the last are kept from a file made by hand, so little is left to measure."""
    from halocast.calibrate.points import MeasuredPoint
    from halocast.calibrate.profile import load_profile
    from halocast.study.calibrate import begin_points, describe_machine

    out = tmp_path / "p.toml"
    points = [
        MeasuredPoint(group="kernels", kind=kind, dims=tuple(size for _ in dims), seconds=1e-6 * size)
        for kind, dims in KERNEL_DIMS.items()
        for size in (1, 10, 100, 1000)
    ]
    kept = {name: points if name == "gemm" else [] for name in (*GROUPS, "ops") if name != "messages"}
    begin_points(out.with_suffix(".points.jsonl"), describe_machine(quick=True, device="cpu", num_ranks=2), kept)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    command = [*torchrun, str(Path(sys.executable).parent / "halocast"), "calibrate", "--quick", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "measuring messages" in done.stderr
    assert "measuring gemm" not in done.stderr
    assert done.stdout.count("profile:") == 1
    profile = load_profile(out)
    assert profile.table.messages is not None
    assert profile.table.made.ranks == 2


def test_the_last_cache_is_the_largest_that_linux_tells(tmp_path: Path) -> None:
    for level, size in enumerate(("48K", "32K", "1024K", "32M")):
        (tmp_path / f"index{level}").mkdir()
        (tmp_path / f"index{level}" / "size").write_text(f"{size}\n", encoding="utf-8")
    assert last_cache_bytes(tmp_path) == 32 * 2**20
    assert last_cache_bytes(tmp_path / "none") == 0
