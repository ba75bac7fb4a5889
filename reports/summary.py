"""The summary of a run, predicted or real: one frozen record that every table, page and `--json` is made from.

A field is named as its key in the JSON. Optional parts are None and have no key; the keys of a `Group` stand among
those of the summary it is part of. `Summary.from_dict(summary.as_dict()) == summary`, also through JSON text.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from halocast.reports.critical import Share, critical_path, last_window, shares
from halocast.reports.metrics import Metrics, measure
from halocast.reports.network import Utilisation, bytes_by_link, link_utilisation
from halocast.schedule.approximation import Approximation, approximation_of, remote_reads
from halocast.schedule.check import Read, staleness
from halocast.schedule.ir import Exchange, Ints, Kind, Op, Reals, Role, Schedule
from halocast.schedule.trace import Trace

T = TypeVar("T")
SIMULATED, EXECUTED = "simulated", "executed"  # sources of summaries
HOW = {SIMULATED: "predicted", EXECUTED: "measured"}
TIMES = ("epoch_s", "compute_s", "exposed_comm_s", "hidden_comm_s", "reduce_s", "wait_s", "bubble_s")
MOST_ENTRIES = 8  # of the critical path and of the links: a large cluster has thousands
MOST_PAIRS = 8
SIGMAS = 2.0  # half the width of a band: about 95 % of epochs are in it


class Group:
    """A record whose keys stand among those of the record it is part of."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPair:
    """Rows that one rank sends another per epoch, where they are drawn anew every epoch: their mean and deviation."""

    matrix: str
    from_: int
    to: int
    rows: int
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTraffic(Group):
    """An epoch's bytes where sizes are drawn anew every epoch: mean, deviation, and where 95 % of epochs are."""

    drawn_bytes: float
    drawn_bytes_std: float
    drawn_bytes_band: tuple[float, ...]
    drawn_rows: tuple[DrawnPair, ...]  # of the pairs with most


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad(Group):
    """The links that carry most, and the busiest ones whose load over time was recorded."""

    bytes_by_link: Mapping[str, float]  # of one epoch
    link_utilisation: Mapping[str, Utilisation]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAges:
    """Ages, in epochs, of the rows that an op reads from a buffer, on any rank.

    Where ranks run `free`, without a bound, they are those of equally fast ranks; how old rows are in a run only the
    run tells.
    """

    op: str
    reads: str
    ages: tuple[int, ...]
    free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis(Group):
    """What a prediction's numbers come from, and whose program it is of."""

    code: str  # the implementation
    device: str
    sizes: str
    links: str  # how links serve several transfers at once
    constants: str
    calibrated: str | None  # the profile that the devices were measured with
    outside_range: tuple[str, ...]  # what the profile does not cover


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures(Group):
    """The memory of the rank with the least head-room, and whether everything fits."""

    fits: bool
    memory_rank: int
    memory_bytes: int
    memory_at: str
    device_memory_bytes: int
    largest_buffers: tuple[tuple[str, int], ...]
    pinned_host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPrice(Group):
    """The price of an epoch where hosts are rented whole."""

    price_per_epoch: float
    currency: str
    price_date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAges:
    """Numbers of rows by age that an op really read in a run."""

    op: str
    reads: str
    rows_by_age: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleError:
    """The distance of a layer's stale rows or gradients from fresh ones in one epoch, as squares of norms."""

    epoch: int
    layer: int  # -1: all layers, where `what` is the gradient of the weights
    what: str
    squared_error: float
    squared_norm: float

    @property
    def relative(self) -> float:
        """The norm of the error as a share of the norm of fresh rows."""
        return (self.squared_error / self.squared_norm) ** 0.5 if self.squared_norm else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedShare:
    """A share counted in a run, over all ranks and epochs, and the count that was expected."""

    what: str
    count: int
    total: int
    expected: float


Scores = Mapping[str, float]  # train, val, test


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Group):
    """What a real run learned, and how stale the rows were that it learned from."""

    loss: tuple[float, ...]
    accuracy: tuple[Scores, ...]  # of the training forward, per epoch
    evaluated: Mapping[int, Scores]  # exact evaluations, by epoch
    final_accuracy: Scores
    ages: tuple[FoundAges, ...]
    errors: tuple[StaleError, ...]
    shares: tuple[CountedShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """The times between which an epoch really lies, as far as measured cases tell."""

    low_s: float
    high_s: float
    basis: str


class NoBand(Enum):
    """The error band of a prediction for which no measured cases are known."""

    NOT_KNOWN = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One steady epoch of a method on a cluster. Times are seconds, the mean over ranks and `..._max` the largest
    rank's; `epoch_s` is the slowest rank's. Bytes are those of one epoch, all ranks together."""

    method: str
    source: str
    ranks: int
    epoch_s: float
    epoch_s_mean: float
    compute_s: float
    compute_s_max: float
    exposed_comm_s: float
    exposed_comm_s_max: float
    hidden_comm_s: float
    hidden_comm_s_max: float
    reduce_s: float
    reduce_s_max: float
    wait_s: float
    wait_s_max: float
    bubble_s: float
    bubble_s_max: float
    overlap_efficiency: float
    bytes_total: float
    drawn: DrawnTraffic | None = None
    bytes_per_epoch_by_op: Mapping[str, float]
    link_load: LinkLoad | None = None
    critical_path: tuple[Share, ...] | None = None
    peak_memory_bytes: int
    peak_memory_bytes_by_rank: tuple[int, ...]
    approximation: Approximation  # of what training on one device computes
    staleness: tuple[ReadAges, ...]
    warnings: tuple[str, ...]
    epochs: int
    warmup_epochs: int
    cluster: str = ""
    hosts: int | None = None
    transport: str = ""
    basis: Basis | None = None  # of a prediction
    memory: MemoryFigures | None = None  # of a prediction
    price: EpochPrice | None = None
    training: Training | None = None  # of a real run
    band: ErrorBand | NoBand | None = None  # None: nobody looked for one
    predicts: str | None = None  # the machine of a run that this was predicted for

    @property
    def fits(self) -> bool:
        """Whether the devices have enough memory; for what has run they had."""
        return self.memory is None or self.memory.fits

    @property
    def device_memory(self) -> MemoryFigures:
        """The memory of a prediction, which always knows it."""
        assert self.memory is not None, f"{self.method}: a real run has no model of its devices' memory"
        return self.memory

    @property
    def known_band(self) -> ErrorBand | None:
        """The error band, where somebody looked for it and found one."""
        return self.band if isinstance(self.band, ErrorBand) else None

    @property
    def is_run(self) -> bool:
        """Whether the epoch was executed, not predicted."""
        return self.source == EXECUTED

    @property
    def how(self) -> str:
        """The source in a reader's word: predicted or measured."""
        return HOW.get(self.source, self.source)

    @property
    def ages(self) -> list[int]:
        """All ages, in epochs, of rows of others when they are read, the youngest first."""
        return all_ages(self.staleness)

    def seconds_of(self, part: str) -> float:
        """The mean rank's seconds of one of TIMES or of metrics.PARTS, by name."""
        return float(getattr(self, part))

    def as_dict(self) -> dict[str, Any]:
        """The summary as one flat JSON object."""
        return as_flat(self)

    def plain_figures(self) -> dict[str, Any]:
        """The JSON object without its lists and tables: a row of a table."""
        return {key: value for key, value in self.as_dict().items() if not isinstance(value, dict | list)}

    @classmethod
    def from_dict(cls, flat: Mapping[str, Any]) -> "Summary":
        """The summary that `as_dict` gave, perhaps through JSON text."""
        return from_flat(cls, flat)


def all_ages(reads: Sequence[ReadAges]) -> list[int]:
    """The ages of some reads, each once, the youngest first."""
    return sorted({age for read in reads for age in read.ages})


def as_flat(record: Any) -> dict[str, Any]:
    """A record as a JSON object; an optional field that is None has no key."""
    flat: dict[str, Any] = {}
    for entry in fields(record):
        value = getattr(record, entry.name)
        if isinstance(value, Group):
            flat |= as_flat(value)
        elif value is not None or entry.default is MISSING:
            flat[_key(entry.name)] = _plain(value)
    return flat


def from_flat(cls: type[T], flat: Mapping[str, Any]) -> T:
    """The record whose `as_flat` this is."""
    kind: Any = cls  # mypy takes classes for unhashable
    values: dict[str, Any] = {}
    for name, hint, group in _shape(kind):
        if group is not None:
            values[name] = from_flat(group, flat) if _shape(group)[0][0] in flat else None
        elif _key(name) in flat:
            values[name] = _read(hint, flat[_key(name)])
    return cls(**values)


@cache
def _shape(cls: Any) -> tuple[tuple[str, Any, Any], ...]:
    """The name and type of every field, and which Group it is."""
    hints = get_type_hints(cls)
    named = [(one.name, hints[one.name]) for one in fields(cls)]
    return tuple((name, hint, next(filter(_is_group, _arms(hint)), None)) for name, hint in named)


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Group)


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _key(name: str) -> str:
    """The JSON key of a field, without its underscore: no field can be named `from`."""
    return name.rstrip("_")


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return as_flat(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _read(hint: Any, value: Any) -> Any:
    """A plain value as a field's type; numbers stay as they are, so that a whole number is printed as one."""
    if isinstance(hint, UnionType):
        arms = [arm for arm in _arms(hint) if arm is not NoneType and (value is None) == (arm is NoBand)]
        return _read(arms[0], value) if arms else value
    of = get_args(hint)
    if get_origin(hint) is tuple:
        return tuple(_read(arm, item) for arm, item in zip(_item_types(of, len(value)), value, strict=True))
    if get_origin(hint) is Mapping:
        return {of[0](key): _read(of[1], item) for key, item in value.items()}
    if not isinstance(hint, type):
        return value
    if is_dataclass(hint):
        return from_flat(hint, value)
    return hint(value) if issubclass(hint, Enum) else value


def _item_types(of: tuple[Any, ...], num: int) -> tuple[Any, ...]:
    return (of[0],) * num if of[-1] is Ellipsis else of


def summarise(
    trace: Trace, schedule: Schedule, warmup_epochs: int, peak_memory_bytes: Sequence[int], *, details: bool = True
) -> Summary:
    """Summarise the steady epochs of a trace.

    Of the critical path and of the links only the largest entries are listed; without `details` they are left out.
    """
    metrics, reads = measure(trace, schedule, warmup_epochs), staleness(schedule)
    return Summary(
        method=dict(schedule.meta).get("method", ""),
        source=trace.source,
        ranks=schedule.num_ranks,
        **_times(metrics),
        overlap_efficiency=metrics.overlap_efficiency,
        bytes_total=_whole(metrics.bytes_total),
        drawn=drawn_traffic(schedule),
        bytes_per_epoch_by_op={op: _whole(value) for op, value in metrics.bytes_per_epoch_by_op.items()},
        link_load=_link_load(trace, warmup_epochs) if details and trace.links else None,
        critical_path=_path(trace, schedule, warmup_epochs) if details else None,
        peak_memory_bytes=max(peak_memory_bytes),
        peak_memory_bytes_by_rank=tuple(peak_memory_bytes),
        approximation=approximation_of(schedule, reads),
        staleness=staleness_table(schedule, reads),
        warnings=tuple(text for key, text in schedule.meta if key == "warning"),
        epochs=trace.num_epochs,
        warmup_epochs=metrics.warmup_epochs,
    )


def _times(metrics: Metrics) -> dict[str, Any]:
    """The fields of a summary that are times."""
    times = {"epoch_s": metrics.epoch_s, "epoch_s_mean": metrics.mean("epoch_s")}
    for name in TIMES[1:]:
        times |= {name: metrics.mean(name), f"{name}_max": metrics.max(name)}
    return times


def _path(trace: Trace, schedule: Schedule, warmup_epochs: int) -> tuple[Share, ...]:
    path = critical_path(trace, schedule, warmup_epochs)
    return tuple(shares(path, trace.num_epochs - warmup_epochs)[:MOST_ENTRIES])


def _link_load(trace: Trace, warmup_epochs: int) -> LinkLoad:
    most = list(bytes_by_link(trace).items())[:MOST_ENTRIES]
    busiest = list(link_utilisation(trace, last_window(trace, warmup_epochs)).items())[:MOST_ENTRIES]
    return LinkLoad(
        bytes_by_link={name: _whole(value) for name, value in most},
        link_utilisation=dict(busiest),
    )


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value


def drawn_traffic(schedule: Schedule) -> DrawnTraffic | None:
    """The spread of an epoch's bytes, and of the rows of the pairs with the most; None where all sizes are fixed.

    The deviations of a pair's bytes add over exchanges that follow one draw; pairs, and draws, are independent of each
    other, so their variances do.
    """
    drawn = {matrix.name: (matrix.counts, matrix.spread) for matrix in schedule.matrices if matrix.spread is not None}
    if not drawn:
        return None
    total, deviations = 0.0, defaultdict[str, Reals | float](float)
    for op in {op.name: op for op in schedule.ops}.values():
        if isinstance(op.work, Exchange) and op.work.matrix in drawn:
            counts, spread = drawn[op.work.matrix]
            total += op.work.row_bytes * float(counts.sum())
            deviations[_draw_of(schedule, op)] += op.work.row_bytes * spread
    std = float(np.sqrt(sum(np.square(deviation).sum() for deviation in deviations.values())))
    return DrawnTraffic(
        drawn_bytes=total,
        drawn_bytes_std=std,
        drawn_bytes_band=(max(0.0, total - SIGMAS * std), total + SIGMAS * std),
        drawn_rows=tuple(pair for name in sorted(drawn) for pair in _drawn_pairs(name, *drawn[name])),
    )


def _draw_of(schedule: Schedule, op: Op) -> str:
    """The op that draws the ids which an exchange moves or follows."""
    writers = (writer for name in op.reads for writer in schedule.writers(op.rank, name))
    return next(writer.name for writer in writers if writer.kind is Kind.SAMPLE)


def _drawn_pairs(name: str, counts: Ints, spread: Reals) -> list[DrawnPair]:
    order = np.argsort(-counts, axis=None, kind="stable")[:MOST_PAIRS]
    places = [divmod(int(place), len(counts)) for place in order]
    return [
        DrawnPair(matrix=name, from_=i, to=j, rows=int(counts[i, j]), std=float(spread[i, j]))
        for i, j in places
        if counts[i, j]
    ]


def staleness_table(schedule: Schedule, reads: Sequence[Read] | None = None) -> tuple[ReadAges, ...]:
    """Ages, in epochs, of remote rows, their gradients and snapshots when they are read; one entry per op, over all
    ranks; of snapshots, one over all slots. `reads` are the schedule's staleness, where that is known already."""
    ages: dict[tuple[str, str], set[int]] = {}
    for read in remote_reads(schedule, staleness(schedule) if reads is None else reads):
        buffer = schedule.buffer(read.rank, read.buffer)
        assert buffer is not None
        over_slots = f"{read.op.rpartition('.')[0]}.*" if buffer.role is Role.SNAPSHOT else read.op
        ages.setdefault((over_slots, read.buffer), set()).update(read.ages)
    return tuple(
        ReadAges(op=op, reads=buffer, ages=tuple(sorted(read)), free=not schedule.bounded)
        for (op, buffer), read in ages.items()
    )
