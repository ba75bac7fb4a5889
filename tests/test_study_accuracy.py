"""What errors come to: in sample and left out apart, verdicts on memory, parts that cancel; and the page of it."""

import json
import re
from typing import Any

from halocast.reports.page.accuracy import render_accuracy
from halocast.reports.published import PublishedResult, summarise_published
from halocast.study.accuracy import accuracy, cancelled, verdict_lines, verdicts, with_bands
from halocast.study.bands import Evidence
from halocast.study.evidence import case_of

FACTS = {
    "code": "c",
    "method": "vanilla",
    "transport": "gloo",
    "device": "d",
    "testbed": "t",
    "model": "gcn",
    "gpus": "2",
}
COLUMNS = "source where train_graph model layers hidden testbed gpus nodes method params unit value"
ROW = dict(
    zip(
        COLUMNS.split(),
        ["paper", "Table", "full", "gcn", "2", "16", "t", "2", "1", "vanilla", "{}", "s", "1"],
        strict=True,
    )
)


def result(
    published: float, predicted: float, metric: str = "epoch_s", dataset: str = "g", **more: Any
) -> PublishedResult:
    return PublishedResult(
        row={**ROW, "metric": metric, "dataset": dataset},
        published=published,
        predicted=predicted,
        workload=dataset,
        setting=f"{dataset} vanilla",
        facts={**FACTS, "dataset": dataset},
        **more,
    )


def evidence_of(results: list[PublishedResult]) -> Evidence:
    return Evidence(tuple(case for case in map(case_of, results) if case is not None))


def test_errors_in_sample_and_left_out_are_apart() -> None:
    results = [
        result(1.0, 1.1, in_sample=True),
        result(1.0, 1.4, dataset="a"),
        result(1.0, 0.8, dataset="b"),
        result(2.0, 1.0, "memory_gb", dataset="b"),
    ]
    found = accuracy(results, Evidence(()))
    assert round(found["epoch_s"]["in sample"]["median"], 6) == 0.1
    assert round(found["epoch_s"]["left out"]["median"], 6) == 0.3
    assert found["left_out_by"]["dataset"]["num"] == 2  # of a and b nothing was chosen from
    assert found["left_out_by"]["model"]["num"] == 0  # all are gcn, and one of them chose a constant
    assert found["memory"]["left out"]["median"] == 0.5


def test_verdicts_on_memory_count_runs_that_ran_and_runs_that_did_not() -> None:
    results = [
        result(1.0, 1.0, "oom", dataset="a", out_of_memory=True),
        result(1.0, 0.0, "oom", dataset="b", out_of_memory=False),
        result(1.0, 1.0, "epoch_s", dataset="c", out_of_memory=False),
        result(1.0, 1.0, "memory_gb", dataset="c", out_of_memory=False),  # the same run
        result(1.0, 1.0, "epoch_s", dataset="d", out_of_memory=True),
    ]
    found = verdicts(results)
    assert (found["out_of_memory"]["right"], found["out_of_memory"]["cases"]) == (1, 2)
    assert (found["ran"]["right"], found["ran"]["cases"]) == (1, 2)
    assert [(one["dataset"], one["ran_out"]) for one in found["wrong"]] == [("b", True), ("d", False)]


def test_an_epoch_that_agrees_while_its_parts_do_not_is_told() -> None:
    parts = [result(1.0, 1.05), result(0.8, 0.4, "compute_s"), result(0.2, 0.65, "comm_s")]
    (found,) = cancelled(parts)
    assert round(found["share"], 6) == 0.85
    assert {name: round(off, 6) for name, off in found["parts"].items()} == {"compute_s": -0.4, "comm_s": 0.45}
    assert cancelled([result(1.0, 1.5), *parts[1:]]) == []  # it does not agree
    assert cancelled([parts[0], result(0.8, 0.85, "compute_s")]) == []  # neither does anything cancel


def test_a_band_is_made_without_the_epochs_own_run() -> None:
    results = [result(1.0, 1.1, dataset=f"g{k}") for k in range(12)]
    results.append(result(1.0, 40.0, dataset="odd"))
    banded = with_bands(results, evidence_of(results))
    low, high = banded[-1].band or (0.0, 0.0)
    assert (round(low / 40, 3), round(high / 40, 3)) == (0.909, 1.1)  # its own error is not in it


def test_lines_and_page_say_the_same_and_the_page_escapes_what_users_gave() -> None:
    results = [result(1.0, 1.0 + k / 50, dataset=f"g{k}", in_sample=k % 2 == 0) for k in range(12)]
    results.append(result(1.0, 2.0, dataset="<img src=x>"))
    results = with_bands(results, evidence_of(results))
    summary = summarise_published(results) | {"accuracy": accuracy(results, evidence_of(results))}
    lines = verdict_lines(summary["accuracy"])
    assert lines[0] == "Epochs in sample: median error 10.0%, lean +10.0%, over 6 settings"
    page = render_accuracy(results, summary, "halocast 1", "halocast published")
    assert "10.0%" in page
    assert "<img" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert len(data["runs"]) == 13
    assert data["runs"][0]["rows"][0][:4] == ["epoch_s", 1.0, 1.0, "s"]
    assert [run["in_sample"] for run in data["runs"][:2]] == [True, False]
