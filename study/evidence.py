"""Measured epochs beside their predictions, which error bands are made of: a file that comes with the package.

`evidence.csv` is made by `make accuracy` from the results of `halocast published` (constants from spec sheets and other
people's measurements) and `halocast validate` (constants measured on the machine itself).
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halocast.base.errors import InputError
from halocast.cluster.catalogue import Transport
from halocast.reports.published import PublishedResult
from halocast.study.bands import Band, Case, Evidence, Situation, Sure

EPOCHS = ("epoch_s",)  # metrics whose error is that of an epoch
NAMES = ("code", "method", "transport", "device", "testbed", "dataset", "model")
COLUMNS = ("kind", *NAMES, "gpus", "source", "error")
# What describes the machine that runs were measured on, and hosts that it emulated.
LOOPBACK = "cpu-local"
MACHINES: Mapping[str, str] = MappingProxyType(
    {"200mbit": "cpu-4x1-200mbit", "1gbit": "cpu-4x1-1gbit", "unlimited": "cpu-4x1-unlimited"}
)
SYNTHETIC, GRAPHS = "synthetic", ("sparse", "dense")
OWN_CODE = "halocast"
QUICK_WIDTHS = 2  # assumed: a quick calibration has about a quarter of the points


def case_of(result: PublishedResult) -> Case | None:
    """The compared epoch of a row, if it is one."""
    error = result.error
    if result.row["metric"] not in EPOCHS or error is None or error <= -1 or not result.facts:
        return None
    return Case(situation=situation_of(result.facts), source=result.row["source"], error=error)


def cases_of_rows(rows: Iterable[Mapping[str, Any]]) -> list[Case]:
    """The compared epochs among the rows of a report of `halocast published`."""
    return [
        Case(situation=situation_of(row["facts"]), source=row["source"], error=row["error"])
        for row in rows
        if row["metric"] in EPOCHS and row["error"] is not None and row["error"] > -1
    ]


def situation_of(facts: Mapping[str, str]) -> Situation:
    return Situation(kind=Sure.SPEC, gpus=int(facts["gpus"]), **{name: facts[name] for name in NAMES})


def cases_of_runs(rows: Iterable[Mapping[str, Any]], *, quick: bool = False) -> list[Case]:
    """The compared epochs among the rows of `halocast validate`, all of them over gloo on processors."""
    return [
        Case(
            situation=Situation(
                kind=Sure.QUICK if quick else Sure.CALIBRATED,
                code=OWN_CODE,
                method=str(row["method"]).partition("-")[0],
                transport=Transport.GLOO,
                device="cpu",
                testbed=MACHINES.get(str(row["link"]), LOOPBACK),
                dataset=SYNTHETIC if row["graph"] in GRAPHS else str(row["graph"]),
                model=str(row["model"]),
                gpus=int(row["ranks"]),
            ),
            source=f"validate {row['link']}",
            error=float(row["error"]),
        )
        for row in rows
        if row.get("error") is not None
    ]


def format_evidence(cases: Iterable[Case]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for case in cases:
        said = (getattr(case.situation, name) for name in COLUMNS[:-2])
        writer.writerow([*map(str, said), case.source, f"{case.error:.4f}"])
    return out.getvalue()


def read_evidence(path: Path | None = None) -> dict[str, Evidence]:
    """The evidence of a file by kind, or what comes with the package."""
    where = path or Path(str(files("halocast.study"))) / "evidence.csv"
    return _read(where, where.stat().st_mtime_ns)


@cache
def _read(where: Path, changed_ns: int) -> dict[str, Evidence]:
    with where.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    cases = [_case(row, f"{where}:{number}") for number, row in enumerate(table, 2)]
    kinds = dict.fromkeys(case.situation.kind for case in cases)
    return {kind: Evidence(tuple(case for case in cases if case.situation.kind == kind)) for kind in kinds}


def _case(row: Mapping[str, str], where: str) -> Case:
    if set(row) != set(COLUMNS):
        raise InputError(f"{where}: needs the columns {', '.join(COLUMNS)}")
    try:
        gpus, error = int(row["gpus"]), float(row["error"])
    except ValueError as fault:
        raise InputError(f"{where}: {fault}") from None
    names = {name: row[name] for name in NAMES}
    return Case(situation=Situation(kind=Sure(row["kind"]), gpus=gpus, **names), source=row["source"], error=error)


def band_for(situation: Situation) -> Band | None:
    """The band of a prediction by the evidence that comes with the package; none where nothing like it was measured."""
    evidence = read_evidence()
    if situation.kind in evidence:
        return evidence[situation.kind].band(situation)
    if situation.kind != Sure.QUICK or Sure.CALIBRATED not in evidence:
        return None
    whole = evidence[Sure.CALIBRATED].band(replace(situation, kind=Sure.CALIBRATED))
    return None if whole is None else _wider(whole)


def _wider(band: Band) -> Band:
    """The band after a quick calibration, of which no run was measured: as far off again as after a whole one."""
    said = f"no run after a quick calibration was measured; twice the band after a whole one, {band.evidence}"
    return Band(low=band.low**QUICK_WIDTHS, high=band.high**QUICK_WIDTHS, num=band.num, evidence=said)
