"""The store that stale rows travel through: named tables of rows that ranks push to and pull from, without meeting.

`shared:` keeps the tables in memory shared by the processes of a host, `redis://HOST:PORT/DB` in a Redis server,
`private:` in the memory of one process, all of whose ranks share one store object.
One process creates the store and removes it by closing it; its address is a string that every rank opens. Each row
is read as one push wrote it, with the version (epoch) of that push; rows of one pull may differ in version.
A table of one row serves as a vector that many ranks add to, each addition in one step.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from halocast.base.errors import InputError, RunError, unknown
from halocast.exec.store.blocks import Backend, Ids, Rows, Table, Values, pieces
from halocast.exec.store.in_memory import SharedBackend
from halocast.exec.store.private import PrivateBackend

TIMEOUT_S = 120.0


def create_store(tables: Iterable[Table], where: str = "shared:", timeout_s: float = TIMEOUT_S) -> "Store":
    """Make a store at `shared:`, `shared:DIRECTORY` or `redis://HOST:PORT/DB`; closing it removes it for all."""
    chosen = tuple(tables)
    if len({table.name for table in chosen}) != len(chosen):
        raise InputError(f"store: tables must differ in name, got {', '.join(table.name for table in chosen)}")
    return Store(_backend(where).create(where, chosen, timeout_s))


def open_store(address: str, timeout_s: float = TIMEOUT_S) -> "Store":
    """The store with this address; every process opens its own (a store does not survive a fork)."""
    return Store(_backend(address).attach(address, timeout_s))


class Store:
    """One process's view of a store; its threads may share it. No operation waits longer than the time limit."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tables = {table.name: table for table in backend.tables}

    @property
    def address(self) -> str:
        """The address that `open_store` needs in another process; in Redis, with the password if `where` had one."""
        return self._backend.address

    def push(self, table: str, rows: Rows, values: ArrayLike, version: int) -> None:
        """Write rows (a slice, or ids in any order; of equal ids the last counts) as of `version`, which is >= 0."""
        kind = self._table(table)
        if version < 0:
            raise InputError(f"store: push of table {table!r}: version {version} is negative")
        picked, order = _ascending(kind, rows)
        given = _checked(kind, values, (_count(picked), kind.width))
        given = np.ascontiguousarray(given if order is None else given[order])
        self._backend.write(kind, list(pieces(kind, picked)), given, version)

    def pull(self, table: str, rows: Rows) -> tuple[Values, Ids]:
        """Copies of rows, and of each the version it was pushed with (-1: never pushed)."""
        kind = self._table(table)
        picked, order = _ascending(kind, rows)
        values = np.empty((_count(picked), kind.width), kind.held)
        versions = np.empty(len(values), np.int64)
        self._backend.read(kind, list(pieces(kind, picked)), values, versions)
        if order is None:
            return values, versions
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return values[back], versions[back]

    def add(self, table: str, delta: ArrayLike) -> int:
        """Add to the vector of a one-row table in one step; returns its new version, one more than before.

        Push its first value before anyone adds: a push beside additions may be lost.
        """
        kind = self._vector(table)
        if kind.held != kind.dtype:
            raise InputError(f"store: table {table!r} holds the bits of {kind.dtype}, which cannot be added to")
        return self._backend.add(kind, np.ascontiguousarray(_checked(kind, delta, (kind.width,))))

    def read(self, table: str) -> tuple[Values, int]:
        """The vector of a one-row table and its version."""
        values, versions = self.pull(self._vector(table).name, slice(0, 1))
        return values[0], int(versions[0])

    def close(self) -> None:
        """Let go of the store; if this process created it, remove it. A second call does nothing."""
        self._tables = {}
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _table(self, name: str) -> Table:
        if not self._tables:
            raise RunError(f"store: table {name!r} was asked for after the store was closed")
        if name not in self._tables:
            raise unknown("table", name, self._tables, "store")
        return self._tables[name]

    def _vector(self, name: str) -> Table:
        table = self._table(name)
        if table.num_rows != 1:
            raise InputError(f"store: table {name!r} has {table.num_rows} rows; only a table of one row is a vector")
        return table


def _ascending(table: Table, rows: Rows) -> tuple[Rows, Ids | None]:
    """The rows as a slice or ascending ids, and the order that sorted them if they were not ascending."""
    if isinstance(rows, slice):
        start, stop, step = rows.indices(table.num_rows)
        if step != 1 or (rows.stop or 0) > table.num_rows:
            raise InputError(f"store: {rows} is no range of the {table.num_rows} rows of table {table.name!r}")
        return slice(start, max(start, stop)), None
    ids = np.asarray(rows)
    if ids.ndim != 1 or ids.dtype != np.int64:
        given = f"{ids.ndim}-D {ids.dtype}"
        raise InputError(f"store: row ids of table {table.name!r} must be one-dimensional int64, not {given}")
    if len(ids) and (ids.min() < 0 or ids.max() >= table.num_rows):
        wrong = ids[(ids < 0) | (ids >= table.num_rows)][0]
        raise InputError(f"store: table {table.name!r} has rows 0 to {table.num_rows - 1}, not {wrong}")
    steps = np.diff(ids)
    if len(ids) and (steps == 1).all():
        return slice(int(ids[0]), int(ids[-1]) + 1), None
    if (steps >= 0).all():
        return ids, None
    order = np.argsort(ids, kind="stable")
    return ids[order], order


def _count(rows: Rows) -> int:
    return int(rows.stop - rows.start) if isinstance(rows, slice) else len(rows)


def _checked(table: Table, values: ArrayLike, shape: tuple[int, ...]) -> Values:
    array = np.asarray(values)
    if array.shape != shape or array.dtype != table.held:
        given, wanted = f"{array.dtype} of shape {array.shape}", f"{table.held} of shape {shape}"
        raise InputError(f"store: values for table {table.name!r} are {given}; expected {wanted}")
    return array


def _backend(address: str) -> type[Backend]:
    scheme = address.partition(":")[0]
    if scheme not in BACKENDS:
        raise unknown("kind of store", scheme, BACKENDS)  # not the address: it may hold a password
    return BACKENDS[scheme]()


def _shared() -> type[Backend]:
    return SharedBackend


def _redis() -> type[Backend]:
    try:
        from halocast.exec.store.in_redis import RedisBackend  # its client is an optional dependency
    except ModuleNotFoundError as error:
        raise InputError(f"a store in Redis needs its client ({error}): pip install 'halocast[redis]'") from None
    return RedisBackend


def _private() -> type[Backend]:
    return PrivateBackend


BACKENDS: Mapping[str, Callable[[], type[Backend]]] = MappingProxyType(
    {"shared": _shared, "redis": _redis, "private": _private}
)
