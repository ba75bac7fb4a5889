"""Studies of convergence: validation selects, seeds are paired, trainings are kept, and the table fits a terminal."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from halocast.base.errors import InputError
from halocast.cli import run as command
from halocast.reports.convergence import answer, score_panels, score_table
from halocast.reports.scores import CaseScores, Difference, SeedScores, Spread, mean_curve, paired
from halocast.study.cases import base_of, combined_cases, parse_case
from halocast.study.convergence import Convergence, _Study, convergence
from halocast.study.queries import training_of
from halocast.study.results import ResultFile, State
from halocast.study.training import thinned

TINY: dict[str, dict[str, Any]] = {
    "graph": {"nodes": 120, "degree": 6.0, "features": 8, "classes": 3},
    "model": {"layers": 2, "hidden": 8},
    "run": {"epochs": 4, "eval_every": 2},
}
SETS = [f"{section}.{key}={value}" for section, table in TINY.items() for key, value in table.items()]
Evaluated = Mapping[int, Mapping[str, float]]


def seed_scores(seed: int, *scores: tuple[int, float, float]) -> SeedScores:
    return SeedScores(seed=seed, evaluated={epoch: {"val": val, "test": test} for epoch, val, test in scores})


def case_scores(label: str, *seeds: SeedScores, **more: Any) -> CaseScores:
    chosen = {"run.lr": 0.01}
    return CaseScores(
        **{"label": label, "baseline": "vanilla", "settings": {}, "chosen": chosen, "seeds": seeds, "wanted": 2, **more}
    )


def with_values(method: str, values: Mapping[str, Any], seed: int) -> dict[str, Any]:
    run = {**TINY["run"], **values, "seed": seed}
    return {**TINY, "method": {"name": method}, "run": run}


def pretend(path: Path, tables: dict[str, Any], evaluated: Evaluated) -> None:
    """Keep a training that never was."""
    query = training_of(tables)
    figures = {
        "evaluated": evaluated,
        "losses": {},
        "train_s": 1,
        "total_s": 2,
        "ages": [],
        "errors": [],
        "num_bytes": {},
    }
    with ResultFile(path) as file:
        file.add([(query.key, query.tables)])
        file.finish(query.key, State.DONE, figures, 1.0)


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


def test_the_search_looks_at_validation_only_and_the_other_seeds_train_with_what_it_chose(tmp_path: Path) -> None:
    """Trainings that lose the search have no test scores at all: reading one would fail."""
    path = tmp_path / "r.sqlite"
    for seed in (0, 1):
        pretend(path, with_values("vanilla", {"lr": 0.1}, seed), {1: {"val": 0.7}, 3: {"val": 0.2}})
        pretend(
            path,
            with_values("vanilla", {"lr": 0.2}, seed),
            {1: {"val": 0.9, "test": 0.3}, 3: {"val": 0.1, "test": 0.8}},
        )
    pretend(path, with_values("vanilla", {"lr": 0.1}, 2), {3: {"val": 1.0, "test": 1.0}})
    pretend(path, with_values("vanilla", {"lr": 0.2}, 2), {3: {"val": 0.5, "test": 0.6}})
    (row,) = convergence(
        TINY, cases=["vanilla"], tune={"run.lr": [0.1, 0.2]}, seeds=3, tune_seeds=2, results=path, train=False
    ).rows
    assert row.chosen == {"run.lr": 0.2}
    assert [trial.val for trial in row.trials] == [0.7, 0.9]
    assert [(one.seed, one.test) for one in row.seeds] == [(0, 0.3), (1, 0.3), (2, 0.6)]
    assert row.reasons == ()


def test_what_is_not_trained_yet_is_said(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    pretend(path, with_values("vanilla", {}, 0), {3: {"val": 0.5, "test": 0.6}})
    study = convergence(TINY, methods=["vanilla", "pipegcn"], seeds=2, results=path, train=False)
    assert [row.reasons for row in study.rows] == [("1 of 2: not trained yet",), ("2 of 2: not trained yet",)]
    assert study.line() == "Within 0.5 points of vanilla: none. Not known: pipegcn."
    assert "vanilla  60.00 (1/2)" in score_table(study.rows)
    remarks = score_table(study.rows).splitlines()[-2:]
    assert remarks == ["1 of 2: not trained yet: vanilla", "2 of 2: not trained yet: pipegcn"]


def test_the_answer_comes_first_and_the_table_fits_80_columns(tmp_path: Path) -> None:
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


def test_a_case_is_a_method_with_keys_and_may_have_a_name() -> None:
    case = parse_case("slow: digest-a interval=5 world.speed={0 = 0.333, 1=1} model.kind=gcn")
    assert (case.label, case.method) == ("slow", "digest-a")
    assert case.overrides == {"method.interval": 5, "world.speed": {"0": 0.333, "1": 1}, "model.kind": "gcn"}
    tables = case.tables({"method": {"name": "bns", "rate": 0.5}, "run": {"lr": 1.0}})
    assert tables["method"] == {"name": "digest-a", "interval": 5}
    assert (tables["run"], tables["model"]) == ({"lr": 1.0}, {"kind": "gcn"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bnss rate=0.1", "--case 'bnss rate=0.1': unknown method 'bnss'; did you mean 'bns'?"),
        ("bns rat=0.1", "case 'method.rat': unknown key 'rat'"),
        ("bns rate", "--case 'bns rate': 'rate' is no key=value"),
        ("bns name=psc", "--case 'bns name=psc': the method is the first word, not name="),
        (" ", "--case ' ': expected a method and keys"),
    ],
)
def test_a_case_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_case(text)
    assert str(refused.value).startswith(said)


def test_an_option_is_varied_for_the_methods_that_have_it() -> None:
    cases = combined_cases(["vanilla", "pipegcn-gf"], {"method.gamma": [0.5, 0.95], "model.layers": [2]})
    labels = ["vanilla model.layers=2", "pipegcn-gf gamma=0.5 model.layers=2", "pipegcn-gf gamma=0.95 model.layers=2"]
    assert [case.label for case in cases] == labels
    with pytest.raises(InputError, match=r"vary method\.gamma: none of vanilla has this option"):
        combined_cases(["vanilla"], {"method.gamma": [0.5]})


def test_a_case_is_compared_with_vanilla_in_its_own_setting() -> None:
    cases = combined_cases(["vanilla", "pipegcn"], {"model.layers": [2, 3]})
    assert [base_of(case, cases).label for case in cases] == ["vanilla model.layers=2", "vanilla model.layers=3"] * 2
    straggling = parse_case("digest-a model.layers=3 world.speed={0=0.5}")
    assert base_of(straggling, cases).label == "vanilla model.layers=3"
    assert base_of(straggling, cases, "pipegcn model.layers=2").label == "pipegcn model.layers=2"
    with pytest.raises(InputError, match="baseline: unknown case 'gone'"):
        base_of(straggling, cases, "gone")


def test_what_a_preset_says_of_the_model_is_part_of_the_setting() -> None:
    cases = [
        parse_case(text) for text in ("vanilla", "vanilla model.norm=l2", "digest preset=paper", "bns preset=paper")
    ]
    assert base_of(cases[2], cases) == cases[1]
    assert base_of(cases[3], cases) == cases[0]


def test_options_of_a_method_that_is_no_case_are_refused(tmp_path: Path) -> None:
    tables = {**TINY, "method": {"name": "pipegcn", "gamma": 0.5}}
    with pytest.raises(InputError, match=r"method.gamma: said of pipegcn, the scenario's method, which is no case"):
        convergence(tables, cases=["vanilla"], results=tmp_path / "r.sqlite", train=False)
    assert convergence(tables, methods=["vanilla", "pipegcn"], results=tmp_path / "r.sqlite", train=False).rows


def test_every_seed_has_draws_of_its_own_unless_a_case_says_which() -> None:
    study = _Study(
        tables=TINY,
        cases=(parse_case("bns"), parse_case("bns seed=7"), parse_case("vanilla")),
        tries=({},),
        num_seeds=2,
        num_tuned=1,
    )
    queries = [study.query(case, {}, 3).tables["method"] for case in study.cases]
    assert [table.get("seed") for table in queries] == [3, 7, None]


def test_a_search_leaves_methods_alone_that_do_not_have_its_key() -> None:
    study = _Study(tables=TINY, cases=(parse_case("vanilla"),), tries=({},), num_seeds=2, num_tuned=1)
    assert study.query(study.cases[0], {"method.gamma": 0.5}, 0).reason == ""


def test_a_long_name_of_a_case_is_told_whole() -> None:
    label = "gnnpipe chunks=8 shuffle=false late_gradients=true freeze=23 lockstep=true"
    table = score_table([case_scores(label, seed_scores(0, (0, 1.0, 0.5)))])
    assert " ".join(table.split()).count("freeze=23") == 1
    assert all(word in table.split() for word in label.split())


def test_a_report_leaves_other_files_of_its_directory_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    rows = (case_scores("vanilla", seed_scores(0, (0, 1.0, 0.5))),)
    Convergence(rows=rows, within=0.5, scenario="").write(tmp_path)
    assert (tmp_path / "mine.txt").exists()
    assert (tmp_path / "report.md").exists()


def test_a_curve_keeps_its_last_point_however_thin() -> None:
    assert thinned({epoch: 1.0 * epoch for epoch in range(10)}, 4) == {0: 0.0, 3: 3.0, 6: 6.0, 9: 9.0}
    assert len(thinned(dict.fromkeys(range(1001), 0.0))) <= 200


def test_a_study_trains_compares_and_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for text in [*SETS, "run.errors=true"] for word in ("--set", text)]
    words = ["--methods", "vanilla,pipegcn", "--case", "digest preset=code", "--seeds", "2", "--baseline", "vanilla"]
    out, csv = tmp_path / "out", tmp_path / "c.csv"
    assert command(["convergence", *sets, *words, "--out", str(out), "--csv", str(csv), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    cases = {case["case"]: case for case in told["cases"]}
    assert set(cases) == {"vanilla", "pipegcn", "digest preset=code"}
    assert cases["digest preset=code"]["reason"] == "2 of 2: [method]: unknown preset 'code' (known: paper)"
    assert cases["vanilla"]["difference"] == 0
    assert {one["epoch"] for one in told["evaluations"]} == {2, 4}
    assert {path.name for path in out.iterdir()} == {
        "report.md",
        "results.csv",
        "curves.csv",
        "curves.png",
        "errors.png",
    }
    assert csv.read_text(encoding="utf-8").startswith("case,test,test_std,last,last_std,baseline,difference,")
    assert told["answer"] in (out / "report.md").read_text(encoding="utf-8")


def test_seeds_differ_and_a_study_from_python_repeats_itself(tmp_path: Path) -> None:
    def study(path: Path) -> Convergence:
        return convergence(TINY, cases=["vanilla"], seeds=2, results=path, jobs=1)

    first = study(tmp_path / "a.sqlite")
    assert first.rows[0].seeds[0].evaluated != first.rows[0].seeds[1].evaluated
    assert study(tmp_path / "b.sqlite").rows[0].seeds[0].evaluated == first.rows[0].seeds[0].evaluated
    assert list(first.frame()["case"]) == ["vanilla"]


def test_a_training_that_failed_is_a_row_with_its_reason_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    hasty = {**TINY, "run": {**TINY["run"], "timeout_s": 0.001}}
    (failed,) = convergence(hasty, cases=["vanilla"], seeds=1, results=path, jobs=1).rows
    assert failed.seeds == ()
    assert "cannot meet the other ranks" in failed.reasons[0]
    (row,) = convergence(TINY, cases=["vanilla"], seeds=1, results=path, jobs=1).rows
    assert len(row.seeds) == 1


def claims(path: Path) -> dict[str, int]:
    """How often each finished training was begun."""
    if not path.exists():
        return {}
    with sqlite3.connect(path) as db:
        try:
            return dict(db.execute("SELECT key, num_claims FROM results WHERE state = 'done'"))
        except sqlite3.OperationalError:  # just being made
            return {}


def test_a_killed_study_goes_on_and_repeats_nothing_that_was_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.sqlite"
    sets = [word for text in SETS for word in ("--set", text)]
    asked = ["--methods", "vanilla,pipegcn", "--seeds", "3", "--jobs", "1", "--results", str(path), "--json"]
    words = ["convergence", *sets, *asked]
    study = subprocess.Popen([sys.executable, "-m", "halocast", *words], stdout=subprocess.DEVNULL)
    while len(claims(path)) < 2 and study.poll() is None:
        time.sleep(0.05)
    os.kill(study.pid, signal.SIGKILL)
    study.wait()
    before = claims(path)
    assert 2 <= len(before) < 6
    assert command(words) == 0
    after = claims(path)
    assert {key: after[key] for key in before} == before
    assert len(after) == 6
    assert [case["num_seeds"] for case in json.loads(capsys.readouterr().out)["cases"]] == [3, 3]
