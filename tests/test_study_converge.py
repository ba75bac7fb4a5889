"""Studies of accuracy over predicted time: what is asked, searched, trained, kept, and told."""

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
from halocast.graph import synthetic
from halocast.reports.curves import Curve
from halocast.study.cases import base_of, combined_cases, parse_case
from halocast.study.converge import converge
from halocast.study.convergence import Convergence
from halocast.study.training import thinned

TINY: dict[str, dict[str, Any]] = {
    "graph": {"nodes": 120, "degree": 6.0, "features": 8, "classes": 3},
    "model": {"layers": 2, "hidden": 8},
    "cluster": {"name": "rtx2080ti-x10-pcie3", "gpus": 2},
    "run": {"epochs": 4, "eval_every": 2},
}
SETS = [f"{section}.{key}={value}" for section, table in TINY.items() for key, value in table.items()]


def asked(path: Path, tables: Mapping[str, Any] = TINY, **more: Any) -> Convergence:
    return converge(tables, **{"results": path / "r.sqlite", "jobs": 1, "seeds": 1, "target": "0.9", **more})


def curves_of(found: Convergence) -> dict[str, Curve]:
    return {curve.label: curve for curve in found.curves}


def scored(curve: Curve) -> list[tuple[tuple[int, float, float], ...]]:
    return [tuple((point.epochs, point.val, point.test) for point in seed.points) for seed in curve.seeds]


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


def test_a_curve_keeps_its_last_point_however_thin() -> None:
    assert thinned({epoch: 1.0 * epoch for epoch in range(10)}, 4) == {0: 0.0, 3: 3.0, 6: 6.0, 9: 9.0}
    assert len(thinned(dict.fromkeys(range(1001), 0.0))) <= 200


def test_every_method_runs_and_one_device_is_always_there(tmp_path: Path) -> None:
    found = curves_of(asked(tmp_path))
    names = ["vanilla", "pipegcn", "digest", "digest-a", "bns", "gnnpipe", "psc", "one device"]
    assert list(found) == names
    assert all(curve.reason == "" and scored(curve) for curve in found.values())
    assert {name: curve.approximation.value for name, curve in found.items()} == {
        "vanilla": "exact",
        "pipegcn": "stale",
        "digest": "stale",
        "digest-a": "stale",
        "bns": "sampled",
        "gnnpipe": "stale",
        "psc": "sampled",
        "one device": "exact",
    }
    assert found["one device"].gpus == 1


def test_seconds_are_epochs_as_long_as_predicted_and_dollars_follow(tmp_path: Path) -> None:
    found = curves_of(asked(tmp_path, {**TINY, "cluster": {"name": "t4-x8-g4dn", "gpus": 2}}, methods=["vanilla"]))
    curve = found["vanilla"]
    assert curve.epoch_s is not None
    assert [point.seconds for point in curve.seeds[0].points] == [2 * curve.epoch_s, 4 * curve.epoch_s]
    assert curve.price_per_s is not None
    assert curve.price_per_s * 3600 == pytest.approx(7.824)  # one host of the instance, an hour


def test_free_ranks_have_the_simulators_own_clock_and_are_trained_again_at_other_speeds(tmp_path: Path) -> None:
    (curve, _) = asked(tmp_path, methods=["digest-a"]).curves
    assert curve.epoch_s is not None
    times = [point.seconds for point in curve.seeds[0].points]
    assert times == sorted(times)
    assert times != [2 * curve.epoch_s, 4 * curve.epoch_s]
    assert len(curve.perturbed) == 2
    assert len({tuple(p.seconds for p in seed.points) for seed in (*curve.seeds, *curve.perturbed)}) == 3


def trained(path: Path) -> dict[str, int]:
    """How often each finished training was begun, by its key."""
    with sqlite3.connect(path / "r.sqlite") as db:
        rows = db.execute("SELECT key, num_claims, scenario FROM results WHERE state = 'done'").fetchall()
    return {key: claims for key, claims, scenario in rows if json.loads(scenario).get("task") == "train"}


def test_one_training_serves_every_machine_where_ranks_meet(tmp_path: Path) -> None:
    vary = {"cluster.network_gbps": [1, 10], "world.speed": [{}, {"0": 0.5}]}
    tables = {**TINY, "cluster": {"name": "a5000-2x4-pcie4-ib200", "gpus": 8}}
    found = asked(tmp_path, tables, methods=["pipegcn"], vary=vary)
    pipelined = [curve for curve in found.curves if curve.label == "pipegcn"]
    assert [curve.setting for curve in pipelined] == [
        {"cluster.network_gbps": rate, "world.speed": speed} for rate in (1, 10) for speed in ({}, {"0": 0.5})
    ]
    assert len({curve.epoch_s for curve in pipelined}) == 4
    assert len({str(scored(curve)) for curve in pipelined}) == 1
    assert sorted(trained(tmp_path).values()) == [1, 1]  # and one of the whole graph on one device


def test_free_ranks_are_trained_for_every_machine(tmp_path: Path) -> None:
    asked(tmp_path, methods=["digest-a"], vary={"world.speed": [{}, {"0": 0.2}]})
    assert len(trained(tmp_path)) == 2 * 3 + 1


def test_what_is_trained_is_not_trained_again(tmp_path: Path) -> None:
    first = asked(tmp_path, methods=["vanilla"])
    before = trained(tmp_path)
    more = asked(tmp_path, methods=["vanilla", "bns"], vary={"cluster.gpus": [2]})
    assert curves_of(more)["vanilla"].seeds == curves_of(first)["vanilla"].seeds
    assert before.items() <= trained(tmp_path).items()
    nothing = asked(tmp_path, methods=["vanilla", "psc"], train=False)
    assert curves_of(nothing)["psc"].reason == "1 of 1: not trained yet"
    assert scored(curves_of(nothing)["vanilla"]) == scored(curves_of(first)["vanilla"])


def test_a_budget_shortens_what_is_approximate_and_longer_trainings_serve(tmp_path: Path) -> None:
    tables = {**TINY, "run": {"epochs": 40, "eval_every": 1}}
    epoch_s = curves_of(asked(tmp_path, tables, methods=["pipegcn"], train=False, target=0.9))["pipegcn"].epoch_s
    assert epoch_s is not None
    budget = str(12 * epoch_s)
    short = curves_of(asked(tmp_path, tables, methods=["pipegcn"], budget=budget, patience=0))
    assert len(short["pipegcn"].seeds[0].points) == 20  # half of 40, the next length that is enough
    assert len(short["one device"].seeds[0].points) == 40
    whole = curves_of(asked(tmp_path, tables, methods=["pipegcn"], patience=0))
    assert whole["pipegcn"].seeds[0].points[:20] == short["pipegcn"].seeds[0].points
    again = curves_of(asked(tmp_path, tables, methods=["pipegcn"], budget=str(3 * epoch_s), patience=0))
    assert len(again["pipegcn"].seeds[0].points) == 20
    assert len(trained(tmp_path)) == 3


def test_a_training_ends_when_validation_does_not_improve(tmp_path: Path) -> None:
    tables = {**TINY, "run": {"epochs": 40, "eval_every": 1, "lr": 0.0}}
    (curve, _) = asked(tmp_path, tables, methods=["pipegcn"], patience=5, target=0.9).curves
    (seed,) = curve.seeds
    assert seed.stopped
    assert len(seed.points) == 6


def test_a_method_that_diverges_is_a_row_that_says_so(tmp_path: Path) -> None:
    tables = {**TINY, "run": {**TINY["run"], "lr": 1e38, "optimizer": "sgd"}}
    found = asked(tmp_path, tables, methods=["pipegcn"])
    (seed,) = curves_of(found)["pipegcn"].seeds
    assert seed.diverged is not None
    assert "diverged" in " ".join(found.text().split())


def test_a_method_that_cannot_run_is_a_row_with_its_reason(tmp_path: Path) -> None:
    tables = {**TINY, "cluster": {"name": "rtx2080ti-x10-pcie3", "gpus": 5}}
    found = curves_of(asked(tmp_path, tables, cases=["vanilla", "gnnpipe stages=3 ways=1"]))
    assert found["vanilla"].reason == ""
    assert "stages" in found["gnnpipe stages=3 ways=1"].reason
    assert found["gnnpipe stages=3 ways=1"].approximation == "stale"


def test_the_search_tries_as_many_rates_for_every_case_and_the_seeds_train_with_the_best(tmp_path: Path) -> None:
    tables = {**TINY, "run": {"epochs": 10, "eval_every": 5, "lr": 0.03}}
    found = asked(tmp_path, tables, methods=["vanilla", "bns"], tune=3, seeds=2)
    for curve in found.curves:
        assert [trial.values for trial in curve.trials] == [{"run.lr": 0.01}, {"run.lr": 0.03}, {"run.lr": 0.09}]
        best = max(trial.val for trial in curve.trials if trial.val is not None)
        assert curve.chosen in [trial.values for trial in curve.trials if trial.val == best]
        assert len(curve.seeds) == 2
    assert len(trained(tmp_path)) == 3 * (3 + 1)


def test_a_share_is_of_the_best_score_of_exact_training(tmp_path: Path) -> None:
    found = asked(tmp_path, methods=["vanilla"], seeds=2, target="80%")
    vanilla = curves_of(found)["vanilla"]
    best = [max(point.val for point in seed.points) for seed in vanilla.seeds]
    assert found.content.target == pytest.approx(0.8 * sum(best) / 2)
    assert found.content.target_text == "80 % of vanilla's best"


def test_a_graph_that_stands_in_is_trained_and_the_other_one_timed(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    synthetic(nodes=90, degree=5.0, skew=1.0, classes=3, features=4, mixing=0.2, seed=0).save(path)
    tables = {**TINY, "graph": {"dataset": "reddit"}}
    found = asked(tmp_path, tables, methods=["vanilla", "digest-a"], stand_in=str(path))
    assert (found.content.timed.nodes, found.content.trained.nodes) == (232_965, 90)
    assert found.content.stands_in
    assert all(scored(curve) for curve in found.curves)


def test_where_only_a_card_is_here_a_graph_that_looks_like_it_is_trained(tmp_path: Path) -> None:
    tables = {**TINY, "graph": {"dataset": "pubmed"}}
    found = asked(tmp_path, tables, methods=["vanilla"], stand_in="like:400", target=0.5)
    assert (found.content.timed.name, found.content.timed.nodes) == ("pubmed", 19_717)
    assert (found.content.trained.name, found.content.trained.nodes) == ("twin of pubmed", 400)
    assert found.content.trained.halo_ratio == pytest.approx(found.content.timed.halo_ratio, rel=0.3)
    assert asked(tmp_path, tables, methods=["vanilla"], stand_in="like:400", target=0.5).curves == found.curves


def test_the_graph_of_the_package_needs_nothing_that_stands_in(tmp_path: Path) -> None:
    tables = {**TINY, "graph": {"dataset": "amazon-computers"}, "run": {"epochs": 1}}
    found = asked(tmp_path, tables, methods=["vanilla"], target=0.5)
    assert not found.content.stands_in
    assert found.content.trained.nodes == 13_752


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stand_in": "like"}, "stand_in = like: synthetic has no card that a graph could look like"),
        ({"target": "101%"}, "target 101%: needs to be above 0 and at most 100%"),
        ({"target": "1.5"}, "target 1.5: needs to be above 0 and at most 1"),
        ({"target": "good"}, "target 'good': expected a share of exact training's best validation score (95%)"),
        ({"target": "0.2"}, "target 0.2: needs to be above 0."),
        ({"budget": "0"}, "budget 0: needs to be above 0, for example 10min or 2h"),
        ({"budget": "soon"}, "budget 'soon': expected a time such as 90s, 10min or 2h"),
        ({"seeds": 0}, "seeds = 0: needs to be at least 1"),
        ({"tune": 0}, "tune = 0: needs to be at least 1"),
        ({"vary": {"cluster.gpus": []}}, "vary cluster.gpus: no values"),
        ({"vary": {"cluster.gpsu": [2]}}, "vary 'cluster.gpsu': unknown key 'gpsu'"),
        ({"stand_in": "gone.npz"}, "gone.npz"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        asked(tmp_path, **{"methods": ["vanilla"], **more})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_target_that_chance_meets_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"target 0\.2: needs to be above"):
        asked(tmp_path, methods=["vanilla"], target=0.2)
    assert trained(tmp_path) == {}


def test_options_of_a_method_that_is_no_case_are_refused(tmp_path: Path) -> None:
    tables = {**TINY, "method": {"name": "pipegcn", "gamma": 0.5}}
    with pytest.raises(InputError, match=r"method.gamma: said of pipegcn, the scenario's method, which is no case"):
        asked(tmp_path, tables, cases=["vanilla"], train=False)


def test_every_seed_has_draws_of_its_own_unless_a_case_says_which(tmp_path: Path) -> None:
    found = curves_of(asked(tmp_path, cases=["vanilla", "bns", "fixed: bns seed=7"], seeds=2))
    with sqlite3.connect(tmp_path / "r.sqlite") as db:
        tables = [json.loads(text) for (text,) in db.execute("SELECT scenario FROM results")]
    draws = sorted(t["method"]["seed"] for t in tables if t.get("task") == "train" and t["method"]["name"] == "bns")
    assert draws == [0, 1, 7, 7]
    assert scored(found["bns"])[0] != scored(found["bns"])[1]


def test_a_study_from_the_command_line_answers_first_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for text in SETS for word in ("--set", text)]
    words = ["converge", *sets, "--methods", "vanilla,pipegcn", "--seeds", "2", "--target", "0.9"]
    results = ["--results", str(tmp_path / "r.sqlite")]
    assert command([*words, *results]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Exact, to 90.0 on validation: ")
    assert max(map(len, text.splitlines())) <= 80
    assert command([*words, *results, "--json", "--csv", str(tmp_path / "c.csv")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [line.partition(",")[0].partition(" is")[0] for line in told["answer"][:3]] == [
        "Exact",
        "Approximate",
        "One GPU",
    ]
    assert "vanilla" in (tmp_path / "c.csv").read_text(encoding="utf-8")


def test_a_killed_study_goes_on_and_repeats_nothing_that_was_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for text in SETS for word in ("--set", text)]
    said = ["--methods", "vanilla,pipegcn", "--seeds", "3", "--jobs", "1", "--target", "0.9", "--json"]
    words = ["converge", *sets, *said, "--results", str(tmp_path / "r.sqlite")]
    study = subprocess.Popen([sys.executable, "-m", "halocast", *words], stdout=subprocess.DEVNULL)
    while study.poll() is None and len(_so_far(tmp_path)) < 2:
        time.sleep(0.05)
    os.kill(study.pid, signal.SIGKILL)
    study.wait()
    before = trained(tmp_path)
    assert 2 <= len(before) < 9
    assert command(words) == 0
    after = trained(tmp_path)
    assert {key: after[key] for key in before} == before
    assert len(after) == 9
    assert len(json.loads(capsys.readouterr().out)["cases"]) == 3


def _so_far(path: Path) -> dict[str, int]:
    try:
        return trained(path)
    except sqlite3.OperationalError:  # just being made
        return {}
