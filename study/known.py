"""What trainings tell of a plan's choices: how many epochs each needs to a target, where that is known.

Where ranks meet, epochs depend on the graph, the method and the number of ranks, but on no machine: each number of GPUs
is asked for on one cluster. Where they depend on the order of events, every cluster is asked for itself.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from halocast.base.errors import InputError
from halocast.cluster.catalogue import list_clusters
from halocast.reports.converge.answer import goal_text
from halocast.reports.converge.targets import Reached, reached
from halocast.reports.curves import Converged
from halocast.study.asked_accuracy import Accuracy
from halocast.study.candidates import Candidate
from halocast.study.choices import Choice, PlanTarget
from halocast.study.clusters import scenario_cluster
from halocast.study.converge import converge, toml
from halocast.study.results import Tables
from halocast.study.scenario import Scenario, build_scenario, changed_tables
from halocast.study.stand_ins import stand_in_for

Key = tuple[str, int, str]  # a case, a number of GPUs, and a cluster where that matters
MISSED = "does not meet the target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Trainings of a plan's choices and their target; or the reason why nothing is known."""

    target: PlanTarget
    by_key: Mapping[Key, Reached] = field(default_factory=dict)

    def told(self, choices: Sequence[Choice]) -> tuple[list[Choice], list[tuple[Candidate, str]]]:
        """Choices with what is known of them, and those that were trained and do not meet the target."""
        known = [replace(choice, reached=self._of(choice)) for choice in choices]
        missed = [choice for choice in known if choice.reached is not None and choice.reached.epochs is None]
        reasons = [(choice.candidate, f"{MISSED}: {choice.reached.text}") for choice in missed if choice.reached]
        return [choice for choice in known if choice not in missed], reasons

    def _of(self, choice: Choice) -> Reached | None:
        return self.by_key.get(key_of(choice))


def key_of(choice: Choice) -> Key:
    cluster = choice.candidate.cluster if choice.screened.order_matters else ""
    return case_of(choice.candidate), choice.gpus, cluster


def case_of(candidate: Candidate) -> str:
    """A candidate as a case of a study: its method and what was chosen for it."""
    chosen = [f"{key}={toml(value)}" for key, value in candidate.options.items()]
    divided = [f"graph.partitioner={candidate.partitioner}"] if candidate.partitioner != "metis" else []
    return " ".join([candidate.method, *chosen, *divided])


def learn(scenario: Scenario, choices: Sequence[Choice], accuracy: Accuracy, *, train: bool) -> Known:
    """What is known of some choices: from trainings that are kept, or with `train` from new ones as well.

    One graph is trained for all, and one score is the target: that of the first choices that say what a share is of.
    """
    known = Known(target=PlanTarget(reason="nothing is trained yet"))
    named = _trained_dataset(scenario, choices, accuracy)
    for (cluster, gpus), asked in _asked(choices).items():
        target = accuracy.target if known.target.score is None else known.target.score
        try:
            study = _converged(
                scenario, (cluster, gpus), asked, replace(accuracy, target=target, stand_in=named), train
            )
        except InputError as error:
            if train:
                raise
            known = known if known.by_key else Known(target=PlanTarget(reason=str(error)))
            continue
        known = _joined(known, study, asked)
    return known


def _asked(choices: Sequence[Choice]) -> dict[tuple[str, int], list[Choice]]:
    """The choices that each cluster is asked for, by the number of GPUs; exact ones come first."""
    asked: dict[tuple[str, int], list[Choice]] = defaultdict(list)
    seen: set[Key] = set()
    homes: dict[int, str] = {}
    for choice in sorted(choices, key=lambda choice: not choice.exact):
        home = homes.setdefault(choice.gpus, choice.candidate.cluster)
        key = key_of(choice)
        if key not in seen:
            seen.add(key)
            asked[key[2] or home, choice.gpus].append(choice)
    return asked


def _trained_dataset(scenario: Scenario, choices: Sequence[Choice], accuracy: Accuracy) -> str | None:
    """The graph that stands in for the scenario's, if one has to: as `converge` makes it for the first cluster."""
    first = build_scenario(_tables(scenario, choices[0].candidate.cluster, choices, None), "scenario")
    num_parts = scenario_cluster(first).num_ranks
    return stand_in_for(scenario.graph, accuracy.stand_in, num_parts, lambda text: accuracy.progress(text, 0, 1))


def _converged(
    scenario: Scenario, place: tuple[str, int], asked: Sequence[Choice], accuracy: Accuracy, train: bool
) -> Converged:
    return converge(
        _tables(scenario, place[0], asked, place[1]),
        cases=list(dict.fromkeys(case_of(choice.candidate) for choice in asked)),
        target=accuracy.target,
        seeds=accuracy.seeds,
        stand_in=accuracy.stand_in,
        jobs=accuracy.jobs,
        progress=accuracy.progress,
        train=train,
    ).content


def _tables(scenario: Scenario, cluster: str, choices: Sequence[Choice], gpus: int | None) -> Tables:
    """The scenario on some GPUs of a cluster; options of its own method only where that is a case."""
    tables = {name: dict(table) for name, table in changed_tables(scenario).items() if name != "plan"}
    if scenario.method.name not in {choice.candidate.method for choice in choices}:
        tables.pop("method", None)
    section = {key: value for key, value in tables.get("cluster", {}).items() if key not in ("name", "file")}
    section["name" if cluster in list_clusters() else "file"] = cluster
    tables["cluster"] = section if gpus is None else {**section, "gpus": gpus}
    return tables


def _joined(known: Known, study: Converged, asked: Sequence[Choice]) -> Known:
    """What is known with one more study; a curve without a training says nothing."""
    curves = {curve.label: curve for curve in study.curves if curve.seeds}
    by_key = dict(known.by_key)
    for choice in asked:
        curve = curves.get(case_of(choice.candidate))
        if curve is not None:
            most = study.max_epochs
            by_key[key_of(choice)] = reached(curve, study.target, budget_s=study.budget_s, max_epochs=most)
    if not by_key:
        return known
    goal = known.target.goal or goal_text(study)
    target = PlanTarget(goal=goal, score=study.target, trained=study.trained.name, timed=study.timed.name)
    return Known(target=target, by_key=by_key)
