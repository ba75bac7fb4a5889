"""The comparison as Markdown: the verdict, the tables of the page, and its figures by reference."""

from collections.abc import Sequence

from halocast.reports.comparison import Comparison
from halocast.reports.page.charts import missing, scaling_table
from halocast.reports.page.tables import measured_table, provenance_rows, staleness_rows
from halocast.reports.table import insights, markdown_rows, markdown_table, warnings
from halocast.reports.to_target import target_columns
from halocast.reports.verdict import verdict

DEFINITIONS = (
    "Times are seconds of one steady epoch: `epoch` of the slowest rank, the others as the mean over ranks. `traffic` "
    "is what all ranks send in one epoch, `memory` the largest rank's peak (executed on a CPU: the process's resident "
    "set, torch included), `stale` the age in epochs of the remote rows that are read."
)


def markdown(comparison: Comparison, figures: Sequence[tuple[str, str]] = ()) -> str:
    """The report of a comparison as Markdown; `figures` are titles and paths without suffix."""
    sections = [
        ("# Comparison", _verdict(comparison)),
        ("", markdown_table(comparison.lines, target_columns(comparison.converged))),
        ("", DEFINITIONS),
        ("", "\n".join(f"- {text}" for text in warnings(comparison.summaries))),
        ("## What determines the epoch", _determines(comparison)),
        ("## Measured on this machine", _measured(comparison)),
        ("## Scaling with GPUs", _scaling(comparison)),
        ("## Figures", "\n\n".join(f"![{title}]({path}.svg)" for title, path in figures)),
        ("## Staleness", _staleness(comparison)),
        ("## Assumptions and provenance", _provenance(comparison)),
        ("## Reproduce", f"`{comparison.command}` with the file beside this report:\n\n{_fenced(comparison.scenario)}"),
        ("", comparison.made),
    ]
    return "\n\n".join(part for title, text in sections if text for part in (title, text) if part) + "\n"


def _verdict(comparison: Comparison) -> str:
    lines = "\n".join(f"- {line}" for line in verdict(comparison))
    more = "Tables and figures of scores over time: [accuracy/report.md](accuracy/report.md)."
    return f"{lines}\n\n{more}" if comparison.converged else lines


def _fenced(scenario: str) -> str:
    return f"```toml\n{scenario.rstrip()}\n```"


def _determines(comparison: Comparison) -> str:
    remarks = [f"- {s.method}, {s.source} on {s.cluster}: {insights(s)}." for s in comparison.summaries]
    aside = (
        "Shares of the critical path: the chain of ops whose seconds add up to the epoch. Links by mean utilisation."
    )
    return "\n".join([*remarks, "", aside])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_rows([head, *rows]) if rows else ""


def _measured(comparison: Comparison) -> str:
    rows = measured_table(comparison)
    return _table(list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def _scaling(comparison: Comparison) -> str:
    counts, rows = scaling_table(comparison)
    table = _table(
        ["method", *map(str, counts)], [[row["method"], *(cell["text"] for cell in row["cells"])] for row in rows]
    )
    return "\n".join([table, "", *(f"- {text}" for text in missing(comparison))]).rstrip()


def _staleness(comparison: Comparison) -> str:
    rows = [[row["method"], row["ages"], row["found"], row["readers"]] for row in staleness_rows(comparison)]
    return _table(["method", "epochs old", "found in the run", "read by"], rows)


def _provenance(comparison: Comparison) -> str:
    rows = [list(row.values()) for row in provenance_rows(comparison)]
    table = _table(["methods", "how", "on", "constants from", "sizes from", "links", "calibrated"], rows)
    return "\n".join([table, "", *(f"- {text}" for text in comparison.assumptions)]).rstrip()
