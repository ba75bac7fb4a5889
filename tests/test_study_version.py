"""The version of a prediction is that of all code and constants: changed code never serves the rows of older code."""

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from halocast.study.queries import query_of
from halocast.study.results import ResultFile, State
from halocast.study.version import (
    fingerprint_of,
    package_files,
    prediction_version,
    training_fingerprint_of,
    training_key,
)

ROOT = Path(__file__).parents[1]
MISSED_ONCE = ("study/worlds.py", "study/pipelines.py", "calibrate/profile.py")


def copy_package(into: Path) -> Path:
    for path in package_files(ROOT):
        place = into / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return into


def test_any_change_of_any_file_of_the_package_is_another_version(tmp_path: Path) -> None:
    root = copy_package(tmp_path)
    before, names = fingerprint_of(root), [str(path.relative_to(root)) for path in package_files(root)]
    assert set(MISSED_ONCE) < set(names)
    assert "study/evidence.csv" in names
    assert "study/scenarios/demo.toml" in names
    seen = {before}
    for name in names:
        path = root / name
        text = path.read_bytes()
        path.write_bytes(text + b"\n")
        seen.add(fingerprint_of(root))
        path.write_bytes(text)
    assert len(seen) == 1 + len(names)
    assert fingerprint_of(root) == before


def test_a_new_module_and_a_renamed_one_are_another_version(tmp_path: Path) -> None:
    root = copy_package(tmp_path)
    versions = [fingerprint_of(root)]
    (root / "sim" / "new.py").write_text("", encoding="utf-8")
    versions.append(fingerprint_of(root))
    (root / "sim" / "new.py").rename(root / "sim" / "newer.py")
    versions.append(fingerprint_of(root))
    assert len(set(versions)) == 3


def test_tests_documents_and_environments_beside_an_editable_installation_do_not_count(tmp_path: Path) -> None:
    root = copy_package(tmp_path)
    before = fingerprint_of(root)
    for name in ("tests/test_x.py", "docs/x.toml", ".venv/lib/pkg/__init__.py", "benchmarks/x.py", "reports-out/x.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x", encoding="utf-8")
    assert fingerprint_of(root) == before


def test_every_packaged_directory_counts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = {name.removeprefix("halocast").replace(".", "/").lstrip("/") or "." for name in project_packages(project)}
    assert {str(path.parent.relative_to(ROOT)) for path in package_files(ROOT)} == listed


def project_packages(project: dict[str, dict[str, dict[str, list[str]]]]) -> list[str]:
    return project["tool"]["setuptools"]["packages"]


def test_rows_of_another_version_are_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"graph": {"dataset": "cora"}}
    with ResultFile(tmp_path / "r.sqlite") as file:
        old = query_of(tables)
        file.add([(old.key, old.tables)])
        file.finish(old.key, State.DONE, {"epoch_s": 1.0}, 0.1)
        monkeypatch.setattr("halocast.study.version.prediction_version", lambda: f"{prediction_version()}-changed")
        new = query_of(tables)
        assert file.finished([old.key])[old.key].figures == {"epoch_s": 1.0}
        assert file.finished([new.key]) == {}


def test_only_code_that_trains_makes_another_training(tmp_path: Path) -> None:
    root = copy_package(tmp_path)
    before, changed = training_fingerprint_of(root), set()
    for path in package_files(root):
        text = path.read_bytes()
        path.write_bytes(text + b"\n")
        if training_fingerprint_of(root) != before:
            changed.add(str(path.relative_to(root)))
        path.write_bytes(text)
    assert {name.partition("/")[0] for name in changed} == {
        "base",
        "schedule",
        "graph",
        "models",
        "methods",
        "exec",
        "study",
    }
    assert {"exec/worker.py", "methods/gnnpipe/stage.py", "models/modules.py"} < changed
    assert {name for name in changed if name.startswith("study/")} == {"study/workload.py", "study/training.py"}
    assert not any(name.endswith((".toml", ".csv")) for name in changed)


def test_a_training_is_known_by_the_content_of_its_graph_and_what_it_depends_on(tmp_path: Path) -> None:
    def key(content: str, name: str, asked: Any = None, **more: object) -> str:
        place = tmp_path / name
        place.write_text(content, encoding="utf-8")
        tables = {"graph": {"dataset": str(place)}, "run": {"lr": 0.1}, **more}
        return training_key(tables, {} if asked is None else asked)

    first = key("one", "a.npz")
    assert key("one", "elsewhere.npz") == first
    aside = {"run": {"lr": 0.1, "timeout_s": 3.0}, "cluster": {"transport": "gloo"}, "plan": {"gpus": [2]}}
    assert key("one", "a.npz", **aside) == first
    others = [
        key("two", "b.npz"),
        key("one", "a.npz", run={"lr": 0.2}),
        key("one", "a.npz", cluster={"gpus": 4}),
        key("one", "a.npz", cluster={"hosts": 2}),
        key("one", "a.npz", cluster={"name": "x"}),
        key("one", "a.npz", world={"speed": {"0": 0.5}}),
        key("one", "a.npz", {"patience": 3}),
        key("one", "a.npz", {"clock": {"cluster": {"gpus": 2}}}),
        key("one", "a.npz", {"clock": {"cluster": {"gpus": 4}}}),
    ]
    assert len({first, *others}) == 1 + len(others)
