"""`halocast published`: predicted against published figures."""

from pathlib import Path

from halocast.base.records import require
from halocast.cli.output import note, print_json, status
from halocast.reports.page.report import require_report_place
from halocast.reports.published import summarise_published, text_summary, write_published
from halocast.study.published import predict_rows
from halocast.study.published_rows import own_figures, read_rows


def compare_with_published(data: Path | None, out: Path, json: bool) -> None:
    require_report_place(out)
    path = data or own_figures()
    rows = read_rows(path)
    require(bool(rows), f"{path}: no rows")
    with status() as say:
        results = predict_rows(rows, say)
    summary = summarise_published(results)
    write_published(out, results, summary)
    if json:
        print_json({"rows": [result.as_dict() for result in results], "summary": summary})
        return
    print(text_summary(summary))
    print("\nNot predicted:")
    for reason, num in summary["not_predicted"].items():
        print(f"{num:5} {reason}")
    note(f"report: {out / 'report.md'}")
