"""Small comparisons that report tests share: simulated for real, without a command line."""

from collections.abc import Mapping
from typing import Any

from schedules import two_rank_exchange

from halocast.cluster.catalogue import load_cluster
from halocast.reports.comparison import Comparison, MethodResult
from halocast.reports.summary import Summary, summarise
from halocast.schedule.ir import Kind, Lane, Schedule
from halocast.schedule.trace import Span, Trace
from halocast.sim.engine import simulate

EXTRA = {
    "cluster": "c",
    "device": "d",
    "sizes": "partition",
    "links": "shared",
    "constants": "spec sheet",
    "code": "halocast",
    "calibrated": None,
    "outside_range": [],
    "fits": True,
    "memory_rank": 1,
    "memory_bytes": 200,
    "memory_at": "use",
    "device_memory_bytes": 300,
    "largest_buffers": [["halo", 150]],
    "pinned_host_bytes": 0,
    "approximation": "exact",
    "staleness": [{"op": "use", "reads": "halo", "ages": [0]}],
}


def result(
    schedule: Schedule | None = None, trace: Trace | None = None, num_epochs: int = 3, **changes: Any
) -> MethodResult:
    """One prediction of two ranks that exchange rows; `changes` go into its summary, by key."""
    chosen = schedule or two_rank_exchange()
    ran = trace or simulate(chosen, load_cluster("cpu-local"), num_epochs)
    found = summarise(ran, chosen, 1, [100] * chosen.num_ranks)
    return MethodResult(summary=changed(found, EXTRA | changes), trace=ran, schedule=chosen)


def changed(summary: Summary, changes: Mapping[str, Any]) -> Summary:
    """The summary whose JSON has other values."""
    return Summary.from_dict({**summary.as_dict(), **changes})


def comparison(*results: MethodResult, **more: Any) -> Comparison:
    return Comparison(results=results, **({"scenario": "", "command": "halocast compare scenario.toml"} | more))


def many_spans(num_ranks: int, num_epochs: int, per_epoch: int) -> Trace:
    """Lanes full of spans, one second per epoch."""
    spans = tuple(
        Span(
            rank=rank,
            lane=Lane.COMPUTE,
            op=f"forward.{k}",
            kind=Kind.COMPUTE,
            epoch=epoch,
            start_s=epoch + k / per_epoch,
            end_s=epoch + (k + 1) / per_epoch,
        )
        for epoch in range(num_epochs)
        for rank in range(num_ranks)
        for k in range(per_epoch)
    )
    return Trace(source="simulated", num_ranks=num_ranks, num_epochs=num_epochs, spans=spans)
