"""Predictions of all runs of published rows: on all cores, each run once, kept by what it depends on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from halocast.base.errors import InputError
from halocast.base.files import cache_dir
from halocast.study.descriptions import Descriptions
from halocast.study.pool import Pool, open_pool
from halocast.study.predictor import PUBLISHED, Answer, answer
from halocast.study.published_figures import Figures, tables_of_row
from halocast.study.published_rows import Row, Setting, setting_of
from halocast.study.queries import Progress, Query, complete
from halocast.study.results import ResultFile, Tables
from halocast.study.version import figures_version

# A row's columns that a prediction may depend on; the others say what was measured, and where that stands.
RUN = (
    "source",
    "dataset",
    "train_graph",
    "model",
    "layers",
    "n_linear",
    "hidden",
    "testbed",
    "gpus",
    "nodes",
    "method",
)
FEW = 6  # runs that are predicted before other processes would have started


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How to predict: with whose descriptions, kept in which file, by how many processes."""

    own: Descriptions
    results: Path | None = None
    jobs: int | None = None


class Runs:
    """The settings of rows, and the figures of those that were predicted."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._settings: dict[str, Setting | InputError] = {}
        self._figures: dict[str, Figures | InputError] = {}

    @property
    def own(self) -> Descriptions:
        return self._asked.own

    def setting(self, row: Row) -> Setting:
        """The setting of a row; rows of one run share it."""
        key = _run_key(row)
        if key not in self._settings:
            self._settings[key] = _setting_or_error(row, self._asked.own)
        outcome = self._settings[key]
        if isinstance(outcome, InputError):
            raise outcome
        return outcome

    def figures(self, row: Row) -> Figures:
        """Every metric of a row that was predicted."""
        outcome = self._figures[self.setting(row).key]
        if isinstance(outcome, InputError):
            raise outcome
        return outcome

    def predict(self, rows: Sequence[Row], progress: Progress) -> None:
        """Predict every run among these rows; which of them cannot be is told when they are asked for."""
        rows_by_key: dict[str, Row] = {}
        for row in rows:
            outcome = self._settings.get(_run_key(row)) or _setting_or_error(row, self._asked.own)
            self._settings[_run_key(row)] = outcome
            if isinstance(outcome, Setting):
                rows_by_key.setdefault(outcome.key, row)
        queries = {
            key: self._query(row)
            for key, row in sorted(rows_by_key.items(), key=lambda stored_run: -_size(stored_run[1]))
        }
        path = self._asked.results or cache_dir() / "published.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        with ResultFile(path) as file, self._pool(file, queries) as pool:
            stored = complete(file, queries.values(), pool, progress)
        for key, query in queries.items():
            stored_run = stored[query.key]
            self._figures[key] = InputError(stored_run.reason) if stored_run.reason else stored_run.figures

    def _pool(self, file: ResultFile, queries: Mapping[str, Query]) -> AbstractContextManager[Pool]:
        missing = len(queries) - len(file.finished([query.key for query in queries.values()]))
        return nullcontext(_Here()) if missing <= FEW else open_pool(self._asked.jobs)

    def _query(self, row: Row) -> Query:
        run = {name: row[name] for name in row if name in (*RUN, "params", "where", "note")}
        return Query(key=self._name(row), tables={**tables_of_row(run, self._asked.own), "task": PUBLISHED})

    def _name(self, row: Row) -> str:
        """The name of a prediction: that of the code, the constants, and all that the setting is made of."""
        setting = self.setting(row)
        said = [figures_version(), setting.key, repr(setting.cluster.devices[0]), repr(setting.cluster)]
        own = self._asked.own.clusters.get(setting.cluster.name)
        said.append("" if own is None else own.read_text(encoding="utf-8"))
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


class _Here:
    """A pool that is this process, for a few runs."""

    num_slots = 1

    def submit(self, tables: Tables) -> "Future[Answer]":
        future: Future[Answer] = Future()
        future.set_result(json.loads(json.dumps(answer(tables))))
        return future


def _run_key(row: Row) -> str:
    return json.dumps([*(row[name] for name in RUN), row["params"]])


def _setting_or_error(row: Row, own: Descriptions) -> Setting | InputError:
    try:
        return setting_of(row, own)
    except InputError as error:
        return error


def _size(row: Row) -> int:
    """About how long a prediction takes: the long ones first keep all cores busy to the end."""
    return int(row["layers"] or 1) * int(row["gpus"] or 1) ** 2
