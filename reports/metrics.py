"""What the numbers mean: every derived figure, for simulated and executed traces alike, from spans.

A rank's epoch is split by what its compute lane does: it computes, or it stands still. A communication that has started
waits until the last rank it needs something from has started too, and moves from then on. (Bytes of others may move
earlier; but had the last one not been late, that time would not have been spent.) Standing still while a communication
moves is exposed communication, or reduce if only the all-reduce moves; while one waits it is wait, or bubble in a
pipeline's RECV, which waits for work and not for a straggler; anything else is bubble. The five parts add up to the
epoch. Hidden communication moves while the rank computes.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halocast.reports.intervals import Intervals, clip, intersect, length, merge, subtract
from halocast.schedule.ir import Kind, Lane, Schedule
from halocast.schedule.trace import Span, Trace

COMMUNICATION = frozenset(Kind) - {Kind.COMPUTE, Kind.SAMPLE}
PARTS = ("compute_s", "exposed_comm_s", "reduce_s", "wait_s", "bubble_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Seconds per epoch of one rank, averaged over the steady epochs."""

    epoch_s: float
    compute_s: float
    exposed_comm_s: float
    hidden_comm_s: float
    reduce_s: float
    wait_s: float
    bubble_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    ranks: tuple[RankTimes, ...]
    warmup_epochs: int
    num_epochs: int  # steady ones, that were averaged
    bytes_per_epoch_by_op: dict[str, float]  # all ranks together

    def mean(self, name: str) -> float:
        return float(self._values(name).mean())

    def max(self, name: str) -> float:
        return float(self._values(name).max())

    def _values(self, name: str) -> NDArray[np.float64]:
        return np.array([getattr(rank, name) for rank in self.ranks])

    @property
    def epoch_s(self) -> float:
        """The epoch of the slowest rank: it is over when everybody's is."""
        return self.max("epoch_s")

    @property
    def bytes_total(self) -> float:
        """Bytes of one epoch, all ranks and ops."""
        return sum(self.bytes_per_epoch_by_op.values())

    @property
    def overlap_efficiency(self) -> float:
        """The share of communication that was hidden behind compute."""
        hidden, exposed = self.mean("hidden_comm_s"), self.mean("exposed_comm_s")
        return hidden / (hidden + exposed) if hidden + exposed > 0 else 0.0


def default_warmup(num_epochs: int) -> int:
    """Epochs of a real run to drop: caches fill, pages are touched, threads start."""
    return min(3, num_epochs // 3)


def measure(trace: Trace, schedule: Schedule, warmup_epochs: int) -> Metrics:
    assert 0 <= warmup_epochs < trace.num_epochs
    starts = {(span.rank, span.op, span.epoch): span.start_s for span in trace.spans}
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in trace.spans:
        by_rank[span.rank].append(span)
    num_epochs = trace.num_epochs - warmup_epochs
    ranks = tuple(
        _rank_times(by_rank[rank], schedule, starts, warmup_epochs, num_epochs) for rank in range(trace.num_ranks)
    )
    return Metrics(
        ranks=ranks,
        warmup_epochs=warmup_epochs,
        num_epochs=num_epochs,
        bytes_per_epoch_by_op=_bytes_by_op(trace, warmup_epochs, num_epochs),
    )


def measured_seconds(trace: Trace, warmup_epochs: int) -> dict[tuple[int, str], float]:
    """Median seconds of every op that only computes, by (rank, name): what a simulation may use instead of costs."""
    samples: dict[tuple[int, str], list[float]] = defaultdict(list)
    for span in trace.spans:
        if span.kind not in COMMUNICATION and span.epoch >= warmup_epochs:
            samples[span.rank, span.op].append(span.end_s - span.start_s)
    return {key: float(np.median(seconds)) for key, seconds in samples.items()}


def _bytes_by_op(trace: Trace, warmup_epochs: int, num_epochs: int) -> dict[str, float]:
    sums: dict[str, int] = defaultdict(int)
    for span in trace.spans:
        if span.num_bytes and span.epoch >= warmup_epochs:
            sums[span.op] += span.num_bytes
    return {op: total / num_epochs for op, total in sorted(sums.items())}


def _rank_times(
    spans: list[Span],
    schedule: Schedule,
    starts: dict[tuple[int, str, int], float],
    warmup_epochs: int,
    num_epochs: int,
) -> RankTimes:
    window = steady_window(spans, warmup_epochs)
    computes = [(s.start_s, s.end_s) for s in spans if s.lane == Lane.COMPUTE and s.kind not in COMMUNICATION]
    busy = clip(merge(computes), window)
    idle = subtract([window], busy)
    moving, reducing, waiting = (clip(part, window) for part in _communication(spans, schedule, starts))
    exposed = intersect(idle, moving)
    reduce_only = subtract(intersect(idle, reducing), moving)
    wait = subtract(subtract(intersect(idle, waiting), moving), reducing)
    parts = [length(busy), length(exposed), length(reduce_only), length(wait)]
    total = window[1] - window[0]
    return RankTimes(
        epoch_s=total / num_epochs,
        compute_s=parts[0] / num_epochs,
        exposed_comm_s=parts[1] / num_epochs,
        hidden_comm_s=length(intersect(busy, moving)) / num_epochs,
        reduce_s=parts[2] / num_epochs,
        wait_s=parts[3] / num_epochs,
        bubble_s=_above_rounding(total - sum(parts), total) / num_epochs,
    )


def _above_rounding(part: float, total: float) -> float:
    return part if part > 1e-9 * total else 0.0


def steady_window(spans: Sequence[Span], warmup_epochs: int) -> tuple[float, float]:
    """The time from the end of the last warm-up epoch to the end of the last epoch."""
    paced = pacing(spans)
    warm = [span.end_s for span in paced if span.epoch < warmup_epochs]
    start = max(warm) if warm else min((span.start_s for span in spans), default=0.0)
    return start, max((span.end_s for span in paced), default=start)


def pacing(spans: Sequence[Span]) -> Sequence[Span]:
    """The spans whose ends are the ends of epochs: of the compute lane, or of all where nothing is computed.

    What a pipeline still sends after its last step belongs to an epoch that will not be computed any more.
    """
    return [span for span in spans if span.lane == Lane.COMPUTE] or spans


def _communication(
    spans: list[Span], schedule: Schedule, starts: dict[tuple[int, str, int], float]
) -> tuple[Intervals, Intervals, Intervals]:
    """Times at which a rank's bytes moved (all-reduce apart), its all-reduce moved, and it waited for late ranks."""
    moving: Intervals = []
    reducing: Intervals = []
    waiting: Intervals = []
    needs: dict[str, tuple[int, ...]] = {}
    for span in spans:
        if span.kind not in COMMUNICATION:
            continue
        if span.op not in needs:
            op = schedule.find(span.rank, span.op)
            assert op is not None
            needs[span.op] = schedule.senders(op)
        late = max((starts.get((rank, span.op, span.epoch), 0.0) for rank in needs[span.op]), default=0.0)
        begins = min(max(span.start_s, late), span.end_s)
        (reducing if span.kind is Kind.ALLREDUCE else moving).append((begins, span.end_s))
        if span.kind is not Kind.RECV:  # a receiver in a pipeline waits for work, not for a straggler
            waiting.append((span.start_s, begins))
    return merge(moving), merge(reducing), merge(waiting)
