"""Training in virtual time: what accuracy, after how many seconds and dollars, on machines that are only described.

Numbers are trained for real, in one process per training; seconds are predicted. Cases and machines are predicted
first; then values of some keys (the learning rate) are searched for every case alike on validation, and the other seeds
train with the best. What is predicted and trained is kept in a file, as in a sweep.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from halocast.base.files import cache_dir
from halocast.base.records import require
from halocast.methods import families
from halocast.reports.curves import Curve
from halocast.study.cases import Case, combined_cases, parse_case, require_distinct, require_own_options_used
from halocast.study.clusters import scenario_cluster
from halocast.study.convergence import Convergence
from halocast.study.converging import LEARNING_RATE, Phase, Question, Study
from halocast.study.placed import divided
from halocast.study.pool import open_pool
from halocast.study.results import ResultFile, Tables
from halocast.study.run import require_torch
from halocast.study.scenario import Scenario, build_scenario, changed_tables
from halocast.study.stand_ins import stand_in_for, trained_source
from halocast.study.sweep import key_place
from halocast.study.targets import parse_budget, parse_target
from halocast.study.trainings import Plan, Values

EPOCHS = 200  # of a training that does not say how many
EVALUATIONS = 100  # of the longest training: epochs to a target are known to 1 % of it
PATIENCE = 0.5  # of the longest training: without a better validation score for so long, it ends
RESULTS = "converge.sqlite"
DIVISION = ("inductive", "partitioner", "objective", "balance", "seed")  # keys of [graph] that hold for any graph
TRIED = 3.0  # factor between learning rates that are tried


def converge(
    scenario: Scenario | Mapping[str, Any],
    *,
    cases: Sequence[str] = (),
    methods: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    tune: int | Mapping[str, Sequence[Any]] = 1,
    seeds: int = 3,
    tune_seeds: int = 1,
    patience: int | None = None,
    target: str | float = "95%",
    budget: str | float | None = None,
    stand_in: str | None = None,
    baseline: str | None = None,
    results: str | Path | None = None,
    jobs: int | None = None,
    train: bool = True,
    progress: Phase = lambda what, done, of: None,
    on_curve: Callable[[Curve], None] = lambda curve: None,
) -> Convergence:
    """Train cases of a scenario in virtual time: score over predicted seconds, dollars and epochs.

    `cases` are written as "bns rate=0.1"; `methods` and `vary` are combined ({"method.gamma": [0.5, 0.95]}). Keys of
    [cluster] and [world] in `vary` make a group of curves each: the same trainings where ranks meet. `tune` N tries as
    many learning rates per case, on validation; or it maps keys to values. `target` is a validation score, or a share
    of the best that exact training reaches. `budget` is in predicted time ("10min"). `stand_in` is a graph with data
    that is trained in place of the scenario's, whose seconds are predicted all the same. `results` names an SQLite file
    that keeps what is finished [one in the user's cache]; `train=False` trains nothing and tells what it has. A
    training ends after `patience` epochs without a better validation score [half of run.epochs; 0: never].
    """
    require_torch("halocast converge")
    tables = changed_tables(scenario) if isinstance(scenario, Scenario) else dict(scenario)
    said = {"vary": vary or {}, "methods": methods, "case": cases, "target": target, "budget": budget, "seeds": seeds}
    more = {"tune": tune, "tune-seeds": tune_seeds, "patience": patience, "stand-in": stand_in, "baseline": baseline}
    asked = Question(
        tables=tables,
        cases=tuple(_cases(tables, cases, methods, vary or {})),
        machines=divided(vary or {})[1],
        target=parse_target(target),
        budget_s=parse_budget(budget),
        plan=_plan(tables, range(seeds), tune, tune_seeds, patience, _trained_dataset(tables, stand_in, progress)),
        baseline=baseline,
        command=command_of({**said, **more}),
    )
    path = Path(results) if results is not None else usual_results()
    with ResultFile(path) as file, open_pool(jobs) as pool:
        study = Study(asked=asked, file=file, pool=pool, train=train, progress=progress, on_curve=on_curve)
        return study.answer()


def usual_results() -> Path:
    """The file that keeps what was predicted and trained, where none is named."""
    path = cache_dir() / RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def command_of(asked: Mapping[str, Any]) -> str:
    """The command line that asks the same, beside its scenario.toml."""
    words = ["halocast", "converge", "scenario.toml"]
    for option, value in asked.items():
        words += [word for text in _texts(option, value) for word in (f"--{option}", text)]
    return shlex.join(words)


def _texts(option: str, value: Any) -> Iterator[str]:
    """The values of an option as texts, one for each time it is given; none where it was not."""
    if isinstance(value, Mapping):
        yield from (f"{key}={','.join(toml(one) for one in values)}" for key, values in value.items())
    elif option == "methods":
        yield from [",".join(value)] if value else []
    elif option == "case":
        yield from value
    elif value is not None:
        yield str(value)


def toml(value: Any) -> str:
    """A value as TOML has it on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {toml(part)}' for key, part in value.items())}}}"
    return json.dumps(value) if not isinstance(value, list | tuple) else f"[{', '.join(map(toml, value))}]"


def _cases(
    tables: Tables, written: Sequence[str], methods: Sequence[str], vary: Mapping[str, Sequence[Any]]
) -> list[Case]:
    """The cases that were asked for; without any, one method of each family."""
    varied, _ = divided(vary)
    require(
        not (varied and written) or bool(methods), "vary: which methods? a case says its own keys (--methods bns,psc)"
    )
    named = methods or (() if written else families())
    cases = [*(parse_case(text) for text in written), *combined_cases(named, varied)]
    require_distinct(cases)
    require_own_options_used(tables, cases)
    return cases


def _plan(
    tables: Tables,
    seeds: range,
    tune: int | Mapping[str, Sequence[Any]],
    tune_seeds: int,
    patience: int | None,
    stand_in: str | None,
) -> Plan:
    run = tables.get("run", {})
    epochs, first = int(run.get("epochs", EPOCHS)), int(run.get("seed", 0))
    usual = max(1, round(PATIENCE * epochs))
    require(patience is None or patience >= 0, f"patience = {patience}: needs to be at least 0")
    return Plan(
        seeds=[first + number for number in seeds],
        num_tuned=min(tune_seeds, len(seeds)),
        tries=_tries(_rates(tables, tune) if isinstance(tune, int) else tune),
        epochs=epochs,
        patience=usual if patience is None else patience or None,
        eval_every=int(run.get("eval_every", 0)) or max(1, epochs // EVALUATIONS),
        graph=None if stand_in is None else trained_graph(tables, stand_in),
    )


def _trained_dataset(tables: Tables, stand_in: str | None, progress: Phase) -> str | None:
    """The graph that stands in for the scenario's, if one has to."""
    scenario = build_scenario({name: table for name, table in tables.items() if name != "plan"}, "scenario")
    num_parts = scenario_cluster(scenario).num_ranks
    return stand_in_for(scenario.graph, stand_in, num_parts, lambda text: progress(text, 0, 1))


def trained_graph(tables: Tables, dataset: str) -> dict[str, Any]:
    """The [graph] section of a graph that stands in: divided and split as the scenario's is."""
    own = tables.get("graph", {})
    return {**{key: own[key] for key in DIVISION if key in own}, **trained_source(dataset)}


def _rates(tables: Tables, num: int) -> dict[str, Sequence[float]]:
    """As many learning rates around the scenario's, each three times the one before."""
    require(num >= 1, f"tune = {num}: needs to be at least 1")
    middle = float(tables.get("run", {}).get("lr", Scenario().run.lr))
    rates = [float(f"{middle * TRIED ** (k - (num - 1) / 2):.2g}") for k in range(num)]
    return {LEARNING_RATE: rates} if num > 1 else {}


def _tries(tune: Mapping[str, Sequence[Any]]) -> tuple[Values, ...]:
    for key, values in tune.items():
        key_place(key, "tune")
        require(len(values) > 0, f"tune {key}: no values")
    return tuple(dict(zip(tune, values, strict=True)) for values in product(*tune.values()))
