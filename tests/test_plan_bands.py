"""Error bands: made from compared rows, read back, the narrowest that has enough rows."""

from pathlib import Path

import pytest

from halocast.base.errors import InputError
from halocast.study.bands import (
    LEAST,
    Compared,
    Sure,
    band_for,
    compared_with_published,
    compared_with_runs,
    format_bands,
    make_bands,
    read_bands,
)


def some(error: float, method: str = "vanilla", testbed: str = "a", num: int = LEAST) -> list[Compared]:
    made = Compared(kind=Sure.SPEC, testbed=testbed, transport="gloo", method=method, error=error)
    return [made] * num


def test_a_band_is_between_what_epochs_were_when_predictions_erred_like_most() -> None:
    (band, *_) = make_bands([*some(0.25, num=1), *some(-0.2, num=1)])
    assert (band.num, band.median_abs) == (2, 0.225)
    assert (band.p10, band.p90) == (-0.155, 0.205)
    assert band.around(1.0) == (1 / 1.205, 1 / 0.845)


def test_the_narrowest_group_with_enough_rows_serves() -> None:
    bands = make_bands([*some(0.1), *some(0.5, "pipegcn-gf"), *some(0.9, "bns", num=LEAST - 1)])
    found = {
        method: band.family if (band := band_for(bands, Sure.SPEC, "a", "gloo", method)) else None
        for method in ("vanilla", "pipegcn", "bns")
    }
    assert found == {"vanilla": "vanilla", "pipegcn": "pipegcn", "bns": "any"}


def test_a_cluster_that_was_never_measured_has_the_widest_band() -> None:
    bands = make_bands([*some(0.1), *some(0.5, "pipegcn", testbed="b")])
    band = band_for(bands, Sure.SPEC, "c", "gloo", "vanilla")
    assert band is not None
    assert (band.transport, band.family, band.num) == ("any", "any", 2 * LEAST)
    assert band_for(bands, Sure.CALIBRATED, "a", "gloo", "vanilla") is None


def test_results_of_both_commands_are_compared_by_epoch() -> None:
    row = {"metric": "epoch_s", "error": 0.1, "testbed": "rtx2080ti-x10-pcie3", "method": "dropedge"}
    published = compared_with_published([row, row | {"error": None}, row | {"metric": "comm_s"}])
    assert [(one.kind, one.testbed, one.transport, one.method) for one in published] == [
        ("spec", "rtx2080ti-x10-pcie3", "gloo", "bns")
    ]
    runs = compared_with_runs([{"method": "psc", "error": -0.5}, {"method": "bns", "error": None}])
    assert [(one.kind, one.method, one.error) for one in runs] == [("calibrated", "psc", -0.5)]


def test_bands_are_read_as_they_were_written(tmp_path: Path) -> None:
    bands = make_bands([*some(0.25), *some(-0.5, "bns")])
    path = tmp_path / "a.csv"
    path.write_text(format_bands(bands), encoding="utf-8")
    assert read_bands(path) == tuple(bands)
    path.write_text(path.read_text(encoding="utf-8").replace("0.25", "x"), encoding="utf-8")
    with pytest.raises(InputError, match=r"a.csv:\d+: could not convert"):
        read_bands(path)


def test_the_shipped_bands_know_the_predictions_from_spec_sheets() -> None:
    assert band_for(read_bands(), Sure.SPEC, "somewhere", "gloo", "vanilla") is not None
