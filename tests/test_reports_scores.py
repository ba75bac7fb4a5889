"""Scores over seeds: validation selects, seeds are paired, and the table of a study of scores fits a terminal."""

from typing import Any

import pytest

from halocast.reports.score_table import answer, score_panels, score_table
from halocast.reports.scores import CaseScores, Difference, SeedScores, Spread, mean_curve, paired


def seed_scores(seed: int, *scores: tuple[int, float, float]) -> SeedScores:
    return SeedScores(seed=seed, evaluated={epoch: {"val": val, "test": test} for epoch, val, test in scores})


def case_scores(label: str, *seeds: SeedScores, **more: Any) -> CaseScores:
    chosen = {"run.lr": 0.01}
    return CaseScores(
        **{"label": label, "baseline": "vanilla", "settings": {}, "chosen": chosen, "seeds": seeds, "wanted": 2, **more}
    )


def test_validation_selects_the_epoch_and_the_first_of_equal_ones() -> None:
    scores = seed_scores(0, (4, 0.6, 0.9), (9, 0.8, 0.5), (14, 0.8, 0.7), (30, 0.7, 0.95))
    assert (scores.best_epoch, scores.val, scores.test, scores.last) == (9, 0.8, 0.5, 0.95)


def test_differences_are_paired_by_seed() -> None:
    base = [seed_scores(k, (0, 1.0, test)) for k, test in enumerate([0.50, 0.60, 0.70])]
    other = [seed_scores(k, (0, 1.0, test)) for k, test in enumerate([0.51, 0.63, 0.72, 0.99])]  # a seed more
    difference = paired(other, base)
    assert difference is not None
    assert difference.mean == pytest.approx(0.02)
    assert difference.error == pytest.approx(0.01 / 3**0.5)  # of 1, 3 and 2 points
    assert difference.num_seeds == 3
    assert paired(other[3:], base) is None


def test_of_one_seed_no_spread_is_known() -> None:
    one = case_scores("x", seed_scores(0, (0, 1.0, 0.5)))
    assert one.test == Spread(mean=0.5, std=None)
    assert paired(one.seeds, one.seeds) == Difference(mean=0.0, error=None, num_seeds=1)


def test_curves_of_irregular_epochs_are_joined_on_lines() -> None:
    seeds = [seed_scores(0, (0, 0, 0.0), (10, 0, 1.0)), seed_scores(1, (0, 0, 0.5), (5, 0, 1.0), (12, 0, 1.0))]
    assert mean_curve(seeds, "test", [0, 5, 10]) == [0.25, 0.75, 1.0]
    after_one_has_ended = mean_curve(seeds, "test", [12])
    assert after_one_has_ended[0] != after_one_has_ended[0]
    (panel,) = score_panels([case_scores("vanilla", *seeds)])
    assert panel.xs == [1, 6, 11, 13]


def test_the_answer_comes_first_and_the_table_fits_80_columns() -> None:
    long = "digest-a interval=10 bound=3 average=plain world.speed={0=0.333} model.norm=l2"
    base = [seed_scores(k, (199, 1.0, 0.9)) for k in (0, 1)]
    rows = [
        case_scores("vanilla", *base, difference=Difference(mean=0.0, error=0.0, num_seeds=2)),
        case_scores("pipegcn", *base, difference=Difference(mean=-0.005, error=0.001, num_seeds=2)),
        case_scores(long, *base, difference=Difference(mean=-0.1234, error=0.05, num_seeds=2)),
    ]
    assert answer(rows, 0.5) == f"Within 0.5 points of vanilla: pipegcn. Below: {long} (-12.3)."
    table = score_table(rows).splitlines()
    assert max(map(len, table)) <= 80
    assert " ".join(" ".join(line.split()) for line in table[4:]) == (
        "digest-a interval=10 bound=3 90.00 0.00 -12.34 5.00 200 0.01 average=plain world.speed={0=0.333} model.norm=l2"
    )


def test_a_long_name_of_a_case_is_told_whole() -> None:
    label = "gnnpipe chunks=8 shuffle=false late_gradients=true freeze=23 lockstep=true"
    table = score_table([case_scores(label, seed_scores(0, (0, 1.0, 0.5)))])
    assert " ".join(table.split()).count("freeze=23") == 1
    assert all(word in table.split() for word in label.split())
