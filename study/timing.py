"""What is predicted of a scenario that is to be trained in virtual time: its epoch, and what decides its training."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from halocast.base.errors import InputError
from halocast.exec.launch.job import require_comparable
from halocast.reports.summary import ErrorBand, Summary
from halocast.schedule.approximation import Approximation, approximation_of
from halocast.schedule.ir import Schedule
from halocast.schedule.races import order_matters
from halocast.study.banded import with_band
from halocast.study.clusters import scenario_cluster
from halocast.study.predict import predict_on
from halocast.study.scenario import Scenario
from halocast.study.workload import prepare

TIME = "time"  # the task's name


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTiming:
    """A predicted epoch with its band, and what the schedule says of a training's numbers."""

    summary: Summary
    band: ErrorBand | None
    approximation: Approximation
    order_matters: bool  # whether a training's numbers depend on the order of events, and so on the clock
    comparable: bool  # whether stale rows can be compared with fresh ones
    method: Mapping[str, Any]  # name and all options, with what was left to choose chosen

    @property
    def price_per_s(self) -> float | None:
        """USD a second of all hosts in use; none where the cluster has no price."""
        price = self.summary.price
        return None if price is None else price.price_per_epoch / self.summary.epoch_s


def time_it(scenario: Scenario) -> EpochTiming:
    """Predict a scenario's epoch on its cluster."""
    cluster = scenario_cluster(scenario)
    workload = prepare(scenario, cluster.num_ranks)
    predicted, method = predict_on(workload, cluster, lean=True).summary, workload.scenario.method
    summary = with_band(predicted, workload, cluster)
    return EpochTiming(
        summary=summary,
        band=summary.known_band,
        approximation=approximation_of(workload.schedule),
        order_matters=order_matters(workload.schedule),
        comparable=_is_comparable(workload.schedule),
        method={"name": method.name, **_said(asdict(method.options))},
    )


def _said(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that have a value: no table can say that one has none."""
    return {key: value for key, value in options.items() if value is not None}


def _is_comparable(schedule: Schedule) -> bool:
    with suppress(InputError):
        require_comparable(schedule)
        return True
    return False
