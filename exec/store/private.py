"""A store in the memory of one process, for ranks that all live there: plain arrays, which end with it."""

from typing import Self

import numpy as np

from halocast.exec.store.blocks import Ids, Piece, Table, Values


class PrivateBackend:
    """Rows and versions by table; nobody else sees them."""

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.tables = tables
        self._rows = {table.name: np.zeros((table.num_rows, table.width), table.held) for table in tables}
        self._versions = {table.name: np.full(table.num_rows, -1, np.int64) for table in tables}

    @classmethod
    def create(cls, where: str, tables: tuple[Table, ...], timeout_s: float) -> Self:
        return cls(tables)

    @classmethod
    def attach(cls, address: str, timeout_s: float) -> Self:
        raise AssertionError("a private store is handed over as it is")

    @property
    def address(self) -> str:
        return "private:"

    def write(self, table: Table, cut: list[Piece], values: Values, version: int) -> None:
        for piece in cut:
            self._rows[table.name][piece.rows] = values[piece.at]
            self._versions[table.name][piece.rows] = version

    def read(self, table: Table, cut: list[Piece], values: Values, versions: Ids) -> None:
        for piece in cut:
            values[piece.at] = self._rows[table.name][piece.rows]
            versions[piece.at] = self._versions[table.name][piece.rows]

    def add(self, table: Table, delta: Values) -> int:
        self._rows[table.name][0] += delta
        self._versions[table.name][0] += 1
        return int(self._versions[table.name][0])

    def close(self) -> None:
        self._rows, self._versions = {}, {}
