"""The error of sampled means: closed forms against draws, hand-made cases, and their order."""

import numpy as np
import pytest

from halocast.graph import Part, assign, build_parts, from_edges, synthetic
from halocast.graph.graph import Reals
from halocast.graph.variance import Estimate, drawn_error, expected_error, squared_means

CLOSED = [rule for rule in Estimate if rule is not Estimate.RENORMALISED]


@pytest.fixture(scope="module")
def sampled() -> tuple[Part, Reals]:
    """A part with pairs above and below 1/rate rows at the rates below."""
    graph = synthetic(nodes=600, degree=8, skew=1, classes=6, features=2, mixing=0.2, seed=1)
    part = build_parts(graph, assign(graph, 6, cache=False))[2]
    rows = np.random.default_rng(0).normal(1, 1, (part.num_inner + part.num_halo, 3))
    return part, rows


@pytest.mark.parametrize("rate", [0.04, 0.3])
@pytest.mark.parametrize("rule", CLOSED)
def test_the_closed_form_is_the_mean_over_draws(sampled: tuple[Part, Reals], rule: Estimate, rate: float) -> None:
    part, rows = sampled
    lengths = np.diff(part.halo_offsets)
    assert (lengths[lengths > 0] < 1 / rate).any() == (rate == 0.04)
    found = drawn_error(part, rows, rate, rule, num_draws=3000, seed=1)
    assert found == pytest.approx(expected_error(part, rows, rate, rule), rel=0.05)


def test_two_rows_of_which_one_comes() -> None:
    """Node 0 has itself and two halo rows, 1 and 3, of which every draw takes one, twice: 0 + 2 or 0 + 6, not 4."""
    graph = from_edges(
        np.array([1, 2]),
        np.array([0, 0]),
        3,
        features=np.zeros((3, 1), np.float32),
        labels=np.zeros(3, np.int64),
        train_mask=np.ones(3, np.bool_),
        val_mask=np.zeros(3, np.bool_),
        test_mask=np.zeros(3, np.bool_),
    )
    part = build_parts(graph, np.array([0, 1, 1], np.int32))[0]
    rows = np.array([[0.0], [1.0], [3.0]])
    assert squared_means(part, rows) == pytest.approx((4 / 3) ** 2)
    for rule in (Estimate.ROUNDED, Estimate.FLOOR, Estimate.EDGES, Estimate.DROPEDGE):
        assert expected_error(part, rows, 0.5, rule) == pytest.approx((2 / 3) ** 2), rule
    assert expected_error(part, rows, 0.5, Estimate.BERNOULLI) == pytest.approx((1 + 9) / 9)
    # one row in half of the epochs: 4 or 12 times a third, a quarter each, or nothing
    assert expected_error(part, rows, 0.25, Estimate.ROUNDED) == pytest.approx((16 + 144) / 9 / 4 - (4 / 3) ** 2)
    assert expected_error(part, rows, 0.25, Estimate.FLOOR) == pytest.approx((4 / 3) ** 2)
    # means 1/2 or 3/2 of two entries, for 4/3
    found = drawn_error(part, rows, 0.5, Estimate.RENORMALISED, num_draws=400)
    assert found == pytest.approx(((5 / 6) ** 2 + (1 / 6) ** 2) / 2, rel=0.05)


@pytest.mark.parametrize("rule", CLOSED)
def test_the_ends_of_the_scale(sampled: tuple[Part, Reals], rule: Estimate) -> None:
    part, rows = sampled
    assert expected_error(part, rows, 1.0, rule) == 0
    draws, tolerance = (500, 0.05) if rule is Estimate.DROPEDGE else (1, 1e-9)  # as many edges may still be any
    found = drawn_error(part, rows, 0.0, rule, num_draws=draws)
    assert found == pytest.approx(expected_error(part, rows, 0.0, rule), rel=tolerance)


def test_means_over_what_is_there_vary_least_and_silent_pairs_hide_their_error(sampled: tuple[Part, Reals]) -> None:
    part, rows = sampled
    errors = {rule: expected_error(part, rows, 0.04, rule) for rule in CLOSED}
    plain = drawn_error(part, rows, 0.04, Estimate.RENORMALISED, num_draws=300)
    assert plain < 0.1 * errors[Estimate.ROUNDED]
    assert errors[Estimate.DROPEDGE] < 0.1 * errors[Estimate.EDGES]
    assert errors[Estimate.FLOOR] < errors[Estimate.BERNOULLI]
