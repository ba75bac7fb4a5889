"""The columns of the tables: what stands in a row of a curve, and which columns go first where room is short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from halocast.reports.converge.cases import BADGES, age_text, case_scores, last_error
from halocast.reports.converge.contests import Contest, in_order
from halocast.reports.converge.targets import Reached
from halocast.reports.converge.words import MISSING, band, dollars, duration, plain, plus_minus
from halocast.reports.curves import Converged
from halocast.reports.scores import CaseScores
from halocast.reports.table import seconds
from halocast.schedule.approximation import Approximation

WHY_WIDTH = 13  # of the reason why there is no time


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of a table: a curve against the target, and its scores."""

    reached: Reached
    case: CaseScores


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its name, its cells, how much it matters (1 is never dropped), and how wide it may be."""

    name: str
    cell: Callable[[Line], str]
    rank: int
    width: int | None = None  # longer cells go on in the next line


def _epoch(line: Line) -> str:
    curve = line.reached.curve
    known = MISSING if curve.epoch_s is None else seconds(curve.epoch_s)
    return known if curve.fits else f"{known}, does not fit"


def _time(line: Line) -> str:
    reach = line.reached
    if reach.seconds is None:
        return f"time not known{_share(reach)}" if reach.is_met else reach.text
    return duration(reach.seconds) + _share(reach)


def _share(reach: Reached) -> str:
    return f" ({reach.num_reached}/{len(reach.seeds)})" if reach.num_reached < len(reach.seeds) else ""


def _seeds(line: Line) -> str:
    reach = line.reached
    return band(reach.low_s, reach.high_s) if reach.is_met else MISSING


def _likely(line: Line) -> str:
    likely = line.reached.likely
    return band(likely.low_s, likely.high_s) if likely and line.reached.is_met else MISSING


def _test(line: Line) -> str:
    test = line.case.test
    short = f" ({len(line.case.seeds)}/{line.case.wanted})" if test and len(line.case.seeds) < line.case.wanted else ""
    return plus_minus(test.mean, test.std) + short if test else MISSING


def _difference(line: Line) -> str:
    known = line.case.difference
    if known is None or line.case.is_baseline:
        return MISSING
    return plus_minus(known.mean, known.error, signed=True)


def _error(line: Line) -> str:
    error = last_error(line.reached.curve)
    return MISSING if error is None else f"{error:.0%}"


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}"


COLUMNS = (
    Column(name="method", cell=lambda line: line.case.label, rank=1, width=24),
    Column(name="kind", cell=lambda line: BADGES[line.reached.curve.approximation], rank=4),
    Column(name="GPUs", cell=lambda line: str(line.reached.curve.gpus), rank=6),
    Column(name="epoch", cell=_epoch, rank=5, width=WHY_WIDTH),
    Column(name="epochs", cell=lambda line: _number(line.reached.epochs), rank=3),
    Column(name="time", cell=_time, rank=1, width=WHY_WIDTH),
    Column(name="over seeds", cell=_seeds, rank=4),
    Column(name="likely", cell=_likely, rank=3),
    Column(name="cost", cell=lambda line: dollars(line.reached.price), rank=2),
    Column(name="test", cell=_test, rank=2),
    Column(name="to base", cell=_difference, rank=2),
    Column(name="best at", cell=lambda line: _number(line.case.best_epoch), rank=6),
    Column(name="age", cell=lambda line: age_text(line.reached.curve) or MISSING, rank=8),
    Column(name="stale error", cell=_error, rank=9),
)
LEGEND = (
    "epochs, time, cost: to the target, of the middle seed; over seeds: of the first and the last one; likely: where "
    "eight of ten such predictions are; test: at the best epoch by validation, in points, mean ± deviation over seeds; "
    "to base: mean difference seed by seed ± its standard error; best at: that epoch, on average."
)
STALE_LEGEND = (
    "age: of the rows read, in epochs; stale error: ‖stale − fresh‖ / ‖fresh‖ of rows or gradients, of the worst layer "
    "in the end."
)


def lines_of(converged: Converged, contest: Contest, some: Sequence[Reached]) -> list[Line]:
    """Rows of curves: those that meet the target first, the first to do so first; then the others as given."""
    ordered = in_order(some)
    rest = [reach for reach in some if reach not in ordered]
    return [Line(reached=reach, case=case_scores(converged, contest, reach)) for reach in (*ordered, *rest)]


def blocks(converged: Converged, contest: Contest) -> list[tuple[str, list[Line]]]:
    """Exact and approximate methods apart: one list would rank what is not the same."""
    exact = [reach for reach in contest.shown if reach.curve.approximation is Approximation.EXACT]
    others = [reach for reach in contest.shown if reach.curve.approximation is not Approximation.EXACT]
    titled = (("Exact methods", exact), ("Approximate methods (stale or sampled rows)", others))
    return [(title, lines_of(converged, contest, some)) for title, some in titled if some]


def columns_for(lines: Sequence[Line]) -> list[Column]:
    """The columns that say something about these rows, and one for every key that was searched."""
    keys = list(dict.fromkeys(key for line in lines for key in line.case.chosen))
    return [column for column in (*COLUMNS, *map(_searched, keys)) if _says_something(column, lines)]


def _searched(key: str) -> Column:
    return Column(name=key.rpartition(".")[2], cell=lambda line: plain(line.case.chosen.get(key)), rank=5)


def _says_something(column: Column, lines: Sequence[Line]) -> bool:
    cells = {column.cell(line) for line in lines}
    if column.name in ("kind", "GPUs"):
        return len(cells) > 1
    return column.rank == 1 or cells != {MISSING}


def cells(lines: Sequence[Line], columns: Sequence[Column]) -> list[list[str]]:
    """A head and a row per line."""
    return [[column.name for column in columns], *([column.cell(line) for column in columns] for line in lines)]
