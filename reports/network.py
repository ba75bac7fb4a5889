"""What a trace tells about links: bytes per epoch, utilisation in the steady window, busy periods."""

from dataclasses import dataclass
from itertools import groupby, pairwise

from halocast.reports.intervals import Interval
from halocast.schedule.trace import LinkUse, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A link at one rate, in bytes per second."""

    start_s: float
    end_s: float
    rate: float

    @property
    def num_bytes(self) -> float:
        return self.rate * (self.end_s - self.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A longest stretch of time in which a link is never idle."""

    start_s: float
    end_s: float
    num_bytes: float
    utilisation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Shares of a link's capacity over a window."""

    mean: float
    max: float


def loads(link: LinkUse) -> list[Load]:
    """The stretches of constant rate; what the last change leaves running has no end and is not one."""
    times = pairwise(link.times_s)
    return [Load(start_s=a, end_s=b, rate=rate) for (a, b), rate in zip(times, link.rates, strict=False)]


def busy_periods(link: LinkUse) -> list[Busy]:
    periods = []
    for moves, group in groupby(loads(link), key=lambda load: load.rate > 0):
        if moves:
            parts = list(group)
            start_s, end_s = parts[0].start_s, parts[-1].end_s
            num_bytes = sum(part.num_bytes for part in parts)
            share = min(1.0, num_bytes / ((end_s - start_s) * link.bytes_per_s))
            periods.append(Busy(start_s=start_s, end_s=end_s, num_bytes=num_bytes, utilisation=share))
    return periods


def utilisation(link: LinkUse, window: Interval) -> Utilisation:
    start_s, end_s = window
    inside = [
        Load(start_s=max(load.start_s, start_s), end_s=min(load.end_s, end_s), rate=load.rate)
        for load in loads(link)
        if load.start_s < end_s and load.end_s > start_s
    ]
    can_carry = (end_s - start_s) * link.bytes_per_s
    return Utilisation(
        mean=min(1.0, sum(load.num_bytes for load in inside) / can_carry) if can_carry > 0 else 0.0,
        max=max((load.rate for load in inside), default=0.0) / link.bytes_per_s,
    )


def bytes_by_link(trace: Trace) -> dict[str, float]:
    """Bytes of one epoch by link, the mean over all epochs; most first."""
    most = sorted(trace.links, key=lambda link: (-link.num_bytes, link.name))
    return {link.name: link.num_bytes / trace.mean_epochs for link in most}


def link_utilisation(trace: Trace, window: Interval) -> dict[str, Utilisation]:
    """The utilisation of every link whose load over time is known; the busiest first."""
    used = [(link.name, utilisation(link, window)) for link in trace.links if link.times_s]
    return dict(sorted(used, key=lambda item: (-item[1].mean, item[0])))
