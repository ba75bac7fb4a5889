"""The answer as text for a terminal of some width: what does not fit is left out whole and named, never cut."""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from halocast.reports.converge.answer import answer, answer_lines, epoch_note
from halocast.reports.converge.columns import Column, Line, blocks, cells, columns_for
from halocast.reports.converge.contests import Contest, contests, variations
from halocast.reports.converge.front import front, stops
from halocast.reports.converge.tables import front_rows, graph_rows, legend, reasons, variation_rows
from halocast.reports.curves import Converged
from halocast.reports.table import aligned

GAP = 2  # between columns
LEAST_LABEL = 8  # letters of a label on a line
WIDTH = 80


def text(converged: Converged, width: int = WIDTH) -> str:
    """The whole answer: three lines, what stands in, a block per setting, the front, reasons."""
    every = contests(converged)
    parts = [_filled(answer_lines(converged), width), graphs_table(converged), *_changes(every, width)]
    for number, contest in enumerate(every):
        parts += _contest(converged, contest, width, several=len(every) > 1, first=number == 0)
        parts.append(_front(contest, width))
    parts += [_filled([legend(converged)], width), _filled(reasons(converged), width)]
    return "\n\n".join(part for part in parts if part)


def _filled(lines: Sequence[str], width: int) -> str:
    return "\n".join(textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in lines)


def graphs_table(converged: Converged) -> str:
    """Both graphs side by side where one stands in for the other."""
    return aligned(graph_rows(converged)) if converged.stands_in else ""


def _contest(converged: Converged, contest: Contest, width: int, *, several: bool, first: bool) -> list[str]:
    said = [] if first else [*answer(converged, contest).lines, *filter(None, [epoch_note(contest)])]
    heading = [f"== {contest.text}"] if several else []
    return [*heading, *([_filled(said, width)] if said else []), *fitted(blocks(converged, contest), width)]


def fitted(titled: Sequence[tuple[str, Sequence[Line]]], width: int) -> list[str]:
    """Tables with as many columns as fit, the same in all; those that matter least go first, and are named below."""
    columns = columns_for([line for _, lines in titled for line in lines])
    kept = list(columns)
    while any(_width(lines, kept) > width for _, lines in titled) and any(column.rank > 1 for column in kept):
        kept.remove(max(reversed(kept), key=lambda column: column.rank))
    dropped = [column.name for column in columns if column not in kept]
    more = [_filled([f"In a wider terminal: {', '.join(dropped)}."], width)] if dropped else []
    return [*(f"{title}\n{aligned(_wrapped(lines, kept))}" for title, lines in titled), *more]


def _wrapped(lines: Sequence[Line], columns: Sequence[Column]) -> list[list[str]]:
    """Rows of cells, long ones on several rows."""
    head, *rows = cells(lines, columns)
    return [head, *(row for whole in rows for row in _split(whole, columns))]


def _split(whole: Sequence[str], columns: Sequence[Column]) -> list[list[str]]:
    parts = [
        wrapped_label(cell, column.width or WIDTH) if column.name == "method" else _wrapped_cell(cell, column.width)
        for cell, column in zip(whole, columns, strict=True)
    ]
    return [list(row) for row in zip_longest(*parts, fillvalue="")]


def wrapped_label(label: str, width: int) -> list[str]:
    """A label on several lines; a word that is longer than a line is broken, since it has to stand somewhere."""
    return textwrap.wrap(label, width, subsequent_indent="  ", break_on_hyphens=False)


def _wrapped_cell(cell: str, width: int | None) -> list[str]:
    if width is None:
        return [cell]
    return textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)


def _narrowed(rows: Sequence[Sequence[str]], width: int) -> str:
    """A table whose labels, in the first column, go on in the next line where room is short."""
    others = sum(max(len(row[k]) for row in rows) + GAP for k in range(1, len(rows[0])))
    room = max(LEAST_LABEL, width - others)
    lines = [
        [list(parts) for parts in zip_longest(wrapped_label(row[0], room), *([cell] for cell in row[1:]), fillvalue="")]
        for row in rows
    ]
    return aligned([line for several in lines for line in several])


def _width(lines: Sequence[Line], columns: Sequence[Column]) -> int:
    rows = _wrapped(lines, columns)
    return sum(max(len(row[k]) for row in rows) + GAP for k in range(len(columns))) - GAP


def _front(contest: Contest, width: int) -> str:
    some = front(stops(contest.shown))
    if len(some) < 2:
        return ""
    heading = "Best trade-offs: beaten by none in all of test score, time and price"
    return f"{_filled([heading], width)}\n{_narrowed(front_rows(some), width)}"


def _changes(every: Sequence[Contest], width: int) -> list[str]:
    """Times to the target by value of every varied key, where the table fits."""
    tables = [
        f"Time to the target by {variation.key} (-: not met)\n{_narrowed(variation_rows(variation, every), width)}"
        for variation in variations(every)
    ]
    return [table for table in tables if max(map(len, table.split("\n"))) <= width]
