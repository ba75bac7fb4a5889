"""When curves meet a target, and in which words they do not."""

from dataclasses import replace
from math import inf
from statistics import median

import pytest
from converged import LATE, converged, curve, seed_curve
from hypothesis import given
from hypothesis import strategies as st

from halocast.reports.converge.front import Stop, beats, front, stops
from halocast.reports.converge.targets import Likely, Miss, reached, reaches
from halocast.reports.curves import Point, SeedCurve


def test_the_first_point_that_meets_the_target_counts_not_the_best() -> None:
    known = reached(curve("vanilla", [0.4, 0.6, 0.5, 0.9], epoch_s=2.0), 0.5)
    assert known.points == (Point(epochs=2, seconds=4.0, val=0.6, test=0.6 - 0.02),)
    assert (known.epochs, known.seconds, known.price) == (2, 4.0, 0.04)
    assert known.test is not None
    assert known.test.mean == pytest.approx(0.58)


def test_a_score_that_equals_the_target_meets_it() -> None:
    assert reached(curve("vanilla", [0.4, 0.5]), 0.5).epochs == 2


def test_over_seeds_the_middle_one_counts_and_the_others_are_a_band() -> None:
    known = reached(curve("vanilla", [0.6], [0.1, 0.1, 0.1, 0.6], [0.1, 0.6]), 0.5)
    assert (known.epochs, known.seconds, known.low_s, known.high_s) == (2, 2.0, 1.0, 4.0)
    assert known.mean_s == pytest.approx(7 / 3)
    assert (known.num_reached, known.text) == (3, "")


def test_a_seed_that_misses_counts_as_later_than_all_and_opens_the_band() -> None:
    known = reached(curve("vanilla", [0.6], LATE, [0.1, 0.6]), 0.5, max_epochs=4)
    assert (known.epochs, known.low_s, known.high_s, known.mean_s) == (2, 1.0, None, None)
    assert known.text == "not within 4 epochs (1 of 3 seeds)"


def test_one_lucky_seed_makes_no_answer() -> None:
    known = reached(curve("vanilla", [0.6], LATE, LATE), 0.5, max_epochs=4)
    assert (known.is_met, known.seconds, known.price) == (False, None, None)
    assert known.text == "not within 4 epochs (2 of 3 seeds)"


def test_half_of_the_seeds_are_not_enough() -> None:
    assert not reached(curve("vanilla", [0.6], LATE), 0.5).is_met


def test_points_after_the_budget_do_not_count() -> None:
    one = curve("vanilla", [0.1, 0.2, 0.6], epoch_s=300.0)
    assert reached(one, 0.5, budget_s=900.0).seconds == 900.0
    late = reached(one, 0.5, budget_s=600.0)
    assert (late.is_met, late.text) == (False, "not within 10 min")


@pytest.mark.parametrize(
    ("training", "text", "miss"),
    [
        (seed_curve(LATE), "not within 4 epochs", Miss.EPOCHS),
        (seed_curve(LATE[:3]), "not within 60 s", Miss.BUDGET),
        (seed_curve(LATE[:3], stopped=True), "stopped improving at epoch 3", Miss.STOPPED),
        (seed_curve(LATE[:2], diverged=3), "diverged after 3 epochs", Miss.DIVERGED),
        (seed_curve([], diverged=1), "diverged after 1 epoch", Miss.DIVERGED),
    ],
)
def test_why_a_target_is_not_met(training: SeedCurve, text: str, miss: Miss) -> None:
    known = reached(curve("vanilla", seeds=(training,)), 0.5, budget_s=60.0, max_epochs=4)
    assert known.text == text
    assert known.seeds[0].miss is miss


def test_seeds_that_miss_for_different_reasons_say_all_of_them() -> None:
    seeds = (seed_curve(LATE), seed_curve(LATE[:2], diverged=3, seed=1), seed_curve(LATE[:2], diverged=9, seed=2))
    known = reached(curve("vanilla", seeds=seeds), 0.5, max_epochs=4)
    assert known.text == "not within 4 epochs; diverged after 3 to 9 epochs"


def test_a_training_that_diverges_later_meets_what_it_met_before() -> None:
    known = reached(curve("vanilla", seeds=(seed_curve([0.6], diverged=2),)), 0.5)
    assert (known.epochs, known.text) == (1, "")


def test_without_the_time_of_an_epoch_epochs_are_known_and_seconds_are_not() -> None:
    known = reached(curve("vanilla", [0.1, 0.6], epoch_s=None), 0.5, budget_s=1.0)
    assert (known.is_met, known.epochs, known.seconds, known.low_s, known.likely) == (True, 2, None, None, None)


def test_the_prediction_band_is_that_of_the_epoch() -> None:
    known = reached(curve("vanilla", [0.1, 0.6], epoch_s=10.0), 0.5)
    assert known.likely == Likely(low_s=16.0, high_s=30.0)


def test_where_order_matters_the_prediction_band_is_that_of_perturbed_trainings() -> None:
    slow, quick = (seed_curve([0.1, 0.6], epoch_s=epoch_s) for epoch_s in (1.5, 0.5))
    one = curve("digest-a", [0.1, 0.6], perturbed=(slow, quick))
    assert reached(one, 0.5).likely == Likely(low_s=1.0, high_s=3.0)
    never = replace(one, perturbed=(slow, seed_curve(LATE)))
    assert reached(never, 0.5).likely == Likely(low_s=2.0, high_s=None)


def test_the_spread_of_the_first_seed_is_put_around_the_middle_one() -> None:
    slow, quick = seed_curve([0.1, 0.6], epoch_s=2.0), seed_curve([0.1, 0.6], epoch_s=0.5)
    trained = curve("digest-a", [0.1, 0.6], [0.1, 0.1, 0.1, 0.6], [0.1, 0.1, 0.1, 0.6], perturbed=(slow, quick))
    found = reached(trained, 0.5)
    assert found.seconds == 4.0
    assert found.likely == Likely(low_s=2.0, high_s=8.0)  # half and twice, as of the first seed's two seconds


def test_what_was_not_trained_gives_its_reason() -> None:
    assert reached(curve("gnnpipe", reason="3 stages, but 2 layers"), 0.5).text == "3 stages, but 2 layers"


scores = st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), min_size=1, max_size=6)


@given(
    trainings=st.lists(scores, min_size=1, max_size=5),
    target=st.sampled_from([0.2, 0.5, 0.8]),
    budget=st.integers(0, 7),
)
def test_what_is_reached_is_what_looking_at_every_point_finds(
    trainings: list[list[float]], target: float, budget: int
) -> None:
    known = reached(curve("vanilla", *trainings), target, budget_s=float(budget))
    firsts = []
    for vals in trainings:
        hits = [k for k in range(1, len(vals) + 1) if k <= budget and vals[k - 1] >= target]
        firsts.append(min(hits) if hits else inf)
    middle = median(firsts)
    assert known.epochs == (None if middle == inf else middle)
    assert known.num_reached == sum(first < inf for first in firsts)
    assert known.low_s == (None if min(firsts) == inf else min(firsts))
    assert known.high_s == (None if max(firsts) == inf else max(firsts))
    assert bool(known.text) == (max(firsts) == inf)


stop_figures = st.tuples(st.integers(0, 3), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 4)))


@given(figures=st.lists(stop_figures, max_size=9))
def test_the_front_is_what_nothing_beats(figures: list[tuple[int, int, int | None]]) -> None:
    """Oracle: another choice that is better in one figure and worse in none, looked for in every pair."""
    vanilla = curve()
    choices = [Stop(curve=vanilla, at=str(k), test=t, seconds=s, price=p) for k, (t, s, p) in enumerate(figures)]
    beaten = set()
    for k, (t, s, p) in enumerate(figures):
        for test, seconds, price in figures:
            no_worse = (
                test >= t and seconds <= s and (price == p or (price is not None and p is not None and price <= p))
            )
            if no_worse and (test, seconds, price) != (t, s, p):
                beaten.add(str(k))
    assert {stop.at for stop in front(choices)} == {stop.at for stop in choices} - beaten
    times = [stop.seconds for stop in front(choices)]
    assert times == sorted(times)


def test_a_price_that_is_not_known_neither_beats_nor_is_beaten() -> None:
    known = Stop(curve=curve(), at="", test=0.9, seconds=1.0, price=1.0)
    unknown = replace(known, test=0.8, seconds=2.0, price=None)
    assert not beats(known, unknown)
    assert not beats(replace(unknown, test=1.0, seconds=0.5), known)


def test_a_curve_may_be_left_at_the_target_or_at_its_best() -> None:
    answer = converged(curve("vanilla", [0.5, 0.72, 0.8, 0.75]), curve("psc", [0.5, 0.6]), target=0.7)
    assert [(s.curve.label, s.at, s.seconds, round(s.test, 3)) for s in stops(reaches(answer))] == [
        ("vanilla", "the target", 2.0, 0.7),
        ("vanilla", "its best", 3.0, 0.78),
    ]


def test_a_curve_whose_best_is_at_the_target_is_named_once() -> None:
    answer = converged(curve("vanilla", [0.5, 0.72, 0.6]), target=0.7)
    assert [stop.at for stop in stops(reaches(answer))] == ["the target"]


def test_where_none_meets_the_target_all_are_on_the_list() -> None:
    answer = converged(curve("vanilla", [0.5]), curve("psc", [0.6], fits=False), target=0.7)
    assert [stop.curve.label for stop in stops(reaches(answer))] == ["vanilla"]
