"""Spans and traces: what both interpreters return, and their two file formats (Parquet, JSON-lines)."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from halocast.base.errors import InputError
from halocast.base.files import whole_file
from halocast.schedule.ir import Kind, Lane, Op, parse_lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One instance of an op. For communication, start is when it was issued, end when it was complete."""

    rank: int
    lane: Lane
    op: str
    kind: Kind
    epoch: int
    start_s: float
    end_s: float
    num_bytes: int = 0


def span_of(op: Op, epoch: int, start_s: float, end_s: float, num_bytes: int) -> Span:
    return Span(
        rank=op.rank,
        lane=op.lane,
        op=op.name,
        kind=op.kind,
        epoch=epoch,
        start_s=start_s,
        end_s=end_s,
        num_bytes=num_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """The load of one direction of a link: from times_s[k] to times_s[k + 1] bytes move at rates[k] per second.

    Before the first of these times the link is idle, after the last one its rate stays (it is 0 when all has arrived).
    """

    name: str
    bytes_per_s: float  # its capacity
    num_bytes: float  # carried in all, protocol overhead included
    times_s: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    source: str  # simulated | executed
    num_ranks: int
    num_epochs: int
    spans: tuple[Span, ...]  # of the epochs that all ranks do
    beyond: tuple[Span, ...] = ()  # of further ones that ranks did which run freely, until the slowest was done
    links: tuple[LinkUse, ...] = ()  # those that carried something, where the source knows its links
    meta: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, spans: Iterable[Span], *, num_epochs: int, **fields: Any) -> "Trace":
        """A trace of all spans of a run, whichever epoch they belong to."""
        parts: tuple[list[Span], list[Span]] = [], []
        for span in spans:
            parts[span.epoch >= num_epochs].append(span)
        return cls(spans=tuple(parts[0]), beyond=tuple(parts[1]), num_epochs=num_epochs, **fields)

    @property
    def all_spans(self) -> tuple[Span, ...]:
        """The spans of all epochs that any rank did."""
        return self.spans + self.beyond

    @property
    def mean_epochs(self) -> float:
        """The number of epochs that a rank did, on average."""
        further = {(span.rank, span.epoch) for span in self.beyond}
        return self.num_epochs + len(further) / self.num_ranks

    def of_rank(self, rank: int) -> Iterator[Span]:
        return (span for span in self.spans if span.rank == rank)


def require_trace_name(path: Path, suffixes: tuple[str, ...] = (".parquet", ".jsonl")) -> None:
    """Raise InputError unless a trace can be written to `path`, as far as one can tell before."""
    if path.suffix not in suffixes:
        raise InputError(f"{path}: a trace file ends in {' or '.join(suffixes)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{path}: {path.parent} is not a directory one can write to")


MAX_METADATA_BYTES = 2**31 - 1  # what the Parquet reader is told to accept; its own default is 100 MB
_COLUMNS = tuple(f.name for f in fields(Span))


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace as Parquet (.parquet) or JSON-lines (.jsonl)."""
    writers = {".parquet": _write_parquet, ".jsonl": _write_lines}
    require_trace_name(path)
    with whole_file(path) as temporary:
        writers[path.suffix](trace, temporary)


def load_trace(path: Path) -> Trace:
    readers = {".parquet": _read_parquet, ".jsonl": _read_lines}
    require_trace_name(path)
    if not path.exists():
        raise InputError(f"no such file: {path}")
    try:
        return readers[path.suffix](path)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"{path}: not a trace ({error})") from None


def _header(trace: Trace) -> dict[str, Any]:
    return {
        "source": trace.source,
        "num_ranks": trace.num_ranks,
        "num_epochs": trace.num_epochs,
        "meta": trace.meta,
    }


def _span(row: dict[str, Any]) -> Span:
    return Span(**{**row, "lane": parse_lane(row["lane"]), "kind": Kind(row["kind"])})


def _link(row: dict[str, Any]) -> LinkUse:
    return LinkUse(**{**row, "times_s": tuple(row["times_s"]), "rates": tuple(row["rates"])})


def _write_lines(trace: Trace, path: Path) -> None:
    """Write a trace as JSON-lines: the header, a line per span, a line per link."""
    with path.open("w", encoding="utf-8") as out:
        out.write(json.dumps(_header(trace)) + "\n")
        out.writelines(json.dumps({**asdict(span), "lane": str(span.lane)}) + "\n" for span in trace.all_spans)
        out.writelines(json.dumps(asdict(link)) + "\n" for link in trace.links)


def _read_lines(path: Path) -> Trace:
    spans, links = [], []
    with path.open(encoding="utf-8") as lines:
        header = json.loads(next(lines))
        for line in lines:
            row = json.loads(line)
            if "times_s" in row:
                links.append(_link(row))
            else:
                spans.append(_span(row))
    return Trace.of(spans, **header, links=tuple(links))


def _write_parquet(trace: Trace, path: Path) -> None:
    import pyarrow as pa  # heavy, and only this format needs it
    import pyarrow.parquet as pq

    columns = {name: [getattr(span, name) for span in trace.all_spans] for name in _COLUMNS}
    columns |= {name: [str(value) for value in columns[name]] for name in ("lane", "kind")}
    table = pa.table(columns).replace_schema_metadata({"halocast": json.dumps(_header(trace))})
    with pq.ParquetWriter(path, table.schema) as out:
        out.write_table(table)
        if trace.links:  # beside the schema, whose metadata would be written twice
            out.add_key_value_metadata({"halocast.links": _packed(trace.links)})


def _packed(links: tuple[LinkUse, ...]) -> bytes:
    """A table packed into an Arrow stream: the file's table stays one row per span for whoever reads it."""
    import pyarrow as pa

    table = pa.table({f.name: [getattr(link, f.name) for link in links] for f in fields(LinkUse)})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def _read_parquet(path: Path) -> Trace:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, thrift_string_size_limit=MAX_METADATA_BYTES) as file:
        metadata, rows = file.metadata.metadata, file.read().to_pylist()
    packed = metadata.get(b"halocast.links")
    links = pa.ipc.open_stream(packed).read_all().to_pylist() if packed else []
    return Trace.of(
        (_span(row) for row in rows),
        **json.loads(metadata[b"halocast"]),
        links=tuple(_link(row) for row in links),
    )
