"""A store in files mapped by every process of a (Linux) host, in a directory of its own under /dev/shm.

Plain files instead of POSIX shared-memory objects: Python 3.11 lets every process that attaches to such an object
remove it when it ends. The creator removes the directory; if it is killed, the next store made there does.

Why no row is torn: who copies rows of a block, in or out, holds the kernel's lock on the block's byte of the table's
file, shared for readers and exclusive for writers. Releasing and taking the lock order the copies on any processor,
which counters beside the rows would not do without fences that numpy cannot express. The kernel releases the locks of
a process that dies; the block's mark, set while it is written, then says that it may be half written.
A lock is held for one block's copy (well under a millisecond), so readers delay a writer by no more than that each.
"""

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from halocast.base.errors import InputError, RunError
from halocast.base.records import record
from halocast.exec.store.blocks import Ids, Piece, Table, Values

PREFIX = "halocast-store-"
SHM = Path("/dev/shm")
FLOCK = "hhqqi0q"  # C's struct flock: type, whence, start, length, pid
PAUSES_S = (0.0, 2e-5, 1e-4, 1e-3)  # between tries for a lock; the last one repeats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mapped:
    """One table's file. The lock is for threads: they share the file's description and thus the kernel's locks."""

    table: Table
    file: int
    versions: Ids  # plus one, so that a new file, all zeros, says -1
    rows: Values
    marks: NDArray[np.uint8]  # per block: being written
    turn: threading.Lock = field(default_factory=threading.Lock)


def file_bytes(table: Table) -> int:
    return table.num_rows * (8 + table.row_bytes) + table.num_blocks


def map_table(path: Path, table: Table) -> Mapped:
    file = os.open(path, os.O_RDWR)
    memory = mmap.mmap(file, file_bytes(table))
    split = 8 * table.num_rows
    return Mapped(
        table=table,
        file=file,
        versions=np.frombuffer(memory, np.int64, table.num_rows),
        rows=np.frombuffer(memory, table.held, table.num_rows * table.width, split).reshape(-1, table.width),
        marks=np.frombuffer(memory, np.uint8, table.num_blocks, split + table.num_rows * table.row_bytes),
    )


class SharedBackend:
    def __init__(self, directory: Path, timeout_s: float, owner: int | None) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._owner = owner  # the creator's lock on the directory
        described = json.loads((directory / "tables.json").read_text(encoding="utf-8"))
        self.tables = tuple(record(Table, table, f"{directory}/tables.json") for table in described)
        self._mapped = {t.name: map_table(directory / str(k), t) for k, t in enumerate(self.tables)}

    @classmethod
    def create(cls, where: str, tables: tuple[Table, ...], timeout_s: float) -> Self:
        parent = Path(where.removeprefix("shared:") or _default_parent())
        if not parent.is_dir():
            raise InputError(f"store {where!r}: {parent} is not a directory")
        _remove_orphans(parent)
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            owner = _own(directory)
            for k, table in enumerate(tables):
                _reserve(directory / str(k), table)
            described = json.dumps([asdict(table) for table in tables])
            (directory / "tables.json").write_text(described, encoding="utf-8")
            return cls(directory, timeout_s, owner)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    @classmethod
    def attach(cls, address: str, timeout_s: float) -> Self:
        try:
            return cls(Path(address.removeprefix("shared:")), timeout_s, None)
        except FileNotFoundError as error:
            raise RunError(f"store {address}: there is none (or no longer): {error.filename} is missing") from None

    @property
    def address(self) -> str:
        return f"shared:{self._directory}"

    def write(self, table: Table, cut: list[Piece], values: Values, version: int) -> None:
        mapped = self._mapped[table.name]
        for piece in cut:
            with self._writing(mapped, piece.block, "push"):
                mapped.rows[piece.rows] = values[piece.at]
                mapped.versions[piece.rows] = version + 1

    def read(self, table: Table, cut: list[Piece], values: Values, versions: Ids) -> None:
        mapped = self._mapped[table.name]
        for piece in cut:
            with self._hold(mapped, fcntl.F_RDLCK, piece.block, "pull"):
                _copy(mapped.rows, piece, values)
                _copy(mapped.versions, piece, versions)
        versions -= 1

    def add(self, table: Table, delta: Values) -> int:
        mapped = self._mapped[table.name]
        with self._writing(mapped, 0, "add"):
            mapped.rows[0] += delta
            mapped.versions[0] += 1
            return int(mapped.versions[0]) - 1

    def close(self) -> None:
        for mapped in self._mapped.values():
            os.close(mapped.file)
        self._mapped = {}
        if self._owner is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._owner)
            self._owner = None

    @contextmanager
    def _writing(self, mapped: Mapped, block: int, what: str) -> Iterator[None]:
        with self._hold(mapped, fcntl.F_WRLCK, block, what):
            mapped.marks[block] = 1
            yield
            mapped.marks[block] = 0

    @contextmanager
    def _hold(self, mapped: Mapped, kind: int, block: int, what: str) -> Iterator[None]:
        """The lock on a block, for a copy; a block that a dead process left half written is an error."""
        deadline = time.monotonic() + self._timeout_s
        if not mapped.turn.acquire(timeout=self._timeout_s):
            raise self._late(mapped, block, what)
        try:
            tries = 0
            while not _lock(mapped.file, kind, block):
                if time.monotonic() > deadline:
                    raise self._late(mapped, block, what)
                time.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
                tries += 1
            try:
                if mapped.marks[block]:
                    raise self._failed(mapped, block, what, "left half written by a process that died")
                yield
            finally:
                _lock(mapped.file, fcntl.F_UNLCK, block)
        finally:
            mapped.turn.release()

    def _late(self, mapped: Mapped, block: int, what: str) -> RunError:
        return self._failed(mapped, block, what, f"waited {self._timeout_s:g} s for another process that holds them")

    def _failed(self, mapped: Mapped, block: int, what: str, why: str) -> RunError:
        rows = mapped.table.rows_of(block)
        place = f"table {mapped.table.name!r}, rows {rows.start} to {rows.stop - 1}"
        return RunError(f"store {self.address}: {what} of {place}: {why}")


def _copy(source: Values, piece: Piece, target: Values) -> None:
    if isinstance(piece.rows, slice):
        target[piece.at] = source[piece.rows]
    else:  # ids were checked; any other mode would copy through a buffer
        np.take(source, piece.rows, axis=0, out=target[piece.at], mode="clip")


def _lock(file: int, kind: int, block: int) -> bool:
    """Try to change the lock on one byte. It belongs to this opening of the file, not to the process."""
    wanted = struct.pack(FLOCK, kind, os.SEEK_SET, block, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _default_parent() -> str:
    return str(SHM) if os.access(SHM, os.W_OK) else tempfile.gettempdir()


def _reserve(path: Path, table: Table) -> None:
    """A file whose memory is there: a sparse one would kill the process that first writes to a full device."""
    size = file_bytes(table)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        free = shutil.disk_usage(path.parent).free
        raise RunError(
            f"store in {path.parent.parent}: table {table.name!r} needs {size} bytes, {free} are free "
            f"({error.strerror}); choose another place (shared:DIRECTORY or redis://HOST:PORT/DB)"
        ) from None
    finally:
        os.close(file)


def _own(directory: Path) -> int:
    """A file locked as long as this process lives; it gets its name once it is locked."""
    owner = os.open(directory / "owner.new", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(owner, fcntl.LOCK_EX)
    (directory / "owner.new").rename(directory / "owner")
    return owner


def _remove_orphans(parent: Path) -> None:
    """Remove stores whose creator was killed: nobody holds their lock."""
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            owner = os.open(directory / "owner", os.O_RDWR)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(owner)
