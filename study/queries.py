"""Results of scenarios: whatever is not in the file yet is predicted, by a pool, with claims kept alive meanwhile.

What fails for a reason that may be gone the next time is in the answer but not in the file.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from halocast.base.errors import InputError, RunError
from halocast.study.pool import Pool
from halocast.study.predictor import PREDICT, Answer
from halocast.study.results import LEASE_S, ResultFile, State, Stored, Tables
from halocast.study.scenario import build_scenario, tables_of
from halocast.study.training import TRAIN, trainable
from halocast.study.version import scenario_key, training_key

LOOK_S = 0.5  # how often to look what others have finished
Progress = Callable[[int, int], None]  # finished, of


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A scenario to predict: its tables with all defaults, or as far as they go and why they are not legal."""

    key: str
    tables: Tables
    reason: str = ""


def query_of(tables: Mapping[str, Mapping[str, object]], task: str = PREDICT, **asked: Any) -> Query:
    """The query of a scenario's tables; equal scenarios give equal ones, whichever keys were left at a default.

    `asked` is what else the task takes.
    """
    raw = {section: dict(table) for section, table in tables.items() if section != "plan"}
    try:
        whole: Tables = dict(tables_of(build_scenario(raw, "scenario")))
    except InputError as error:
        return Query(key=scenario_key(raw), tables=raw, reason=str(error).removeprefix("scenario "))
    whole.pop("plan")
    named = whole if task == PREDICT else {**whole, "task": task, **({"asked": asked} if asked else {})}
    return Query(key=scenario_key(named), tables=named)


def training_of(tables: Mapping[str, Mapping[str, object]], **asked: Any) -> Query:
    """The query that trains a scenario in one process, named by no more than what a training depends on.

    `asked` is what else `train_alone` takes: patience, and the tables of a clock.
    """
    raw = {section: dict(table) for section, table in tables.items() if section != "plan"}
    try:
        whole: Tables = dict(tables_of(trainable(build_scenario(raw, "scenario"))))
    except InputError as error:
        return Query(key=training_key(raw, asked), tables=raw, reason=str(error).removeprefix("scenario "))
    whole.pop("plan")
    return Query(key=training_key(whole, asked), tables={**whole, "task": TRAIN, "asked": asked})


def complete(
    file: ResultFile, jobs: Iterable[Query], pool: Pool, progress: Progress = lambda done, of: None
) -> dict[str, Stored]:
    """The results of all jobs by key; those that others claim are waited for."""
    todo = {job.key: job for job in jobs}
    legal = [job for job in todo.values() if not job.reason]
    file.add([(job.key, job.tables) for job in legal])
    for job in todo.values():
        if job.reason:
            file.refuse(job.key, job.tables, job.reason)
    file.want([job.key for job in legal])
    work = _Work(file, pool, todo)
    try:
        while (left := file.num_waiting()) > 0:
            progress(len(todo) - left, len(todo))
            work.step()
    finally:
        work.give_up()
    progress(len(todo), len(todo))
    return file.finished(list(todo)) | work.failed


@dataclass(slots=True)
class _Work:
    """Queries that are under way in the pool."""

    file: ResultFile
    pool: Pool
    jobs: Mapping[str, Query]  # ours: the file's may differ in what no result depends on, such as the place of a graph
    running: "dict[Future[Answer], tuple[str, float]]" = field(default_factory=dict)  # key, since when
    renewed_s: float = 0.0
    failed: dict[str, Stored] = field(default_factory=dict)

    def step(self) -> None:
        """Keep the pool busy, and write what has been finished."""
        for key, _ in self.file.claim(self.pool.num_slots - len(self.running)):
            self.running[self.pool.submit(self.jobs[key].tables)] = key, time.monotonic()
        if not self.running:
            time.sleep(LOOK_S)  # others work on what is left
            return
        done, _ = wait(self.running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        for future in done:
            answer, (key, since_s) = future.result(), self.running.pop(future)
            self._keep(key, answer, time.monotonic() - since_s)
        self._renew()

    def _keep(self, key: str, answer: Answer, seconds: float) -> None:
        state = State(answer["state"])
        if state is State.FAILED:
            self.failed[key] = Stored(key=key, state=state, figures={}, reason=answer["result"])
            self.file.give_up(key)
        else:
            self.file.finish(key, state, answer["result"], seconds)

    def _renew(self) -> None:
        if time.monotonic() - self.renewed_s > LEASE_S / 3:
            self.file.renew(key for key, _ in self.running.values())
            self.renewed_s = time.monotonic()

    def give_up(self) -> None:
        for future in self.running:
            future.cancel()
        if self.running:
            with suppress(RunError, InputError):  # if the file is what failed, the claims run out by themselves
                self.file.release(key for key, _ in self.running.values())
