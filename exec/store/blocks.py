"""How tables of a store are cut: rows into blocks, and the rows of one push or pull into pieces of one block each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from halocast.base.errors import InputError, unknown

Ids = NDArray[np.int64]
Values = NDArray[Any]  # one row per id, of a type in DTYPES
Rows = slice | Ids

# the numbers of a table, and as what numpy holds them: it has no bfloat16, so their bits are kept
DTYPES: Mapping[str, str] = MappingProxyType({"float32": "float32", "float64": "float64", "bfloat16": "int16"})
BLOCK_BYTES = 2**20  # a block is copied in well under a millisecond, and its lock or request costs less than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one width, each with the version of the push that wrote it; at first zeros of version -1."""

    name: str
    num_rows: int
    width: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES, f"table {self.name!r}")
        if self.num_rows < 1 or self.width < 1:
            raise InputError(f"table {self.name!r}: {self.num_rows} rows of width {self.width}; both must be positive")

    @property
    def row_bytes(self) -> int:
        return self.width * self.held.itemsize

    @property
    def held(self) -> np.dtype[Any]:
        """The type in which numpy holds the numbers."""
        return np.dtype(DTYPES[self.dtype])

    @property
    def block_rows(self) -> int:
        return min(self.num_rows, max(1, BLOCK_BYTES // self.row_bytes))

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.block_rows)

    def rows_of(self, block: int) -> range:
        return range(block * self.block_rows, min((block + 1) * self.block_rows, self.num_rows))


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of the table that lie in one block, and where in the caller's values they belong."""

    block: int
    rows: Rows
    at: slice

    @property
    def num_rows(self) -> int:
        return int(self.at.stop - self.at.start)


def pieces(table: Table, rows: Rows) -> Iterator[Piece]:
    """Cut ascending rows at the borders of blocks."""
    if isinstance(rows, slice):
        for block in range(rows.start // table.block_rows, -(-rows.stop // table.block_rows)):
            owned = table.rows_of(block)
            part = slice(max(rows.start, owned.start), min(rows.stop, owned.stop))
            yield Piece(block, part, slice(part.start - rows.start, part.stop - rows.start))
    elif len(rows):
        blocks = rows // table.block_rows
        cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(rows)]
        for start, stop in pairwise(cuts):
            yield Piece(int(blocks[start]), rows[start:stop], slice(start, stop))


class Backend(Protocol):
    """A place for rows. `write` and `read` take pieces in ascending order; a row is written and read as a whole."""

    @classmethod
    def create(cls, where: str, tables: tuple[Table, ...], timeout_s: float) -> Self: ...

    @classmethod
    def attach(cls, address: str, timeout_s: float) -> Self: ...

    @property
    def address(self) -> str: ...

    @property
    def tables(self) -> tuple[Table, ...]: ...

    def write(self, table: Table, cut: list[Piece], values: Values, version: int) -> None: ...

    def read(self, table: Table, cut: list[Piece], values: Values, versions: Ids) -> None: ...

    def add(self, table: Table, delta: Values) -> int:
        """Add to row 0 in one step and count its version up; returns the new version."""
        ...

    def close(self) -> None: ...
