"""The result of a study of accuracy over predicted time, as it shows and writes itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from halocast.reports.converge import answer, records, terminal
from halocast.reports.converge.cases import case_scores
from halocast.reports.converge.contests import contests
from halocast.reports.converge.report import write_report
from halocast.reports.curves import Converged, Curve
from halocast.reports.scores import CaseScores
from halocast.study.showable import Showable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Convergence(Showable):
    """Cases on machines with their scores over predicted seconds, dollars and epochs."""

    columns: ClassVar[tuple[str, ...]] = (
        *("case", "approximation", "gpus", "epoch_s", "target_epochs", "target_s", "target_price", "test"),
        *("test_std", "difference", "difference_error", "missed"),
    )
    content: Converged

    @property
    def curves(self) -> tuple[Curve, ...]:
        """A curve per case and setting, with its trainings."""
        return self.content.curves

    @property
    def scores(self) -> tuple[CaseScores, ...]:
        """Test scores at the epoch that validation selects, compared with the baseline seed by seed."""
        return tuple(
            case_scores(self.content, contest, reach) for contest in contests(self.content) for reach in contest.curves
        )

    def line(self) -> str:
        return " ".join(answer.answer_lines(self.content)[:3])

    def records(self) -> list[dict[str, Any]]:
        return records.records(self.content)

    def as_json(self) -> dict[str, Any]:
        """The whole answer: its lines, a row per curve, the front, every evaluated point."""
        return records.as_json(self.content)

    def write(self, directory: str | Path) -> None:
        """Write the report: a page, Markdown, tables and figures, and the scenario; an earlier one is replaced."""
        write_report(Path(directory), self.content)

    def text(self, width: int = terminal.WIDTH) -> str:
        """The answer as it is printed in a terminal of some width."""
        return terminal.text(self.content, width)
