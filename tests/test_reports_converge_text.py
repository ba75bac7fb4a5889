"""The answer in a terminal: whole words at every width, exact and approximate methods apart."""

from dataclasses import replace
from typing import Any

import pytest
from converged import GRAPH, LATE, converged, curve, seed_curve
from hypothesis import given, settings
from hypothesis import strategies as st

from halocast.reports.converge.columns import blocks
from halocast.reports.converge.contests import contests
from halocast.reports.converge.series import score_lines
from halocast.reports.converge.tables import error_rows, graph_rows, search_rows, spot_rows
from halocast.reports.converge.terminal import text
from halocast.reports.converge.words import band, dollars, duration, points, setting_value
from halocast.reports.curves import Curve
from halocast.reports.scores import ErrorCurve, Trial
from halocast.reports.summary import FoundAges
from halocast.schedule.approximation import Approximation

STALE: dict[str, Any] = {
    "approximation": Approximation.STALE,
    "errors": (ErrorCurve(what="rows", layer=0, by_epoch={0: 0.0, 1: 0.5, 2: 0.25}),),
    "ages": (FoundAges(op="forward.1", reads="halo.1", rows_by_age={1: 5, 3: 2}),),
}
VANILLA = curve("vanilla", [0.5, 0.7], [0.5, 0.72], epoch_s=10.0, chosen={"run.lr": 0.01})
PIPE = curve("pipegcn", [0.5, 0.6, 0.7], [0.5, 0.6, 0.71], epoch_s=2.0, chosen={"run.lr": 0.003}, **STALE)
LONG = curve("digest with a name as long as users make them", LATE, LATE, epoch_s=1.0, **STALE)
WIDE = """\
Exact, to 95 % of vanilla's best (70.0 on validation): vanilla on 8 GPUs, 20 s (likely 16 to 30 s), 2 epochs, $0.20,
test 69.0±1.4.
Approximate, at the same accuracy: pipegcn on 8 GPUs (stale), 6 s (likely 4.8 to 9 s), 3 epochs, $0.06, test 68.5±0.7:
3.33 times as fast, $0.14 less; test -0.5±0.5 points.
One GPU alone: not known, it was not asked for.
"""


def test_the_answer_comes_first_and_is_filled_to_the_width() -> None:
    said = text(converged(VANILLA, PIPE), 120)
    assert said.startswith(WIDE.replace("$0.06,", "$0.060,"))


def test_exact_and_approximate_methods_are_two_tables() -> None:
    said = text(converged(VANILLA, PIPE, LONG, max_epochs=4), 120)
    exact, _, approximate = said.partition("Approximate methods (stale or sampled rows)\n")
    assert "Exact methods\nmethod " in exact
    assert "pipegcn  " not in exact.partition("Exact methods")[2]
    assert approximate.index("pipegcn") < approximate.index("digest with a name")


def test_what_does_not_meet_the_target_stands_below_what_does_and_says_why() -> None:
    rows = blocks(answered := converged(LONG, PIPE, max_epochs=4), contests(answered)[0])[0][1]
    assert [(row.case.label[:7], row.reached.text) for row in rows] == [
        ("pipegcn", ""),
        ("digest ", "not within 4 epochs"),
    ]


def test_columns_that_do_not_fit_are_left_out_whole_and_named() -> None:
    said = text(converged(VANILLA, PIPE), 60)
    assert "In a wider terminal:" in said
    left_out = said.partition("In a wider terminal: ")[2].partition(".")[0].replace("\n", " ").split(", ")
    head = said.partition("Exact methods\n")[2].partition("\n")[0].split("  ")
    assert not {name.strip() for name in head} & set(left_out)
    assert {"method", "time"} <= {name.strip() for name in head}


labels = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


@settings(max_examples=30)
@given(width=st.integers(60, 160), names=st.lists(labels, min_size=1, max_size=3, unique=True))
def test_no_line_of_a_table_is_wider_than_the_terminal_and_no_word_is_cut(width: int, names: list[str]) -> None:
    answered = converged(*(replace(PIPE, label=f"m {name}") for name in names), VANILLA)
    said = text(answered, width)
    tables = said.partition("Exact methods")[2].partition("epochs, time, cost:")[0]
    assert max(map(len, tables.split("\n"))) <= width
    for word in ("2 to 3", "16 to 30 s"):
        assert word not in tables or any(word in line for line in tables.split("\n"))
    for name in names:
        assert name in tables.replace("\n", "").replace(" ", "") or len(name) > 20


def test_long_names_and_reasons_go_on_in_the_next_line() -> None:
    said = text(converged(VANILLA, LONG, max_epochs=4), 80)
    assert "digest with a name as  -       not within 4  -" in said
    assert "\n  long as users make           epochs\n  them\n" in said


def test_a_setting_is_a_block_with_its_own_answer_and_a_table_of_times_stands_before_all() -> None:
    rates = [
        curve(label, [0.7], epoch_s=s, setting={"cluster.network_gbps": rate})
        for rate, both in ((1, (9.0, 2.0)), (10, (1.0, 2.0)))
        for label, s in zip(("vanilla", "gnnpipe"), both, strict=True)
    ]
    said = text(converged(*rates, LONG), 80)
    assert "First to the target by cluster.network_gbps: gnnpipe up to 1 Gb/s; from 10 Gb/s\nvanilla." in said
    assert "method" in said
    table = said.partition("Time to the target by cluster.network_gbps (-: not met)\n")[2].split("\n")
    assert [line.split() for line in (table[2], table[3])] == [
        ["vanilla", "exact", "9", "s", "1", "s"],
        ["gnnpipe", "exact", "2", "s", "2", "s"],
    ]
    assert said.index("== 1 Gb/s") < said.index("== 10 Gb/s") < said.index("Exact, to", said.index("== 10 Gb/s"))


def test_both_graphs_stand_side_by_side_where_one_stands_in() -> None:
    timed = replace(GRAPH, name="reddit", nodes=232965, cut_share=None, halo_ratio=2.5)
    assert graph_rows(converged(VANILLA, timed=timed)) == [
        ["", "scores: pubmed", "seconds: reddit"],
        ["nodes", "19,717", "232,965"],
        ["mean degree", "4.5", "4.5"],
        ["degree skew", "0.90", "0.90"],
        ["features", "500", "500"],
        ["classes", "3", "3"],
        ["parts", "8", "8"],
        ["edges cut", "12%", "not known"],
        ["halo / inner nodes", "0.31", "2.50"],
        ["train nodes", "0.3%", "0.3%"],
    ]
    assert "seconds: reddit" in text(converged(VANILLA, timed=timed))
    assert "halo / inner" not in text(converged(VANILLA))


def test_columns_in_which_nothing_is_known_are_not_there() -> None:
    said = text(converged(replace(VANILLA, epoch_low_s=None, chosen=None)), 200)
    head = said.partition("Exact methods\n")[2].partition("\n")[0].split()
    assert head == ["method", "epoch", "epochs", "time", "over", "seeds", "cost", "test", "best", "at"]


def test_reasons_are_told_once_with_the_cases_that_they_hold_for() -> None:
    failed = [curve(name, reason="needs 4 parts, there are 2") for name in ("gnnpipe", "psc")]
    assert "gnnpipe, psc: needs 4 parts, there are 2" in text(converged(VANILLA, *failed))


def test_what_the_search_tried_and_how_stale_rows_err() -> None:
    trials = (Trial(values={"run.lr": 0.01}, val=0.71), Trial(values={"run.lr": 0.1}, val=None))
    assert search_rows(converged(replace(VANILLA, trials=trials))) == [
        ["by run.lr", "0.01", "0.1"],
        ["vanilla", "71.0", "-"],
    ]
    assert search_rows(converged(VANILLA)) == []
    assert error_rows(converged(VANILLA, PIPE)) == [
        ["method", "what", "layer", "at 1/4", "at 1/2", "at 3/4", "in the end"],
        ["pipegcn", "rows", "0", "0.0%", "0.0%", "50.0%", "25.0%"],
    ]
    assert error_rows(converged(VANILLA)) == []


def test_a_line_keeps_the_best_weights_of_a_training_that_has_ended() -> None:
    """The second training stops after two epochs; the mean goes on with its best one."""
    seeds = (seed_curve([0.2, 0.4, 0.3, 0.6]), seed_curve([0.5, 0.3], seed=1, stopped=True))
    (line,) = score_lines(answered := converged(curve("vanilla", seeds=seeds), max_epochs=4), contests(answered)[0])
    assert [(s.epochs, s.seconds, round(s.val, 3), round(s.low, 3), round(s.high, 3)) for s in line.spots] == [
        (1, 1.0, 0.35, 0.18, 0.48),
        (2, 2.0, 0.45, 0.38, 0.48),
        (3, 3.0, 0.45, 0.38, 0.48),
        (4, 4.0, 0.55, 0.48, 0.58),
    ]
    assert spot_rows([line])[1] == ["vanilla", "1", "1 s", "$0.010", "35.0", "33.0", "18.0 to 48.0"]
    assert line.met is None


def test_time_never_goes_back_where_a_slow_training_ends_first() -> None:
    slow = seed_curve([0.4], seed=1, epoch_s=9.0)
    one = curve("digest-a", seeds=(seed_curve([0.1, 0.2]), slow))
    (line,) = score_lines(answered := converged(one), contests(answered)[0])
    assert [(spot.epochs, spot.seconds) for spot in line.spots] == [(1, 5.0), (2, 5.0)]


def test_a_line_begins_where_every_training_was_scored() -> None:
    late = seed_curve([0.4, 0.5], seed=1, every=2)
    one = curve("vanilla", seeds=(seed_curve([0.1, 0.2, 0.3, 0.4]), late))
    (line,) = score_lines(answered := converged(one), contests(answered)[0])
    assert [spot.epochs for spot in line.spots] == [2, 3, 4]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0005, "500 µs"), (1.0, "1 s"), (119.0, "119 s"), (120.0, "2 min"), (7199.0, "120 min"), (7200.0, "2 h"),
     (172800.0, "2 d"), (None, "-"), (float("nan"), "-")],
)  # fmt: skip
def test_durations(value: float | None, said: str) -> None:
    assert duration(value) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(42.0, 78.0, "42 to 78 s"), (66.0, 125.0, "1.1 to 2.1 min"), (3.1, 3.12, "3.1 s"), (5.0, None, "from 5 s"),
     (None, None, "-"), (0.0005, 0.02, "0.5 to 20 ms")],
)  # fmt: skip
def test_bands(low: float | None, high: float | None, said: str) -> None:
    assert band(low, high) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "$0"), (0.000012, "$0.000012"), (0.0249, "$0.025"), (0.2, "$0.20"), (2.5, "$2.50"), (1234.5, "$1,234"),
     (None, "-")],
)  # fmt: skip
def test_prices(value: float | None, said: str) -> None:
    assert dollars(value) == said


def test_points_and_values_of_settings() -> None:
    assert [points(0.7123), points(-0.0001, signed=True), points(None)] == ["71.2", "+0.0", "-"]
    assert setting_value("cluster.network_gbps", 2.5) == "2.5 Gb/s"
    assert [setting_value("cluster.gpus", n) for n in (1, 8)] == ["1 GPU", "8 GPUs"]
    assert setting_value("world.speeds", {"0": 0.5, "3": [1, 2]}) == "speeds 0 0.5, 3 1, 2"
    assert setting_value("cluster.device", "h100") == "device h100"
    assert setting_value("world.speed", {}) == "speed as described"


def test_an_answer_without_any_curve_is_still_text() -> None:
    empty: tuple[Curve, ...] = ()
    assert "(70.0 on validation): none was asked for." in text(converged(*empty), 120)
