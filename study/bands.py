"""Error bands: how far predictions have been from measurements, by how sure constants are, transport and method.

`accuracy.csv` is made by `make accuracy` from the results of `halocast published` (constants from spec sheets and other
people's measurements) and `halocast validate` (constants measured on the machine itself).
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from halocast.base.errors import InputError
from halocast.base.records import convert
from halocast.cluster.catalogue import Transport
from halocast.reports.summary import ErrorBand, NoBand, Summary
from halocast.study.testbeds import load_testbed

ANY = "any"
LEAST = 8  # rows that a band of its own needs; a wider group serves where there are fewer
EPOCHS = ("epoch_s",)  # metrics whose error is that of an epoch


class Sure(StrEnum):
    """The origin of a cluster's constants."""

    CALIBRATED = "calibrated"
    SPEC = "spec"


def sure_of(summary: Summary) -> Sure:
    """Whether a prediction's constants were measured."""
    calibrated = summary.basis is not None and summary.basis.calibrated
    return Sure.CALIBRATED if calibrated else Sure.SPEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Relative errors of predicted epochs, predicted / measured - 1."""

    kind: str
    transport: str
    family: str
    num: int
    median_abs: float
    p10: float
    p90: float
    testbeds: str  # clusters that its rows were measured on, with spaces between

    def around(self, predicted_s: float) -> tuple[float, float]:
        """The shortest and the longest that the epoch is if its prediction errs like eight of ten did."""
        return predicted_s / (1 + self.p90), predicted_s / (1 + self.p10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One prediction beside its measurement."""

    kind: str
    testbed: str
    transport: str
    method: str
    error: float


def family_of(method: str) -> str:
    """The family of a method, to which its variants belong: pipegcn-gf is a pipegcn."""
    return method.partition("-")[0]


def make_bands(compared: Iterable[Compared]) -> list[Band]:
    """A band for every group, and for the groups of groups that serve where one is too small."""
    groups: dict[tuple[str, str, str], list[Compared]] = defaultdict(list)
    for case in compared:
        for transport in (case.transport, ANY):
            for family in (family_of(case.method), ANY):
                groups[case.kind, transport, family].append(case)
    return [_band(*names, some) for names, some in sorted(groups.items())]


def _band(kind: str, transport: str, family: str, compared: Sequence[Compared]) -> Band:
    errors = [case.error for case in compared]
    p10, p90 = (round(float(value), 3) for value in np.quantile(errors, (0.1, 0.9)))
    return Band(
        kind=kind,
        transport=transport,
        family=family,
        num=len(errors),
        median_abs=round(median(map(abs, errors)), 3),
        p10=p10,
        p90=p90,
        testbeds=" ".join(sorted({case.testbed for case in compared})),
    )


def compared_with_published(rows: Iterable[Mapping[str, Any]]) -> list[Compared]:
    """Compared epochs among the rows of `halocast published --json`."""
    epochs = []
    for row in rows:
        if row["metric"] in EPOCHS and row["error"] is not None:
            cluster = load_testbed(row["testbed"], gpus=None, hosts=None)
            method = VARIANTS.get(row["method"], row["method"])
            where = {"testbed": cluster.name, "transport": str(cluster.transport)}
            epochs.append(Compared(kind=Sure.SPEC, **where, method=method, error=row["error"]))
    return epochs


VARIANTS: Mapping[str, str] = {"dropedge": "bns", "bes": "bns"}


def compared_with_runs(rows: Iterable[Mapping[str, Any]]) -> list[Compared]:
    """Compared epochs among the rows of `halocast validate`, all of them over gloo on processors."""
    return [
        Compared(
            kind=Sure.CALIBRATED,
            testbed="cpu-local",
            transport=Transport.GLOO,
            method=row["method"],
            error=row["error"],
        )
        for row in rows
        if row.get("error") is not None
    ]


def format_bands(bands: Iterable[Band]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, [one.name for one in fields(Band)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(band) for band in bands)
    return out.getvalue()


def read_bands(path: Path | None = None) -> tuple[Band, ...]:
    """The bands of a file, or those that come with the package."""
    where = path or Path(str(files("halocast.study"))) / "accuracy.csv"
    with where.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return tuple(_read(row, f"{where}:{number}") for number, row in enumerate(table, 2))


def _read(row: Mapping[str, str], where: str) -> Band:
    kinds = {one.name: one.type for one in fields(Band)}
    if set(row) != set(kinds):
        raise InputError(f"{where}: needs the columns {', '.join(kinds)}")
    number = {str: str, int: int, float: float}
    try:
        values = {name: number[kinds[name]](text) for name, text in row.items()}  # type: ignore[index]
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return Band(**{name: convert(kinds[name], value, where) for name, value in values.items()})


def band_for(bands: Iterable[Band], kind: str, cluster: str, transport: str, method: str) -> Band | None:
    """The band of the narrowest group with enough rows. A cluster that was never measured has the widest: nothing says
    that it is as well described as those that were. None if this kind was never compared."""
    by_group = {(band.kind, band.transport, band.family): band for band in bands if band.num >= LEAST}
    for names in ((transport, family_of(method)), (transport, ANY)):
        band = by_group.get((kind, *names))
        if band is not None and cluster in band.testbeds.split():
            return band
    return by_group.get((kind, ANY, ANY))


def error_band(summary: Summary) -> ErrorBand | NoBand:
    """The band in which the epoch lies if its prediction errs as eight of ten like it did."""
    band = band_for(read_bands(), sure_of(summary), summary.cluster, summary.transport, summary.method)
    if band is None:
        return NoBand.NOT_KNOWN
    low_s, high_s = band.around(summary.epoch_s)
    basis = f"from {band.num} epochs measured on {band.testbeds.replace(' ', ', ')}"
    return ErrorBand(low_s=low_s, high_s=high_s, basis=basis)
