"""A plan from a scenario: the space of its [plan], searched with what a file of results already knows."""

from dataclasses import replace
from pathlib import Path

from halocast.study.pool import open_pool
from halocast.study.results import ResultFile
from halocast.study.scenario import Scenario
from halocast.study.search import Goal, RankedPlan, Tell, find_plan
from halocast.study.space import candidates
from halocast.study.sweep import result_path

FASTEST = Goal()


def plan(
    scenario: Scenario,
    goal: Goal = FASTEST,
    *,
    results: str | Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    exhaustive: bool = False,
    tell: Tell = lambda what, done, of, best: None,
) -> RankedPlan:
    """The best of all that a scenario's [plan] allows, ranked.

    Choices that do not fit in memory are dropped with the reason. Without `exhaustive` a choice is predicted only if
    its bound leaves it a chance to be the best of its method and cluster.
    """
    found = candidates(scenario)
    bounded = replace(goal, max_staleness=scenario.plan.max_staleness)
    with result_path(results) as path, ResultFile(path) as file, open_pool(jobs, dask) as pool:
        return find_plan(found, bounded, file, pool, exhaustive=exhaustive, tell=tell)
