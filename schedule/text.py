"""The text form of a schedule, one op per line: `parse(format(s)) == s`.

    schedule ranks=2
    meta method "vanilla"
    matrix halo 0 3 ; 2 0
    buffer 0 h.1 bytes=640 rows=inner role=rows
    buffer 0 x bytes=320 rows=inner role=features persistent
    op 0 compute compute forward.1 kernels(gemm:10,16,16) reads(h.1,halo.1) writes(h.2) after(exchange.1,step@1)
    op 0 halo exchange exchange.1 rows(halo,64) reads(h.1) writes(halo.1) after(forward.0)
    op 0 reduce allreduce allreduce payload(4096) after(backward.0)
    op 0 store push push.1 payload(640) every(5,1)

Clauses that say nothing are left out. `rows(halo^,64)` is the transposed matrix, `rows(halo,34,16)` has numbers of 16
bits, `to(1,640)` a peer and its bytes; `scale(0.95)`, `bound(3)`, `root(0)` and `carries()` are the fields of those
names, `params(rate=0.1,seed=0)` words for the op; `gemm/bfloat16:10,16,16` computes with such numbers, `halo.2` is a
lane with an index. `matrix all rows=all 0 3 ; 2 0` counts all rows of a rank, not those of the halo;
`matrix halo 0 3 ; 2 0 ~ 0 1.2 ; 0.7 0` is a drawn matrix: counts on average ~ their standard deviations.
`schedule ranks=2 degree_sigma=1.5` knows how unequal the degrees of its graph are.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from halocast.base.errors import InputError, unknown
from halocast.schedule.ir import (
    NO_BOUND,
    WORKS,
    Broadcast,
    Buffer,
    Counted,
    Exchange,
    Kernel,
    Kind,
    Matrix,
    Message,
    Numbers,
    Op,
    Payload,
    Pull,
    Role,
    Rows,
    Schedule,
    Work,
    parse_lane,
)

DRAWN = " ~ "
BITS = 32  # of a number, unless something else is said
WORK_OF: Mapping[Kind, type[Work]] = MappingProxyType({work.kind: work for work in WORKS})
_CLAUSE = re.compile(r"([a-z]+)\(([^()]*)\)")


def format_schedule(schedule: Schedule) -> str:
    sigma = "" if schedule.degree_sigma is None else f" degree_sigma={schedule.degree_sigma!r}"
    lines = [f"schedule ranks={schedule.num_ranks}{sigma}"]
    lines += [f"meta {key} {json.dumps(value)}" for key, value in schedule.meta]
    lines += [_format_matrix(matrix) for matrix in schedule.matrices]
    lines += [_format_buffer(buffer) for buffer in schedule.buffers]
    lines += [format_op(op) for op in schedule.ops]
    return "\n".join(lines) + "\n"


def _format_matrix(matrix: Matrix) -> str:
    counts = _format_table(matrix.counts.tolist(), "d")
    spread = "" if matrix.spread is None else DRAWN + _format_table(matrix.spread.tolist(), ".15g")
    rows = "" if matrix.rows is Counted.HALO else f"rows={matrix.rows} "
    return f"matrix {matrix.name} {rows}{counts}{spread}"


def _format_table(table: list[list[float]], style: str) -> str:
    return " ; ".join(" ".join(format(cell, style) for cell in row) for row in table)


def _format_buffer(buffer: Buffer) -> str:
    role = "" if buffer.role is Role.NONE else f" role={buffer.role}"
    bits = "" if buffer.bits == BITS else f" bits={buffer.bits}"
    flags = "".join(f" {flag}" for flag in ("persistent", "exact") if getattr(buffer, flag))
    return f"buffer {buffer.rank} {buffer.name} bytes={buffer.num_bytes} rows={buffer.rows}{role}{bits}{flags}"


def format_op(op: Op) -> str:
    clauses = [
        ("kernels", [_format_kernel(kernel) for kernel in op.work.kernels], ";"),
        *((key, values, ",") for key, values in _work_clauses(op.work)),
        ("scale", [repr(op.work.scale)] if op.work.scale != 1 else (), ","),
        ("params", [f"{key}={value}" for key, value in op.work.params], ","),
        ("reads", op.reads, ","),
        ("writes", op.writes, ","),
        ("after", [name if lag == 0 else f"{name}@{lag}" for name, lag in op.after], ","),
        ("every", [op.every, op.offset] if (op.every, op.offset) != (1, 0) else (), ","),
    ]
    said = [f"{key}({_join(values, mark)})" for key, values, mark in clauses if values]
    said += ["carries()"] if op.carries else []
    return " ".join([f"op {op.rank} {op.lane} {op.kind} {op.name}", *said])


def _format_kernel(kernel: Kernel) -> str:
    numbers = "" if kernel.numbers is Numbers.FLOAT32 else f"/{kernel.numbers}"
    return f"{kernel.kind}{numbers}:{_join(kernel.dims)}"


def _work_clauses(work: Work) -> Iterator[tuple[str, list[Any]]]:
    """The clauses of a line that say what an op's work moves."""
    if isinstance(work, Exchange):
        bits = [work.bits] if work.bits != BITS else []
        yield "rows", [work.matrix + ("^" if work.transposed else ""), work.row_bytes, *bits]
    if isinstance(work, Message):
        yield "to", [work.peer, work.num_bytes]
    if isinstance(work, Payload):
        yield "payload", [work.num_bytes]
    if isinstance(work, Broadcast):
        yield "root", [work.root]
    if isinstance(work, Pull) and work.bound != NO_BOUND:
        yield "bound", [work.bound]


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
    return Schedule(
        num_ranks=parts["schedule"][0][0],
        degree_sigma=parts["schedule"][0][1],
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


def _parse_head(rest: str) -> tuple[int, float | None]:
    said = _fields(rest, "ranks", "degree_sigma")
    return int(said["ranks"]), float(said["degree_sigma"]) if "degree_sigma" in said else None


def _parse_meta(rest: str) -> tuple[str, str]:
    key, _, value = rest.partition(" ")
    return key, json.loads(value)


def _parse_matrix(rest: str) -> Matrix:
    name, _, cells = rest.partition(" ")
    rows = Counted.HALO
    if cells.startswith("rows="):
        word, _, cells = cells.partition(" ")
        rows = Counted(word.removeprefix("rows="))
    counts, drawn, spread = cells.partition(DRAWN)
    deviation = np.array(_parse_table(spread, float)) if drawn else None
    return Matrix(name, np.array(_parse_table(counts, int)), deviation, rows=rows)


def _parse_table(text: str, kind: Callable[[str], float]) -> list[list[float]]:
    return [[kind(cell) for cell in row.split()] for row in text.split(";")]


def _parse_buffer(rest: str) -> Buffer:
    rank, name, tail = rest.split(" ", 2)
    fields = _fields(tail, "bytes", "rows", "role", "bits", "persistent", "exact")
    return Buffer(
        rank=int(rank),
        name=name,
        num_bytes=int(fields["bytes"]),
        rows=Rows(fields["rows"]),
        role=Role(fields.get("role", Role.NONE)),
        bits=int(fields.get("bits", BITS)),
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
    try:
        variant = WORK_OF[Kind(kind)](**work)
    except TypeError:  # clauses that are missing, or of another kind
        raise InputError(f"a {kind} does not take {', '.join(work) or 'nothing'}") from None
    return Op(rank=int(rank), lane=parse_lane(lane), name=name, work=variant, **fields)


def _kernels(value: str) -> dict[str, Any]:
    kernels = []
    for item in value.split(";"):
        kind, _, dims = item.partition(":")
        kind, _, numbers = kind.partition("/")
        sizes = tuple(int(dim) for dim in dims.split(","))
        kernels.append(Kernel(kind, sizes, Numbers(numbers or Numbers.FLOAT32)))
    return {"kernels": tuple(kernels)}


def _rows(value: str) -> dict[str, Any]:
    matrix, row_bytes, *bits = value.split(",")
    said = {"matrix": matrix.rstrip("^"), "transposed": matrix.endswith("^"), "row_bytes": int(row_bytes)}
    return said | ({"bits": int(bits[0])} if bits else {})


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
        "root": lambda value: {"root": int(value)},
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
