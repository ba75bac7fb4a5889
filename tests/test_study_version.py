"""The version of a prediction is that of all code and constants: changed code never serves the rows of older code."""

import shutil
import tomllib
from pathlib import Path

import pytest

from halocast.study.queries import query_of
from halocast.study.results import ResultFile, State
from halocast.study.version import fingerprint_of, package_files, prediction_version

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
    assert "study/accuracy.csv" in names
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
