"""Constants are listed with the comment beside them, and with the published rows that chose them."""

import pytest

from halocast.cli import run
from halocast.study.constants import (
    Origin,
    _comments,
    entry_of,
    first_sentence,
    found_constants,
    is_in_sample,
    list_constants,
)
from halocast.study.published_rows import own_figures, read_rows

TEXT = """
# of the file
top = 1  # behind a key
[gloo]  # behind a table
rate = 2
# a block
# of two lines
first = 3
second = 4

third = 5
"""


def test_a_constant_has_the_comment_behind_it_or_the_block_above() -> None:
    assert _comments(TEXT) == {
        ("top",): "behind a key",
        ("gloo", "rate"): "behind a table",
        ("gloo", "first"): "a block of two lines",
        ("gloo", "second"): "a block of two lines",
        ("gloo", "third"): "",
    }
    assert first_sentence("As measured. On one machine.") == "As measured."


def test_every_constant_of_machines_and_codes_says_how_it_was_found() -> None:
    found = list(found_constants())
    assert len({one.name for one in found}) > 30
    assert [one.name for one in found if entry_of(one.name).origin is Origin.UNSAID] == []
    assert entry_of("none.such").origin is Origin.UNSAID


def test_a_fitted_constant_names_what_it_was_fitted_on() -> None:
    for one in list_constants():
        if one.origin is Origin.FITTED:
            assert one.num_fitted > 0, one.name


def test_rows_of_a_run_that_chose_a_constant_are_in_sample_whatever_they_measure() -> None:
    rows = [row for path in own_figures() for row in read_rows(path)]
    inside = [row for row in rows if is_in_sample(row)]
    assert 0 < len(inside) < len(rows)
    assert is_in_sample(inside[0] | {"metric": "anything"})
    assert not is_in_sample(inside[0] | {"source": "my own log", "testbed": "mine", "where": "here", "model": "none"})


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "constants"]) == 0
    out = capsys.readouterr().out
    assert "efficiency.flops" in out
    assert out.splitlines()[0].split() == ["constant", "values", "files", "origin", "fitted", "on", "provenance"]
    assert run(["list", "constants", "--json"]) == 0
    assert '"fitted_on"' in capsys.readouterr().out
