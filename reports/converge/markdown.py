"""The answer as Markdown: its lines first, then the tables of every setting, figures by reference, the scenario."""

from collections.abc import Iterator, Sequence

from halocast.reports.converge.answer import answer, answer_lines, epoch_note
from halocast.reports.converge.columns import blocks, cells, columns_for
from halocast.reports.converge.contests import Contest, contests, variations
from halocast.reports.converge.front import front, stops
from halocast.reports.converge.tables import (
    error_rows,
    front_rows,
    graph_rows,
    legend,
    reasons,
    search_rows,
    variation_rows,
)
from halocast.reports.curves import Converged
from halocast.reports.table import markdown_rows

Part = tuple[str, str]  # a heading, and what stands below it; one of them may be empty


def markdown(converged: Converged, figures: Sequence[tuple[str, str]] = ()) -> str:
    """The report as Markdown; `figures` are titles and names of files."""
    every = contests(converged)
    parts: list[Part] = [
        ("# Time and price to a score", "\n\n".join(answer_lines(converged))),
        ("", markdown_rows(graph_rows(converged)) if converged.stands_in else ""),
        *((f"## By {v.key}", markdown_rows(variation_rows(v, every))) for v in variations(every)),
        *(part for number, contest in enumerate(every) for part in _contest(converged, contest, number)),
        ("", legend(converged)),
        ("", "\n".join(f"- {reason}" for reason in reasons(converged))),
        ("## Figures" if figures else "", "\n\n".join(f"![{_plain(title)}]({name})" for title, name in figures)),
        ("## Errors of stale rows", _table(error_rows(converged))),
        ("## Search: best validation score", _table(search_rows(converged))),
        ("## Reproduce", f"`{converged.command}` with the file beside this report:\n\n{_fenced(converged.scenario)}"),
        ("", converged.made),
    ]
    return "\n\n".join(text for title, below in parts if below for text in (title, below) if text) + "\n"


def _contest(converged: Converged, contest: Contest, number: int) -> Iterator[Part]:
    said = [] if number == 0 else [*answer(converged, contest).lines, *filter(None, [epoch_note(contest)])]
    every = blocks(converged, contest)
    columns = columns_for([line for _, lines in every for line in lines])
    if contest.text:
        yield "", "\n\n".join([f"## With {contest.text}", *said])
    for title, lines in every:
        yield f"### {title}", markdown_rows(cells(lines, columns))
    yield "### Best trade-offs of test score, time and price", _table(front_rows(front(stops(contest.shown))))


def _table(rows: Sequence[Sequence[str]]) -> str:
    return markdown_rows(rows) if len(rows) > 1 else ""


def _plain(title: str) -> str:
    """A title without what ends it in Markdown."""
    return title.replace("[", "(").replace("]", ")")


def _fenced(scenario: str) -> str:
    return f"```toml\n{scenario.rstrip()}\n```"
