"""Error bands: made of other groups' errors, wider where nothing was measured, never without zero error."""

from pathlib import Path

import numpy as np
import pytest

from halocast.base.errors import InputError
from halocast.study.bands import GROUPED, Case, Evidence, Situation, Sure
from halocast.study.evidence import band_for, cases_of_rows, cases_of_runs, format_evidence, read_evidence


def case(error: float, **changes: str) -> Case:
    known = {"code": "c", "method": "vanilla", "transport": "gloo", "device": "d", "model": "gcn"}
    situation = Situation(kind=Sure.SPEC, gpus=4, **{"testbed": "t", "dataset": "g"} | known | changes)
    return Case(situation=situation, source="paper", error=error)


def drawn(num_testbeds: int, num_graphs: int, seed: int, spread: float = 0.3) -> list[Case]:
    """Cases whose errors have a part of their testbed, a part of their graph and one of their own."""
    rng = np.random.default_rng(seed)
    testbeds, graphs = rng.normal(0, spread, num_testbeds), rng.normal(0, 0.1, num_graphs)
    return [
        case(float(np.exp(mine + ours + rng.normal(0, 0.05)) - 1), testbed=f"t{t}", dataset=f"g{g}")
        for t, mine in enumerate(testbeds)
        for g, ours in enumerate(graphs)
    ]


def held(evidence: Evidence, unseen: list[Case]) -> float:
    inside = []
    for one in unseen:
        band = evidence.band(one.situation)
        assert band is not None
        inside.append(band.low <= 1 / (1 + one.error) <= band.high)
    return float(np.mean(inside))


def test_bands_hold_about_eight_of_ten_rows_of_machines_that_they_are_not_made_of() -> None:
    shares = []
    for seed in range(20):
        cases = drawn(24, 6, seed)
        fitted = [one for one in cases if int(one.situation.testbed[1:]) % 2]
        unseen = [one for one in cases if int(one.situation.testbed[1:]) % 2 == 0]
        shares.append(held(Evidence(tuple(fitted)), unseen))
    assert 0.75 <= np.mean(shares) <= 0.9


def test_a_prediction_is_inside_its_own_band_even_where_all_lean_to_one_side() -> None:
    evidence = Evidence(tuple(case(0.5, dataset=f"g{k}") for k in range(12)))
    band = evidence.band(evidence.cases[0].situation)
    assert band is not None
    assert band.low < 1 < band.high
    assert band.around(2.0) == (2 * band.low, 2 * band.high)
    assert band.low == pytest.approx(1 / 1.5)  # so far were all off


def test_a_band_is_wider_where_the_machine_was_never_measured() -> None:
    evidence = Evidence(tuple(drawn(12, 6, seed=1)))
    known, new = (evidence.band(case(0.0, testbed=name, dataset="g1").situation) for name in ("t3", "elsewhere"))
    assert known is not None
    assert new is not None
    assert new.high > known.high


def test_a_band_names_its_evidence_and_what_was_never_measured() -> None:
    cases = [case(0.1, dataset=f"g{k}") for k in range(8)] + [
        case(0.2, method="bns", dataset=f"g{k}") for k in range(8)
    ]
    evidence = Evidence(tuple(cases))
    band = evidence.band(case(0.0, dataset="g1").situation)
    assert band is not None
    assert (band.num, band.evidence) == (16, "from 8 epochs of c, vanilla, gloo, d on t")
    other = evidence.band(case(0.0, method="psc", dataset="mine", testbed="here").situation)
    assert other is not None
    assert other.evidence == (
        "no measured epoch of psc over gloo; from 16 epochs of gloo on t; never measured: machine here, graph mine"
    )


def test_more_gpus_than_were_ever_measured_are_told() -> None:
    evidence = Evidence(tuple(case(0.1, dataset=f"g{k}") for k in range(8)))
    situation = Situation(
        **{name: getattr(evidence.cases[0].situation, name) for name in GROUPED}, kind="spec", gpus=64
    )
    band = evidence.band(situation)
    assert band is not None
    assert band.evidence.endswith("never measured: gpus 64")


def test_too_few_groups_say_nothing() -> None:
    assert Evidence(()).band(case(0.0).situation) is None
    assert Evidence(tuple(case(0.1) for _ in range(50))).band(case(0.0).situation) is None  # one group, fifty times


def test_repeated_runs_of_one_setting_count_as_one() -> None:
    spread = [case(0.1 * k, dataset=f"g{k}") for k in range(10)]
    repeated = [*spread, *[case(0.0, dataset="g0")] * 100]
    situation = case(0.0, dataset="new").situation
    bands = [Evidence(tuple(cases)).band(situation) for cases in (spread, repeated)]
    assert bands[0] is not None
    assert bands[1] is not None
    assert bands[0].high == pytest.approx(bands[1].high)


def test_results_of_both_commands_are_compared_by_epoch() -> None:
    facts = dict.fromkeys(GROUPED, "x") | {"gpus": "8"}
    row = {"metric": "epoch_s", "error": 0.1, "source": "paper", "facts": facts}
    found = cases_of_rows([row, row | {"error": None}, row | {"metric": "comm_s"}])
    assert [(one.source, one.error, one.situation.kind, one.situation.gpus) for one in found] == [
        ("paper", 0.1, Sure.SPEC, 8)
    ]
    run = {"method": "pipegcn-gf", "model": "gcn", "graph": "dense", "ranks": 2, "link": "200mbit", "error": -0.5}
    (one,) = cases_of_runs([run, run | {"error": None}])
    assert (one.situation.kind, one.situation.method, one.situation.testbed) == (
        "calibrated",
        "pipegcn",
        "cpu-4x1-200mbit",
    )
    assert cases_of_runs([run], quick=True)[0].situation.kind == Sure.QUICK


def test_evidence_is_read_as_it_was_written(tmp_path: Path) -> None:
    cases = [case(0.25), case(-0.5, method="bns")]
    path = tmp_path / "a.csv"
    path.write_text(format_evidence(cases), encoding="utf-8")
    assert read_evidence(path)[Sure.SPEC].cases == tuple(cases)
    path.write_text(path.read_text(encoding="utf-8").replace("0.25", "x"), encoding="utf-8")
    with pytest.raises(InputError, match=r"a.csv:2: could not convert"):
        read_evidence(path)


def test_the_shipped_evidence_has_a_band_for_data_sheets_and_for_calibrated_machines() -> None:
    for kind in (Sure.SPEC, Sure.CALIBRATED, Sure.QUICK):
        band = band_for(Situation(kind=kind, method="vanilla", transport="gloo", testbed="somewhere"))
        assert band is not None
        assert band.low < 1 < band.high


def test_shipped_bands_hold_about_eight_of_ten_rows_of_a_group_that_is_left_out() -> None:
    evidence = read_evidence()[Sure.SPEC]
    for axis in ("dataset", "model", "testbed", "code"):
        inside = []
        for one in evidence.cases:
            band = evidence.band(one.situation, ~evidence.like(one.situation, (axis,)))
            if band is not None:
                inside.append(band.low <= 1 / (1 + one.error) <= band.high)
        assert 0.72 <= np.mean(inside) <= 0.93, axis


def test_a_quick_calibration_has_a_wider_band_than_a_whole_one_and_says_why() -> None:
    whole, quick = (
        band_for(Situation(kind=kind, method="vanilla", transport="gloo", device="cpu", code="halocast"))
        for kind in (Sure.CALIBRATED, Sure.QUICK)
    )
    assert whole is not None
    assert quick is not None
    assert quick.low < whole.low
    assert quick.high > whole.high
    if Sure.QUICK not in read_evidence():
        assert quick.evidence.startswith("no run after a quick calibration was measured; twice the band")
