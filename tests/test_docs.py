"""Every command in docs/ works: run in a directory of its own with a small graph, or at least understood.

A comment before a block says what its commands need: `<!-- needs: root -->` (GPU, minutes, ...), then their options are
only parsed, as are those that take minutes in any case; `<!-- file: NAME -->`: the TOML block before it,
saved under that name.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from halocast.cli import run
from halocast.cli.app import app

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(
    r"(?:<!-- (?P<key>needs|file): (?P<value>[^>]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL
)
SMALL = ["--set", "graph.nodes=300", "--set", "graph.degree=6", "--set", "run.epochs=3"]
MINUTES = {"calibrate", "validate", "published"}  # measure or predict whole grids; tests of their own run them
MADE_SMALL = {"simulate": SMALL, "run": SMALL, "compare": [*SMALL, "--scaling", "0"]}


def blocks(path: Path) -> Iterator[re.Match[str]]:
    return BLOCK.finditer(path.read_text(encoding="utf-8"))


def commands() -> Iterator[Any]:
    for path in sorted(DOCS.rglob("*.md")):
        toml = ""
        for block in blocks(path):
            if block["kind"] == "toml":
                toml = block["text"]
            if block["kind"] != "sh":
                continue
            lines = block["text"].replace("\\\n", " ").splitlines()
            for line in lines:
                if line.startswith("halocast "):
                    saved = {block["value"]: toml} if block["key"] == "file" else {}
                    name = f"{path.relative_to(DOCS)}: {line}"
                    yield pytest.param(line, block["key"] == "needs", saved, id=name)


@pytest.mark.parametrize(("line", "only_parsed", "saved"), list(commands()))
def test_a_command_in_the_documents_works(
    line: str, only_parsed: bool, saved: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in saved.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    args = shlex.split(line, comments=True)[1:]
    if only_parsed or args[0] in MINUTES:
        parse(args)
    else:
        dataset = any("graph.dataset" in arg for arg in args)  # has a size of its own
        assert run([*args, *([] if dataset else MADE_SMALL.get(args[0], []))]) == 0


def parse(args: list[str]) -> None:
    """Raises if an option is unknown or has a value of another kind; nothing is done."""
    group: Any = get_command(app)
    group.commands[args[0]].make_context(args[0], args[1:])


def test_every_link_between_documents_leads_somewhere() -> None:
    for path in sorted(DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_worked_example_of_a_method_is_short_and_works() -> None:
    method, use = (block["text"] for block in blocks(DOCS / "add-a-method.md") if block["kind"] == "python")
    assert len(method.splitlines()) + len(use.splitlines()) < 80
    names: dict[str, Any] = {"__name__": "lazy"}
    exec(compile(method, "lazy.py", "exec"), names)
    exec(compile(use, "use.py", "exec"), names)
    assert names["ages"]["forward.1"] == (0, 1, 2)
    from halocast.cli.execution import run_workload
    from halocast.study.predict import predict_on

    exact = predict_on(names["exact"], names["prediction"].cluster)
    rows = {op: num for op, num in exact.summary.bytes_per_epoch_by_op.items() if op.startswith("exchange")}
    third = {op: names["prediction"].summary.bytes_per_epoch_by_op[op] for op in rows}
    assert third == {op: pytest.approx(num / 3) for op, num in rows.items()}
    always = names["lazy"](names["exact"].halo, names["exact"].spec, names["Options"](every=1))
    assert always.ops == names["exact"].schedule.ops
    ran, _ = run_workload(replace(names["workload"]))
    assert len(ran.losses) == 6
    assert ran.losses[-1] < ran.losses[0]
