"""Traces survive both file formats exactly; a file that is no trace is refused in one line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.schedule.ir import Kind, Lane
from halocast.schedule.trace import Span, Trace, load_trace, save_trace

SPANS = st.builds(
    Span,
    rank=st.integers(0, 3),
    lane=st.sampled_from(Lane),
    op=st.sampled_from(["forward.0", "exchange.1"]),
    kind=st.sampled_from(Kind),
    epoch=st.integers(0, 9),
    start_s=st.floats(0, 1e6),
    end_s=st.floats(0, 1e6),
    num_bytes=st.integers(0, 2**50),
)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@given(spans=st.lists(SPANS, max_size=5))
def test_load_is_the_inverse_of_save(tmp_path_factory: pytest.TempPathFactory, suffix: str, spans: list[Span]) -> None:
    path = tmp_path_factory.mktemp("trace") / f"t{suffix}"
    trace = Trace(source="simulated", num_ranks=4, num_epochs=10, spans=tuple(spans), meta={"method": "é"})
    save_trace(trace, path)
    assert load_trace(path) == trace


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}\n")
    with pytest.raises(InputError, match="not a trace"):
        load_trace(tmp_path / name)


def test_an_unknown_suffix_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    trace = Trace(source="simulated", num_ranks=1, num_epochs=1, spans=())
    with pytest.raises(InputError, match=r"\.parquet or \.jsonl"):
        save_trace(trace, tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []
