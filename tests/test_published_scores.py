"""Published scores stand beside those of our runs, as differences from vanilla, on the same graph or a stand-in."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from halocast.base.errors import InputError
from halocast.cli import run
from halocast.reports.published_scores import (
    ScoreResult,
    score_cells,
    score_verdict,
    summarise_scores,
    text_scores,
)
from halocast.reports.scores import CaseScores, Difference, SeedScores
from halocast.study.own_scores import COLUMNS, OwnScore, format_scores, own_scores, read_scores
from halocast.study.published_rows import COLUMNS as ROW_COLUMNS
from halocast.study.published_rows import Row, own_figures, read_rows
from halocast.study.published_scores import STAND_INS, is_score, score_results
from halocast.study.scenario import build_scenario

GF = {
    "source": "pipegcn",
    "where": "Table 4",
    "dataset": "reddit",
    "train_graph": "inductive",
    "model": "sage",
    "layers": "4",
    "n_linear": "0",
    "hidden": "256",
    "testbed": "rtx2080ti-x10-pcie3",
    "gpus": "2",
    "nodes": "1",
    "method": "pipegcn-gf",
    "params": '{"gamma":0.95,"use_pp":true}',
    "metric": "test_score",
    "value": "97.12",
    "unit": "%",
    "note": "+-0.02",
}
VANILLA = GF | {"method": "vanilla", "params": "{}", "value": "97.11"}
RUN = OwnScore(
    graph="amazon-computers",
    method="pipegcn-gf",
    options="gamma=0.95",
    model="sage",
    ranks=4,
    epochs=200,
    seeds=5,
    test_mean=0.9,
    test_std=0.004,
    minus_vanilla=-0.0012,
    minus_vanilla_se=0.0007,
)


def changed(own: OwnScore, **changes: object) -> OwnScore:
    return OwnScore(**{name: getattr(own, name) for name in COLUMNS} | changes)


def only(rows: list[Row], *own: OwnScore) -> ScoreResult:
    """The one result that is no vanilla."""
    (result,) = (result for result in score_results(rows, own) if "vanilla:" not in result.refused)
    return result


def write_scores(path: Path, *own: OwnScore) -> Path:
    path.write_text(format_scores(own), encoding="utf-8")
    return path


def test_a_score_is_its_difference_from_vanilla_of_the_same_table_beside_ours_on_a_stand_in() -> None:
    result = only([VANILLA, GF], RUN)
    assert result.published == pytest.approx(0.01)
    assert result.ours is not None
    assert (result.ours.mean, result.ours.error, result.ours.num_seeds) == (-0.0012, 0.0007, 5)
    assert result.case == "pipegcn-gf gamma=0.95"
    assert (result.stand_in, result.same_graph) == ("amazon-computers", False)
    assert score_cells([result])[1] == ("pipegcn", "reddit×2", "pipegcn-gf", "+0.01", "-0.12±0.07", "amazon-computers")


@pytest.mark.parametrize(("published", "close"), [("96.99", True), ("97.12", True), ("97.14", False), ("96.84", False)])
def test_a_difference_is_close_within_two_standard_errors_of_ours(published: str, close: bool) -> None:
    """Ours is -0.12 with an error of 0.07: from -0.26 to +0.02 above vanilla's 97.11."""
    assert only([VANILLA, GF | {"value": published}], RUN).is_close is close


def test_vanilla_on_as_many_gpus_comes_before_vanilla_on_others_and_another_table_has_none() -> None:
    other = VANILLA | {"gpus": "4", "value": "97.00"}
    assert only([VANILLA, other, GF]).published == pytest.approx(0.01)
    assert only([other, GF]).published == pytest.approx(0.12)
    for changes in ({"where": "Table 9"}, {"model": "gcn"}, {"dataset": "yelp"}, {"metric": "val_f1"}):
        result = only([VANILLA | changes, GF], RUN)
        assert (result.published, result.is_close) == (None, None)
        assert result.no_base == "no vanilla in pipegcn, Table 4: nothing to subtract"
        assert score_cells([result])[1][3:5] == ("-", "-0.12±0.07")


def test_rows_of_one_log_have_one_table_and_bns_with_all_rows_is_vanilla() -> None:
    log = GF | {"source": "log", "where": "run.csv:row3", "method": "bns", "params": '{"p":0.01}', "value": "0.95"}
    exact = log | {"where": "run.csv:row2", "params": '{"p":1}', "value": "0.97"}
    own = changed(RUN, method="bns", options="rate=0.01")
    result = only([row | {"unit": "x"} for row in (exact, log)], changed(own, options=""), own)
    assert result.published == pytest.approx(-2.0)
    assert result.method == "bns rate=0.01"
    assert result.case == "bns rate=0.01"  # a run without options had the rate 0.1


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (("gamma=0.5",), None),
        (("gamma=0.5", ""), "pipegcn-gf"),  # the default is 0.95
        (("gamma=0.95 lag=2", "method.gamma=0.95"), "pipegcn-gf method.gamma=0.95"),
        (("gamma=0.95", "preset=paper", "preset=code"), "pipegcn-gf preset=paper"),
        (("preset=code gamma=0.5",), None),
    ],
)
def test_of_our_runs_the_one_with_the_papers_options_is_compared(options: tuple[str, ...], chosen: str | None) -> None:
    result = only([VANILLA, GF], *(changed(RUN, options=text) for text in options))
    assert (result.case if result.ours else None) == chosen


def test_a_preset_stands_for_its_options() -> None:
    """Released code has an exchange of every layer under way: preset `code` does, the default and `paper` do not."""
    row = GF | {"params": '{"lanes":"layer"}'}
    runs = [changed(RUN, options=text) for text in ("", "preset=paper", "preset=code")]
    assert only([VANILLA, row], *runs).case == "pipegcn-gf preset=code"
    assert only([VANILLA, row], *runs[:2]).ours is None


def test_a_run_of_another_model_graph_or_method_is_not_compared() -> None:
    others = ({"model": "gcn"}, {"graph": "pubmed"}, {"method": "pipegcn-f"}, {"minus_vanilla": None})
    result = only([VANILLA, GF], *(changed(RUN, **change) for change in others))
    assert result.ours is None
    assert score_cells([result])[1][4:] == ("not run", "amazon-computers")


@pytest.mark.parametrize(
    ("dataset", "stand_in", "same"),
    [("Squirrel", "squirrel", True), ("physics", "coauthor-physics", True), ("flickr", "squirrel", False)],
)
def test_a_graph_that_is_ours_is_said_to_be_the_same(dataset: str, stand_in: str, same: bool) -> None:
    result = only([VANILLA | {"dataset": dataset}, GF | {"dataset": dataset}], changed(RUN, graph=stand_in))
    assert (result.stand_in, result.same_graph, result.ours is not None) == (stand_in, same, True)
    assert f"{dataset}: the same graph." in text_scores([result], summarise_scores([result])) or not same


@pytest.mark.parametrize(("dataset", "why"), [("yelp", "no stand-in, multi-label"), ("mag", "no stand-in is known")])
def test_a_graph_without_a_stand_in_is_listed_and_says_why(dataset: str, why: str) -> None:
    result = only([VANILLA | {"dataset": dataset}, GF | {"dataset": dataset}], changed(RUN, graph=dataset))
    assert result.published == pytest.approx(0.01)
    assert (result.ours, result.why) == (None, why)
    assert result.as_dict()["reason"] == why
    assert score_cells([result])[1][4:] == ("-", "none")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "llcg"}, "method 'llcg' is not available"),
        ({"value": "high"}, "value = 'high': expected a number"),
        ({"unit": "s"}, "unknown unit 's'"),
        ({"params": "["}, "not JSON"),
    ],
)
def test_a_score_that_cannot_be_compared_is_refused_with_the_reason(changes: dict[str, str], reason: str) -> None:
    rows = [VANILLA, GF, GF | changes, VANILLA | {"params": "["}]
    results = score_results(rows, [RUN])
    assert reason in results[2].refused
    assert results[1].published == pytest.approx(0.01)  # a bad row does no harm to the others
    assert len(score_cells(results)) == 2


def test_every_published_score_is_listed_or_refused_and_counted() -> None:
    rows = read_rows(own_figures()[0])
    summary = summarise_scores(score_results(rows, []))
    assert sum(row["metric"] in ("test_score", "val_f1") for row in rows) == summary["rows"] == 58
    assert summary["listed"] + sum(summary["refused"].values()) == 58
    assert (summary["listed"], summary["differences"], summary["compared"]) == (38, 24, 0)
    assert summary["no_difference"] == {"no vanilla in digest, Table 1: nothing to subtract": 14}
    assert summary["refused"] == {
        "method 'llcg' is not available": 7,
        "method 'dgl' is not available": 7,
        "vanilla: what the others of its table are compared with": 6,
    }
    assert {row["dataset"].lower() for row in rows if is_score(row)} <= set(STAND_INS)


def test_the_answer_comes_first_and_the_table_fits_eighty_columns() -> None:
    rows = read_rows(own_figures()[0])
    results = score_results(rows, [RUN, changed(RUN, graph="coauthor-cs", method="digest", options="", model="gcn")])
    lines = text_scores(results, summarise_scores(results)).splitlines()
    assert lines[:3] == [
        "Scores: 2 of 4 published differences from vanilla are within 2 standard errors",
        "of ours (0 of the 4 on the same graph, the rest on another);",
        "58 scores are published, 24 beside vanilla's of the same table.",
    ]
    assert max(map(len, lines)) <= 80
    assert score_verdict(summarise_scores([])).startswith("Scores: no run of ours")


def test_a_file_of_scores_that_is_missing_or_empty_means_that_nothing_was_run(tmp_path: Path) -> None:
    assert read_scores(tmp_path / "none.csv") == ()
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    assert read_scores(tmp_path / "empty.csv") == read_scores(write_scores(tmp_path / "head.csv")) == ()


def test_scores_are_read_as_they_were_written_and_bad_ones_are_refused(tmp_path: Path) -> None:
    vanilla = changed(RUN, method="vanilla", options="", minus_vanilla=None, minus_vanilla_se=None)
    path = write_scores(tmp_path / "scores.csv", vanilla, RUN)
    assert read_scores(path) == (vanilla, RUN)
    text = path.read_text(encoding="utf-8")
    for old, new, message in (
        ("test_std", "std", "scores.csv:2: needs the columns graph, method, options"),
        ("0.004", "small", "scores.csv:2: could not convert"),
        ("0.9,", "90.0,", "scores.csv:2: test_mean = 90.0: needs to be a share"),
    ):
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_scores(path)


def test_cases_of_a_study_become_scores_with_what_was_overridden_as_options() -> None:
    seeds = tuple(SeedScores(seed=k, evaluated={9: {"val": 0.5, "test": 0.8 + 0.1 * k}}) for k in range(2))
    vanilla = CaseScores(
        label="vanilla", baseline="vanilla", settings={"method.name": "vanilla"}, chosen={}, seeds=seeds
    )
    slow = {"method.name": "digest-a", "method.interval": 10, "world.speed": {"0": 0.3}}
    away = Difference(mean=-0.02, error=None, num_seeds=1)
    async_ = replace(vanilla, label="slow", settings=slow, seeds=seeds[:1], difference=away)
    of_async = replace(async_, label="other", baseline="slow")
    failed = replace(vanilla, label="failed", seeds=())
    tables = {"model": {"kind": "gcn"}, "cluster": {"gpus": 2}, "run": {"epochs": 7}}
    own = own_scores("pubmed", [vanilla, async_, of_async, failed], build_scenario(tables, "a test"))
    assert [(one.method, one.options, one.seeds, one.minus_vanilla, one.minus_vanilla_se) for one in own] == [
        ("vanilla", "", 2, None, None),
        ("digest-a", "interval=10 world.speed={'0':0.3}", 1, -0.02, None),
        ("digest-a", "interval=10 world.speed={'0':0.3}", 1, None, None),  # not compared with vanilla
    ]
    assert (own[0].graph, own[0].model, own[0].ranks, own[0].epochs) == ("pubmed", "gcn", 2, 7)
    assert (own[0].test_mean, own[0].test_std) == pytest.approx((0.85, 0.1 / 2**0.5))
    assert own[1].chosen == {"interval": "10", "world.speed": "{'0':0.3}"}


def test_a_run_of_one_seed_has_no_error_and_is_neither_close_nor_far() -> None:
    result = only([VANILLA, GF], changed(RUN, seeds=1, test_std=None, minus_vanilla_se=None))
    assert result.is_close is None
    assert score_cells([result])[1][4] == "-0.12±?"
    assert summarise_scores([result])["compared"] == 0


def test_the_command_lists_scores_after_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "rows.csv", tmp_path / "out"
    with data.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROW_COLUMNS)
        writer.writeheader()
        writer.writerows([VANILLA, GF])
    own = write_scores(tmp_path / "own.csv", RUN)
    options = ["published", "--data", str(data), "--scores", str(own), "--out", str(out)]
    assert run([*options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["reason"] for row in printed["rows"]] == ["a score: compared with our runs, not predicted"] * 2
    assert printed["scores"][1]["ours_minus_vanilla"] == pytest.approx(-0.12)
    assert printed["summary"]["scores"]["close"] == 1
    assert "pipegcn-gf gamma=0.95" in (out / "scores.csv").read_text(encoding="utf-8")
    assert "| pipegcn-gf | +0.01 | -0.12±0.07 |" in (out / "report.md").read_text(encoding="utf-8")
    assert run(options) == 0
    assert "Scores: 1 of 1 published" in capsys.readouterr().out
    assert run(["published", "--data", str(data), "--scores", str(tmp_path / "gone.csv"), "--out", str(out)]) != 0
    assert "no such file" in capsys.readouterr().err
