"""The grid of validate: what is in it, how choices are read, which runs count as the same."""

from dataclasses import replace

import pytest

from halocast.base.errors import InputError
from halocast.methods import METHODS as KNOWN
from halocast.schedule.passes import hyperperiod
from halocast.study.validate import (
    METHODS,
    QUICK,
    Case,
    ValidationGrid,
    case_cluster,
    case_scenario,
    chosen_from,
    fingerprint,
    measured_epochs,
    with_epochs,
)
from halocast.study.workload import Workload, prepare

SMALL = ("graph.nodes=300", "graph.degree=6", "model.hidden=8")


def small(method: str, ranks: int = 4, *more: str) -> Workload:
    case = Case(link="200mbit", ranks=ranks, model="sage", graph="sparse", method=method)
    return prepare(case_scenario(case, (*SMALL, *more)), ranks, data=True)


def test_the_whole_grid_has_every_family_and_divided_stages_with_four_ranks_only() -> None:
    cases = [case for cell in ValidationGrid().cells() for case in cell]
    assert len(cases) == 3 * 2 * 2 * (8 + 9)
    assert {case.ranks for case in cases if case.method == "gnnpipe-hybrid"} == {4}
    families = {name.partition("-")[0] for name in KNOWN}
    assert {case.method.partition("-")[0] for case in cases} == families
    assert len({case.name for case in cases}) == len(cases)


def test_the_quick_grid_is_part_of_the_whole() -> None:
    whole = {case for cell in ValidationGrid().cells() for case in cell}
    assert {case for cell in QUICK.cells() for case in cell} <= whole


@pytest.mark.parametrize("method", METHODS)
def test_every_scenario_of_the_grid_is_legal_and_measured_over_whole_cycles(method: str) -> None:
    schedule = small(method).schedule
    warmup, epochs = measured_epochs(schedule, 12)
    period = hyperperiod(schedule)
    assert warmup % period == 0
    assert (epochs - warmup) % period == 0
    assert 3 <= warmup < 12 <= epochs <= 16


def test_choices_are_read_from_words_and_replace_only_what_they_name() -> None:
    grid = chosen_from(ValidationGrid(), {"methods": "vanilla, psc", "ranks": "2", "links": ""}, rounds=1)
    assert grid == ValidationGrid(methods=("vanilla", "psc"), ranks=(2,), rounds=1)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"methods": "vanila"}, "vanilla"),
        ({"models": "sag"}, "sage"),
        ({"links": "2gbit"}, "1gbit"),
        ({"ranks": "two"}, "--ranks two"),
        ({"ranks": "1"}, "--ranks 1"),
    ],
)
def test_a_choice_that_is_none_is_named(choice: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        chosen_from(ValidationGrid(), choice)


def test_emulated_hosts_share_the_cores_that_there_are() -> None:
    cluster = case_cluster(Case(link="1gbit", ranks=4, model="sage", graph="sparse", method="vanilla"), 3)
    assert (cluster.num_hosts, cluster.shared_cores) == (4, 3)
    own = case_cluster(Case(link="own", ranks=2, model="sage", graph="sparse", method="vanilla"), 2)
    assert (own.num_hosts, own.shared_cores) == (1, 2)


def test_gpus_share_no_cores() -> None:
    case = Case(link="rtx2080ti-x10-pcie3", ranks=2, model="sage", graph="sparse", method="vanilla")
    assert case_cluster(case, 2).shared_cores is None


def test_a_fingerprint_tells_other_settings_and_other_links_but_not_other_costs() -> None:
    case = Case(link="200mbit", ranks=2, model="sage", graph="sparse", method="vanilla")
    cluster = case_cluster(case, 2)
    workload = with_epochs(small("vanilla", 2), 12)
    same = fingerprint(workload, cluster)
    assert fingerprint(with_epochs(small("vanilla", 2), 12), replace(cluster, shared_cores=8)) == same
    cheaper = tuple(replace(op, work=replace(op.work, kernels=())) for op in workload.schedule.ops)
    assert fingerprint(replace(workload, schedule=replace(workload.schedule, ops=cheaper)), cluster) == same
    faster = case_cluster(replace(case, link="1gbit"), 2)
    others = [
        fingerprint(with_epochs(small("vanilla", 2), 15), cluster),
        fingerprint(workload, faster),
        fingerprint(with_epochs(small("vanilla", 2, "run.seed=1"), 12), cluster),
    ]
    assert len({same, *others}) == 4
