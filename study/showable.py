"""How results show themselves: a line in a terminal, a small table in a notebook, a frame for pandas."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 30  # of a table in a notebook; the frame has all of them


class Showable:
    """A result made of rows; those who inherit say what its line and its rows are."""

    __slots__ = ()
    columns: ClassVar[tuple[str, ...]] = ()  # of the small table; all where none are named

    def line(self) -> str:
        """Say in a few words what the result is."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """Give the rows, plain values in SI units by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.line()}>"

    def _repr_html_(self) -> str:
        rows = self.records()
        names = self.columns or tuple(dict.fromkeys(name for row in rows for name in row))
        more = f"<p>and {len(rows) - MOST_ROWS} more</p>" if len(rows) > MOST_ROWS else ""
        return f"<p>{escape(self.line())}</p>{html_table(names, rows[:MOST_ROWS])}{more}"

    def frame(self) -> "pd.DataFrame":
        """Give all rows as a pandas frame."""
        import pandas as pd  # half a second that only this needs

        return pd.DataFrame(self.records())


def made_now() -> str:
    """Which version made a report, and when."""
    return f"Made by halocast {metadata.version('halocast')} on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC."


def plain_figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a summary what is no single value: tables and lists."""
    return {key: value for key, value in figures.items() if not isinstance(value, dict | list | tuple)}


def html_table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as an HTML table with these columns; what a row lacks stays empty."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in names)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
