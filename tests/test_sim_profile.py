"""A profile is a file that comes back as it was, and replaces what a cluster says of its devices and transport."""

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import profiles
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.base.kernels import KERNEL_DIMS, KERNEL_LIKE
from halocast.calibrate.profile import (
    FORMAT,
    FitTable,
    Made,
    MessageCosts,
    Overhead,
    ProfileTable,
    calibrated,
    format_profile,
    load_profile,
    write_profile,
)
from halocast.cluster.catalogue import load_cluster
from halocast.schedule.ir import Compute, Exchange, Kernel, Lane, Op, Pull, Schedule
from halocast.sim.cost import op_seconds
from halocast.sim.engine import simulate
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    table = profiles.profile_table(compute_slowdown=1.25)
    found = load_profile(profiles.write(tmp_path / "p.toml", table))
    assert found.table == table
    assert found.source == f"{tmp_path / 'p.toml'} (2026-01-02 03:04 UTC, here)"
    assert format_profile(found.table) == format_profile(table)


NUMBERS = st.floats(0, allow_infinity=False)
SIZES = st.integers(0, 2**62)


def fit_tables(dims: tuple[str, ...]) -> st.SearchStrategy[FitTable]:
    return st.builds(
        FitTable,
        seconds=st.dictionaries(st.text(max_size=9), NUMBERS, max_size=4),
        range=st.fixed_dictionaries(dict.fromkeys(dims, st.tuples(SIZES, SIZES))),
        num_points=SIZES,
        num_held_out=SIZES,
        median_error=NUMBERS,
        p90_error=NUMBERS,
    )


KERNEL_TABLES = st.fixed_dictionaries(
    {kind: fit_tables(dims) for kind, dims in KERNEL_DIMS.items() if kind not in KERNEL_LIKE}
)
COSTS = st.builds(MessageCosts, **dict.fromkeys((f.name for f in fields(MessageCosts)), NUMBERS))
OF_BYTES = fit_tables(("bytes",))
TABLES = st.builds(
    ProfileTable,
    made=st.builds(
        Made, format=st.just(FORMAT), last_cache_bytes=SIZES, **dict.fromkeys(("cores", "threads", "ranks"), SIZES)
    ),
    kernels=KERNEL_TABLES,
    warm=st.just({}) | KERNEL_TABLES,
    context=st.dictionaries(st.text(max_size=9), NUMBERS, max_size=4),
    cache_bytes=NUMBERS,
    busy=st.dictionaries(st.text(max_size=9), NUMBERS, max_size=4),
    overhead=st.builds(Overhead, op_s=NUMBERS, communication_op_s=NUMBERS, launch_s=NUMBERS),
    messages=st.none() | COSTS,
    emulated=st.none() | COSTS,
    allreduce=st.none() | OF_BYTES,
    store=st.none() | OF_BYTES,
    copies=st.dictionaries(st.sampled_from(["down", "up"]), OF_BYTES),
)


@given(table=TABLES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_profile_comes_back_to_the_last_digit(
    table: ProfileTable, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("profiles") / "p.toml"
    write_profile(path, table)
    assert load_profile(path).table == table


def test_a_price_is_written_with_all_its_digits() -> None:
    text = format_profile(profiles.profile_table(launch_s=0.1 + 0.2))
    assert "launch = 0.30000000000000004\n" in text


def test_ops_of_a_calibrated_cluster_cost_what_was_measured(tmp_path: Path) -> None:
    profile = load_profile(profiles.write(tmp_path / "p.toml"))
    one, two = (calibrated(load_cluster("cpu-local", gpus=gpus), profile) for gpus in (1, 2))
    kernels = (Kernel("spmm", (5, 5, 9, 8)), Kernel("dropout", (9, 3)), Kernel("gather", (0, 5)))
    op = Op(name="forward.0", rank=0, lane=Lane.COMPUTE, work=Compute(kernels=kernels))
    assert op_seconds(op, one.device(0)) == pytest.approx(1e-4 + 2 * (1e-3 + 1e-5))
    assert op_seconds(op, two.device(0)) == pytest.approx(1e-4 + 2 * (1e-3 + 1e-5) + 0.5e-3)  # the other is busy too
    exchange = replace(op, name="exchange.0", lane=Lane.HALO, work=Exchange(matrix="halo", row_bytes=0))
    assert op_seconds(exchange, two.device(0)) == 2e-4


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


def test_emulated_hosts_have_the_transport_that_was_measured_between_such(tmp_path: Path) -> None:
    plain = profiles.profile_table()
    assert plain.messages is not None
    between = replace(plain.messages, latency_s=7e-5, core_s_per_message=3e-5, core_s_per_step=4e-5)
    profile = load_profile(profiles.write(tmp_path / "p.toml", replace(plain, emulated=between)))
    near, far = (calibrated(load_cluster(name, gpus=2), profile).gloo for name in ("cpu-local", "cpu-4x1-unlimited"))
    assert near is not None
    assert far is not None
    assert (near.latency_s, near.core_s_per_message, near.core_s_per_step) == (5e-5, 0.0, 0.0)
    assert (far.latency_s, far.core_s_per_message, far.core_s_per_step) == (7e-5, 3e-5, 4e-5)
    for name, latency_s in (("cpu-4x1-200mbit", 0.0), ("t4-3x2-15gbe", 30e-6)):  # emulated cables were in the way
        cluster = load_cluster(name, gpus=2)
        of_device = replace(plain, emulated=between, made=replace(plain.made, device=cluster.device(0).name))
        nic = calibrated(cluster, load_profile(profiles.write(tmp_path / "q.toml", of_device))).nic
        assert nic is not None
        assert nic.latency_s == latency_s


def test_ops_take_longer_where_ranks_take_turns_on_a_core(tmp_path: Path) -> None:
    table = replace(profiles.profile_table(), turns=1.25, context={"spmm": 2.0})
    profile = load_profile(profiles.write(tmp_path / "p.toml", table))
    op = Op(
        name="f.0",
        rank=0,
        lane=Lane.COMPUTE,
        work=Compute(kernels=(Kernel("spmm", (5, 5, 9, 8)),)),
    )
    two, four = (calibrated(load_cluster("cpu-4x1-unlimited", gpus=gpus), profile) for gpus in (2, 4))
    alone = 1e-4 + 1e-5 + 2.0 * 1.5e-3  # as in an op, all cores busy
    assert op_seconds(op, two.device(0)) == pytest.approx(alone)
    assert op_seconds(op, four.device(0)) == pytest.approx(1.25 * alone)


def test_a_kind_that_no_op_had_costs_what_it_does_alone_unless_it_has_another_kinds_price(tmp_path: Path) -> None:
    plain = profiles.profile_table()
    own = replace(plain, kernels={**plain.kernels, "draw": plain.kernels["elementwise"]}, busy={}, overhead=Overhead())
    seconds = {}
    for name, table in (("own", own), ("like", replace(plain, busy={}, overhead=Overhead()))):
        profile = load_profile(profiles.write(tmp_path / "p.toml", replace(table, context={"elementwise": 3.0})))
        measured = calibrated(load_cluster("cpu-local", gpus=1), profile).device(0).measured
        assert measured is not None
        seconds[name] = measured.seconds("draw", (9, 4), 4)
    assert seconds == pytest.approx({"own": 1e-3, "like": 3e-3})


def test_more_ranks_than_were_measured_divide_the_caches(tmp_path: Path) -> None:
    """Two were measured; a kernel takes 1 ms cold and nothing warm, and an epoch touches what caches kept for each."""
    plain = profiles.profile_table()
    warm = {kind: replace(fit, seconds={"launch": 0.0}) for kind, fit in plain.kernels.items()}
    table = replace(plain, warm=warm, cache_bytes=1000.0, cache_ranks=2, busy={}, overhead=Overhead())
    profile = load_profile(profiles.write(tmp_path / "p.toml", table))
    kernel = ("elementwise", (100, 2), 4)
    for ranks, expected in ((2, 0.0), (4, 0.5e-3)):
        measured = calibrated(load_cluster("cpu-4x1-unlimited", gpus=ranks), profile).device(0).measured
        assert measured is not None
        assert measured.touching(1000).seconds(*kernel) == pytest.approx(expected)


def test_rows_of_a_store_are_copied_by_the_core_that_wants_them(tmp_path: Path) -> None:
    """Where that was measured; its rate then stands in place of the memory's."""
    stored = FitTable(
        seconds={"latency": 1e-3, "byte": 1e-6},
        range={"bytes": (1, 10**9)},
        num_points=4,
        num_held_out=2,
        median_error=0.1,
        p90_error=0.2,
    )
    table = replace(profiles.profile_table(), store=stored)
    profile = load_profile(profiles.write(tmp_path / "p.toml", table))
    pull = Op(name="pull.1", rank=0, lane=Lane.STORE, work=Pull(num_bytes=5000))
    trace = simulate(Schedule(num_ranks=1, ops=(pull,)), calibrated(load_cluster("cpu-local", gpus=1), profile), 1)
    assert trace.spans[0].end_s == pytest.approx(2e-4 + 1e-3 + 5e-3)
    far = calibrated(load_cluster("cpu-2x1-200mbit"), profile)  # hosts of their own: rank 1's rows cross the network
    pulls = tuple(replace(pull, rank=rank, work=Pull(num_bytes=25_000_000)) for rank in (0, 1))
    near_s, far_s = (span.end_s for span in simulate(Schedule(num_ranks=2, ops=pulls), far, 1).spans)
    assert far_s == pytest.approx(near_s + 1.0, rel=0.01)


def test_a_profile_of_another_device_is_refused(tmp_path: Path) -> None:
    profile = load_profile(profiles.write(tmp_path / "p.toml", profiles.profile_table("t4")))
    with pytest.raises(InputError, match=r"measured on device 't4', cluster cpu-local has 'cpu'"):
        calibrated(load_cluster("cpu-local"), profile)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[kernels.gemm.range]\nm", "[kernels.gemm.range]\nh", "kernels.gemm.range: needs m, k, n"),
        ("kernels.spmm", "kernels.spnm", "kernels.spnm: known are gemm"),
        ("kernels.spmm", "kernels.sddmm", "kernels.spmm is missing"),
        ("format = 2", "format = 7", "format = 7: this version reads format 2"),
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
    assert summary.basis is not None
    assert str(summary.basis.calibrated).startswith(str(path))
    lines = {line.partition(":")[0]: line for line in summary.basis.outside_range}
    assert {"dropout", "messages"} <= set(lines)
    assert "outside the measured range, the worst by" in lines["messages"]
    wide = predict(load_scenario("demo", [*chosen, f"cluster.profile={profiles.write(tmp_path / 'q.toml')}"]))
    assert wide.summary.basis is not None
    assert wide.summary.basis.outside_range == ()
    plain = predict(load_scenario("demo", chosen[:3])).summary.basis
    assert plain is not None
    assert (plain.calibrated, plain.outside_range) == (None, ())


def test_a_scenarios_profile_is_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    profiles.write(tmp_path / "mine.toml")
    scenario = tmp_path / "s.toml"
    scenario.write_text('[cluster]\nname = "cpu-local"\ngpus = 2\nprofile = "mine.toml"\n', encoding="utf-8")
    assert load_scenario(str(scenario)).cluster.profile == str(tmp_path / "mine.toml")


def test_loading_a_profile_imports_neither_torch_nor_scipy() -> None:
    code = "import sys, halocast.calibrate.profile; print({'torch', 'scipy.optimize'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
