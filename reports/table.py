"""Tables: aligned text for terminals, Markdown and CSV for files; and summaries as such, by one list of columns."""

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from halocast.reports.comparison import NotCompared
from halocast.reports.critical import Share, StepKind
from halocast.reports.summary import Basis, MemoryFigures, ReadAges, Summary, all_ages

Line = Summary | NotCompared  # of a table: figures, or the reason why there are none
Extra = Sequence[tuple[str, Mapping[str, str]]]  # further columns: a name, and cells by method
GAP = 2  # between columns of text
SHOWN = 3  # entries of the critical path, and links


def seconds(value: float) -> str:
    """A time with three significant digits and a unit that a person reads."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if abs(value) * scale >= 1.0 or unit == "µs":
            return f"{value * scale:.3g} {unit}" if value else "0"
    raise AssertionError


def size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(num_bytes) < 1000 or unit == "TB":
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    raise AssertionError


def used_of(memory: MemoryFigures) -> str:
    """Bytes in use on the fullest device, beside those it has."""
    return f"{size(memory.memory_bytes)} of {size(memory.device_memory_bytes)}"


def ages(reads: Sequence[ReadAges]) -> str:
    """The youngest and the oldest age, in epochs, of some reads; ~ means at equal speeds: ranks run freely."""
    about = "~" if any(read.free for read in reads) else ""
    return about + age_range(all_ages(reads))


def age_range(sorted_ages: Sequence[int]) -> str:
    """Ages from the youngest to the oldest, in few letters."""
    if not sorted_ages:
        return "-"
    first, last = sorted_ages[0], sorted_ages[-1]
    return str(first) if first == last else f"{first}..{last}"


COLUMNS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("method", lambda s: s.method),
    ("kind", lambda s: str(s.approximation)),
    ("how", lambda s: s.source),
    ("on", lambda s: s.cluster),
    ("ranks", lambda s: str(s.ranks)),
    ("epoch", lambda s: seconds(s.epoch_s)),
    ("compute", lambda s: seconds(s.compute_s)),
    ("exposed comm", lambda s: seconds(s.exposed_comm_s)),
    ("hidden comm", lambda s: seconds(s.hidden_comm_s)),
    ("reduce", lambda s: seconds(s.reduce_s)),
    ("wait", lambda s: seconds(s.wait_s)),
    ("bubble", lambda s: seconds(s.bubble_s)),
    ("traffic", lambda s: size(s.bytes_total)),
    ("memory", lambda s: size(s.peak_memory_bytes)),
    ("stale", lambda s: ages(s.staleness)),
)

# the higher, the sooner a narrow terminal goes without the column; those that are not named here always stay
DROPPED = {
    "exposed comm": 1,
    "memory": 2,
    "how": 3,
    "error band": 4,
    "stale": 5,
    "compute": 6,
    "traffic": 7,
    "on": 8,
    "ranks": 9,
    "wait": 10,
    "bubble": 11,
    "hidden comm": 12,
    "reduce": 13,
}


def band(summary: Summary) -> str:
    """The times between which an epoch really lies, as far as measured cases tell."""
    if summary.is_run:
        return summary.how
    known = summary.known_band
    return f"{seconds(known.low_s)} .. {seconds(known.high_s)}" if known else "not known"


def columns(lines: Sequence[Line], more: Extra = ()) -> list[tuple[str, Callable[[Summary], str]]]:
    """The columns of a table; the error band is one where somebody looked for it, and `more` stand beside the epoch."""
    after_epoch = 1 + [name for name, _ in COLUMNS].index("epoch")
    bands = [("error band", band)] if any(isinstance(line, Summary) and line.band is not None for line in lines) else []
    beside = [(name, partial(_of_method, by_method)) for name, by_method in more]
    return [*COLUMNS[:after_epoch], *bands, *beside, *COLUMNS[after_epoch:]]


def _of_method(by_method: Mapping[str, str], summary: Summary) -> str:
    """What is known of a predicted method; runs, and predictions of runs, are of other machines."""
    return "-" if summary.is_run or summary.predicts is not None else by_method.get(summary.method, "-")


def cells(lines: Sequence[Line], more: Extra = ()) -> list[list[str]]:
    """The cells of a table: its head, and a row per line; a line without figures gives its reason in place of them."""
    shown = columns(lines, more)
    return [[name for name, _ in shown], *(_row(line, [figure for _, figure in shown]) for line in lines)]


def _row(line: Line, figures: Sequence[Callable[[Summary], str]]) -> list[str]:
    if isinstance(line, Summary):
        return [figure(line) for figure in figures]
    reason = [line.method, line.source, line.cluster, line.reason]
    return [*reason, *[""] * (len(figures) - len(reason))]


def insights(summary: Summary) -> str:
    """Say in one line what determines the epoch, which links are busiest, how much communication was hidden."""
    band_bytes = summary.drawn.drawn_bytes_band if summary.drawn else ()
    said = {
        "critical path": ", ".join(_share(share) for share in (summary.critical_path or ())[:SHOWN]),
        "busiest links": ", ".join(_busiest(summary)[:SHOWN]),
        "communication hidden": f"{summary.overlap_efficiency:.0%}" if summary.bytes_total else "",
        "drawn traffic, 95 % of epochs": " to ".join(map(size, band_bytes)),
    }
    return "; ".join(f"{name}: {text}" for name, text in said.items() if text)


def _share(share: Share) -> str:
    aside = " (overhead)" if share.kind is StepKind.OVERHEAD else ""
    return f"{share.op} on rank {share.rank}{aside} {share.share:.0%}"


def _busiest(summary: Summary) -> list[str]:
    """The busiest links by mean utilisation, or by bytes where the load over time was not recorded."""
    load = summary.link_load
    if load is None:
        return []
    if load.link_utilisation:
        return [f"{name} {use.mean:.0%}" for name, use in load.link_utilisation.items()]
    return [f"{name} {size(num_bytes)}" for name, num_bytes in load.bytes_by_link.items()]


def constants(basis: Basis) -> str:
    """The origin of the numbers behind a prediction."""
    return f"calibrated: {basis.calibrated}" if basis.calibrated else f"constants, not calibrated: {basis.constants}"


def text_table(lines: Sequence[Line], width: int | None = None, more: Extra = ()) -> str:
    """A table with a row per summary; below it, insights or the reason why there are none, and warnings.

    With a width no line is longer: columns are left out and remarks go on in the next line.
    """
    remarks = [f"{line.method}, {line.source} on {line.cluster}: {_remark(line)}" for line in lines]
    summaries = [line for line in lines if isinstance(line, Summary)]
    below = [*remarks, *warnings(summaries)]
    if width is None:
        return "\n".join([aligned(cells(summaries, more)), "", *below])
    table = cells(summaries, more)
    ranks = [DROPPED.get(name, 0) for name in table[0]]
    return "\n".join([fitted(table, ranks, width), "", *(filled(text, width, 2) for text in below)])


def _remark(line: Line) -> str:
    return insights(line) if isinstance(line, Summary) else line.reason


def warnings(summaries: Sequence[Summary]) -> list[str]:
    """Warnings of methods about their own limits, each once."""
    return list(dict.fromkeys(f"warning: {s.method}: {text}" for s in summaries for text in s.warnings))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, columns as wide as their widest cell; the first row is the head."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        (" " * GAP).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([lines[0], (" " * GAP).join("-" * width for width in widths), *lines[1:]])


def fitted(rows: Sequence[Sequence[str]], ranks: Sequence[int], width: int) -> str:
    """Rows as text that is at most so wide: of the columns that say something those of the highest rank are left out
    first, the last of them first, and named below; those of rank 0 never are."""
    kept = [k for k in range(len(rows[0])) if any(row[k] not in ("", "-") for row in rows[1:])]
    wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    left_out: list[int] = []
    while sum(wide[k] + GAP for k in kept) - GAP > width and any(ranks[k] for k in kept):
        left_out.append(max(kept, key=lambda k: (ranks[k], k)))
        kept.remove(left_out[-1])
    text = aligned([[row[k] for k in kept] for row in rows])
    named = ", ".join(rows[0][k] for k in sorted(left_out))
    return f"{text}\n{filled(f'in a wider terminal: {named}', width)}" if named else text


def filled(text: str, width: int, indent: int = 0) -> str:
    """Text in lines that are at most so wide; those after the first begin so many letters in. No word is cut."""
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def markdown_table(lines: Sequence[Line], more: Extra = ()) -> str:
    """A Markdown table with a row per summary, and one for each method that could not be compared."""
    return markdown_rows(cells(lines, more))


def markdown_rows(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table; the first is the head."""
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in ruled)


def csv_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every plain figure of some rows in SI units; lists and tables stay in the JSON."""
    flat = [{**row} | {f"band_{key}": value for key, value in (row.get("band") or {}).items()} for row in rows]
    keys = dict.fromkeys(k for row in flat for k, v in row.items() if not isinstance(v, dict | list) and k != "band")
    out = io.StringIO()
    writer = csv.DictWriter(out, list(keys), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()
