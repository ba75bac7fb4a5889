"""Bounds of epochs: no prediction is below its bound, so a search that trusts bounds finds what trying all finds."""

from dataclasses import replace
from pathlib import Path

import profiles
import pytest

from halocast.calibrate.profile import FitTable, Overhead, calibrated, load_profile
from halocast.cluster.catalogue import load_cluster
from halocast.study.choices import RankedPlan, best_of_groups
from halocast.study.plan import plan
from halocast.study.predict import predict, predict_on
from halocast.study.scenario import PlanSection, Scenario, load_scenario
from halocast.study.screen import bound_s
from halocast.study.workload import prepare
from halocast.study.worlds import WorldSection

REDDIT = ("graph.dataset=reddit", "model.hidden=16", "model.layers=2")
METHODS = (
    *("vanilla", "pipegcn", "pipegcn-gf", "bns", "digest", "digest-a"),
    *("psc refresh=4", "psc refresh=10", "gnnpipe freeze=23", "gnnpipe freeze=3"),
)
WORLDS = {
    "perfect": WorldSection(),
    "uneven": WorldSection(speed={"0": 0.25, "1": 2.0}),
    "drawn": WorldSection(delay_s={"0": (0.01, 0.4)}, speed={"1": 0.5}, seed=3),
}


def priced(fit: FitTable, kind: str, factor: float) -> FitTable:
    """Sparse products by the bytes they read, all others a little."""
    return replace(fit, seconds={"byte_read": factor * 4.2e-13} if kind == "spmm" else {"launch": factor * 1e-5})


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a core whose caches keep every epoch, so that all kernels are warm: a quarter of what they take cold."""
    plain = profiles.profile_table(core_s_per_message=1e-3)
    cold, warm = ({kind: priced(fit, kind, factor) for kind, fit in plain.kernels.items()} for factor in (4, 1))
    table = replace(plain, kernels=cold, warm=warm, cache_bytes=1e12, busy={}, overhead=Overhead(op_s=1e-4))
    return profiles.write(tmp_path_factory.mktemp("profile") / "cold.toml", table)


def scenario(profile: Path, cluster: str, *settings: str) -> Scenario:
    return load_scenario("demo", [*REDDIT, f"cluster.name={cluster}", f"cluster.profile={profile}", *settings])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("method", METHODS)
def test_no_epoch_of_a_measured_device_is_shorter_than_its_bound(profile: Path, method: str, world: str) -> None:
    name, *options = method.split()
    settings = ("cluster.gpus=2", f"method.name={name}", *(f"method.{option}" for option in options))
    asked = replace(scenario(profile, "cpu-4x1-unlimited", *settings), world=WORLDS[world])
    found = predict(asked, lean=True)
    least_s = bound_s(found.workload.schedule, found.cluster, asked.world.world)
    assert 0 < least_s <= found.summary.epoch_s * (1 + 1e-9)
    if world == "perfect":
        assert least_s > 0.6 * found.summary.compute_s_max  # it says something: the rest is slowed by moving bytes


@pytest.mark.parametrize("method", ["vanilla", "psc", "gnnpipe"])
def test_no_epoch_of_ranks_that_share_cores_is_shorter_than_its_bound(profile: Path, method: str) -> None:
    asked = scenario(profile, "cpu-local", "cluster.gpus=4", f"method.name={method}")
    shared = replace(load_cluster("cpu-local", gpus=4), shared_cores=2)
    cluster, workload = calibrated(shared, load_profile(profile)), prepare(asked, 4)
    epoch_s = predict_on(workload, cluster, lean=True).summary.epoch_s
    assert 0 < bound_s(workload.schedule, cluster, asked.world.world) <= epoch_s


def labels(plan: RankedPlan) -> list[str]:
    return [f"{choice.candidate.label}: {choice.epoch_s:.3f} s" for choice in best_of_groups(plan.choices)]


@pytest.mark.parametrize("world", WORLDS)
def test_bounds_of_a_measured_device_hide_nothing_that_trying_all_finds(profile: Path, world: str) -> None:
    rare = {"psc": {"refresh": (4, 10)}, "gnnpipe": {"freeze": (3, 23)}}
    space = PlanSection(methods=("vanilla", "psc", "gnnpipe"), gpus=(2, 3, 4), options=rare)
    asked = replace(scenario(profile, "cpu-4x1-unlimited"), plan=space, world=WORLDS[world])
    searched, tried = (plan(asked, exhaustive=exhaustive, jobs=1) for exhaustive in (False, True))
    assert labels(searched) == labels(tried)


def test_one_gpu_with_warm_caches_is_found_though_cold_kernels_would_make_it_hopeless(profile: Path) -> None:
    """Bounds of cold kernels would have answered 3 GPUs, whose 0.287 s are less than a bound of 0.491 s for one."""
    space = PlanSection(methods=("vanilla",), gpus=(1, 2, 3, 4))
    asked = replace(scenario(profile, "cpu-4x1-unlimited"), plan=space)
    searched, tried = (plan(asked, exhaustive=exhaustive, jobs=1) for exhaustive in (False, True))
    assert labels(searched) == labels(tried) == ["vanilla on 1 x cpu-4x1-unlimited: 0.123 s"]
