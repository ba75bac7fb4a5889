"""A process that predicts scenarios, or trains them: it reads one per line and answers each with a line.

It ends when its input does, and in the middle of a scenario when whoever started it is gone.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from halocast.base.errors import InputError, RunError
from halocast.reports.summary import Summary, as_flat
from halocast.study.graph_figures import GRAPH, KnownGraph, known_graph
from halocast.study.pipelines import settled
from halocast.study.predict import predict
from halocast.study.published_figures import figures_of_tables
from halocast.study.results import State, Tables
from halocast.study.scenario import Scenario, build_scenario
from halocast.study.screen import Screened, screen
from halocast.study.timing import TIME, EpochTiming, time_it
from halocast.study.training import TRAIN, Trained, train_alone
from halocast.study.version import prediction_version

Answer = dict[str, Any]  # state; result: figures, or the reason why there are none


def answer(tables: Tables) -> Answer:
    """The figures of a scenario, or why it has none; `task` says which, `asked` what else there is to it."""
    try:
        figures = TASKS[tables.get("task", PREDICT)](tables)
    except InputError as error:
        return {"state": State.REFUSED, "result": " ".join(str(error).split())}
    except (RunError, MemoryError) as error:
        return failure(tables, " ".join(str(error).split()))
    return {"state": State.DONE, "result": figures}


def failure(tables: Tables, reason: str) -> Answer:
    """The answer where legal work could not be finished: a prediction would fail again, a training need not."""
    state = State.FAILED if tables.get("task") == TRAIN else State.REFUSED
    return {"state": state, "result": reason or "out of memory"}


def doing(tables: Tables) -> str:
    """The word for what was being done with a scenario."""
    return "trained" if tables.get("task") == TRAIN else "predicted"


def _predict(scenario: Scenario) -> Summary:
    return predict(scenario, lean=True).summary


Figures = Summary | Screened | EpochTiming | KnownGraph | Trained


def _of_scenario(ask: Callable[..., Figures]) -> Callable[[Tables], Mapping[str, Any]]:
    """The same question about the scenario that tables say."""

    def asked(tables: Tables) -> Mapping[str, Any]:
        sections = {name: table for name, table in tables.items() if name not in ("task", "asked")}
        return as_flat(ask(settled(build_scenario(sections, "scenario")), **tables.get("asked", {})))

    return asked


PREDICT, SCREEN, PUBLISHED = "predict", "screen", "published"
TASKS: Mapping[str, Callable[[Tables], Mapping[str, Any]]] = MappingProxyType(
    {
        PREDICT: _of_scenario(_predict),
        SCREEN: _of_scenario(screen),
        TIME: _of_scenario(time_it),
        GRAPH: _of_scenario(known_graph),
        TRAIN: _of_scenario(train_alone),
        PUBLISHED: figures_of_tables,
    }
)
LOOK_S = 0.5  # how often to look whether whoever started us is still there


def answer_as(version: str, tables: Tables) -> Answer:
    """Answer like `answer`, on a machine whose code may be another one: that is refused."""
    if version != prediction_version():
        raise RunError(f"a worker has version {prediction_version()} of the predicting code, not {version}")
    return answer(tables)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; who started us closes our input
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # nothing that a library prints may come between the lines
    os.dup2(2, 1)
    for line in sys.stdin:
        said = json.dumps(answer(json.loads(line))) + "\n"
        try:
            answers.write(said)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # nobody is left to hear it, nor a complaint about that


def _leave(number: int, frame: object) -> None:
    """Leave by an exception, so that a training ends its ranks and removes its files."""
    raise SystemExit(128 + number)


def _end_with(parent: int) -> None:
    """End in the middle of a scenario once nobody waits for its answer; the ranks of a training end with us."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
