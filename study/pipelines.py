"""Stages, ways and chunks of a pipeline, chosen by predicting every legal combination on the scenario's cluster."""

from dataclasses import dataclass, replace

from halocast.base.errors import InputError
from halocast.graph.graph import Graph
from halocast.methods import METHODS
from halocast.study.predict import Prediction, predict, scenario_cluster
from halocast.study.scenario import Scenario
from halocast.study.workload import Say, num_layers, silent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """A combination and what is predicted for it, or why it cannot be."""

    scenario: Scenario
    epoch_s: float = float("inf")
    memory_bytes: int = 0  # of the rank with the least head-room
    fits: bool = False
    reason: str = ""


def choose_pipeline(scenario: Scenario, *, graph: Graph | None = None, say: Say = silent) -> Scenario:
    """The scenario with the options of the shortest predicted epoch that fits in memory; the first of equal ones."""
    tried = try_pipelines(scenario, graph=graph, say=say)
    fitting = [combination for combination in tried if combination.fits]
    if not fitting:
        raise InputError(f"none of {len(tried)} combinations of stages, ways and chunks will do: {_least_bad(tried)}")
    return min(fitting, key=lambda combination: combination.epoch_s).scenario


def try_pipelines(scenario: Scenario, *, graph: Graph | None = None, say: Say = silent) -> list[Tried]:
    """Every legal combination that agrees with what the scenario's options say."""
    make, options = METHODS[scenario.method.name].choices, scenario.method.options
    if make is None:
        raise InputError(f"method {scenario.method.name} has no stages and chunks to choose")
    num_ranks = scenario_cluster(scenario).num_ranks
    choices = list(make(options, num_ranks, num_layers(scenario)))
    if not choices:
        raise InputError(f"no stages, ways and chunks that agree with the options make up {num_ranks} ranks")
    tried = []
    for number, choice in enumerate(choices, start=1):
        say(f"trying pipeline {number} of {len(choices)}")
        tried.append(_try(replace(scenario, method=replace(scenario.method, options=choice)), graph))
    return tried


def settled(
    scenario: Scenario, num_ranks: int | None = None, *, graph: Graph | None = None, say: Say = silent
) -> Scenario:
    """The scenario with what it leaves to choose (`method.choose = true`) chosen; for as many ranks of its cluster."""
    if not getattr(scenario.method.options, "choose", False):
        return scenario
    sized = replace(scenario, cluster=replace(scenario.cluster, gpus=num_ranks or scenario.cluster.gpus))
    return replace(scenario, method=choose_pipeline(sized, graph=graph, say=say).method)


def _try(scenario: Scenario, graph: Graph | None) -> Tried:
    try:
        prediction: Prediction = predict(scenario, graph=graph, lean=True)
    except InputError as error:
        return Tried(scenario=scenario, reason=str(error))
    summary = prediction.summary
    return Tried(
        scenario=scenario, epoch_s=summary.epoch_s, memory_bytes=summary.device_memory.memory_bytes, fits=summary.fits
    )


def _least_bad(tried: list[Tried]) -> str:
    predicted = [combination for combination in tried if combination.memory_bytes]
    if not predicted:
        return tried[0].reason
    least = min(predicted, key=lambda combination: combination.memory_bytes)
    options = least.scenario.method.options
    return (
        f"the smallest (stages = {options.stages}, ways = {options.ways}, chunks = {options.chunks}) "
        f"needs {least.memory_bytes / 2**30:.1f} GiB on one device"
    )
