"""A store in a Redis server: a block of rows is one string of records, each a row after its version.

The server runs one command or script at a time, so a record is never torn and a process that dies in the middle of a
push leaves whole rows. The rows of a block travel in one request, a range or a script that picks runs of neighbouring
rows, and several requests are on the way together, so that scattered rows do not cost a round trip each.
"""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self
from urllib.parse import urldefrag, urlsplit

import numpy as np
import redis
from numpy.typing import NDArray
from redis.backoff import NoBackoff
from redis.retry import Retry

from halocast.base.errors import InputError, RunError
from halocast.base.records import record
from halocast.exec.store.blocks import Ids, Piece, Table, Values

BATCH_BLOCKS = 16  # requests on the way together: enough to keep the server busy, few enough to bound its buffers
KEEP_S = 7 * 24 * 3600  # after the last push, should the creator be killed before it can remove the store

# KEYS: the block; ARGV: bytes per record, runs as pairs of uint32 (first record, number of records)
GATHER = """
local size, found = tonumber(ARGV[1]), {}
for at = 1, #ARGV[2], 8 do
  local first, count = struct.unpack('<I4I4', ARGV[2], at)
  found[#found + 1] = redis.call('GETRANGE', KEYS[1], first * size, (first + count) * size - 1)
end
return found
"""
# also ARGV: the records of all runs
SCATTER = """
local size, from = tonumber(ARGV[1]), 1
for at = 1, #ARGV[2], 8 do
  local first, count = struct.unpack('<I4I4', ARGV[2], at)
  redis.call('SETRANGE', KEYS[1], first * size, string.sub(ARGV[3], from, from + count * size - 1))
  from = from + count * size
end
"""
# KEYS: the only block; ARGV: the version its record must still have, the new record, seconds to keep it
SWAP = """
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""


class RedisBackend:
    def __init__(self, client: redis.Redis, url: str, store: str, timeout_s: float) -> None:
        self._client = client
        self._url = url
        self._store = store  # the prefix of its keys
        self._timeout_s = timeout_s
        self._creator = False
        self.tables: tuple[Table, ...] = ()

    @classmethod
    def create(cls, where: str, tables: tuple[Table, ...], timeout_s: float) -> Self:
        backend = cls(_client(where, timeout_s), where, f"halocast-{uuid.uuid4().hex}", timeout_s)
        backend.tables, backend._creator = tables, True
        described = json.dumps([asdict(table) for table in tables])
        try:
            with backend._asking("create"):
                for table in tables:
                    backend._reserve(table)
                backend._client.set(backend._store, described, ex=KEEP_S)
        except RunError:
            backend._abandon()
            raise
        return backend

    @classmethod
    def attach(cls, address: str, timeout_s: float) -> Self:
        url, store = urldefrag(address)
        backend = cls(_client(url, timeout_s), url, store, timeout_s)
        with backend._asking("open"):
            described: Any = backend._client.get(store)
        if described is None:
            raise RunError(f"store {_shown(url)}#{store}: there is none (or no longer)")
        backend.tables = tuple(record(Table, table, f"store {_shown(url)}") for table in json.loads(described))
        return backend

    @property
    def address(self) -> str:
        return f"{self._url}#{self._store}"

    def write(self, table: Table, cut: list[Piece], values: Values, version: int) -> None:
        form = _record(table)
        for batch in _batches(cut):
            pipe = self._client.pipeline(transaction=False)
            for piece in batch:
                records = np.empty(piece.num_rows, form)
                records["version"] = version + 1
                records["row"] = values[piece.at]
                key, content = self._key(table, piece.block), records.view("u1").data
                pipe.expire(key, KEEP_S)  # says whether the block is there; a write would make a new one
                if isinstance(piece.rows, slice):
                    pipe.setrange(key, _bytes(table, piece)[0], content)
                else:
                    pipe.eval(SCATTER, 1, key, form.itemsize, _runs(table, piece), content)
            replies = self._execute(pipe, f"push of {_named(table, batch)}")
            missing = [piece.block for piece, there in zip(batch, replies[::2], strict=True) if not there]
            if missing:
                with self._asking("push"):
                    self._client.unlink(*(self._key(table, block) for block in missing))
                raise self._gone(table)

    def read(self, table: Table, cut: list[Piece], values: Values, versions: Ids) -> None:
        form = _record(table)
        for batch in _batches(cut):
            pipe = self._client.pipeline(transaction=False)
            for piece in batch:
                key = self._key(table, piece.block)
                if isinstance(piece.rows, slice):
                    pipe.getrange(key, *_bytes(table, piece))
                else:
                    pipe.eval(GATHER, 1, key, form.itemsize, _runs(table, piece))
            replies = self._execute(pipe, f"pull of {_named(table, batch)}")
            for piece, reply in zip(batch, replies, strict=True):
                whole = b"".join(reply) if isinstance(reply, list) else reply
                records = self._records(table, whole, piece.num_rows)
                values[piece.at] = records["row"]
                versions[piece.at] = records["version"] - 1

    def add(self, table: Table, delta: Values) -> int:
        """Read, add here, and write if nobody else has meanwhile; of those who try at once, one always gets through."""
        key, deadline = self._key(table, 0), time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            with self._asking(f"add to table {table.name!r}"):
                reply: Any = self._client.get(key)
                records = self._records(table, reply or b"", 1).copy()
                before = records["version"].tobytes()
                records["row"] += delta
                records["version"] += 1
                if self._client.eval(SWAP, 1, key, before, records.tobytes(), str(KEEP_S)):
                    return int(records["version"][0]) - 1
        place = f"store {_shown(self._url)}: add to table {table.name!r}"
        raise RunError(f"{place}: others were faster for {self._timeout_s:g} s")

    def close(self) -> None:
        try:
            if self._creator:
                with self._asking("close"):
                    self._remove()
        finally:
            self._creator = False
            self._client.close()

    def _remove(self) -> None:
        for table in self.tables:
            self._client.unlink(*(self._key(table, block) for block in range(table.num_blocks)))
        self._client.unlink(self._store)

    def _abandon(self) -> None:
        """Remove what a failed creation has left, if the server still listens."""
        try:
            self._remove()
        except redis.RedisError:
            pass  # the error of the creation says more
        finally:
            self._client.close()

    def _reserve(self, table: Table) -> None:
        """Write zeros for all blocks, so that a server without room says so now."""
        size = _record(table).itemsize
        for block in range(table.num_blocks):
            key = self._key(table, block)
            self._client.setrange(key, len(table.rows_of(block)) * size - 1, b"\0")
            self._client.expire(key, KEEP_S)

    def _key(self, table: Table, block: int) -> str:
        return f"{self._store}:{table.name}:{block}"

    def _records(self, table: Table, reply: bytes, count: int) -> NDArray[Any]:
        form = _record(table)
        if len(reply) != count * form.itemsize:
            raise self._gone(table)
        return np.frombuffer(reply, form)

    def _gone(self, table: Table) -> RunError:
        place = f"store {_shown(self._url)}: table {table.name!r}"
        return RunError(f"{place}: rows are gone (the store was closed, or the server evicts keys)")

    def _execute(self, pipe: Any, what: str) -> list[Any]:
        with self._asking(what):
            return list(pipe.execute())

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        except redis.RedisError as error:
            taken = f"after {time.monotonic() - start:.1f} s (limit {self._timeout_s:g} s)"
            raise RunError(f"store {_shown(self._url)}: {what} failed {taken}: {error}") from None


def _client(url: str, timeout_s: float) -> redis.Redis:
    """A client without retries, which would multiply the time limit, and repeat an addition that was only slow."""
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise InputError(f"store {_shown(url)}: not a place like redis://HOST:PORT/DB ({error})") from None


def _shown(url: str) -> str:
    """The address without a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _record(table: Table) -> np.dtype[Any]:
    """The layout of a row on the server; its version is stored plus one, so that zeros say -1."""
    row = table.held.newbyteorder("<")
    return np.dtype([("version", "<i8"), ("row", row, (table.width,))])


def _bytes(table: Table, piece: Piece) -> tuple[int, int]:
    """The first and last byte, in its block, of a piece that is a range."""
    size, first = _record(table).itemsize, table.rows_of(piece.block).start
    assert isinstance(piece.rows, slice)
    return (piece.rows.start - first) * size, (piece.rows.stop - first) * size - 1


def _runs(table: Table, piece: Piece) -> bytes:
    """The piece's rows, counted from the block's first, as (first, count) of neighbours."""
    assert not isinstance(piece.rows, slice)
    starts = np.flatnonzero(np.diff(piece.rows, prepend=-2) != 1)
    counts = np.diff(starts, append=piece.num_rows)
    return np.stack([piece.rows[starts] - table.rows_of(piece.block).start, counts], axis=1).astype("<u4").tobytes()


def _batches(cut: list[Piece]) -> Iterator[list[Piece]]:
    for start in range(0, len(cut), BATCH_BLOCKS):
        yield cut[start : start + BATCH_BLOCKS]


def _named(table: Table, batch: list[Piece]) -> str:
    return f"{sum(piece.num_rows for piece in batch)} rows of table {table.name!r}"
