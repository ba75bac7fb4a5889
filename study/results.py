"""Results of predictions in an SQLite file that many processes may share, and that survives any of them.

A row is a scenario, named by `scenario_key`: waiting, done, or refused with a reason. Who works on a row claims it for
some seconds and renews the claim; the claims of a process that is gone, or too late, are free again. A result is one
transaction: a process that is killed loses what it was working on, and nothing else.
"""

import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from halocast.base.errors import InputError, RunError
from halocast.reports.summary import Summary

APPLICATION_ID = 0x48414C4F  # says that a file is ours
FORMAT = 1
BUSY_S = 30.0  # how long to wait for another process's transaction; each takes milliseconds
MOST_ASKED = 500  # keys in one question
LEASE_S = 30.0  # a claim not renewed for so long is free
Tables = dict[str, Any]

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'done', 'refused')),
    scenario TEXT NOT NULL,
    result TEXT,
    owner TEXT,
    lease_until REAL,
    num_claims INTEGER NOT NULL DEFAULT 0,
    seconds REAL
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""


class State(StrEnum):
    WAITING = "waiting"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"  # in no file: the next time may do better


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A finished row: the figures of a prediction, or why there are none."""

    key: str
    state: State
    figures: dict[str, Any]  # as JSON; empty if there are none
    reason: str = ""

    @property
    def summary(self) -> Summary | None:
        """The figures of a prediction, read back."""
        return Summary.from_dict(self.figures) if self.figures else None


class ResultFile:
    """An open file of results. Every method is one transaction; errors of SQLite are told as errors about the file."""

    def __init__(self, path: Path, *, busy_s: float = BUSY_S) -> None:
        self.path = path
        self._owner = _own_name()
        with self._told():
            self._db = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        (mark,), (form,) = (
            self._db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        if tables and mark != APPLICATION_ID:
            raise InputError(f"{self.path}: is an SQLite file of something else, not of results")
        if tables and form != FORMAT:
            raise InputError(f"{self.path}: results of format {form}; this version writes format {FORMAT}")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")  # survives a killed process; a power cut may cost the last rows
        if not tables:
            self._db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")

    def __enter__(self) -> "ResultFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    def add(self, scenarios: Iterable[tuple[str, Tables]]) -> None:
        """Add scenarios to be predicted, by key; those that are there already stay as they are."""
        rows = [(key, State.WAITING, json.dumps(tables)) for key, tables in scenarios]
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO results (key, state, scenario) VALUES (?, ?, ?)", rows)

    def refuse(self, key: str, tables: Tables, reason: str) -> None:
        """Add a scenario that cannot be predicted, which is known without trying."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO results (key, state, scenario, result) VALUES (?, ?, ?, ?)",
                (key, State.REFUSED, json.dumps(tables), json.dumps(reason)),
            )

    def want(self, keys: Iterable[str]) -> None:
        """Restrict claims to these rows from now on; the file may hold those of other sweeps and versions."""
        with self._told():
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (key TEXT PRIMARY KEY)")
            self._db.execute("DELETE FROM wanted")
            self._db.executemany("INSERT OR IGNORE INTO wanted VALUES (?)", [(key,) for key in keys])

    def claim(self, num: int, lease_s: float = LEASE_S) -> list[tuple[str, Tables]]:
        """Claim up to `num` wanted scenarios that wait and that nobody works on; they are ours for some seconds."""
        with self._transaction() as db:
            free = self._free(db, num)
            until = time.time() + lease_s
            mine = [(self._owner, until, key) for key, _ in free]
            db.executemany(
                "UPDATE results SET owner = ?, lease_until = ?, num_claims = num_claims + 1 WHERE key = ?", mine
            )
        return [(key, json.loads(text)) for key, text in free]

    def _free(self, db: sqlite3.Connection, num: int) -> list[tuple[str, str]]:
        """Rows that may be claimed, in order of arrival: without a claim, or it has run out, or its owner is gone."""
        free: list[tuple[str, str]] = []
        wanted = db.execute(
            "SELECT key, scenario, owner, lease_until FROM wanted JOIN results USING (key)"
            " WHERE state = 'waiting' ORDER BY results.rowid"
        )
        for key, text, owner, until in wanted:
            if len(free) == num:
                break
            if owner is None or until < time.time() or _is_gone(owner):
                free.append((key, text))
        return free

    def renew(self, keys: Iterable[str], lease_s: float = LEASE_S) -> None:
        """Renew the claims on rows that we are still at work on."""
        until = time.time() + lease_s
        with self._transaction() as db:
            mine = [(until, key, self._owner) for key in keys]
            db.executemany("UPDATE results SET lease_until = ? WHERE key = ? AND owner = ?", mine)

    def finish(self, key: str, state: State, result: Any, seconds: float) -> None:
        """Write a result. One that is there already stays: both are of the same scenario and version."""
        with self._transaction() as db:
            db.execute(
                "UPDATE results SET state = ?, result = ?, seconds = ?, owner = NULL, lease_until = NULL"
                " WHERE key = ? AND state = 'waiting'",
                (state, json.dumps(result), seconds, key),
            )

    def release(self, keys: Iterable[str]) -> None:
        """Give claims back: somebody else may take them at once."""
        with self._transaction() as db:
            mine = [(key, self._owner) for key in keys]
            db.executemany("UPDATE results SET owner = NULL, lease_until = NULL WHERE key = ? AND owner = ?", mine)

    def give_up(self, key: str) -> None:
        """Let a row wait for another time: it is no longer claimed, nor wanted here."""
        self.release([key])
        with self._told():
            self._db.execute("DELETE FROM wanted WHERE key = ?", (key,))

    def num_waiting(self) -> int:
        """The number of wanted scenarios that are not finished."""
        with self._told():
            waiting = self._db.execute("SELECT count(*) FROM wanted JOIN results USING (key) WHERE state = 'waiting'")
            return int(waiting.fetchone()[0])

    def finished(self, keys: Sequence[str]) -> dict[str, Stored]:
        """The finished rows among these keys, by key."""
        stored = {}
        for key, state, result in self._finished(keys):
            value = json.loads(result)
            refused = state == State.REFUSED
            figures, reason = ({}, value) if refused else (value, "")
            stored[key] = Stored(key=key, state=State(state), figures=figures, reason=reason)
        return stored

    def _finished(self, keys: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        for first in range(0, len(keys), MOST_ASKED):
            some = keys[first : first + MOST_ASKED]
            where = f"state <> 'waiting' AND key IN ({', '.join('?' * len(some))})"
            with self._told():
                yield from self._db.execute(f"SELECT key, state, result FROM results WHERE {where}", some).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _explained(self.path, error) from None


def _explained(path: Path, error: sqlite3.Error) -> Exception:
    """The error that tells the file's owner what one of SQLite means."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY or code == sqlite3.SQLITE_LOCKED:
        return RunError(f"{path}: another process has locked the results for more than {BUSY_S:g} s; is one stuck?")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        why = "the disk is full" if code == sqlite3.SQLITE_FULL else f"the disk is full or fails ({error})"
        return RunError(f"{path}: {why}; what was finished is kept, run again to go on")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return InputError(f"{path}: is not a file of results, or is damaged ({error}); move it away or name another")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return InputError(f"{path}: cannot be opened for writing ({error})")
    return RunError(f"{path}: {error}")


def _own_name() -> str:
    """The name of this process as an owner: place, number, and when it started, since numbers are used again."""
    return json.dumps([_place(), os.getpid(), _started(os.getpid())])


def _is_gone(owner: str) -> bool:
    """Whether the owner was a process of this place that is no more; of others only their lease tells."""
    place, pid, started = json.loads(owner)
    return bool(place == _place() and started is not None and _started(pid) != started)


def _place() -> str:
    """The host and, in containers, the space in which process numbers mean something."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> int | None:
    """The start of a process, in ticks of the system; None where that cannot be told, or the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])
