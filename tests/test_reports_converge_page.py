"""The answer as files: a page that loads nothing, Markdown, tables, figures; and as a section of compare's page."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparisons import comparison, result
from converged import GRAPH, LATE, converged, curve, seed_curve

from halocast.base.errors import InputError
from halocast.reports.converge.answer import answer_lines
from halocast.reports.converge.contests import contests, variations
from halocast.reports.converge.figures import at_values, draw_answer, error_panels
from halocast.reports.converge.page import chart, render
from halocast.reports.converge.report import write_report
from halocast.reports.curves import Converged, Curve
from halocast.reports.page.html import render as render_comparison
from halocast.reports.page.report import write_report as write_comparison
from halocast.reports.scores import ErrorCurve, Trial
from halocast.schedule.approximation import Approximation

HOSTILE = "<script>alert('x')</script>|$\\frac$"  # for HTML, Markdown and matplotlib
STALE: dict[str, Any] = {
    "approximation": Approximation.STALE,
    "errors": (ErrorCurve(what="rows", layer=0, by_epoch={0: 0.0, 1: 0.5, 2: 0.25}),),
}
VANILLA = curve("vanilla", [0.5, 0.7], [0.5, 0.72], epoch_s=10.0)
PIPE = curve("pipegcn", [0.5, 0.6, 0.7], [0.5, 0.6, 0.71], epoch_s=2.0, **STALE)
NETWORK = "cluster.network_gbps"


def varied() -> Converged:
    """Two methods at two rates of the network, one of them twice as fast at the upper one."""
    return converged(
        *(replace(VANILLA, setting={NETWORK: rate}) for rate in (1, 10)),
        *(curve("pipegcn", [0.5, 0.7], epoch_s=20.0 / rate, setting={NETWORK: rate}, **STALE) for rate in (1, 10)),
    )


def hostile() -> Converged:
    """Every text that a user or a file gives is hostile."""
    graph = replace(GRAPH, name=HOSTILE)
    trials = (Trial(values={HOSTILE: 0.1}, val=0.5), Trial(values={HOSTILE: 0.2}, val=0.6))
    bad: Curve = replace(PIPE, label=HOSTILE, method=HOSTILE, cluster=HOSTILE, reason=HOSTILE, trials=trials)
    return converged(
        *(replace(one, setting={f"world.{HOSTILE}": HOSTILE + str(k)}) for k in (1, 2) for one in (VANILLA, bad)),
        timed=graph,
        target_text=HOSTILE,
        scenario=HOSTILE,
        command=HOSTILE,
        made=HOSTILE,
    )


def test_the_page_begins_with_the_answer_and_asks_for_nothing() -> None:
    page = render(converged(VANILLA, PIPE))
    for line in answer_lines(converged(VANILLA, PIPE)):
        assert page.index("<p>" + line.replace("'", "&#39;")) < page.index('id="accuracy"')
    assert "default-src 'none'" in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    page = render(hostile())
    assert "<script>alert" not in page
    assert page.count("<script") == 2
    write_report(tmp_path / "out", hostile())
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["case"] for row in rows] == ["vanilla", HOSTILE] * 2


def test_a_comparison_with_scores_over_time_begins_with_their_answer() -> None:
    made = converged(VANILLA, PIPE)
    page = render_comparison(comparison(result(method="m"), converged=made))
    assert page.index("<p>Exact, to ") < page.index('id="accuracy"') < page.index('id="methods"')
    assert page.count('id="converge-data"') == 1
    without = render_comparison(comparison(result(method="m")))
    assert "converge-data" not in without
    assert 'id="accuracy"' not in without


def test_a_comparisons_report_holds_the_files_of_its_scores_over_time(tmp_path: Path) -> None:
    write_comparison(tmp_path / "out", comparison(result(method="m"), converged=converged(VANILLA, PIPE)))
    names = {path.name for path in (tmp_path / "out" / "accuracy").iterdir()}
    assert {"report.md", "curves.csv", "score.png", "answer.json"} <= names
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Comparison\n\n- Exact, to 95 % of vanilla's best (70.0 on validation): vanilla on 8 GPUs")


def test_axes_say_which_graph_scores_and_seconds_are_of() -> None:
    same = chart(converged(VANILLA))
    assert (same["score"], same["over"]["seconds"]) == ("test score on pubmed, points", "predicted seconds")
    other = chart(converged(VANILLA, timed=replace(GRAPH, name="reddit")))
    assert other["score"] == "test score on pubmed, points"
    assert other["over"] == {
        "seconds": "predicted seconds for reddit",
        "dollars": "predicted price for reddit, USD",
        "epochs": "epochs",
    }


def test_the_chart_has_the_spots_the_target_and_the_likely_times_of_every_line() -> None:
    (contest,) = chart(converged(VANILLA, PIPE))["contests"]
    vanilla, pipe = contest["lines"]
    assert vanilla["spots"] == [[1, 10.0, 0.1, 0.5, 0.48, 0.48, 0.48], [2, 20.0, 0.2, 0.71, 0.69, 0.68, 0.7]]
    assert vanilla["met"] == [2, 20.0, 0.2, 0.71, 0.69, 0.68, 0.7]
    assert pipe["likely"] == pytest.approx([4.8, 9.0])
    assert (vanilla["kind"], vanilla["dash"], pipe["kind"], pipe["dash"]) == ("exact", 0, "stale", 1)
    late = chart(converged(curve("vanilla", LATE), max_epochs=4))["contests"][0]["lines"][0]
    assert (late["met"], late["likely"], late["note"]) == (None, None, "not within 4 epochs")


def test_a_report_is_replaced_but_nothing_else_is_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_report(out, varied())
    assert sorted(path.name for path in out.iterdir()) == [
        "answer.json",
        "crossovers.png",
        "curves.csv",
        "errors.csv",
        "errors.png",
        "report.html",
        "report.md",
        "results.csv",
        "scenario.toml",
        "score-1.png",
        "score-2.png",
    ]
    (out / "mine.txt").write_text("x")
    write_report(out, converged(VANILLA))
    assert sorted(path.name for path in out.iterdir()) == [
        "answer.json",
        "curves.csv",
        "mine.txt",
        "report.html",
        "report.md",
        "results.csv",
        "scenario.toml",
        "score.png",
    ]
    assert json.loads((out / "answer.json").read_text())["answer"] == answer_lines(converged(VANILLA))


def test_a_directory_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="is not a report of ours"):
        write_report(tmp_path, converged(VANILLA))


def test_markdown_has_the_answer_both_graphs_and_every_setting(tmp_path: Path) -> None:
    write_report(tmp_path / "out", replace(varied(), timed=replace(GRAPH, name="reddit"), made="made today"))
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Time and price to a score\n\nWith 1 Gb/s: Exact, to 95 %")
    for part in (
        "|  | scores: pubmed | seconds: reddit |",
        "## By cluster.network_gbps\n\n| method | kind | 1 Gb/s | 10 Gb/s |",
        "| pipegcn | stale | 40 s | 4 s |",
        "## With 1 Gb/s\n\n### Exact methods",
        "## With 10 Gb/s\n\nExact, to 95 %",
        "![Score over time with 10 Gb/s](score-2.png)",
        "| pipegcn | rows | 0 | 0.0% | 0.0% | 50.0% | 25.0% |",
        "`halocast converge scenario.toml` with the file beside this report",
        "made today",
    ):
        assert part in text


def test_an_answer_without_trainings_is_a_report_without_figures(tmp_path: Path) -> None:
    write_report(tmp_path / "out", converged(curve("gnnpipe", reason="3 stages, but 2 layers")))
    assert not list((tmp_path / "out").glob("*.png"))
    assert "## Figures" not in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "3 stages, but 2 layers" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_figures_are_drawn_where_times_are_not_known_and_where_a_band_is_open(tmp_path: Path) -> None:
    open_end = curve("digest-a", [0.6, 0.7], perturbed=(seed_curve(LATE),), **STALE)
    untimed = curve("vanilla", [0.6, 0.7], epoch_s=None, reason="no such device")
    assert draw_answer(tmp_path, converged(untimed)) == [("Score over time", "score.png")]
    assert [name for _, name in draw_answer(tmp_path, converged(open_end, untimed))] == ["score.png", "errors.png"]


def test_crossings_and_errors_are_drawn_from_what_the_curves_say() -> None:
    every = contests(varied())
    by_label = at_values(variations(every)[0], every)
    assert {label: [(value, reach.seconds) for value, reach in some] for label, some in by_label.items()} == {
        "vanilla": [(1, 20.0), (10, 20.0)],
        "pipegcn": [(1, 40.0), (10, 4.0)],
    }
    (panel,) = error_panels(varied())
    assert (panel.title, panel.xs) == ("stale rows", [1, 2, 3])
    assert {name: list(values) for name, values in panel.curves.items()} == {"pipegcn, layer 0": [0.0, 0.5, 0.25]}
