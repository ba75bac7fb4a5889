"""The meaning of the numbers: an epoch's parts on timelines drawn by hand, tables and reports made from them."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from comparisons import changed, result
from hypothesis import given
from hypothesis import strategies as st
from schedules import PROMISED, legal_schedules, two_rank_exchange

from halocast.cluster.catalogue import load_cluster
from halocast.reports.comparison import NotCompared
from halocast.reports.intervals import Intervals, intersect, length, merge, subtract
from halocast.reports.metrics import PARTS, default_warmup, measure
from halocast.reports.network import Utilisation, busy_periods, utilisation
from halocast.reports.summary import NoBand, Summary, summarise
from halocast.reports.table import Line, csv_table, filled, fitted, insights, markdown_table, seconds, size, text_table
from halocast.schedule.ir import Kernel, Kind, Lane, Schedule
from halocast.schedule.passes import max_cycle_ratio, steady_epochs
from halocast.schedule.trace import LinkUse, Span, Trace
from halocast.sim.cost import op_seconds
from halocast.sim.engine import simulate
from halocast.sim.network.links import UnlimitedLinks

POINTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def as_set(intervals: Intervals) -> set[int]:
    return {t for start, end in intervals for t in range(int(start), int(end))}


@given(POINTS, POINTS)
def test_interval_algebra_is_set_algebra(a: Intervals, b: Intervals) -> None:
    left, right = merge(a), merge(b)
    assert as_set(left) == as_set(a)
    assert as_set(intersect(left, right)) == as_set(a) & as_set(b)
    assert as_set(subtract(left, right)) == as_set(a) - as_set(b)
    assert length(left) == len(as_set(a))


def span(rank: int, name: str, start: float, end: float, epoch: int = 0) -> Span:
    lane, kind = (Lane.HALO, Kind.EXCHANGE) if name == "swap" else (Lane.COMPUTE, Kind.COMPUTE)
    return Span(
        rank=rank, lane=lane, op=name, kind=kind, epoch=epoch, start_s=start, end_s=end, num_bytes=12 * (name == "swap")
    )


def test_an_epoch_by_hand() -> None:
    """Rank 0 makes until 2 and waits for rank 1, which starts to send at 5; bytes move from 5 to 6."""
    spans = (
        span(0, "make", 0, 2),
        span(0, "swap", 2, 6),
        span(0, "use", 6, 9),
        span(1, "make", 0, 5),
        span(1, "swap", 5, 6),
        span(1, "use", 6.5, 9),
    )
    metrics = measure(Trace(source="t", num_ranks=2, num_epochs=1, spans=spans), two_rank_exchange(), 0)
    first, second = metrics.ranks
    assert (first.compute_s, first.wait_s, first.exposed_comm_s, first.bubble_s) == (5, 3, 1, 0)
    assert (second.compute_s, second.wait_s, second.exposed_comm_s, second.bubble_s) == (7.5, 0, 1, 0.5)
    assert metrics.epoch_s == 9
    assert metrics.bytes_per_epoch_by_op == {"swap": 24}


def test_communication_behind_compute_is_hidden() -> None:
    spans = (
        span(0, "make", 0, 4),
        span(0, "swap", 1, 5),
        span(0, "use", 6, 7),
        span(1, "swap", 1, 5),
        span(1, "make", 0, 7),
    )
    (rank, _) = measure(Trace(source="t", num_ranks=2, num_epochs=1, spans=spans), two_rank_exchange(), 0).ranks
    assert (rank.hidden_comm_s, rank.exposed_comm_s, rank.bubble_s) == (3, 1, 1)


def test_an_exchange_on_the_compute_lane_is_communication_all_the_same() -> None:
    spans = tuple(replace(s, lane=Lane.COMPUTE) for r in (0, 1) for s in (span(r, "make", 0, 1), span(r, "swap", 1, 5)))
    (rank, _) = measure(Trace(source="t", num_ranks=2, num_epochs=1, spans=spans), two_rank_exchange(), 0).ranks
    assert (rank.compute_s, rank.exposed_comm_s, rank.hidden_comm_s) == (1, 4, 0)


def test_a_lane_nobody_waits_for_sets_the_pace_if_it_is_the_slowest() -> None:
    spans = tuple(
        one for e in range(4) for one in (span(0, "make", e, e + 1, e), span(0, "swap", 5 * e + 1, 5 * e + 6, e))
    ) + tuple(span(1, "swap", 5 * e + 1, 5 * e + 6, e) for e in range(4))
    assert measure(Trace(source="t", num_ranks=2, num_epochs=4, spans=spans), two_rank_exchange(), 2).epoch_s == 5


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("slow", ["make", "swap", "use"])
def test_with_unlimited_links_the_reported_epoch_is_the_maximum_cycle_ratio(lag: int, slow: str) -> None:
    """Rank 1 has one slow op; whichever it is, and however far the exchange lags, report and oracle agree."""
    cluster = load_cluster("cpu-local")
    base = two_rank_exchange(lag=lag)
    kernels = {
        name: (Kernel("elementwise", (10**6 * (5 if name == slow else 1), 2)),) for name in ("make", "swap", "use")
    }
    schedule = replace(base, ops=tuple(replace(o, work=replace(o.work, kernels=kernels[o.name])) for o in base.ops))
    durations = {(o.rank, o.name): op_seconds(o, cluster.device(0)) for o in schedule.ops}
    warmup, epochs = steady_epochs(schedule)
    trace = simulate(schedule, cluster, epochs, network=lambda env: UnlimitedLinks(env))
    assert measure(trace, schedule, warmup).epoch_s == pytest.approx(max_cycle_ratio(schedule, durations), rel=1e-12)


def test_warm_up_epochs_are_dropped() -> None:
    spans = tuple(span(r, "make", 10 * e, 10 * e + 8 - 3 * (e > 0), e) for r in (0, 1) for e in (0, 1, 2))
    metrics = measure(Trace(source="t", num_ranks=2, num_epochs=3, spans=spans), two_rank_exchange(), 1)
    assert (metrics.ranks[0].epoch_s, metrics.ranks[0].compute_s) == ((25 - 8) / 2, 5)


@given(legal_schedules())
def test_the_parts_of_an_epoch_add_up_to_it(schedule: Schedule) -> None:
    warmup, epochs = steady_epochs(schedule)
    trace = simulate(schedule, load_cluster("cpu-local"), epochs)
    for rank in measure(trace, schedule, warmup).ranks:
        total = sum(getattr(rank, part) for part in PARTS)
        assert total == pytest.approx(rank.epoch_s, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0), (3, 1), (9, 3), (100, 3)])
def test_a_real_run_drops_a_few_epochs_but_never_all(epochs: int, warmup: int) -> None:
    assert default_warmup(epochs) == warmup


def summary(**changes: Any) -> Summary:
    return result(**changes).summary


def test_a_summary_has_every_promised_key() -> None:
    flat = summary().as_dict()
    assert PROMISED | {"compute_s_max", "epoch_s_mean", "overlap_efficiency", "critical_path"} <= set(flat)
    assert flat["bytes_total"] == 24
    json.dumps(flat)


@given(st.builds(Summary, **{one.name: ... for one in fields(Summary)}))
def test_a_summary_comes_back_from_its_json(made: Summary) -> None:
    text = json.dumps(made.as_dict())
    again = Summary.from_dict(json.loads(text))
    assert json.dumps(again.as_dict()) == text
    assert again == made or "NaN" in text  # which equals nothing


def test_optional_parts_of_a_summary_have_no_keys_and_groups_stand_among_the_others() -> None:
    flat = replace(summary(), link_load=None, band=NoBand.NOT_KNOWN).as_dict()
    absent = {"drawn_bytes", "bytes_by_link", "price_per_epoch", "loss", "predicts", "memory", "basis"}
    assert not absent & set(flat)
    assert (flat["memory_bytes"], flat["largest_buffers"], flat["calibrated"]) == (200, [["halo", 150]], None)
    assert flat["band"] is None
    assert "band" not in summary().as_dict()


LINK = LinkUse(name="a > b", bytes_per_s=10, num_bytes=90, times_s=(0, 2, 4, 7, 8), rates=(10, 5, 0, 10, 0))


def test_a_links_load_over_time_by_hand() -> None:
    """10/s until 2, 5/s until 4, idle until 7, 10/s until 8."""
    first, second = busy_periods(LINK)
    assert (first.start_s, first.end_s, first.num_bytes, first.utilisation) == (0, 4, 30, 0.75)
    assert (second.start_s, second.end_s, second.num_bytes, second.utilisation) == (7, 8, 10, 1)
    assert utilisation(LINK, (3, 8)) == Utilisation(mean=15 / 50, max=1)
    assert utilisation(LINK, (3, 7)) == Utilisation(mean=5 / 40, max=0.5)
    assert utilisation(LINK, (8, 9)) == utilisation(LINK, (9, 9)) == Utilisation(mean=0, max=0)


def test_a_summary_says_what_determines_the_epoch_and_which_links_are_busiest() -> None:
    """Two epochs of 10 s: rank 0 makes for 2 and swaps with rank 1, which makes for 5; the first is dropped."""
    spans = tuple(
        one
        for e in (0, 1)
        for one in (
            span(0, "make", 10 * e, 10 * e + 2, e),
            span(0, "swap", 10 * e + 2, 10 * e + 6, e),
            span(0, "use", 10 * e + 6, 10 * e + 10, e),
            span(1, "make", 10 * e, 10 * e + 5, e),
            span(1, "swap", 10 * e + 5, 10 * e + 6, e),
            span(1, "use", 10 * e + 6, 10 * e + 10, e),
        )
    )
    quiet = replace(LINK, name="b > a", num_bytes=2.0, times_s=(15, 16), rates=(2, 0))
    busy = replace(quiet, name="c > d", num_bytes=1.0, rates=(9, 0))
    trace = Trace(source="t", num_ranks=2, num_epochs=2, spans=spans, links=(quiet, busy, LINK))
    made = summarise(trace, two_rank_exchange(), 1, [1, 1])
    flat = made.as_dict()
    assert flat["critical_path"] == [
        {"rank": 1, "op": "make", "kind": "compute", "seconds": 5, "share": 0.5},
        {"rank": 0, "op": "use", "kind": "compute", "seconds": 4, "share": 0.4},
        {"rank": 0, "op": "swap", "kind": "transfer", "seconds": 1, "share": 0.1},
    ]
    assert flat["bytes_by_link"] == {"a > b": 45, "b > a": 1, "c > d": 0.5}
    assert flat["link_utilisation"] == {
        "c > d": {"mean": 0.09, "max": 0.9},
        "b > a": {"mean": 0.02, "max": 0.2},
        "a > b": {"mean": 0.0, "max": 0.0},
    }


def test_what_determines_the_epoch_is_told_in_one_line() -> None:
    parts = [
        ("use", 0, "compute", 0.5),
        ("swap", 1, "transfer", 0.25),
        ("use", 1, "overhead", 0.15),
        ("x", 0, "compute", 0.1),
    ]
    path = [{"op": op, "rank": rank, "kind": kind, "seconds": 1, "share": share} for op, rank, kind, share in parts]
    made = summary(critical_path=path, link_utilisation={"a > b": {"mean": 0.875, "max": 1}}, overlap_efficiency=0.5)
    told = (
        "critical path: use on rank 0 50%, swap on rank 1 25%, use on rank 1 (overhead) 15%; "
        "busiest links: a > b 88%; communication hidden: 50%"
    )
    assert insights(made) == told
    assert text_table([made]).splitlines()[-1] == f", simulated on c: {told}"
    without_load = changed(made, {"link_utilisation": {}, "bytes_by_link": {"a > b": 1500}})
    assert "busiest links: a > b 1.5 kB;" in insights(without_load)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1.5, "1.5 s"), (0.0123, "12.3 ms"), (4.2e-6, "4.2 µs"), (120.0, "120 s")]
)
def test_seconds_are_readable(value: float, text: str) -> None:
    assert seconds(value) == text


def test_sizes_are_readable() -> None:
    assert [size(n) for n in (12, 1500, 2_500_000, 3e9)] == ["12 B", "1.5 kB", "2.5 MB", "3 GB"]


def test_tables_have_a_row_per_summary() -> None:
    rows = [summary(method="a|b"), summary(method="c")]
    assert len(text_table(rows).splitlines()) == 4 + 3  # a blank line, and what determines the epoch of each
    assert "a\\|b" in markdown_table(rows)
    assert csv_table([row.as_dict() for row in rows]).splitlines()[1].startswith("a|b,")


def test_a_row_without_figures_gives_its_reason() -> None:
    rows: list[Line] = [
        summary(method="fine"),
        NotCompared(method="late", cluster="c", reason="3 stages, but 2 layers"),
    ]
    assert text_table(rows).splitlines()[-1] == "late, failed on c: 3 stages, but 2 layers"
    assert markdown_table(rows).splitlines()[-1].startswith("| late | failed | c | 3 stages, but 2 layers |  |")
    assert "late,failed" in csv_table([row.as_dict() for row in rows]).splitlines()[2]


def test_error_bands_are_a_column_where_somebody_looked_for_them() -> None:
    known = {"low_s": 0.002, "high_s": 0.004, "basis": "3 rows"}
    rows = [summary(band=known), summary(band=None), summary(band=None, source="executed")]
    head, *_ = text_table([summary()]).splitlines()
    assert "error band" not in head
    told = [line.split("|")[7].strip() for line in markdown_table(rows).splitlines()]
    assert told == ["error band", "---", "2 ms .. 4 ms", "not known", "measured"]
    assert csv_table([row.as_dict() for row in rows]).splitlines()[0].endswith("band_low_s,band_high_s,band_basis")


ROWS = [["", "name", "dear", "cheap", "none"], ["1", "aaaa", "11", "2222", "-"], ["2", "b", "1", "2", "-"]]


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (80, "   name  dear  cheap\n-  ----  ----  -----\n1  aaaa  11    2222\n2  b     1     2"),
        (20, "   name  dear  cheap\n-  ----  ----  -----\n1  aaaa  11    2222\n2  b     1     2"),
        (19, "   name  dear\n-  ----  ----\n1  aaaa  11\n2  b     1\nin a wider\nterminal: cheap"),
        (8, "   name\n-  ----\n1  aaaa\n2  b\nin a\nwider\nterminal:\ndear,\ncheap"),
        (1, "   name\n-  ----\n1  aaaa\n2  b\nin\na\nwider\nterminal:\ndear,\ncheap"),
    ],
)
def test_a_narrow_table_goes_without_the_columns_of_the_highest_ranks_and_names_them(width: int, text: str) -> None:
    assert fitted(ROWS, [0, 0, 1, 2, 0], width) == text


def test_text_is_filled_without_cutting_words_and_indents_what_goes_on() -> None:
    assert filled("a rather-long-word and more", 12, 2) == "a\n  rather-long-word\n  and more"
