"""The answer as a section of a page and as a page of its own; the template engine escapes text that users gave."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from halocast.reports.converge.answer import answer, answer_lines, epoch_note, goal_text
from halocast.reports.converge.columns import Line, blocks, cells, columns_for
from halocast.reports.converge.contests import Contest, contests, variations
from halocast.reports.converge.front import front, stops
from halocast.reports.converge.series import ScoreLine, Spot, score_lines
from halocast.reports.converge.tables import (
    error_rows,
    front_rows,
    graph_rows,
    legend,
    reasons,
    search_rows,
    spot_rows,
    variation_rows,
)
from halocast.reports.converge.words import gpus, listed
from halocast.reports.curves import Converged
from halocast.reports.page.template import environment, text_of

PACKAGE = "halocast.reports.converge"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What a page needs to show an answer: its first lines, the section, its styles, script and data."""

    answer: tuple[str, ...]
    html: Markup
    css: Markup
    script: Markup
    data: Row


def section(converged: Converged) -> Section:
    """The section `#accuracy` of a page; the script reads its data from the element `#converge-data`."""
    every = contests(converged)
    html = (
        environment()
        .from_string(text_of("section.html", PACKAGE))
        .render(
            goal=goal_text(converged),
            trained=converged.trained.name,
            timed=converged.timed.name,
            stands_in=converged.stands_in,
            graphs=graph_rows(converged),
            variations=[(v.key, v.text, variation_rows(v, every)) for v in variations(every)],
            contests=[_contest(converged, contest, number) for number, contest in enumerate(every)],
            legend=legend(converged),
            reasons=reasons(converged),
            search=search_rows(converged),
            errors=error_rows(converged),
        )
    )
    return Section(
        answer=tuple(answer_lines(converged)),
        html=Markup(html),  # rendered by the engine, so escaped
        css=Markup(text_of("converge.css", PACKAGE)),
        script=Markup(text_of("converge.js", PACKAGE)),
        data=chart(converged),
    )


def render(converged: Converged, files_beside: Sequence[str] = ()) -> str:
    """A page with nothing but the answer."""
    return (
        environment()
        .from_string(text_of("page.html", PACKAGE))
        .render(
            converge=section(converged),
            converged=converged,
            facts=_facts(converged),
            files_beside=files_beside,
            css=Markup(text_of("report.css")),
            common=Markup(text_of("common.js")),
        )
    )


def _facts(converged: Converged) -> list[tuple[str, str]]:
    machines = list(dict.fromkeys(f"{curve.cluster}, {gpus(curve.gpus)}" for curve in converged.curves))
    seeds = f"{converged.num_seeds} per case, at most {converged.max_epochs} epochs each"
    return [
        ("scores measured on", converged.trained.name),
        ("seconds predicted for", converged.timed.name),
        ("on", listed(machines)),
        ("trainings", seeds),
    ]


def _contest(converged: Converged, contest: Contest, number: int) -> Row:
    """The tables of a setting; what the first one says stands at the top of the page."""
    every = blocks(converged, contest)
    columns = columns_for([line for _, lines in every for line in lines])
    said = [] if number == 0 else [*answer(converged, contest).lines, *filter(None, [epoch_note(contest)])]
    return {
        "text": contest.text,
        "said": said,
        "blocks": [{"title": title, "rows": cells(lines, columns), "missed": _missed(lines)} for title, lines in every],
        "front": front_rows(front(stops(contest.shown))),
        "spots": spot_rows(score_lines(converged, contest)),
    }


def _missed(lines: Sequence[Line]) -> list[bool]:
    """Rows that are no answer to the target."""
    return [line.reached.seconds is None or not line.reached.curve.fits for line in lines]


def chart(converged: Converged) -> Row:
    """The lines as the page's script draws them."""
    of = f" for {converged.timed.name}" if converged.stands_in else ""
    return {
        "score": f"test score on {converged.trained.name}, points",
        "over": {"seconds": f"predicted seconds{of}", "dollars": f"predicted price{of}, USD", "epochs": "epochs"},
        "contests": [
            {"text": contest.text, "lines": [_line(line) for line in score_lines(converged, contest)]}
            for contest in contests(converged)
        ],
    }


def _line(line: ScoreLine) -> Row:
    curve, likely, met = line.reach.curve, line.reach.likely, line.met
    return {
        "label": line.label,
        "kind": str(curve.approximation),
        "colour": line.colour % 10,
        "dash": line.dash,
        "note": line.reach.text,
        "spots": [_spot(spot) for spot in line.spots],
        "met": _spot(met) if met else None,
        "likely": [likely.low_s, likely.high_s] if likely and met else None,
    }


def _spot(spot: Spot) -> list[float | None]:
    """Epochs, seconds, dollars; validation, test, the worst and the best seed's test."""
    scores = [round(value, 5) for value in (spot.val, spot.test, spot.low, spot.high)]
    return [spot.epochs, spot.seconds, spot.price, *scores]
