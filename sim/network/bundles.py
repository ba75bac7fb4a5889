"""The active flows, in bundles: flows that start in one instant on one route have one rate until they end, so one row
of arrays stands for all of them.

A row says what the smallest flow left in its bundle lacks; when that ends, the next one lacks the difference of their
sizes more. Only how many flows are left in a bundle matters to the links. Flows on routes of their own are bundles of
one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocast.sim.network.fairshare import NO_LINK, Floats, Ints, Small

LEAST_ROOM = 1024  # flows


class Bundles:
    """A row per bundle, the first `num` of them in use; the flows of a bundle stand in a row, the smallest first."""

    def __init__(self) -> None:
        self.num = 0
        self.routes: Small = np.zeros((0, 1), dtype=np.int32)
        self.weights: Small = np.zeros(0, dtype=np.int32)  # flows left
        self.heads: Ints = np.zeros(0, dtype=np.int64)  # the smallest flow left
        self.remaining: Floats = np.zeros(0)  # bytes it lacks
        self.rates: Floats = np.zeros(0)  # of each flow
        self.began: Floats = np.zeros(0)
        self.sizes: Floats = np.zeros(0)  # a place per flow from here on
        self.ids: Ints = np.zeros(0, dtype=np.int64)
        self._num_places = 0

    def add(self, routes: Ints, num_bytes: Floats, ids: Ints, now: float) -> None:
        """Take in all flows that start now; ids rise in order of start."""
        order, firsts = bundled(routes, num_bytes)
        self._make_room(len(firsts), len(ids), routes.shape[1])
        rows = slice(self.num, self.num + len(firsts))
        places = slice(self._num_places, self._num_places + len(ids))
        self.sizes[places], self.ids[places] = num_bytes[order], ids[order]
        self.routes[rows] = NO_LINK
        self.routes[rows, : routes.shape[1]] = routes[order[firsts]]
        self.weights[rows] = np.append(firsts[1:], len(ids)) - firsts
        self.heads[rows] = places.start + firsts
        self.remaining[rows] = num_bytes[order[firsts]]
        self.rates[rows] = 0.0
        self.began[rows] = now
        self.num, self._num_places = rows.stop, places.stop

    def loads(self) -> tuple[Ints, Floats]:
        """The routes of all bundles, and the bytes per second that all flows of each move."""
        return self.routes[: self.num].astype(np.int64), self.rates[: self.num] * self.weights[: self.num]

    def _make_room(self, num_rows: int, num_places: int, width: int) -> None:
        if self._num_places + num_places > len(self.sizes):
            self._close_gaps(num_places)
        rows, width = self.num + num_rows, max(width, self.routes.shape[1])
        if rows > len(self.rates) or width > self.routes.shape[1]:
            room = max(rows, 2 * len(self.rates))
            self.routes = _grown(widened(self.routes, width), room)
            self.weights, self.heads = _grown(self.weights, room), _grown(self.heads, room)
            self.remaining, self.rates = _grown(self.remaining, room), _grown(self.rates, room)
            self.began = _grown(self.began, room)

    def _close_gaps(self, num_places: int) -> None:
        """Forget the flows that have ended, and double the room for what is left and comes."""
        weights = self.weights[: self.num]
        before = np.cumsum(weights) - weights
        kept = np.repeat(self.heads[: self.num] - before, weights) + np.arange(weights.sum())
        self.heads[: self.num] = before
        room = max(LEAST_ROOM, 2 * (len(kept) + num_places))
        self.sizes, self.ids = _grown(self.sizes[kept], room), _grown(self.ids[kept], room)
        self._num_places = len(kept)


def bundled(routes: Ints, num_bytes: Floats) -> tuple[Ints, Ints]:
    """An order of flows with those of one route in a row, smaller ones and then earlier ones first; and where in it
    each route begins."""
    if len(routes) < 2:
        return np.arange(len(routes)), np.arange(len(routes))
    order = np.lexsort((num_bytes, *routes.T[::-1]))
    ordered = routes[order]
    return order, np.flatnonzero(np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1)))


def widened(routes: NDArray[Any], width: int) -> NDArray[Any]:
    short = width - routes.shape[1]
    return np.pad(routes, ((0, 0), (0, short)), constant_values=NO_LINK) if short else routes


def _grown(array: NDArray[Any], room: int) -> NDArray[Any]:
    shape = (room - len(array), *array.shape[1:])
    return np.concatenate([array, np.zeros(shape, dtype=array.dtype)])
