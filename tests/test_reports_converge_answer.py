"""What the three lines of an answer say, word by word, and what changes with the setting."""

import json
from dataclasses import replace
from typing import Any

import pytest
from converged import GRAPH, LATE, converged, curve, seed_curve

from halocast.reports.converge.answer import answer, answer_lines, epoch_note
from halocast.reports.converge.contests import Contest, baseline_of, contests, variations
from halocast.reports.converge.records import as_json, error_records, point_records, records
from halocast.reports.curves import Converged, Curve
from halocast.reports.scores import ErrorCurve
from halocast.reports.summary import FoundAges
from halocast.schedule.approximation import Approximation

VANILLA = curve("vanilla", [0.5, 0.7], [0.5, 0.72], epoch_s=10.0)
SAMPLED: dict[str, Any] = {"approximation": Approximation.SAMPLED}
BNS = curve("bns rate=0.1", [0.5, 0.6, 0.7], [0.5, 0.6, 0.71], epoch_s=2.0, price_per_s=0.02, **SAMPLED)
ALONE = curve("vanilla, one GPU", [0.5, 0.7], epoch_s=100.0, gpus=1, method="vanilla", price_per_s=0.001)


def only(answered: Converged) -> Contest:
    (contest,) = contests(answered)
    return contest


def lines(*curves: Curve, **more: Any) -> list[str]:
    return answer_lines(converged(*curves, **more))


def test_the_best_exact_one_then_the_best_approximate_one_then_one_gpu() -> None:
    assert lines(VANILLA, BNS, ALONE) == [
        "Exact, to 95 % of vanilla's best (70.0 on validation): vanilla on 8 GPUs, 20 s (likely 16 to 30 s), 2 epochs, "
        "$0.20, test 69.0±1.4.",
        "Approximate, at the same accuracy: bns rate=0.1 on 8 GPUs (sampled), 6 s (likely 4.8 to 9 s), 3 epochs, "
        "$0.12, test 68.5±0.7: 3.33 times as fast, $0.080 less; test -0.5±0.5 points.",
        "One GPU is enough: vanilla, one GPU, 3.33 min (likely 2.7 to 5 min), 2 epochs, $0.20, test 68.0; against "
        "vanilla on 8 GPUs: takes 10 times as long, at the same price.",
    ]


def test_a_target_that_was_given_as_a_number_is_not_told_twice() -> None:
    assert lines(VANILLA, target_text="0.7")[0].startswith("Exact, to 70.0 on validation: vanilla")


def test_what_does_not_meet_the_target_says_why_and_nothing_is_guessed() -> None:
    late = curve("gnnpipe", LATE, epoch_s=1.0)
    nan = curve("bns", **SAMPLED, seeds=(seed_curve([0.1], diverged=2),))
    big = replace(ALONE, fits=False)
    assert lines(late, nan, big, max_epochs=4) == [
        "Exact, to 95 % of vanilla's best (70.0 on validation): gnnpipe (not within 4 epochs).",
        "Approximate, at the same accuracy: bns (diverged after 2 epochs).",
        "One GPU is not enough: vanilla, one GPU does not fit in memory.",
    ]


def test_what_was_not_asked_for_is_not_known() -> None:
    assert lines(VANILLA)[1:] == [
        "Approximate, at the same accuracy: none was asked for.",
        "One GPU alone: not known, it was not asked for.",
    ]


def test_epochs_without_a_time_are_told_as_such() -> None:
    untimed = replace(ALONE, epoch_s=None, reason="no such device")
    assert lines(VANILLA, untimed)[2] == (
        "One GPU alone: not known, vanilla, one GPU needs 2 epochs, of which the time is not known (no such device)."
    )


def test_a_machine_with_one_gpu_is_compared_with_nothing() -> None:
    assert lines(ALONE)[0].startswith(
        "Exact, to 95 % of vanilla's best (70.0 on validation): vanilla, one GPU on 1 GPU"
    )
    assert lines(ALONE)[2] == "One GPU is all there is here."


def test_a_slower_approximation_says_what_it_costs_more() -> None:
    slow = curve("bns rate=0.1", [0.1, 0.1, 0.7], epoch_s=10.0, price_per_s=None, **SAMPLED)
    assert lines(VANILLA, slow)[1] == (
        "Approximate, at the same accuracy: bns rate=0.1 on 8 GPUs (sampled), 30 s (likely 24 to 45 s), 3 epochs, no "
        "price known, test 68.0: takes 1.5 times as long, but their likely times overlap; test +0.0 points."
    )


def test_only_seeds_that_meet_the_target_are_in_the_time_and_their_number_is_told() -> None:
    some = curve("vanilla", [0.7], [0.7], LATE, epoch_s=10.0)
    assert lines(some)[0].endswith("10 s (likely 8 to 15 s), 1 epoch, $0.10, test 68.0±0.0, 2 of 3 seeds.")


def test_a_graph_that_stands_in_is_said_at_once_and_no_score_is_the_other_graphs() -> None:
    timed = replace(GRAPH, name="reddit")
    said = lines(VANILLA, timed=timed)[3]
    assert said == (
        "Scores were measured on pubmed, which stands in for reddit; seconds and prices are predicted for reddit. "
        "No score here is one of reddit."
    )


def test_the_shortest_epoch_that_is_not_first_to_the_target_is_pointed_out() -> None:
    quick = curve("digest-a", LATE, epoch_s=0.5, approximation=Approximation.STALE)
    assert epoch_note(only(converged(VANILLA, quick, max_epochs=4))) == (
        "Seconds per epoch tell another story: digest-a has the shortest epoch (500 ms), but does not meet the target "
        "(not within 4 epochs); vanilla meets the target first, in 20 s."
    )
    late = replace(quick, seeds=(seed_curve([0.1] * 99 + [0.7], epoch_s=0.5),))
    assert epoch_note(only(converged(VANILLA, late))) == (
        "Seconds per epoch tell another story: digest-a has the shortest epoch (500 ms), but needs 100 of them, 50 s; "
        "vanilla meets the target first, in 20 s."
    )
    assert epoch_note(only(converged(VANILLA, BNS))) == ""


def at(key: str, value: Any, label: str, seconds: float, **more: Any) -> Curve:
    """A curve that meets the target after so many seconds under a setting."""
    return curve(label, [0.7], epoch_s=seconds, setting={key: value}, **more)


NETWORK = "cluster.network_gbps"


def test_crossovers_name_the_values_between_which_the_order_changes() -> None:
    answered = converged(
        *(at(NETWORK, rate, "vanilla", s) for rate, s in ((100, 1.0), (1, 9.0), (10, 5.0))),
        *(at(NETWORK, rate, "bns", s, **SAMPLED) for rate, s in ((100, 2.0), (1, 3.0), (10, 2.5))),
    )
    (variation,) = variations(contests(answered))
    assert [(r.value, r.labels) for r in variation.rankings] == [
        (1, ("bns", "vanilla")),
        (10, ("bns", "vanilla")),
        (100, ("vanilla", "bns")),
    ]
    assert [(c.low, c.high, c.falls, c.rises) for c in variation.crossovers] == [(10, 100, "bns", "vanilla")]
    assert variation.text == "First to the target by cluster.network_gbps: bns up to 10 Gb/s; from 100 Gb/s vanilla."
    assert lines(*answered.curves)[0].startswith("With 100 Gb/s: Exact, to ")


def test_an_order_that_changes_twice_and_values_that_are_no_numbers() -> None:
    times = {("gpus", 2): (1, 2), ("gpus", 4): (2, 1), ("gpus", 8): (1, 2)}
    some = [
        curve(label, [0.7], epoch_s=float(s), setting={"cluster.gpus": value}, gpus=value)
        for (_, value), both in times.items()
        for label, s in zip(("vanilla", "gnnpipe"), both, strict=True)
    ]
    assert variations(contests(converged(*some)))[0].text == (
        "First to the target by cluster.gpus: vanilla up to 2 GPUs; gnnpipe at 4 GPUs; from 8 GPUs vanilla."
    )
    worlds = [
        at("world.slow", slow, label, s)
        for slow, both in (("none", (1.0, 2.0)), ("rank 0", (4.0, 3.0)))
        for label, s in zip(("vanilla", "digest-a"), both, strict=True)
    ]
    assert variations(contests(converged(*worlds)))[0].text == (
        "First to the target by world.slow: vanilla with slow none; digest-a with slow rank 0."
    )


def test_each_varied_key_is_looked_at_with_the_others_fixed() -> None:
    some = [
        curve(label, [0.7], epoch_s=float(s), setting={NETWORK: rate, "cluster.device": device})
        for rate in (1, 10)
        for device in ("a100", "h100")
        for label, s in (("vanilla", 1), ("gnnpipe", 2))
    ]
    found = variations(contests(converged(*some)))
    assert [(v.key, dict(v.fixed)) for v in found] == [
        (NETWORK, {"cluster.device": "a100"}),
        (NETWORK, {"cluster.device": "h100"}),
        ("cluster.device", {NETWORK: 1}),
        ("cluster.device", {NETWORK: 10}),
    ]
    assert found[0].text == "First to the target by cluster.network_gbps (device a100): vanilla at every value."


def test_a_curve_without_the_varied_key_belongs_to_every_setting() -> None:
    answered = converged(at(NETWORK, 1, "vanilla", 1.0), at(NETWORK, 10, "vanilla", 1.0), ALONE)
    assert [[r.curve.label for r in c.alone] for c in contests(answered)] == [["vanilla, one GPU"]] * 2
    assert [[r.curve.label for r in c.rivals] for c in contests(answered)] == [["vanilla"]] * 2


def test_one_gpu_of_a_study_that_varies_their_number_answers_for_all_of_it() -> None:
    some = [curve("vanilla", [0.7], setting={"cluster.gpus": gpus}, gpus=gpus) for gpus in (1, 2, 4)]
    assert [[r.curve.gpus for r in c.alone] for c in contests(converged(*some))] == [[1], [1], [1]]


def test_one_gpu_of_another_device_answers_for_that_device_only() -> None:
    device = "cluster.device"
    single = curve("vanilla, one GPU", [0.7], setting={device: "a100"}, gpus=1)
    some = [curve("vanilla", [0.7], setting={device: name}) for name in ("a100", "h100")]
    assert [len(c.alone) for c in contests(converged(*some, single))] == [1, 0]


def test_scores_are_compared_with_vanilla_or_with_what_was_named() -> None:
    answered = converged(curve("gnnpipe", [0.8]), VANILLA, BNS)
    assert [baseline_of(only(answered), name).curve.label for name in (None, "bns rate=0.1")] == [  # type: ignore[union-attr]
        "vanilla",
        "bns rate=0.1",
    ]


def test_records_hold_the_answer_and_the_scores_that_validation_selects_within_the_budget() -> None:
    row = records(converged(VANILLA, BNS, budget_s=15.0))[0]
    assert (row["target_s"], row["missed"], row["num_reached"]) == (None, "not within 15 s", 0)
    assert (row["test"], row["best_epoch"]) == (pytest.approx(0.48), 1)
    other = records(converged(VANILLA, BNS))[1]
    assert {key: other[key] for key in ("case", "approximation", "target_s", "target_epochs", "baseline")} == {
        "case": "bns rate=0.1",
        "approximation": "sampled",
        "target_s": 6.0,
        "target_epochs": 3,
        "baseline": "vanilla",
    }
    assert other["target_price"] == pytest.approx(0.12)
    assert other["difference"] == pytest.approx(-0.005)
    assert other["difference_error"] == pytest.approx(0.005)
    assert other["target_likely_high_s"] == pytest.approx(9.0)


def test_json_begins_with_the_answer_and_is_json() -> None:
    nan = float("nan")
    stale = curve(
        "pipegcn",
        [0.7],
        epoch_s=None,
        approximation=Approximation.STALE,
        errors=(ErrorCurve(what="rows", layer=1, by_epoch={0: nan, 4: 0.25}),),
        ages=(FoundAges(op="forward.1", reads="halo.1", rows_by_age={1: 10}),),
        setting={"world.speeds": {"0": 0.5}},
    )
    answered = converged(VANILLA, stale, seed_only := replace(ALONE, setting={"world.speeds": {"0": 0.5}}))
    text = json.dumps(as_json(answered), allow_nan=False)
    assert next(iter(json.loads(text))) == "answer"
    assert json.loads(text)["answer"] == answer_lines(answered)
    assert error_records(answered) == [
        {"world.speeds": "0 0.5", "case": "pipegcn", "what": "rows", "layer": 1, "epoch": 1, "error": None},
        {"world.speeds": "0 0.5", "case": "pipegcn", "what": "rows", "layer": 1, "epoch": 5, "error": 0.25},
    ]
    assert point_records(converged(seed_only))[0]["world.speeds"] == "0 0.5"


def test_an_answer_as_figures_has_no_key_for_what_is_not_known() -> None:
    figures = answer(converged(VANILLA), only(converged(VANILLA))).as_dict()
    assert sorted(figures) == ["exact", "lines", "setting"]
    assert figures["exact"]["seconds"] == 20.0
