"""What the benchmark of stand-ins says of its trainings: who meets a target when, and whether the order was right."""

import importlib
from math import log
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "published"
FLAT, RISING = {2: 0.5, 4: 0.5}, {2: 0.2, 4: 0.6, 6: 0.8}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("stand_ins")


def test_the_middle_seed_meets_a_target_or_nobody_does(module: Any) -> None:
    assert module.epochs_to((RISING,), 0.6) == 4
    assert module.epochs_to((RISING, RISING, FLAT), 0.7) == 6
    assert module.epochs_to((RISING, FLAT, FLAT), 0.7) is None
    assert module.best((RISING, FLAT)) == pytest.approx(0.65)


def test_pairs_are_those_that_meet_the_target_on_both_graphs(module: Any) -> None:
    real, predicted = {"a": 10.0, "b": 20.0, "c": None, "d": 10.5}, {"a": 5.0, "b": 5.0, "c": 9.0, "d": 20.0}
    pairs = module.pairs_of(real, predicted)
    assert [(pair.real, pair.predicted) for pair in pairs] == [
        (log(10 / 20), 0.0), (log(10 / 10.5), log(5 / 20)), (log(20 / 10.5), log(5 / 20)),
    ]  # fmt: skip
    assert [pair.is_ordered for pair in pairs] == [True, False, True]
    assert [pair.is_right for pair in pairs] == [False, True, False]


def test_a_verdict_counts_orders_errors_and_who_met_the_target(module: Any) -> None:
    pairs = [module.Pair(real=log(2), predicted=log(4)), module.Pair(real=log(2), predicted=log(0.5))]
    assert module.verdict(pairs, [(True, True), (False, True)]) == ["2", "1 of 2", "2.83", "2.00", "1 of 2"]
    assert module.verdict([], [(False, False)]) == ["0", "0 of 0", "-", "-", "1 of 1"]


def test_published_rows_are_compared_within_their_table(module: Any) -> None:
    if not PUBLISHED.is_dir():
        pytest.skip(f"published rows are not at {PUBLISHED}")
    curves = importlib.import_module("published_curves")
    tables = curves.groups(PUBLISHED)
    described = [rows for rows in tables if rows[0]["source"] == "psc"]
    assert [[row["method"] for row in rows] for rows in described] == [["vanilla", "pipegcn", "psc"]] * 3
    assert [rows[0]["dataset"] for rows in described] == ["reddit", "ogbn-products", "yelp"]
