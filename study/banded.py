"""The error band of a prediction: what it is of, looked up in the evidence."""

from dataclasses import replace

from halocast.cluster.catalogue import Cluster
from halocast.reports.summary import ErrorBand, NoBand, Summary
from halocast.study.bands import Situation, Sure, family_of
from halocast.study.evidence import OWN_CODE, band_for
from halocast.study.workload import Workload


def with_band(summary: Summary, workload: Workload, cluster: Cluster) -> Summary:
    """The summary with the band in which the epoch lies if its prediction errs as eight of ten like it did."""
    band = band_for(situation_of(workload, cluster))
    if band is None:
        return replace(summary, band=NoBand.NOT_KNOWN)
    low_s, high_s = band.around(summary.epoch_s)
    return replace(summary, band=ErrorBand(low_s=low_s, high_s=high_s, basis=band.evidence))


def situation_of(workload: Workload, cluster: Cluster) -> Situation:
    scenario, device = workload.scenario, cluster.device(0)
    measured = device.measured
    kind = Sure.SPEC if measured is None else Sure.QUICK if measured.quick else Sure.CALIBRATED
    return Situation(
        kind=kind,
        code=scenario.code.name or OWN_CODE,
        method=family_of(scenario.method.name),
        transport=str(cluster.transport),
        device=device.name,
        testbed=cluster.name,
        dataset=scenario.graph.dataset,
        model=str(scenario.model.kind),
        gpus=cluster.num_ranks,
    )
