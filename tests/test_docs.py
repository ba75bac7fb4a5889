"""Every command in the README and in docs/ works: run in a directory of its own with a small graph, or at least parsed.

A comment before a block says what its commands need: `<!-- needs: root -->` (GPU, minutes, ...), then their options are
only parsed, as are those that take minutes in any case; `<!-- file: NAME -->`: the TOML block before it,
saved under that name. A block between `<!-- NAME -->` and `<!-- /NAME -->` is printed by a command of the Makefile.
"""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from halocast.cli import run
from halocast.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]  # for users
DOCUMENTS = [*PAGES, ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md"]  # the changelog keeps the paths of its time
TOP = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
BLOCK = re.compile(
    r"(?:<!-- (?P<key>needs|file): (?P<value>[^>]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL
)
SMALL = ["--set", "graph.nodes=300", "--set", "graph.degree=6", "--set", "run.epochs=3"]
MINUTES = {"calibrate", "validate", "published"}  # measure or predict whole grids; tests of their own run them
MADE_SMALL = {"simulate", "run", "compare"}
MADE_SHORT = {"compare": ["--scaling", "0"], "plan": ["--clusters", "t4-x8-g4dn,l4-8x1-25gbe"]}
OURS = {"methods/lazy.py"}  # what a reader of docs/add-a-method.md makes


def module_of(path: Path) -> Any:
    """A module that is no part of the package, such as a benchmark or another test."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def into_docs() -> Any:
    return module_of(ROOT / "benchmarks/into_docs.py")


def blocks(path: Path) -> Iterator[re.Match[str]]:
    return BLOCK.finditer(path.read_text(encoding="utf-8"))


def commands() -> Iterator[Any]:
    shown = into_docs().command_of("plan")  # has a test of its own
    for path in PAGES:
        toml = ""
        for block in blocks(path):
            if block["kind"] == "toml":
                toml = block["text"]
            if block["kind"] != "sh":
                continue
            lines = block["text"].replace("\\\n", " ").splitlines()
            for line in lines:
                if line.startswith("halocast ") and line != shown:
                    saved = {block["value"]: toml} if block["key"] == "file" else {}
                    name = f"{path.relative_to(ROOT)}: {line}"
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
        small = SMALL if args[0] in MADE_SMALL and not dataset else []
        assert run([*args, *small, *MADE_SHORT.get(args[0], [])]) == 0


def parse(args: list[str]) -> None:
    """Raises if an option is unknown or has a value of another kind; nothing is done."""
    group: Any = get_command(app)
    group.commands[args[0]].make_context(args[0], args[1:])


def test_the_readme_shows_what_its_command_prints(tmp_path: Path) -> None:
    module = into_docs()
    args = shlex.split(module.command_of("plan"))[1:]
    code = "import sys; from halocast.cli import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.rstrip() == module.home("plan")[1]["shown"], "`make examples` brings the README up to date"


def test_the_readme_is_short_and_has_one_picture() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert text.count("![") == 1


def test_every_printed_block_has_one_home_and_a_target_of_the_makefile_that_fills_it() -> None:
    filled = re.findall(r"into_docs\.py (?:--run )?(\w+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    texts = {path.name: path.read_text(encoding="utf-8") for path in PAGES}
    homes = {
        name: page for page, text in texts.items() for name in re.findall(r"^<!-- /(\w+) -->$", text, re.MULTILINE)
    }
    assert sorted(filled) == sorted(homes)
    assert homes == {
        **dict.fromkeys(("plan", "verdict"), "README.md"),
        "converge": "converge.md",
        **dict.fromkeys(
            ("calibrate", "validate", "grid", "unseen", "published", "published_ours", "kernels"), "accuracy.md"
        ),
        **dict.fromkeys(("overhead", "virtual", "links", "scale"), "performance.md"),
        "scores": "scores.md",
        **dict.fromkeys(("standins", "curves"), "stand-ins.md"),
    }
    assert {into_docs().home(name)[0].name for name in filled} == set(homes.values())


def test_what_a_command_printed_replaces_the_block_of_that_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = into_docs()
    block = "<!-- {0} -->\n```\n{1}\n```\n<!-- /{0} -->\n"
    other, page = tmp_path / "other.md", tmp_path / "page.md"
    other.write_text("none\n", encoding="utf-8")
    page.write_text("a\n" + block.format("one", "1\n\n1") + "b\n" + block.format("two", "2"), encoding="utf-8")
    monkeypatch.setattr(module, "DOCUMENTS", (other, page))
    module.put("one", "3\n4\n")
    assert page.read_text(encoding="utf-8") == "a\n" + block.format("one", "3\n4") + "b\n" + block.format("two", "2")
    with pytest.raises(SystemExit, match="0 blocks <!-- three -->"):
        module.put("three", "5")


def test_the_layers_of_the_design_are_those_that_are_enforced() -> None:
    """A line is `package/  what it is  -> what it may import`; `base` goes without saying."""
    enforced = module_of(ROOT / "tests/test_layers.py").MAY_IMPORT
    lines = re.findall(
        r"^(\w+)/  .*?(?:-> ([\w ]+)|ours)$", (ROOT / "DESIGN.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [package for package, _ in lines] == list(enforced)
    for package, imported in lines:
        below = set(enforced) - {package} if imported == "everything" else set(imported.split())
        if imported == "all above":
            below = set(list(enforced)[: list(enforced).index(package)])
        assert below - {"base"} == enforced[package] - {"base", "cli"}, package


def test_pre_commit_runs_the_checks_of_the_makefile() -> None:
    check = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ncheck:")[1].split("\n\n")[0]
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in check.splitlines()[1:]]
    assert commands == [".venv/bin/ruff check .", ".venv/bin/ruff format --check .", ".venv/bin/mypy"]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"entry: (.*)", hooks) == commands


def test_the_changelog_has_a_section_of_the_version_that_is_built() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    releases = re.findall(
        r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )
    assert version in releases
    assert releases == ["0.2.0", "0.1.0"]


@pytest.mark.parametrize("name", ["bug_report", "wrong_prediction", "new_method"])
def test_a_form_for_issues_asks_for_what_we_need(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
    assert set(form) == {"name", "description", "labels", "body"}
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in questions} <= {"textarea", "input", "dropdown"}
    assert len({part["id"] for part in questions}) == len(questions)
    assert all(part["attributes"]["label"] for part in questions)
    assert any(part["validations"]["required"] for part in questions if "validations" in part)


def links(path: Path) -> Iterator[tuple[str, str]]:
    """(file, heading) of every link of a document to another, or to a place in itself."""
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            file, _, heading = target.partition("#")
            yield file, heading


def slugs(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_between_documents_leads_somewhere(path: Path) -> None:
    for file, heading in links(path):
        target = path.parent / file if file else path
        assert target.exists(), f"{path.name}: {file}"
        assert not heading or heading in slugs(target), f"{path.name}: {file}#{heading}"


def test_the_index_leads_to_every_page() -> None:
    index = DOCS / "index.md"
    assert {DOCS / file for file, _ in links(index)} >= set(DOCS.rglob("*.md")) - {index}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_and_module_that_a_document_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    data = rf"(?:{'|'.join(TOP)})/[^` ]+\.(?:toml|csv)"
    for file in re.findall(rf"`(?:python )?(\w+/[^` ]*\.py\b|{data})", text):
        assert file in OURS or list(ROOT.glob(file)), f"{path.name}: {file}"
    for module in re.findall(r"`(\w+\.py)`", text):
        assert any(list((ROOT / top).rglob(module)) for top in TOP), f"{path.name}: {module}"
    for name in re.findall(r"\bhalocast\.(\w+(?:\.\w+)*)", text):
        place = ROOT.joinpath(*name.split("."))
        assert place.is_dir() or place.with_suffix(".py").exists(), f"{path.name}: halocast.{name}"


def test_the_blocks_of_the_python_page_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "python.md"):
        code = compile(block["text"], "docs/python.md", "exec")
        if block["key"] != "needs":
            exec(code, names)
        for name in re.findall(r"\bhc\.(\w+)", block["text"]):
            assert hasattr(names["hc"], name), f"docs/python.md: hc.{name}"
    assert names["prediction"].summary.ranks == 4
    assert names["epochs"].shape == (2, 2)
    assert names["best"][0] == names["plan"].exact[0].candidate.label
    assert names["bottleneck"][1] >= 1
    assert names["shortest"] in {"vanilla", "pipegcn", "bns"}
    assert (tmp_path / "compared/report.html").exists()
    assert len(names["trained"].losses) == 5
    assert names["expected"].summary.bytes_total == names["trained"].summary.bytes_total


def test_the_python_page_names_all_that_the_package_gives() -> None:
    import halocast

    told = set(re.findall(r"\bhc\.(\w+)", (DOCS / "python.md").read_text(encoding="utf-8")))
    assert told == set(halocast.__all__) - {"__version__"}


def test_the_worked_example_of_a_method_is_short_and_works() -> None:
    method, use = (block["text"] for block in blocks(DOCS / "add-a-method.md") if block["kind"] == "python")
    assert len(method.splitlines()) + len(use.splitlines()) < 80
    names: dict[str, Any] = {"__name__": "lazy"}
    exec(compile(method, "lazy.py", "exec"), names)
    exec(compile(use, "use.py", "exec"), names)
    assert names["ages"]["forward.1"] == (0, 1, 2)
    from halocast.study.predict import predict_on
    from halocast.study.run import run_workload

    exact = predict_on(names["exact"], names["prediction"].cluster)
    rows = {op: num for op, num in exact.summary.bytes_per_epoch_by_op.items() if op.startswith("exchange")}
    third = {op: names["prediction"].summary.bytes_per_epoch_by_op[op] for op in rows}
    assert third == {op: pytest.approx(num / 3) for op, num in rows.items()}
    always = names["lazy"](names["exact"].halo, names["exact"].spec, names["Options"](every=1))
    assert always.ops == names["exact"].schedule.ops
    ran = run_workload(replace(names["workload"]))
    assert len(ran.losses) == 6
    assert ran.losses[-1] < ran.losses[0]
