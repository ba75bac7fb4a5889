"""Predicted against measured rows: figures from traces, errors, the order of methods, the report."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from schedules import op

from halocast.reports.blame import Blame, TimeUse
from halocast.reports.validation import Figures, ValidatedScenario, cycle_seconds, figures, spearman, summarise_rows
from halocast.reports.validation_report import markdown, text_by, text_rows, verdict, write_validation
from halocast.schedule.ir import Schedule
from halocast.schedule.trace import Trace, span_of


def trace_of(schedule: Schedule, *ends: float) -> Trace:
    """One rank whose epochs end at these times, each without a pause."""
    starts = (0.0, *ends[:-1])
    (work,) = schedule.ops
    spans = [span_of(work, k, start, end, 10) for k, (start, end) in enumerate(zip(starts, ends, strict=True))]
    return Trace(source="t", num_ranks=1, num_epochs=len(ends), spans=tuple(spans))


def test_an_epoch_is_the_median_over_the_epochs_of_all_runs() -> None:
    schedule = Schedule(num_ranks=1, ops=(op("work"),))
    runs = [trace_of(schedule, 9.0, 10.0, 12.0), trace_of(schedule, 9.0, 12.0, 112.0)]
    found = figures(runs, schedule, 1)
    assert found.epoch_s == 2.5  # of 1, 2, 3 and 100
    assert found.bytes_total == 10


def test_epochs_of_a_cycle_count_as_one() -> None:
    schedule = Schedule(num_ranks=1, ops=(op("work"),))
    trace = trace_of(schedule, 1.0, 2.0, 3.0, 9.0, 10.0, 16.0)
    assert cycle_seconds(trace, 0, 2, 2) == [3.5, 3.5]


def row(method: str, predicted: float, measured: float, **case: Any) -> ValidatedScenario:
    place = {"link": "1gbit", "ranks": 2, "model": "sage", "graph": "sparse"} | case
    sides = [
        Figures(epoch_s=seconds, compute_s=0.0, exposed_comm_s=seconds / 4, bytes_total=100.0, low_s=0.0, high_s=0.0)
        for seconds in (predicted, measured)
    ]
    blame = Blame(op="forward.0", part=TimeUse.RUNS, predicted_s=predicted, measured_s=measured)
    return ValidatedScenario(
        case={**place, "method": method},
        predicted=sides[0],
        measured=sides[1],
        num_runs=3,
        reference_s=1e-3 * measured,
        blame=(blame,),
    )


ROWS = [
    row("vanilla", 1.1, 1.0),
    row("pipegcn", 0.4, 0.5),
    row("bns", 0.45, 0.48),
    row("vanilla", 2.0, 2.0, ranks=4),
    row("pipegcn", 2.2, 1.0, ranks=4),
    ValidatedScenario(
        case=dict(ROW_PLACE := {"link": "1gbit", "ranks": 4, "model": "sage", "graph": "sparse"}, method="bns"),
        reason="no",
    ),
]


def test_errors_are_relative_to_the_measured_epoch() -> None:
    found = summarise_rows(ROWS)
    assert (found["scenarios"], found["compared"]) == (6, 5)
    assert found["mean_error"] == pytest.approx((0.1 + 0.2 + 0.0625 + 0.0 + 1.2) / 5)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["max_error"] == pytest.approx(1.2)
    assert found["worst"] == {**ROW_PLACE, "method": "pipegcn"}
    assert found["within_aim"] == 4
    assert found["by"]["ranks"]["2"]["num"] == 3
    assert found["failed"] == [{**ROW_PLACE, "method": "bns", "reason": "no"}]


def test_only_methods_of_a_cell_that_differ_clearly_are_put_in_order() -> None:
    order = summarise_rows(ROWS)["order"]
    # of two ranks vanilla against both others; bns and pipegcn differ by 4 %; of four ranks one pair, which is wrong
    assert (order["pairs"], order["right"]) == (3, 2)
    assert order["wrong"] == [{**ROW_PLACE, "method": "pipegcn before vanilla"}]


def test_a_rank_correlation_is_that_of_spearman() -> None:
    assert spearman([(1, 10), (2, 20), (3, 30)]) == 1.0
    assert spearman([(1, 30), (2, 20), (3, 10)]) == -1.0
    assert spearman([(1, 1), (2, 3), (3, 2), (4, 4)]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert spearman([(1, 1), (1, 2), (2, 3)]) == pytest.approx(3**0.5 / 2)  # ranks 1.5, 1.5, 3
    assert spearman([(1, 1), (1, 2)]) == 0.0


def test_misses_by_verb_are_shares_of_the_measured_epoch_and_add_up_to_the_error() -> None:
    (entry,) = summarise_rows(ROWS)["blame"]
    errors = [0.1, -0.2, -0.0625, 0.0, 1.2]
    assert (entry["verb"], entry["part"]) == ("forward", "runs")
    assert entry["miss"] == pytest.approx(sum(errors) / 5)
    assert entry["size"] == pytest.approx(sum(map(abs, errors)) / 5)


def test_errors_are_grouped_by_what_differs() -> None:
    found = summarise_rows(ROWS)
    lines = text_by(found).splitlines()
    assert lines[0].split() == ["by", "which", "scenarios", "mean", "max", "lean"]
    assert {line.split()[0] for line in lines[2:]} == {name for name, parts in found["by"].items() if len(parts) > 1}
    method = next(iter(found["by"]["method"]))
    errors = [row.error for row in ROWS if row.case["method"] == method and row.error is not None]
    (line,) = [line for line in lines if line.split()[:2] == ["method", method]]
    assert line.split()[2:4] == [str(len(errors)), f"{sum(map(abs, errors)) / len(errors):.1%}"]


def test_a_machine_that_is_not_steady_is_told() -> None:
    said = " ".join(verdict(summarise_rows(ROWS)))
    assert "the machine was not steady" in said
    assert "not steady" not in " ".join(verdict(summarise_rows(ROWS[3:4])))


def test_nothing_compared_is_no_error_of_zero() -> None:
    found = summarise_rows(ROWS[-1:])
    assert found["mean_error"] is None
    assert verdict(found) == ["0 of 1 scenarios were compared."]


def test_the_report_has_every_row_and_the_reasons(tmp_path: Path) -> None:
    summary = summarise_rows(ROWS)
    write_validation(tmp_path, ROWS, summary)
    with (tmp_path / "validate.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [one["method"] for one in rows] == ["vanilla", "pipegcn", "bns", "vanilla", "pipegcn", "bns"]
    assert float(rows[1]["error"]) == pytest.approx(-0.2)
    assert rows[5]["reason"] == "no"
    assert json.loads((tmp_path / "validate.json").read_text())["summary"]["max_error"] == pytest.approx(1.2)
    assert (tmp_path / "validate.svg").stat().st_size > 1000
    text = markdown(ROWS, summary)
    assert "- pipegcn before vanilla: 1gbit, 4 ranks, sage, sparse" in text
    assert "- bns, 1gbit, 4, sage, sparse: no" in text
    assert text_rows(ROWS).count("\n") == len(ROWS) + 1


def test_a_report_without_any_comparison_can_be_written(tmp_path: Path) -> None:
    write_validation(tmp_path, ROWS[-1:], summarise_rows(ROWS[-1:]))
    assert "0 of 1 scenarios" in (tmp_path / "validate.md").read_text()
