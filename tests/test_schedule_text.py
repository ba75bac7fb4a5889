"""The text form is the exact inverse of itself and names the line it cannot read."""

from dataclasses import replace

import pytest
from hypothesis import given
from schedules import legal_schedules, two_rank_exchange

from halocast.base.errors import InputError
from halocast.schedule.ir import Schedule
from halocast.schedule.text import format_op, format_schedule, parse_schedule


@given(legal_schedules())
def test_parse_is_the_inverse_of_format(schedule: Schedule) -> None:
    assert parse_schedule(format_schedule(schedule)) == schedule


@given(legal_schedules())
def test_format_is_the_inverse_of_parse(schedule: Schedule) -> None:
    text = format_schedule(schedule)
    assert format_schedule(parse_schedule(text)) == text


def test_a_schedule_may_know_the_degrees_of_its_graph() -> None:
    schedule = replace(two_rank_exchange(lag=1, every=5), degree_sigma=1.574)
    text = format_schedule(schedule)
    assert text.splitlines()[0] == "schedule ranks=2 degree_sigma=1.574"
    assert parse_schedule(text) == schedule
    assert parse_schedule(text).degree_sigma == 1.574


def test_an_op_reads_as_it_is_documented() -> None:
    schedule = two_rank_exchange(lag=1, every=5)
    assert [format_op(op) for op in schedule.by_rank[0]] == [
        "op 0 compute compute make writes(rows)",
        "op 0 halo exchange swap rows(halo,4) reads(rows) writes(halo) after(make) every(5,0)",
        "op 0 compute compute use reads(halo) after(swap@1)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedule ranks=1\nopp 0 compute compute a", "line 2: unknown line 'opp'; did you mean 'op'"),
        ("schedule ranks=1\nop 0 compute cook a", "line 2: cannot read 'op 0 compute cook a'"),
        ("schedule ranks=1\nop 0 compute compute a stale(b)", "unknown clause 'stale'"),
        ("schedule ranks=1\nop 0 compute compute a after(b) junk", "unexpected 'junk'"),
        ("schedule ranks=1\nbuffer 0 x bytes=1 rows=none persistant", "unknown word 'persistant'"),
        ("schedule ranks=1\nop 0 compute compute a reads(x) reads(y)", "a clause is given twice"),
        ("schedule ranks=one", "line 1: cannot read"),
        ("op 0 compute compute a", "expected one 'schedule' line, found 0"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace("?", r"\?")):
        parse_schedule(text)
