"""Summaries as tables: aligned text for terminals, Markdown and CSV for files; one list of columns for all."""

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

Summary = dict[str, Any]
SHOWN = 3  # entries of the critical path, and links


def seconds(value: float) -> str:
    """Three significant digits with a unit a person reads."""
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


def ages(rows: Sequence[Summary]) -> str:
    found = sorted({age for row in rows for age in row["ages"]})
    if not found:
        return "-"
    return str(found[0]) if len(found) == 1 else f"{found[0]}..{found[-1]}"


COLUMNS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("method", lambda s: str(s["method"])),
    ("how", lambda s: str(s["source"])),
    ("on", lambda s: str(s["cluster"])),
    ("ranks", lambda s: str(s["ranks"])),
    ("epoch", lambda s: seconds(s["epoch_s"])),
    ("compute", lambda s: seconds(s["compute_s"])),
    ("exposed comm", lambda s: seconds(s["exposed_comm_s"])),
    ("hidden comm", lambda s: seconds(s["hidden_comm_s"])),
    ("reduce", lambda s: seconds(s["reduce_s"])),
    ("wait", lambda s: seconds(s["wait_s"])),
    ("bubble", lambda s: seconds(s["bubble_s"])),
    ("traffic", lambda s: size(s["bytes_total"])),
    ("memory", lambda s: size(s["peak_memory_bytes"])),
    ("stale", lambda s: ages(s["staleness"])),
)


def band(summary: Summary) -> str:
    """Between which times an epoch really lies, as far as measured cases tell."""
    if summary["source"] == "executed":
        return "measured"
    found = summary.get("band")
    return f"{seconds(found['low_s'])} .. {seconds(found['high_s'])}" if found else "not known"


def columns(summaries: Sequence[Summary]) -> list[tuple[str, Callable[[Summary], str]]]:
    """The error band is told where somebody looked for one."""
    after_epoch = 1 + [name for name, _ in COLUMNS].index("epoch")
    told = [("error band", band)] if any("band" in summary for summary in summaries) else []
    return [*COLUMNS[:after_epoch], *told, *COLUMNS[after_epoch:]]


def is_failed(summary: Summary) -> bool:
    """A row that has a reason instead of figures."""
    return "reason" in summary


def cells(summaries: Sequence[Summary]) -> list[list[str]]:
    """The head and a row per summary; one without figures gives its reason in place of them."""
    shown = columns(summaries)
    rows = [[name for name, _ in shown]]
    for summary in summaries:
        if is_failed(summary):
            told = [summary["method"], summary["source"], summary["cluster"], summary["reason"]]
            rows.append([*told, *[""] * (len(shown) - len(told))])
        else:
            rows.append([make(summary) for _, make in shown])
    return rows


def insights(summary: Summary) -> str:
    """In one line: what determines the epoch, which links are busiest, how much communication was hidden."""
    said = {
        "critical path": ", ".join(_part(part) for part in summary.get("critical_path", [])[:SHOWN]),
        "busiest links": ", ".join(_busiest(summary)[:SHOWN]),
        "communication hidden": f"{summary['overlap_efficiency']:.0%}" if summary["bytes_total"] else "",
        "drawn traffic, 95 % of epochs": " to ".join(map(size, summary.get("drawn_bytes_band", []))),
    }
    return "; ".join(f"{name}: {text}" for name, text in said.items() if text)


def _part(part: Summary) -> str:
    aside = " (overhead)" if part["kind"] == "overhead" else ""
    return f"{part['op']} on rank {part['rank']}{aside} {part['share']:.0%}"


def _busiest(summary: Summary) -> list[str]:
    """By mean utilisation, or by bytes where the load over time was not recorded."""
    if used := summary.get("link_utilisation"):
        return [f"{name} {use['mean']:.0%}" for name, use in used.items()]
    return [f"{name} {size(num_bytes)}" for name, num_bytes in summary.get("bytes_by_link", {}).items()]


def constants(summary: Summary) -> str:
    """Where the numbers behind a prediction come from."""
    profile = summary.get("calibrated")
    return f"calibrated: {profile}" if profile else f"constants, not calibrated: {summary['constants']}"


def text_table(summaries: Sequence[Summary]) -> str:
    """A row per summary, and below the table its insights or its reason, and warnings."""
    told = [f"{s['method']}, {s['source']} on {s['cluster']}: {s.get('reason') or insights(s)}" for s in summaries]
    rows = cells([summary for summary in summaries if not is_failed(summary)])
    return "\n".join([aligned(rows), "", *told, *warnings(summaries)])


def warnings(summaries: Sequence[Summary]) -> list[str]:
    """What methods say about their own limits, each once."""
    return list(dict.fromkeys(f"warning: {s['method']}: {text}" for s in summaries for text in s.get("warnings", [])))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first row is the head."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def markdown_table(summaries: Sequence[Summary]) -> str:
    head, *rows = cells(summaries)
    return markdown_rows([head, ["---"] * len(head), *rows])


def markdown_rows(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def csv_table(summaries: Sequence[Summary]) -> str:
    """Every plain figure of the summaries in SI units; lists and tables stay in the JSON."""
    rows = [s | {f"band_{key}": value for key, value in (s.get("band") or {}).items()} for s in summaries]
    keys = dict.fromkeys(k for row in rows for k, v in row.items() if not isinstance(v, dict | list) and k != "band")
    out = io.StringIO()
    writer = csv.DictWriter(out, list(keys), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
