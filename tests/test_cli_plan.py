"""What `plan` says: what it ranks, the best of two lists, whether one GPU is enough; at any width of the terminal."""

import re

import pytest

from halocast.cli import run

SMALL = ["--set", "graph.dataset=reddit", "--set", "model.hidden=32", "--set", "model.layers=2"]
L4 = "l4-8x1-25gbe"


def said(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    assert run(["plan", *SMALL, "--jobs", "1", *args]) == 0
    return capsys.readouterr().out.splitlines()


def space(methods: str, gpus: str, *more: str) -> list[str]:
    settings = (f"plan.methods=[{methods}]", f"plan.gpus=[{gpus}]", *more)
    return ["--clusters", L4, *(word for setting in settings for word in ("--set", setting))]


def test_the_first_lines_say_what_is_ranked_and_answer_three_questions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    lines = said(capsys, *space("'vanilla', 'pipegcn', 'bns'", "1, 4", "plan.min_rate=0.3"))
    asked = r"`halocast converge --set graph\.dataset=reddit --set .*`\."
    assert re.fullmatch(rf"Ranks seconds per epoch, not results: accuracy is not known; run {asked}", lines[0])
    epoch = r"[\d.]+ m?s an epoch \(likely [\d.]+ m?s to [\d.]+ m?s\), [\d.e-]+ USD"
    assert re.fullmatch(rf"Best exact: vanilla on 4 x {L4}: {epoch}\.", lines[1])
    assert re.fullmatch(
        rf"Best approximate, by epoch alone: bns \(rate=0\.3\) on 4 x {L4}: {epoch}; some rows are left out\.", lines[2]
    )
    assert re.fullmatch(
        rf"One GPU is enough: vanilla on 1 x {L4}: [\d.]+ m?s an epoch for [\d.e-]+ USD, [\d.]+ times that of the best "
        r"exact one at [\d.]+ times its price\.",
        lines[3],
    )
    assert lines[5] == "Exact methods compute what one GPU computes:"
    figures = "GPUs on epoch likely exposed head-room price/epoch"
    assert " ".join(lines[6].split()) == f"method {figures} sure"
    assert lines[10] == "Approximate methods read stale rows or leave some out, and may need more epochs:"
    assert " ".join(lines[11].split()) == f"method options {figures} kind stale sure"
    assert [line.split()[1] for line in lines[13:15]] == ["bns", "pipegcn"]
    assert "Fastest" not in "\n".join(lines)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = said(capsys, *space("'vanilla', 'psc', 'digest'", "1, 2", "graph.dataset=ogbn-products"), "--pareto")
    assert max(len(line) for line in lines) <= width
    assert any(line.startswith("in a wider terminal: ") for line in lines)


def one_gpu(lines: list[str]) -> str:
    return next(line for line in lines if line.startswith("One GPU"))


def test_where_one_gpu_is_the_best_exact_choice_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    assert one_gpu(said(capsys, *space("'vanilla'", "1"))) == "One GPU is enough: the best exact choice has one."


def test_where_one_gpu_was_not_asked_for_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    lines = said(capsys, *space("'vanilla'", "2"))
    assert one_gpu(lines) == "One GPU is none of the choices ([plan] gpus)."
    lines = said(capsys, *space("'pipegcn'", "2"))
    assert lines[1] == "Best exact: none that is legal and fits."


def test_where_one_gpu_is_too_small_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    large = ["--set", "graph.dataset=ogbn-products", "--set", "model.hidden=128", "--clusters", "rtx2080ti-x10-pcie3"]
    lines = said(capsys, *large, "--set", "plan.methods=['vanilla']", "--set", "plan.gpus=[1, 8]")
    assert re.fullmatch(
        r"One GPU is not enough: vanilla on 1 x rtx2080ti-x10-pcie3: does not fit: [\d.]+ of 11 GB on rank 0 .*",
        one_gpu(lines),
    )


def test_where_one_gpu_is_too_slow_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    lines = said(capsys, *space("'vanilla'", "1, 8"), "--limit-s", "0.4")
    assert re.fullmatch(r"One GPU is not enough: an epoch takes at least \d+ ms\.", one_gpu(lines))
