"""Traces survive both file formats exactly; a file that is no trace is refused in one line."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocast.base.errors import InputError
from halocast.schedule.ir import Kind, Lane
from halocast.schedule.trace import LinkUse, Span, Trace, load_trace, save_trace

SPANS = st.builds(
    Span,
    rank=st.integers(0, 3),
    lane=st.sampled_from([Lane.COMPUTE, Lane.HALO, Lane("halo", 3), Lane("tensor")]),
    op=st.sampled_from(["forward.0", "exchange.1"]),
    kind=st.sampled_from(Kind),
    epoch=st.integers(0, 9),
    start_s=st.floats(0, 1e6),
    end_s=st.floats(0, 1e6),
    num_bytes=st.integers(0, 2**50),
)


FLOATS = st.lists(st.floats(0, 1e12), max_size=3).map(tuple)
LINKS = st.builds(
    LinkUse,
    name=st.sampled_from(["gpu 0 > host 0", "cpu of host 0"]),
    bytes_per_s=st.floats(1, 1e12),
    num_bytes=st.floats(0, 1e15),
    times_s=FLOATS,
    rates=FLOATS,
)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@given(spans=st.lists(SPANS, max_size=5).map(tuple), links=st.lists(LINKS, max_size=3).map(tuple))
def test_load_is_the_inverse_of_save(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, spans: tuple[Span, ...], links: tuple[LinkUse, ...]
) -> None:
    path = tmp_path_factory.mktemp("trace") / f"t{suffix}"
    trace = Trace(source="simulated", num_ranks=4, num_epochs=10, spans=spans, links=links, meta={"method": "é"})
    save_trace(trace, path)
    assert load_trace(path) == trace


OLD_HEADER = {"source": "simulated", "num_ranks": 1, "num_epochs": 1, "meta": {}}
OLD_SPAN = {"rank": 0, "lane": "compute", "op": "a", "kind": "compute", "epoch": 0, "start_s": 0.0, "end_s": 1.0}


def test_files_from_before_links_were_kept_load(tmp_path: Path) -> None:
    row = OLD_SPAN | {"num_bytes": 0}
    (tmp_path / "t.jsonl").write_text(f"{json.dumps(OLD_HEADER)}\n{json.dumps(row)}\n")
    table = pa.Table.from_pylist([row]).replace_schema_metadata({"halocast": json.dumps(OLD_HEADER)})
    pq.write_table(table, tmp_path / "t.parquet")
    traces = [load_trace(tmp_path / name) for name in ("t.jsonl", "t.parquet")]
    assert traces[0] == traces[1]
    assert traces[0].links == ()
    assert traces[0].spans[0].end_s == 1.0


def test_the_table_of_a_parquet_file_has_a_row_per_span_however_much_links_say(tmp_path: Path) -> None:
    times = tuple(float(k) for k in range(100_000))
    link = LinkUse(name="a > b", bytes_per_s=1.0, num_bytes=2.0, times_s=times, rates=times)
    trace = Trace(source="simulated", num_ranks=1, num_epochs=1, spans=(), links=(link,) * 8)
    save_trace(trace, tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 0
    assert (tmp_path / "t.parquet").stat().st_size < 17 * 8 * 100_000  # 16 bytes a change, and nothing twice
    assert load_trace(tmp_path / "t.parquet") == trace


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
