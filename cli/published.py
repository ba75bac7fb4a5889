"""`halocast published`: predicted against published figures."""

from pathlib import Path
from typing import Annotated

import typer

from halocast.cli.options import Json
from halocast.cli.output import note, print_json
from halocast.cli.sweep import Jobs, Results, scenario_bar
from halocast.reports.page.accuracy import epochs_by
from halocast.reports.published import text_summary
from halocast.reports.published_scores import text_scores
from halocast.study.accuracy import verdict_lines
from halocast.study.published import Beside, published


def published_command(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Rows of figures as CSV [those that come with halocast].")
    ] = None,
    data: Annotated[list[Path] | None, typer.Option(help="The same; repeatable.")] = None,
    clusters: Annotated[
        Path | None, typer.Option(help="Directory of clusters (TOML) beside those of halocast.")
    ] = None,
    cards: Annotated[
        Path | None, typer.Option(help="Directory of dataset cards (TOML) beside those of halocast.")
    ] = None,
    code: Annotated[
        str | None, typer.Option(help="Predict this implementation in place of each source's own (an ablation).")
    ] = None,
    scores: Annotated[Path | None, typer.Option(help="Scores of runs as CSV [those that come with halocast].")] = None,
    results: Results = None,
    jobs: Jobs = None,
    json: Json = False,
    brief: Annotated[bool, typer.Option("--brief", help="Print what errors, bands and verdicts come to only.")] = False,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = Path("reports-out/published"),
) -> None:
    """Predict published figures: errors by source and method, the order of methods, and a report directory.

    Published scores are listed at the end: what each method has above vanilla, there and in our own runs."""
    with scenario_bar("predicting") as tell:
        study = published(
            [*(files or ()), *(data or ())],
            out=out,
            beside=Beside(clusters=clusters, cards=cards, scores=scores, code=code),
            results=results,
            jobs=jobs,
            progress=tell,
        )
    if json:
        listed = [score.as_dict() for score in study.scores]
        print_json({"rows": study.records(), "scores": listed, "summary": study.summary})
        return
    if not brief:
        print(text_summary(study.summary) + "\n")
    print("\n".join(verdict_lines(study.summary["accuracy"])))
    print("\n" + epochs_by(study.results, "source", "implementation"))
    if brief:
        return
    print("\nNot predicted:")
    for reason, num in study.summary["not_predicted"].items():
        print(f"{num:5} {reason}")
    if study.scores:
        print("\n" + text_scores(study.scores, study.summary["scores"]))
    note(f"report: {out / 'report.html'}")
