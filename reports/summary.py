"""One flat dictionary per run: what `--json` prints and every table and report is made from."""

from dataclasses import asdict
from typing import Any

from halocast.reports.critical import critical_path, last_window, shares
from halocast.reports.drawn import drawn_summary
from halocast.reports.metrics import Metrics, measure
from halocast.reports.network import bytes_by_link, link_utilisation
from halocast.schedule.check import staleness
from halocast.schedule.ir import Rows, Schedule
from halocast.schedule.trace import Trace

TIMES = ("epoch_s", "compute_s", "exposed_comm_s", "hidden_comm_s", "reduce_s", "wait_s", "bubble_s")
MOST_ENTRIES = 8  # of the critical path and of the links: a large cluster has thousands


def summarise(
    trace: Trace, schedule: Schedule, warmup_epochs: int, peak_memory_bytes: list[int], *, details: bool = True
) -> dict[str, Any]:
    """Times are seconds per steady epoch: the mean over ranks, and `..._max` the largest rank's.

    `epoch_s` is the slowest rank's epoch. Bytes are those of one epoch, all ranks together. Of the critical path and of
    the links only the largest entries are listed; without `details` they are left out.
    """
    metrics = measure(trace, schedule, warmup_epochs)
    return {
        "method": dict(schedule.meta).get("method", ""),
        "source": trace.source,
        "ranks": schedule.num_ranks,
        **_times(metrics),
        "overlap_efficiency": metrics.overlap_efficiency,
        "bytes_total": _whole(metrics.bytes_total),
        **drawn_summary(schedule),
        "bytes_per_epoch_by_op": {op: _whole(value) for op, value in metrics.bytes_per_epoch_by_op.items()},
        **(_links(trace, warmup_epochs) if details else {}),
        **({"critical_path": _path(trace, schedule, warmup_epochs)} if details else {}),
        "peak_memory_bytes": max(peak_memory_bytes),
        "peak_memory_bytes_by_rank": peak_memory_bytes,
        "staleness": staleness_table(schedule),
        "warnings": [text for key, text in schedule.meta if key == "warning"],
        "epochs": trace.num_epochs,
        "warmup_epochs": metrics.warmup_epochs,
    }


def _times(metrics: Metrics) -> dict[str, float]:
    times = {"epoch_s": metrics.epoch_s, "epoch_s_mean": metrics.mean("epoch_s")}
    for name in TIMES[1:]:
        times |= {name: metrics.mean(name), f"{name}_max": metrics.max(name)}
    return times


def _path(trace: Trace, schedule: Schedule, warmup_epochs: int) -> list[dict[str, Any]]:
    found = shares(critical_path(trace, schedule, warmup_epochs), trace.num_epochs - warmup_epochs)
    return [asdict(share) for share in found[:MOST_ENTRIES]]


def _links(trace: Trace, warmup_epochs: int) -> dict[str, Any]:
    """What a trace that knows its links says about them."""
    if not trace.links:
        return {}
    most = list(bytes_by_link(trace).items())[:MOST_ENTRIES]
    busiest = list(link_utilisation(trace, last_window(trace, warmup_epochs)).items())[:MOST_ENTRIES]
    return {
        "bytes_by_link": {name: _whole(value) for name, value in most},
        "link_utilisation": {name: asdict(found) for name, found in busiest},
    }


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def staleness_table(schedule: Schedule) -> list[dict[str, Any]]:
    """How old, in epochs, remote rows, their gradients and snapshots are when they are read; one row per op, over all
    ranks; of snapshots, one over all slots."""
    ages: dict[tuple[str, str], set[int]] = {}
    for read in staleness(schedule):
        buffer = schedule.buffer(read.rank, read.buffer)
        assert buffer is not None
        op = schedule.find(read.rank, read.op)
        assert op is not None
        if buffer.rows in (Rows.HALO, Rows.SENT) and op.kind == "compute":
            ages.setdefault((read.op, read.buffer), set()).update(read.ages)
        elif len(op.index) > 1 and all(writer.carries for writer in schedule.writers(read.rank, read.buffer)):
            ages.setdefault((f"{op.name.rpartition('.')[0]}.*", read.buffer), set()).update(read.ages)
    return [{"op": op, "reads": buffer, "ages": sorted(found)} for (op, buffer), found in ages.items()]
