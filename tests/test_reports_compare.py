"""The comparison report: its verdict, its page, its files; nothing half-written, nothing taken at its word."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from comparisons import comparison, many_spans, result

from halocast.base.errors import InputError
from halocast.cli import run
from halocast.reports.comparison import NotCompared, ScalePoint
from halocast.reports.page.charts import epoch_bars, link_table, memory_bars, scaling_chart
from halocast.reports.page.html import render
from halocast.reports.page.markdown import markdown
from halocast.reports.page.report import write_report
from halocast.reports.page.tables import main_table
from halocast.reports.page.timeline import op_totals, shown, timeline
from halocast.reports.verdict import verdict, verdict_dict
from halocast.schedule.trace import LinkUse
from halocast.study.compare import device_counts

SMALL = ["--set", "graph.nodes=300", "--set", "graph.degree=6", "--set", "run.epochs=3"]


def times(epoch_s: float, **changes: Any) -> dict[str, Any]:
    rest = {"exposed_comm_s": epoch_s / 2, "reduce_s": 0.0, "wait_s": 0.0, "bubble_s": 0.0}
    return {"epoch_s": epoch_s, "epoch_s_mean": epoch_s, "compute_s": epoch_s / 4} | rest | changes


STALE: dict[str, Any] = {"approximation": "stale", "staleness": [{"op": "use", "reads": "halo", "ages": [1]}]}


def test_the_verdict_is_a_line_on_exact_methods_one_on_approximate_ones_and_one_on_a_single_gpu() -> None:
    big = result(method="big", **times(1.0, fits=False))
    slow, slower = result(method="slow", **times(2.0)), result(method="slower", **times(5.0))
    quick, quicker = (result(method=name, **times(s), **STALE) for name, s in (("quick", 0.5), ("quicker", 0.25)))
    alone = result(method="vanilla", **times(4.0), memory_bytes=250).summary
    exact, approximate, one_gpu = verdict(comparison(slower, quick, big, slow, quicker, alone=alone))
    assert exact == (
        "Best exact method, of 3: **slow** on c with 2 ranks, 2 s per epoch, limited by communication it cannot hide "
        "(50% of it); it uses 200 B of 300 B on its fullest device; its error is not known (constants not calibrated "
        "on the machine)."
    )
    assert approximate == (
        "Best approximate method: accuracy not known: run `halocast converge scenario.toml`. The shortest epoch of 2, "
        "which says nothing about accuracy: **quicker**, 250 ms per epoch; it reads rows 1 epoch old."
    )
    assert one_gpu == (
        "One GPU is enough: the whole graph fits (250 B of 300 B), 4 s per epoch, 2 times that of the best exact "
        "method."
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fits": False, "memory_bytes": 900}, "One GPU is not enough: the whole graph does not fit (900 B of 300 B)."),
        (
            times(0.5),
            "One GPU is enough: the whole graph fits (200 B of 300 B), 500 ms per epoch, 4 times as fast as the best "
            "exact method on 2 ranks.",
        ),
        (
            {**times(4.0), "price_per_epoch": 0.01, "currency": "USD", "price_date": "2024-06"},
            "One GPU is enough: the whole graph fits (200 B of 300 B), 4 s and 0.01 USD per epoch, 2 times that of the "
            "best exact method at 0.25 times its price.",
        ),
    ],
)
def test_one_gpu_is_compared_with_the_best_exact_method(changes: dict[str, Any], said: str) -> None:
    price: dict[str, Any] = {"price_per_epoch": 0.04, "currency": "USD", "price_date": "2024-06"}
    made = comparison(result(method="m", **times(2.0), **price), alone=result(**changes).summary)
    assert verdict(made)[2] == said


def test_what_was_not_compared_is_said() -> None:
    reason = NotCompared(method="vanilla", cluster="c", reason="no such graph")
    assert verdict(comparison(result(**STALE), alone=reason))[::2] == (
        "Best exact method: none was compared.",
        "One GPU: not predicted: no such graph.",
    )
    assert verdict(comparison(result()))[1:] == (
        "Best approximate method: none was compared.",
        "One GPU: not predicted.",
    )


def test_without_room_the_verdict_says_what_comes_nearest() -> None:
    none = [result(method=name, memory_bytes=size, fits=False) for name, size in (("a", 900), ("b", 400))]
    assert verdict(comparison(*none))[0] == (
        "Best exact method: none fits in the memory of the devices; **b** comes nearest, with 400 B of 300 B on rank 1."
    )


@pytest.mark.parametrize(
    ("next_s", "told"), [(1.1, "so **b** may be as fast"), (2.0, "clear of every other exact method")]
)
def test_methods_within_the_error_band_are_not_told_apart(next_s: float, told: str) -> None:
    best = result(method="a", **times(1.0), band={"low_s": 0.8, "high_s": 1.3, "basis": "12 rows"})
    other = result(method="b", **times(next_s), band={"low_s": 0.9 * next_s, "high_s": 2 * next_s, "basis": "12 rows"})
    stale = result(method="c", **times(0.9), **STALE)
    said = verdict(comparison(best, stale, other))[0]
    assert "between 800 ms and 1.3 s (12 rows)" in said
    assert told in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"approximation": "stale"}, "it reads rows 9..18 epochs old."),
        ({"approximation": "sampled"}, "it leaves some rows out and reads rows 9..18 epochs old."),
        ({"approximation": "sampled", "staleness": []}, "it leaves some rows out."),
        ({"approximation": "stale", "staleness": []}, "it steps from weights that others have changed since."),
    ],
)
def test_what_an_approximate_method_does_is_part_of_the_verdict(changes: dict[str, Any], said: str) -> None:
    old = {"staleness": [{"op": "use", "reads": "halo", "ages": [9, 10, 18]}]}
    assert verdict(comparison(result(**(old | changes))))[1].endswith(said)


def test_the_verdict_is_an_object_too() -> None:
    made = comparison(result(method="a"), result(method="b", **STALE), alone=result(method="vanilla").summary)
    found = verdict_dict(made)
    assert {name: found[name]["method"] for name in ("exact", "approximate", "one_gpu")} == {
        "exact": "a",
        "approximate": "b",
        "one_gpu": "vanilla",
    }
    assert found["approximate"]["approximation"] == "stale"
    assert found["lines"] == [line.replace("**", "") for line in verdict(made)]


def test_every_row_has_a_badge_and_exact_methods_come_first() -> None:
    stale, exact = result(method="a", **times(1.0), **STALE), result(method="b", **times(2.0))
    made = comparison(stale, exact)
    assert [(row["method"], row["kind"], row["ratio"]) for row in main_table(made)] == [
        ("b", "exact", "1.00×"),
        ("a", "stale", "0.50×"),
    ]
    text = render(made)
    assert text.count('<span class="tag stale">stale</span>') == text.count('<span class="tag exact">exact</span>') == 2
    assert "fastest" not in text.lower()
    assert "run <code>halocast converge scenario.toml</code>" in text


class Page(HTMLParser):
    """Counts tags, keeps text and what would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_names_that_users_gave_are_text_and_nothing_else() -> None:
    one = result(method="m", cluster=HOSTILE, constants=HOSTILE, sizes=HOSTILE)
    failures = (NotCompared(method="n", cluster=HOSTILE, reason=HOSTILE),)
    scaling = (ScalePoint(method="m", ranks=1, reason=HOSTILE), ScalePoint(method="m", ranks=2, epoch_s=1.0))
    made = comparison(one, failures=failures, scaling=scaling, command=HOSTILE, assumptions=(HOSTILE,), made=HOSTILE)
    page = Page(render(made, [HOSTILE], [HOSTILE]))
    plain = Page(render(comparison(result(method="m"), failures=failures, scaling=scaling)))
    assert "img" not in page.tags
    assert page.tags.count("script") == plain.tags.count("script") == 2
    assert HOSTILE in "".join(page.text)
    hostile_keys = list(json.loads(page.text[_data_place(page)])["timelines"])
    assert all("<" not in name for name in hostile_keys)


def _data_place(page: Page) -> int:
    return next(k for k, text in enumerate(page.text) if text.startswith('{"scaling"'))


def test_the_page_asks_for_nothing() -> None:
    text = render(comparison(result(method="m")))
    assert [url for url in Page(text).fetched if not url.startswith(("#", "data:"))] == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_the_page_has_every_section_and_a_row_for_what_failed() -> None:
    failure = NotCompared(method="pipe", cluster="c", reason="3 stages, but 2 layers")
    scaling = tuple(ScalePoint(method="m", ranks=k, epoch_s=1 / k, fits=k > 1) for k in (1, 2))
    scaling += (ScalePoint(method="pipe", ranks=2, reason="3 stages, but 2 layers"),)
    made = comparison(result(method="m"), failures=(failure,), scaling=scaling)
    text = render(made)
    for section in ("Verdict", "Methods", "Scaling with GPUs", "Traffic per link", "Memory against", "Timelines"):
        assert section in text
    for section in ("Staleness", "Assumptions and provenance", "Reproduce"):
        assert section in text
    assert text.count("3 stages, but 2 layers") >= 2
    assert "pipe on 2: 3 stages, but 2 layers" in markdown(made)
    assert scaling_chart(made)["curves"][0]["points"] == [[1, 1.0, False], [2, 0.5, True]]


def test_bars_add_up_and_share_one_scale() -> None:
    bars = epoch_bars([result(method="a", **times(1.0, wait_s=0.25)), result(method="b", **times(4.0, wait_s=1.0))])
    assert [sum(s["abs"] for s in bar["segments"]) for bar in bars] == [25, 100]
    assert [sum(s["rel"] for s in bar["segments"]) for bar in bars] == [100, 100]
    assert [s["class"] for s in bars[0]["segments"]] == ["compute", "exposed_comm", "wait"]
    banded = epoch_bars([result(**times(1.0), band={"low_s": 0.5, "high_s": 2.0, "basis": ""})])
    assert banded[0]["band"] == [25, 100]


def test_the_table_of_links_has_every_link_of_every_trace() -> None:
    one = result(method="a")
    links = tuple(
        LinkUse(name=f"link {k}", bytes_per_s=10, num_bytes=30.0 * k, times_s=(0, 1e9), rates=(5, 0))
        for k in range(1, 13)
    )
    with_links = replace(one, trace=replace(one.trace, links=links))
    table = link_table([with_links, replace(one, trace=replace(one.trace, links=()))])
    assert [row["link"] for row in table["rows"]] == [f"link {k}" for k in range(12, 0, -1)]
    assert [cell["bytes"] for cell in table["rows"][0]["cells"]] == ["120 B", ""]
    assert [cell["level"] for cell in table["rows"][0]["cells"]] == [50, 0]
    assert link_table([with_links], most=5)["left_out"] == 7


def test_memory_bars_show_what_does_not_fit_beyond_the_capacity() -> None:
    fits, not_fits = memory_bars([result(memory_bytes=150), result(memory_bytes=600, fits=False)])
    assert (fits["used"], fits["capacity"], fits["share"]) == (25, 50, "50%")
    assert (not_fits["used"], not_fits["capacity"], not_fits["fits"]) == (100, 50, False)


@pytest.mark.parametrize(
    ("most", "epochs", "ranks", "left_out"),
    [
        (1000, 5, 4, ""),
        (99, 2, 4, "epochs 0 to 2"),
        (40, 1, 4, "epochs 0 to 3"),
        (25, 1, 2, "epochs 0 to 3 and ranks 2 to 3"),
        (1, 1, 1, "epochs 0 to 3 and ranks 1 to 3"),
    ],
)
def test_a_long_trace_is_cut_to_its_last_epochs_and_first_ranks(
    most: int, epochs: int, ranks: int, left_out: str
) -> None:
    part = shown(many_spans(4, 5, 10), most)
    assert (part.num_epochs, part.num_ranks, len(part.spans)) == (epochs, ranks, epochs * ranks * 10)
    assert left_out in part.left_out


def test_a_timelines_columns_give_every_span_back() -> None:
    one = result(num_epochs=3)
    drawn = timeline(one, 10_000)
    begin = min(span.start_s for span in one.trace.spans)
    found = []
    for row in drawn["rows"]:
        at = 0
        for k in range(len(row["start"])):
            at += row["start"][k]
            op = drawn["ops"][row["op"][k]]
            found.append((row["rank"], row["lane"], op, row["epoch"][k], at, row["length"][k], row["bytes"][k]))
    expected = [
        (
            s.rank,
            str(s.lane),
            s.op,
            s.epoch,
            round((s.start_s - begin) * 1e9),
            round((s.end_s - s.start_s) * 1e9),
            s.num_bytes,
        )
        for s in one.trace.spans
    ]
    assert sorted(found) == sorted(expected)
    assert drawn["count"] == len(expected)


def test_the_text_alternative_has_every_op_of_the_steady_epochs() -> None:
    totals = {total.op: total for total in op_totals(many_spans(2, 3, 4), warmup_epochs=1)}
    assert list(totals) == ["forward.0", "forward.1", "forward.2", "forward.3"]
    assert totals["forward.0"].count == 4
    assert totals["forward.0"].mean_s == pytest.approx(0.25)
    assert [total.op for total in op_totals(many_spans(1, 1, 50), 0)] == ["forward.*"]


def test_a_page_of_huge_traces_stays_below_5_mb() -> None:
    huge = many_spans(64, 12, 40)
    small = result()
    results = [replace(small, trace=huge, summary=replace(small.summary, method=f"m{k}")) for k in range(12)]
    assert 1_000_000 < len(render(comparison(*results)).encode()) < 5_000_000


def test_a_report_appears_whole_and_replaces_only_a_report(tmp_path: Path) -> None:
    scaling = (ScalePoint(method="m", ranks=1, epoch_s=1.0), ScalePoint(method="m", ranks=2, epoch_s=0.5))
    made = comparison(result(method="m"), scaling=scaling)
    for _ in range(2):
        write_report(tmp_path / "out", made)
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    figures = [f"figures/{name}.{kind}" for name in ("epoch", "links", "memory", "scaling") for kind in ("png", "svg")]
    assert names == [
        *[f"chakra/m/{name}" for name in ("comm_groups.json", "m.0.et", "m.1.et")],
        *figures,
        *["report.html", "report.md", "results.csv", "results.json", "scenario.toml"],
        *["traces/m-simulated-c.parquet", "traces/m.json"],
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="is not a report of ours"):
        write_report(tmp_path / "mine", made)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_a_report_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    write_report(tmp_path / "out", comparison(result(method="m")))
    before = (tmp_path / "out" / "report.md").read_text()
    fine = result(method="m")
    broken = replace(fine, summary=replace(fine.summary, method="no/such"))
    with pytest.raises(FileNotFoundError, match=r"chakra/no/such"):
        write_report(tmp_path / "out", comparison(broken))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "report.md").read_text() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: root only")
def test_a_full_disk_is_one_line_and_leaves_no_half_report(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    script = (
        f'mount -t tmpfs -o size=300k tmpfs {place} && "{sys.executable}" -c '
        f'"import sys; from halocast.cli import run; sys.exit(run(sys.argv[1:]))" compare {" ".join(SMALL)} '
        f"--methods vanilla --scaling 0 --out {place}/r; echo $?; ls -A {place}"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.stdout.strip() == "1"
    assert "No space left on device" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_method_that_cannot_run_is_a_row_and_not_the_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ["--methods", "vanilla,gnnpipe", "--set", "method.name=gnnpipe", "--set", "method.stages=7"]
    assert run(["compare", *SMALL, *args, "--scaling", "0", "--out", str(tmp_path / "r")]) == 0
    captured = capsys.readouterr()
    assert "warning: gnnpipe on rtx2080ti-x10-pcie3: " in captured.err
    rows = json.loads((tmp_path / "r" / "results.json").read_text())
    assert [(row["method"], row["source"]) for row in rows] == [("vanilla", "simulated"), ("gnnpipe", "failed")]
    assert rows[1]["reason"] in captured.out
    assert "cannot run" in (tmp_path / "r" / "report.html").read_text()


def test_where_nothing_can_run_the_first_reason_is_the_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["compare", "--set", "graph.dataset=nowhere", "--out", str(tmp_path / "r")]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_scaling_goes_over_powers_of_two_the_whole_cluster_and_the_scenario() -> None:
    assert device_counts(10, 3) == [1, 2, 3, 4, 8, 10]
    assert device_counts(8, 8) == [1, 2, 4, 8]
    assert device_counts(1, 1) == [1]


def test_without_time_for_scaling_its_points_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ["--methods", "vanilla", "--scaling", "1e-9", "--out", str(tmp_path / "r")]
    assert run(["compare", *SMALL, *args]) == 0
    text = (tmp_path / "r" / "report.md").read_text()
    assert "- vanilla on 1, 4, 8, 10: not predicted: more time than --scaling allows" in text
    assert run(["compare", *SMALL, "--scaling", "-1"]) == 2
    assert "--scaling -1.0: needs to be at least 0" in capsys.readouterr().err
