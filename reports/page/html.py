"""The comparison as one HTML file that needs nothing else: styles, script, data and drawings are in it.

Text that users gave (names of files, clusters, reasons) is escaped by the template engine; the page's policy forbids it
to load anything.
"""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from halocast.reports.comparison import Comparison, MethodResult, exact_first
from halocast.reports.converge.page import section
from halocast.reports.page.charts import epoch_bars, link_table, memory_bars, missing, scaling_chart, scaling_table
from halocast.reports.page.tables import facts, main_table, measured_table, provenance_rows, staleness_rows, tiles
from halocast.reports.page.template import emphasised, environment, text_of
from halocast.reports.page.timeline import op_totals, shown, timeline
from halocast.reports.table import warnings
from halocast.reports.to_target import target_columns
from halocast.reports.verdict import verdict

MOST_SPANS = 10_000  # of one timeline
ALL_SPANS = 100_000  # of all timelines of a page: 25 bytes each, of a page's 5 MB


def render(comparison: Comparison, files_beside: Sequence[str] = (), left_out: Sequence[str] = ()) -> str:
    """The page as HTML; `files_beside` and `left_out` say what the report's directory has and has not."""
    template = environment().from_string(text_of("report.html"))
    most = max(1, min(MOST_SPANS, ALL_SPANS // max(1, len(comparison.results))))
    return template.render(
        page=_page(comparison),
        converge=section(comparison.converged) if comparison.converged else None,
        files_beside=files_beside,
        left_out=left_out,
        css=Markup(text_of("report.css")),  # ours, not a user's
        common=Markup(text_of("common.js")),
        script=Markup(text_of("report.js")),
        data={
            "scaling": scaling_chart(comparison),
            "timelines": {result.name: timeline(result, most) for result in comparison.results},
        },
        timelines=[_timeline(result, most) for result in comparison.results],
    )


def _page(comparison: Comparison) -> dict[str, Any]:
    ordered = exact_first(comparison.predicted)
    counts, scaling_rows = scaling_table(comparison)
    return {
        "title": _title(comparison),
        "facts": facts(comparison),
        "verdict": [emphasised(line) for line in verdict(comparison)],
        "tiles": tiles(comparison),
        "table": main_table(comparison),
        "more": [name for name, _ in target_columns(comparison.converged)],
        "failures": comparison.failures,
        "warnings": warnings(comparison.summaries),
        "measured": measured_table(comparison),
        "bars": epoch_bars(ordered),
        "bars_here": epoch_bars([one for pair in comparison.measured for one in pair if one is not None]),
        "links": link_table(ordered),
        "memory": memory_bars(ordered),
        "scaling": bool(comparison.scaling),
        "counts": counts,
        "scaling_rows": scaling_rows,
        "missing": missing(comparison),
        "staleness": staleness_rows(comparison),
        "assumptions": comparison.assumptions,
        "provenance": provenance_rows(comparison),
        "command": comparison.command,
        "scenario": comparison.scenario,
        "made": comparison.made,
    }


def _title(comparison: Comparison) -> str:
    methods = len({result.method for result in comparison.results})
    return f"{methods} training method{'s' if methods > 1 else ''} compared"


def _timeline(result: MethodResult, most_spans: int) -> dict[str, Any]:
    """Texts and data that stand around a timeline's canvas."""
    part = shown(result.trace, most_spans)
    epochs = f"epoch {part.first_epoch}" if part.num_epochs == 1 else f"{part.num_epochs} epochs"
    return {
        "id": result.name,
        "method": result.method,
        "label": f"{result.method}, {result.summary.how} on {result.summary.cluster}",
        "note": f"{len(part.spans):,} spans of {epochs} on {part.num_ranks} ranks. {part.left_out}".strip(),
        "totals": op_totals(result.trace, result.summary.warmup_epochs),
    }
