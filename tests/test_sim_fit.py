"""Prices of terms from points: known ones come back, outliers do not matter, what was held out is told."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.base.kernels import KERNEL_DIMS
from halocast.calibrate.constants import make_profile
from halocast.calibrate.fit import fit_points, split
from halocast.calibrate.points import EMULATED, MeasuredPoint
from halocast.calibrate.profile import Made
from halocast.cluster.measured import Fit, Measured, kernel_terms

GEMM = {"launch": 5e-6, "flop": 1e-11, "byte_left": 2e-11}
STREAM = {"launch": 3e-6, "byte": 1e-10}
SPMM = {"launch": 2e-5, "entry": 1e-9, "byte_read": 4e-12, "byte_missing_4096k": 2e-11}
MADE = Made(
    date="2026-01-02 03:04 UTC",
    host="here",
    device="cpu",
    hardware="a core",
    cores=2,
    threads=1,
    backend="gloo",
    ranks=2,
    quick=False,
    versions={"torch": "2"},
)


def seconds(prices: dict[str, float], kind: str, dims: tuple[int, ...]) -> float:
    terms = kernel_terms(kind, dims, 4)
    return sum(price * terms[name] for name, price in prices.items())


def points(prices: dict[str, float], kind: str, count: int = 60, noise: float = 0.0) -> list[MeasuredPoint]:
    rng = np.random.default_rng(7)
    made = []
    for _ in range(count):
        dims = tuple(int(10 ** rng.uniform(1, 4.5)) for _ in KERNEL_DIMS[kind])
        made.append(
            MeasuredPoint(
                group=kind, kind=kind, dims=dims, seconds=seconds(prices, kind, dims) * (1 + noise * rng.normal())
            )
        )
    return made


@pytest.mark.parametrize(("kind", "prices"), [("gemm", GEMM), ("spmm", SPMM)])
def test_known_prices_come_back(kind: str, prices: dict[str, float]) -> None:
    fit, residuals = fit_points(kind, points(prices, kind))
    assert fit.median_error < 1e-6
    assert fit.p90_error < 1e-6
    assert (fit.num_points, fit.num_held_out) == (40, 20)
    assert len(residuals) == 20
    for dims in [(100,) * len(KERNEL_DIMS[kind]), (30_000,) * len(KERNEL_DIMS[kind])]:
        assert fit.seconds(dims, 4) == pytest.approx(seconds(prices, kind, dims), rel=1e-4)


def test_a_tenth_of_points_far_off_does_not_bend_the_fit() -> None:
    made = points(GEMM, "gemm", noise=0.01)
    spoilt = [
        MeasuredPoint(group="gemm", kind="gemm", dims=p.dims, seconds=p.seconds * (4 if k % 10 == 3 else 1))
        for k, p in enumerate(made)
    ]
    fit, _ = fit_points("gemm", spoilt)
    clean = [p for k, p in enumerate(made) if k % 10 != 3]
    errors = [abs(fit.seconds(p.dims, 4) / seconds(GEMM, "gemm", p.dims) - 1) for p in clean]
    assert float(np.median(errors)) < 0.02
    assert float(np.quantile(errors, 0.9)) < 0.05


def test_errors_are_those_of_points_the_fit_has_not_seen() -> None:
    made = points(GEMM, "gemm", noise=0.05)
    seen, unseen = split(made)
    again, residuals = fit_points("gemm", made)
    assert {r.point.seconds for r in residuals} == {p.seconds for p in unseen}
    assert sorted(p.seconds for p in seen + unseen) == sorted(p.seconds for p in made)
    assert again.median_error == pytest.approx(float(np.median([abs(r.error) for r in residuals])))
    worse = [
        p if p in seen else MeasuredPoint(group="gemm", kind="gemm", dims=p.dims, seconds=p.seconds * 1.5) for p in made
    ]
    _, held = split(worse)
    fit, _ = fit_points("gemm", worse)
    assert len(held) == len(unseen)
    assert fit.median_error > 2 * again.median_error


@given(count=st.integers(3, 50))
def test_a_third_is_held_out_but_neither_the_smallest_nor_the_largest(count: int) -> None:
    made = [MeasuredPoint(group="g", kind="gemm", dims=(k, 1, 1), seconds=k + 1.0) for k in range(count)]
    seen, unseen = split(made)
    assert abs(len(unseen) - count / 3) <= 1
    assert made[0] in seen
    assert made[-1] in seen
    assert not set(map(str, seen)) & set(map(str, unseen))


def test_too_few_points_and_impossible_times_are_refused() -> None:
    with pytest.raises(InputError, match="2 points of gemm: a fit needs at least 3"):
        fit_points("gemm", points(GEMM, "gemm", count=2))
    with pytest.raises(InputError, match=r"gemm: a point of gemm \(1, 2, 3\) took 0 s"):
        MeasuredPoint(group="gemm", kind="gemm", dims=(1, 2, 3), seconds=0)


def fit(kind: str = "elementwise", **prices: float) -> Fit:
    return Fit(
        kind=kind,
        prices=tuple(prices.items()),
        low=(10, 1),
        high=(1000, 3),
        num_points=2,
        num_held_out=1,
        median_error=0.0,
        p90_error=0.0,
    )


@pytest.mark.parametrize(("dims", "times"), [((10, 1), 1), ((1000, 3), 1), ((5, 2), 2), ((4000, 2), 4), ((100, 6), 1)])
def test_how_far_work_is_outside_the_measured_range(dims: tuple[int, int], times: float) -> None:
    assert fit().outside(dims) == times


def test_a_kind_that_was_not_measured_costs_as_much_as_the_one_it_is_like() -> None:
    measured = Measured(kernels=(fit(launch=1.0, byte=0.5),), launch_s=0.25)
    assert measured.seconds("dropout", (10, 3), 4) == 0.25 + 1 + 0.5 * 120
    with pytest.raises(InputError, match="the profile has no gemm"):
        measured.seconds("gemm", (1, 1, 1), 4)


def test_all_cores_busy_cost_as_much_more_as_measured() -> None:
    alone, all_busy = (
        Measured(kernels=(fit(launch=2.0),), busy=(("elementwise", 1.5),), crowd=crowd) for crowd in (0.0, 1.0)
    )
    kernel = ("elementwise", (10, 1), 4)
    assert (alone.seconds(*kernel), all_busy.seconds(*kernel)) == (2.0, 3.0)


def message(kind: str, size: int, seconds: float, **note: float) -> MeasuredPoint:
    return MeasuredPoint(group=kind, kind=kind, dims=(size,), seconds=seconds, note=dict(note))


def test_a_transports_constants_are_those_that_made_the_points() -> None:
    sizes = [4, 400, 40_000, 400_000, 4_000_000, 8_000_000]
    made = [
        *points(GEMM, "gemm", 9),
        *(message("message", size, 5e-5 + size / 2e9) for size in sizes),
        *(message("exchange", size, 1e-4 + size / 3e9, core_s=2 * 3e-5 + size * 4e-10, ranks=2) for size in sizes),
        *(message("allreduce", size, 2e-4 + size / 1e9, ranks=2) for size in sizes),
        *(message("compute_slowdown", 2, ratio) for ratio in (1.1, 1.2, 1.4)),
        *(message("transfer_slowdown", 2, ratio) for ratio in (0.9, 0.95, 0.98)),
    ]
    table, rows = make_profile(MADE, made)
    found = table.messages
    assert found is not None
    assert found.latency_s == pytest.approx(5e-5 - 3e-5, rel=1e-3)  # what cores do for a message is counted there
    assert found.stream_bytes_per_s == pytest.approx(2e9, rel=1e-3)
    assert found.host_bytes_per_s == pytest.approx(3e9, rel=0.1)
    assert (found.core_s_per_byte, found.core_s_per_message) == pytest.approx((4e-10, 3e-5))
    assert found.core_s_per_step == pytest.approx(1e-4 - 2e-5, rel=0.01)  # a step's latency is not its core's
    assert table.emulated is None
    assert (found.compute_slowdown, found.transfer_slowdown) == (1.2, 1.0)
    assert (found.low_bytes, found.high_bytes) == (4, 8_000_000)
    assert table.allreduce is not None
    assert {row.what for row in rows} == {"gemm", "message", "allreduce"}


def test_transports_of_devices_take_no_cores_that_compute() -> None:
    """A thread that waits for a GPU may spin: its core's time is not the message's, whose latency stays whole."""
    sizes = [4, 400, 40_000, 400_000, 4_000_000, 8_000_000]
    made = [
        *(message("message", size, 5e-5 + size / 2e9) for size in sizes),
        *(message("exchange", size, 1e-4 + size / 3e9, core_s=1e-4 + size / 3e9, ranks=2) for size in sizes),
        *(message("allreduce", size, 2e-4 + size / 1e9, ranks=2) for size in sizes),
    ]
    found = make_profile(replace(MADE, device="a100-40", backend="nccl"), made)[0].messages
    assert found is not None
    assert found.latency_s == pytest.approx(5e-5, rel=1e-3)
    assert (found.core_s_per_byte, found.core_s_per_message, found.core_s_per_step) == (0.0, 0.0, 0.0)


def test_where_noise_hides_the_price_of_a_byte_the_rate_is_the_best_that_was_seen() -> None:
    """On a machine that others use, large messages may seem to take no longer than small ones."""
    sizes = [4, 40, 400, 4_000, 40_000, 400_000, 4_000_000]
    points = [
        MeasuredPoint(group="messages", kind="message", dims=(n,), seconds=0.02 - 0.001 * k)
        for k, n in enumerate(sizes)
    ]
    table, _ = make_profile(MADE, points)
    assert table.messages is not None
    assert table.messages.stream_bytes_per_s == pytest.approx(4_000_000 / 0.014)


def test_between_emulated_hosts_a_transport_has_constants_of_its_own_and_steps_of_sums_the_same_extra() -> None:
    sizes = [4, 400, 40_000, 400_000, 4_000_000, 8_000_000]
    made = points(GEMM, "gemm", 9)
    for group, times in (("", 1), (EMULATED, 2)):
        for size in sizes:
            made += [
                in_group(group, message("message", size, times * (5e-5 + size / 2e9))),
                in_group(group, message("exchange", size, 1.0, core_s=times * (2 * 3e-5 + size * 4e-10), ranks=2)),
                in_group(group, message("allreduce", size, times * (2e-4 + size / 1e9), ranks=2)),
            ]
    note = {"what": "allreduce (gcn)", "kernels": [], "ends": 0, "bytes": 0, "ranks": 2}
    made += [
        # an op's extra, and per step: latency, the step by itself, its extra
        MeasuredPoint(
            group="ops", kind="executed_allreduce", dims=(0,), seconds=9e-5 + 2 * (2e-5 + 8e-5 + 7e-5), note=note
        ),
        # a message, its latency, the op's extra
        MeasuredPoint(
            group="ops", kind="executed_exchange", dims=(1,), seconds=3e-5 + 2e-5 + 9e-5, note={**note, "ends": 2}
        ),
    ]
    table, _ = make_profile(MADE, made)
    assert table.messages is not None
    assert table.emulated is not None
    assert table.emulated.core_s_per_message == pytest.approx(2 * table.messages.core_s_per_message)
    steps = table.messages.core_s_per_step, table.emulated.core_s_per_step
    assert steps == pytest.approx((8e-5 + 7e-5, 16e-5 + 7e-5), rel=0.01)
    assert table.overhead.communication_op_s == pytest.approx(9e-5, rel=0.01)


def in_group(prefix: str, point: MeasuredPoint) -> MeasuredPoint:
    return replace(point, group=f"{prefix}{point.group}")


def ops_of(ranks: int, gemm_factor: float, stream_factor: float) -> list[MeasuredPoint]:
    """Ops of a product and an elementwise kernel that take so much longer than alone."""
    ops = []
    for k in range(30):
        gemm, stream = (40 * (k + 1), 64, 64), (30_000 * (1 + k % 7), 3)
        taken = (
            gemm_factor * seconds(GEMM, "gemm", gemm) + stream_factor * seconds(STREAM, "elementwise", stream) + 2e-5
        )
        kernels = [["gemm", list(gemm)], ["elementwise", list(stream)]]
        note = {"what": "forward (sage)", "kernels": kernels, "ranks": ranks}
        ops.append(MeasuredPoint(group="ops", kind="executed", dims=(2,), seconds=taken, note=note))
    return ops


ALONE = [*points(GEMM, "gemm", 30), *points(STREAM, "elementwise", 30)]


def test_a_kind_that_takes_longer_in_ops_has_a_factor_and_others_stay_at_one() -> None:
    table, rows = make_profile(MADE, [*ALONE, *ops_of(1, 1.5, 1.0)])
    assert table.context == pytest.approx({"elementwise": 1.0, "gemm": 1.5}, rel=0.05)
    assert next(row for row in rows if row.what == "executed ops").median_error < 0.01


@pytest.mark.parametrize(("ranks", "factor"), [(1, 1.6), (2, 1.0)])
def test_what_busy_cores_cost_is_not_counted_again_as_what_ops_cost(ranks: int, factor: float) -> None:
    """Ops of two ranks ran while both cores were busy; the same ops of one rank alone would say that ops cost more."""
    busy = MeasuredPoint(group="busy", kind="busy_elementwise", dims=(2,), seconds=1.6)
    table, _ = make_profile(MADE, [*ALONE, busy, *ops_of(ranks, 1.0, 1.6)])
    assert table.context == pytest.approx({"elementwise": factor, "gemm": 1.0}, rel=0.05)


@pytest.mark.parametrize("smallest", [8_000, 9_000, 11_000, 13_000])  # wherever they are among the others
def test_a_kernel_that_only_two_ops_have_gets_its_factor(smallest: int) -> None:
    """A third of the points is held out, but of each kind of op some are in the fit."""
    drawn = {"launch": 1e-6, "byte": 3e-10}
    rare = []
    for dims in ((smallest, 4), (3 * smallest, 4)):
        note = {"what": "sample_rows (sage)", "kernels": [["draw", list(dims)]]}
        taken = 2e-5 + 2 * seconds(drawn, "draw", dims)
        rare.append(MeasuredPoint(group="ops", kind="executed", dims=(1,), seconds=taken, note=note))
    table, rows = make_profile(MADE, [*ALONE, *points(drawn, "draw", 30), *ops_of(1, 1.0, 1.0), *rare])
    assert table.context["draw"] == pytest.approx(2.0, rel=0.2)  # held near 1
    assert "  sample_rows (sage)" not in {row.what for row in rows}


def test_what_turns_on_a_core_cost_is_what_an_epoch_takes_beyond_the_ops_of_its_ranks() -> None:
    """Four ranks of two ops each on two cores, a fifth longer than eight ops one after the other on two cores."""
    op = ops_of(2, 1.0, 1.0)[5]
    seconds_of_all = 4 * 2 * op.seconds
    note = {"ops": [op.note["kernels"]] * 8, "ranks": 4, "cores": 2}
    crowd = MeasuredPoint(group="ops", kind="executed_in_turns", dims=(8,), seconds=1.2 * seconds_of_all / 2, note=note)
    table, _ = make_profile(MADE, [*ALONE, *ops_of(2, 1.0, 1.0), crowd])
    assert table.turns == pytest.approx(1.2, rel=0.02)
    assert make_profile(MADE, [*ALONE, *ops_of(2, 1.0, 1.0)])[0].turns == 1.0


@pytest.mark.parametrize(("there_are", "kept"), [(0, 4 * 2**20), (2 * 2**20, 2**20)])
def test_caches_keep_no_more_than_there_is(there_are: int, kept: int) -> None:
    """Ops of two ranks that each touch 4 MiB and run as if all of it were warm, where cold takes twice as long."""
    warm = [replace(point, note={"warm": True}) for point in ALONE]
    cold = [replace(point, seconds=2 * point.seconds) for point in ALONE]
    ops = [replace(op, note={**op.note, "footprint": 4 * 2**20}) for op in ops_of(2, 1.0, 1.0)]
    table, _ = make_profile(replace(MADE, last_cache_bytes=there_are), [*cold, *warm, *ops])
    assert table.cache_bytes == kept


def test_what_handlers_cost_comes_from_ops_that_ran() -> None:
    made = points(GEMM, "gemm", 30)
    ops = []
    for k in range(12):
        dims, times = (10 * (k + 1), 20, 30), 1 + k % 3
        taken = times * (seconds(GEMM, "gemm", dims) + 3e-6) + 4e-5
        note = {"what": "forward (sage)", "kernels": [["gemm", list(dims)]] * times}
        ops.append(MeasuredPoint(group="ops", kind="executed", dims=(times,), seconds=taken, note=note))
    empty = MeasuredPoint(group="interpreter", kind="op", dims=(1,), seconds=1e-6)
    table, rows = make_profile(MADE, [*made, *ops, empty])
    assert table.overhead.op_s == pytest.approx(4e-5, rel=0.01)  # ops are timed with what comes before them
    assert table.overhead.launch_s == pytest.approx(3e-6, rel=0.02)
    assert [(row.what, row.num_points, row.num_held_out) for row in rows[1:]] == [
        ("executed ops", 8, 4),
        ("  forward (sage)", 0, 4),
    ]
    assert rows[1].median_error < 1e-3
