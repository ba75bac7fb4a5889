"""The code is laid out as the design says: who may import whom, where torch and simpy may be, what is shipped."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from halocast.methods import METHODS

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "base": set(),
    "schedule": {"base"},
    "graph": {"base"},
    "models": {"base"},
    "methods": {"base", "schedule", "graph", "models"},
    "cluster": {"base"},
    "codes": {"base", "models", "cluster"},
    "sim": {"base", "schedule", "models", "cluster", "codes"},
    "exec": {"base", "schedule", "graph", "models"},
    "calibrate": {"base", "schedule", "graph", "models", "cluster", "codes", "sim", "exec", "reports"},
    "reports": {"base", "schedule"},
    "study": {
        *("base", "schedule", "graph", "models", "methods", "cluster", "codes", "sim", "exec", "calibrate", "reports")
    },
}
MAY_IMPORT["cli"] = set(MAY_IMPORT)
TORCH = {
    "exec",
    "calibrate/measure",
    "models/modules.py",
    "models/aggregate.py",
    "models/attention.py",
    "cli/doctor.py",
}


def sources() -> Iterator[tuple[str, str]]:
    """(path from the root, package) of every module of the product."""
    for package in MAY_IMPORT:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), package


def imports(path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("path", "package"), list(sources()))
def test_a_package_imports_only_what_its_layer_may(path: str, package: str) -> None:
    for name in imports(path):
        if name.startswith("halocast."):
            other = name.split(".")[1]
            assert other == package or other in MAY_IMPORT[package], f"{path} imports {name}"


@pytest.mark.parametrize(("path", "package"), list(sources()))
def test_torch_and_simpy_stay_where_they_belong(path: str, package: str) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert "torch" not in roots or any(path.startswith(place) for place in TORCH), f"{path} imports torch"
    assert "simpy" not in roots or package == "sim", f"{path} imports simpy"


@pytest.mark.parametrize("package", ["sim", "exec"])
def test_no_interpreter_knows_a_methods_name(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        strings = [
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert not set(strings) & set(METHODS), path


def test_predicting_imports_neither_torch_nor_dgl() -> None:
    code = "import sys, halocast.study.predict, halocast.cli.app; print({'torch', 'dgl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_directory_with_code_or_data_is_packaged_and_typed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {"halocast"} | {
        "halocast." + ".".join(path.parent.relative_to(ROOT).parts)
        for package in MAY_IMPORT
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert listed == found
    links = {path.name: path.resolve() for path in (ROOT / ".types" / "halocast").iterdir()}
    assert links == {name: ROOT / name for name in (*MAY_IMPORT, "__init__.py", "__main__.py")}
    banned = set(project["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"])
    assert banned == set(MAY_IMPORT)


def classes() -> dict[str, set[str]]:
    """The packages that define a class of each name, private ones included."""
    packages: dict[str, set[str]] = {}
    for path, package in sources():
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                packages.setdefault(node.name, set()).add(package)
    return packages


def test_a_class_name_means_one_thing_across_packages() -> None:
    """Every method has its own Options, but all in one package."""
    assert {name: packages for name, packages in classes().items() if len(packages) > 1} == {}


@pytest.mark.parametrize(("path", "package"), list(sources()))
def test_files_and_functions_stay_short(path: str, package: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500, path
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{path}: {node.name}"


SAY_NOTHING = {"found", "made", "one", "told"}


def long_lived(path: str) -> list[str]:
    """The functions of a module in which a name that says nothing is used on more than one line."""
    offenders = []
    for function in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            lines: dict[str, set[int]] = {name: set() for name in SAY_NOTHING}
            for node in ast.walk(function):
                if isinstance(node, ast.Name | ast.arg):
                    name = node.id if isinstance(node, ast.Name) else node.arg
                    lines.get(name, set()).add(node.lineno)
            offenders += [f"{function.lineno}: {name}" for name in sorted(lines) if len(lines[name]) > 1]
    return offenders


@pytest.mark.parametrize(("path", "package"), list(sources()))
def test_names_that_say_nothing_do_not_live_longer_than_a_line(path: str, package: str) -> None:
    assert long_lived(path) == []
