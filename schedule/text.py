"""The text form of a schedule, one op per line: `parse(format(s)) == s`.

    schedule ranks=2 itemsize=4
    meta method "vanilla"
    matrix halo 0 3 ; 2 0
    buffer 0 h.1 bytes=640 rows=inner
    buffer 0 x bytes=320 rows=inner persistent
    op 0 compute compute forward.1 kernels(gemm:10,16,16) reads(h.1,halo.1) writes(h.2) after(exchange.1,step@1)
    op 0 halo exchange exchange.1 rows(halo,64) reads(h.1) writes(halo.1) after(forward.0)
    op 0 reduce allreduce allreduce payload(4096) after(backward.0)
    op 0 store push push.1 payload(640) every(5,1)

Clauses that say nothing are left out. `rows(halo^,64)` is the transposed matrix, `to(1,640)` a peer and its bytes;
`scale(0.95)`, `bound(3)` and `carries()` are the fields of those names, `params(rate=0.1,seed=0)` words for the op.
`matrix halo 0 3 ; 2 0 ~ 0 1.2 ; 0.7 0` is a drawn matrix: counts on average ~ their standard deviations.
"""

import json
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from halocast.base.errors import InputError, unknown
from halocast.schedule.ir import NO_BOUND, WORK_OF, Buffer, Kernel, Kind, Lane, Matrix, Op, Rows, Schedule, Work

DRAWN = " ~ "
_CLAUSE = re.compile(r"([a-z]+)\(([^()]*)\)")


def format_schedule(schedule: Schedule) -> str:
    lines = [f"schedule ranks={schedule.num_ranks} itemsize={schedule.itemsize}"]
    lines += [f"meta {key} {json.dumps(value)}" for key, value in schedule.meta]
    lines += [_format_matrix(matrix) for matrix in schedule.matrices]
    lines += [_format_buffer(buffer) for buffer in schedule.buffers]
    lines += [format_op(op) for op in schedule.ops]
    return "\n".join(lines) + "\n"


def _format_matrix(matrix: Matrix) -> str:
    counts = _format_table(matrix.counts.tolist(), "d")
    spread = "" if matrix.spread is None else DRAWN + _format_table(matrix.spread.tolist(), ".15g")
    return f"matrix {matrix.name} {counts}{spread}"


def _format_table(table: list[list[float]], style: str) -> str:
    return " ; ".join(" ".join(format(cell, style) for cell in row) for row in table)


def _format_buffer(buffer: Buffer) -> str:
    flags = "".join(f" {flag}" for flag in ("persistent", "exact") if getattr(buffer, flag))
    return f"buffer {buffer.rank} {buffer.name} bytes={buffer.num_bytes} rows={buffer.rows}{flags}"


def format_op(op: Op) -> str:
    clauses = [
        ("kernels", [f"{kernel.kind}:{_join(kernel.dims)}" for kernel in op.work.kernels], ";"),
        *_work_clause(op),
        ("scale", [repr(op.work.scale)] if op.work.scale != 1 else (), ","),
        ("bound", [op.work.bound] if op.work.bound != NO_BOUND else (), ","),
        ("params", [f"{key}={value}" for key, value in op.work.params], ","),
        ("reads", op.reads, ","),
        ("writes", op.writes, ","),
        ("after", [name if lag == 0 else f"{name}@{lag}" for name, lag in op.after], ","),
        ("every", [op.every, op.offset] if (op.every, op.offset) != (1, 0) else (), ","),
    ]
    said = [f"{key}({_join(values, mark)})" for key, values, mark in clauses if values]
    said += ["carries()"] if op.carries else []
    return " ".join([f"op {op.rank} {op.lane} {op.kind} {op.name}", *said])


def _work_clause(op: Op) -> list[tuple[str, Any, str]]:
    work = op.work
    clauses: dict[str, list[tuple[str, Any, str]]] = {
        "": [],
        "matrix": [("rows", [work.matrix + ("^" if work.transposed else ""), work.row_bytes], ",")],
        "peer": [("to", [work.peer, work.num_bytes], ",")],
        "payload": [("payload", [work.num_bytes], ",")],
    }
    return clauses[WORK_OF[op.kind]]


def _join(values: Any, mark: str = ",") -> str:
    return mark.join(str(value) for value in values)


def parse_schedule(text: str) -> Schedule:
    """The schedule a text describes; an error names the line."""
    parts: dict[str, list[Any]] = {"schedule": [], "meta": [], "matrix": [], "buffer": [], "op": []}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word not in parts:
            raise unknown("line", word, parts, f"line {number}")
        try:
            parts[word].append(_PARSE[word](rest))
        except (ValueError, KeyError, IndexError) as error:
            raise InputError(f"line {number}: cannot read {line!r} ({error})") from None
    if len(parts["schedule"]) != 1:
        raise InputError(f"expected one 'schedule' line, found {len(parts['schedule'])}")
    num_ranks, itemsize = parts["schedule"][0]
    return Schedule(
        num_ranks=num_ranks,
        itemsize=itemsize,
        meta=tuple(parts["meta"]),
        matrices=tuple(parts["matrix"]),
        buffers=tuple(parts["buffer"]),
        ops=tuple(parts["op"]),
    )


def _fields(text: str, *legal: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in text.split()]
    for key, _, _ in pairs:
        if key not in legal:
            raise unknown("word", key, legal)
    return {key: value for key, _, value in pairs}


def _parse_head(rest: str) -> tuple[int, int]:
    fields = _fields(rest, "ranks", "itemsize")
    return int(fields["ranks"]), int(fields["itemsize"])


def _parse_meta(rest: str) -> tuple[str, str]:
    key, _, value = rest.partition(" ")
    return key, json.loads(value)


def _parse_matrix(rest: str) -> Matrix:
    name, _, cells = rest.partition(" ")
    counts, drawn, spread = cells.partition(DRAWN)
    return Matrix(name, np.array(_parse_table(counts, int)), np.array(_parse_table(spread, float)) if drawn else None)


def _parse_table(text: str, kind: Callable[[str], float]) -> list[list[float]]:
    return [[kind(cell) for cell in row.split()] for row in text.split(";")]


def _parse_buffer(rest: str) -> Buffer:
    rank, name, tail = rest.split(" ", 2)
    fields = _fields(tail, "bytes", "rows", "persistent", "exact")
    return Buffer(
        rank=int(rank),
        name=name,
        num_bytes=int(fields["bytes"]),
        rows=Rows(fields["rows"]),
        persistent="persistent" in fields,
        exact="exact" in fields,
    )


def _parse_op(rest: str) -> Op:
    rank, lane, kind, name, *tail = rest.split(" ", 4)
    left = _CLAUSE.sub("", tail[0]) if tail else ""
    if left.strip():
        raise InputError(f"unexpected {left.strip()!r}")
    said = _CLAUSE.findall(tail[0]) if tail else []
    clauses = dict(said)
    if len(clauses) < len(said):
        raise InputError("a clause is given twice")
    work: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for key, value in clauses.items():
        if key in _WORK_CLAUSES:
            work |= _WORK_CLAUSES[key](value)
        elif key in _OP_CLAUSES:
            fields |= _OP_CLAUSES[key](value)
        else:
            raise unknown("clause", key, [*_WORK_CLAUSES, *_OP_CLAUSES])
    return Op(rank=int(rank), lane=Lane(lane), kind=Kind(kind), name=name, work=Work(**work), **fields)


def _kernels(value: str) -> dict[str, Any]:
    kernels = []
    for item in value.split(";"):
        kind, _, dims = item.partition(":")
        kernels.append(Kernel(kind, tuple(int(dim) for dim in dims.split(","))))
    return {"kernels": tuple(kernels)}


def _rows(value: str) -> dict[str, Any]:
    matrix, row_bytes = value.split(",")
    return {
        "matrix": matrix.rstrip("^"),
        "transposed": matrix.endswith("^"),
        "row_bytes": int(row_bytes),
    }


def _to(value: str) -> dict[str, Any]:
    peer, num_bytes = value.split(",")
    return {"peer": int(peer), "num_bytes": int(num_bytes)}


def _after(value: str) -> dict[str, Any]:
    edges = (edge.partition("@") for edge in value.split(","))
    return {"after": tuple((name, int(lag or 0)) for name, _, lag in edges)}


def _params(value: str) -> dict[str, Any]:
    pairs = (pair.partition("=") for pair in value.split(","))
    return {"params": tuple((key, word) for key, _, word in pairs)}


def _every(value: str) -> dict[str, Any]:
    every, offset = value.split(",")
    return {"every": int(every), "offset": int(offset)}


_PARSE: MappingProxyType[str, Callable[[str], Any]] = MappingProxyType(
    {
        "schedule": _parse_head,
        "meta": _parse_meta,
        "matrix": _parse_matrix,
        "buffer": _parse_buffer,
        "op": _parse_op,
    }
)
_WORK_CLAUSES: MappingProxyType[str, Callable[[str], dict[str, Any]]] = MappingProxyType(
    {
        "kernels": _kernels,
        "rows": _rows,
        "to": _to,
        "payload": lambda value: {"num_bytes": int(value)},
        "scale": lambda value: {"scale": float(value)},
        "bound": lambda value: {"bound": int(value)},
        "params": _params,
    }
)
_OP_CLAUSES: MappingProxyType[str, Callable[[str], dict[str, Any]]] = MappingProxyType(
    {
        "reads": lambda value: {"reads": tuple(value.split(","))},
        "writes": lambda value: {"writes": tuple(value.split(","))},
        "after": _after,
        "every": _every,
        "carries": lambda value: {"carries": True},
    }
)
