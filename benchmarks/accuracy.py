"""Makes study/evidence.csv, which error bands are made of, from results of `published` and `validate`.

python benchmarks/accuracy.py [--published published.json] [--runs validate.json ...] [--quick-runs validate.json ...]

What is not given stays as it is. Runs are predicted with a profile of `halocast calibrate`, quick runs with one of
`halocast calibrate --quick`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halocast.base.files import whole_file
from halocast.study.bands import Case, Sure
from halocast.study.evidence import cases_of_rows, cases_of_runs, format_evidence, read_evidence

TARGET = Path(__file__).parents[1] / "study" / "evidence.csv"


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return found


def known(kind: Sure) -> Sequence[Case]:
    """The cases that are there already."""
    if not TARGET.exists():
        return ()
    evidence = read_evidence(TARGET)
    return evidence[kind].cases if kind in evidence else ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, help="results.json of a report of halocast published")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="validate.json of halocast validate")
    parser.add_argument("--quick-runs", type=Path, nargs="*", default=[], help="the same, after calibrate --quick")
    asked = parser.parse_args()
    spec = cases_of_rows(rows(asked.published)) if asked.published else known(Sure.SPEC)
    runs = [case for path in asked.runs for case in cases_of_runs(rows(path))] or known(Sure.CALIBRATED)
    quick = [case for path in asked.quick_runs for case in cases_of_runs(rows(path), quick=True)] or known(Sure.QUICK)
    with whole_file(TARGET) as path:
        path.write_text(format_evidence([*spec, *runs, *quick]), encoding="utf-8")
        path.chmod(0o644)
    print(f"{TARGET.name}: {len(spec)} published epochs, {len(runs)} runs, {len(quick)} after a quick calibration")


if __name__ == "__main__":
    main()
