"""Where a report may be written: never over something that is not one."""

from pathlib import Path

from halocast.base.errors import InputError


def require_report_place(path: Path) -> None:
    if path.exists() and not _replaceable(path):
        raise InputError(f"{path}: exists and is not a report of ours; choose another --out")


def _replaceable(path: Path) -> bool:
    if not path.is_dir():
        return False
    return not any(path.iterdir()) or ((path / "results.csv").exists() and (path / "report.md").exists())
