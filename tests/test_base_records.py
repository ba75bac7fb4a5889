"""Records from TOML tables: SI fields in the units of a file, the rules of their numbers, and what is refused."""

import pickle
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.base.records import (
    ByteRate,
    Bytes,
    Checked,
    Count,
    Factor,
    FlopRate,
    NotNegative,
    Seconds,
    Share,
    WholeBytes,
    record,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipe(Checked):
    bytes_per_s: ByteRate
    latency_s: Seconds
    burst_bytes: Bytes | None = None
    full: Share = 1.0
    slowdown: Factor = 1.0
    lost: NotNegative = 0.0
    lanes: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip(Checked):
    memory_bytes: WholeBytes
    fp32_flops_per_s: FlopRate
    wait_s: float = 0.0  # plain: in seconds only


def refusal(cls: type, **table: object) -> str:
    with pytest.raises(InputError) as caught:
        record(cls, table, "file.pipe")
    return str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        {"gbytes_per_s": 1.5, "latency_us": 10},
        {"gbit_per_s": 12, "latency_us": 10.0},
        {"bytes_per_s": 1.5e9, "latency_s": 1e-5},
        {"bytes_per_s": 1_500_000_000, "latency_us": 10},
    ],
)
def test_a_field_in_si_units_is_read_from_every_unit_it_allows(table: dict[str, object]) -> None:
    assert record(Pipe, table, "file") == Pipe(bytes_per_s=1.5e9, latency_s=1e-5)


def test_optional_and_whole_numbers_have_units_too() -> None:
    pipe = record(Pipe, {"gbytes_per_s": 1, "latency_us": 0, "burst_mbytes": 0.5}, "file")
    assert (pipe.bytes_per_s, pipe.latency_s, pipe.burst_bytes) == (1e9, 0.0, 5e5)
    chip = record(Chip, {"memory_gbytes": 1.1, "fp32_tflops": 13.45}, "file")
    assert (chip.memory_bytes, type(chip.memory_bytes), chip.fp32_flops_per_s) == (1_100_000_000, int, 13.45e12)


@given(st.floats(0, 1e9))
def test_factors_are_quotients_so_that_values_are_the_nearest_there_are(microseconds: float) -> None:
    assert record(Pipe, {"gbit_per_s": 8, "latency_us": microseconds}, "file").latency_s == microseconds / 1e6


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"latency_us": -3}, "file.pipe: latency_us = -3.0: needs to be a number at least 0"),
        ({"latency_s": -3}, "file.pipe: latency_s = -3.0: needs to be a number at least 0"),
        ({"latency_us": "3"}, "file.pipe.latency_us: expected a number, got '3'"),
        ({"latency_us": True}, "file.pipe.latency_us: expected a number, got True"),
        ({"burst_gbytes": 0}, "file.pipe: burst_gbytes = 0.0: needs to be a number above 0"),
        ({"burst_gbytes": 1e305}, "file.pipe.burst_gbytes: expected a finite number, got inf"),
        ({"full": 1.5}, "file.pipe: full = 1.5: a fraction of a peak needs to be at most 1"),
        ({"full": 0}, "file.pipe: full = 0.0: needs to be a number above 0"),
        ({"slowdown": 0.5}, "file.pipe: slowdown = 0.5: needs to be a number at least 1"),
        ({"lost": -1}, "file.pipe: lost = -1.0: needs to be a number at least 0"),
        ({"lanes": 0}, "file.pipe: lanes = 0: needs to be a number above 0"),
        ({"lanes": 1.0}, "file.pipe.lanes: expected a whole number, got 1.0"),
        (
            {"latency_s": 1, "latency_us": 1},
            "file.pipe: latency_s and latency_us are one quantity in two units: give one",
        ),
    ],
)
def test_a_refusal_names_the_key_that_was_written(table: dict[str, object], said: str) -> None:
    usual = {"gbit_per_s": 1} | ({} if "latency_s" in table else {"latency_us": 1})
    assert refusal(Pipe, **usual | table).startswith(said)


def test_an_unknown_key_is_answered_with_the_legal_ones_in_all_units() -> None:
    assert refusal(Chip, memory_gbyte=1) == (
        "file.pipe: unknown key 'memory_gbyte'; did you mean 'memory_gbytes'? "
        "(known: fp32_flops_per_s, fp32_tflops, memory_bytes, memory_gbytes, memory_mbytes, wait_s)"
    )
    assert refusal(Chip, wait_us=1).startswith("file.pipe: unknown key 'wait_us'; did you mean 'wait_s'?")


def test_a_missing_key_is_named_in_its_usual_unit() -> None:
    assert refusal(Pipe, latency_us=1) == "file.pipe: missing key 'gbytes_per_s' (or gbit_per_s, bytes_per_s)"


def test_rules_hold_for_records_that_no_file_made() -> None:
    pipe = Pipe(bytes_per_s=1e9, latency_s=0.0)
    with pytest.raises(InputError, match=r"^bytes_per_s = 0\.0: needs to be a number above 0$") as caught:
        replace(pipe, bytes_per_s=0.0)
    with pytest.raises(InputError, match=r"^latency_s = nan: needs to be a number at least 0$"):
        replace(pipe, latency_s=float("nan"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # workers of a sweep send theirs


def test_a_field_whose_name_is_not_in_its_unit_is_our_mistake() -> None:
    @dataclass(frozen=True)
    class Wrong:
        latency_us: Seconds

    with pytest.raises(AssertionError, match=r"Wrong\.latency_us is not in s"):
        record(Wrong, {"latency_us": 1}, "file")
