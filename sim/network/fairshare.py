"""Max-min fair rates of flows over shared links, kept up to date as flows start and end.

Progressive filling: all rates rise together; where a link is full, its flows are frozen at that level. Two facts make
an update cheap and keep it exact. Ending a flow of rate r changes no flow whose rate is below r, because those were
frozen before r's links filled; starting flows changes none below the smallest equal share on their links. And flows in
parts of the network that no flow connects to the change do not see it. So only flows at or above a floor, in touched
components, are filled again.

A flow's own cap is a link of its class that gives every user the same fixed share. `weights` says how many flows with
the same route and rate a row stands for (`bundles.py`).

The functions are plain Python over numpy arrays. A simulation that has visited PLAIN_VISITS rows goes on with the same
functions compiled by numba, to the same bits; loading numba costs more than all that small simulations do.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocast.cluster.routes import NO_LINK as NO_LINK
from halocast.cluster.routes import Floats as Floats
from halocast.cluster.routes import Ints as Ints

Small = NDArray[np.int32]  # routes and weights: half the memory to go through at every event

PLAIN_VISITS = 100_000  # 0.1 to 0.4 s, where loading numba and its cached code takes 0.7 s
NEAR = 1 - 1e-12  # flows at the floor itself are filled again, whatever rounding did to them
ROUNDING = 1e-12  # of a flow's duration: closer to its end than this it has ended
INSTANT = 1e-15  # of the time itself: a clock that shows `now` cannot show anything closer


def connect(num: int, routes: Small, first: int, component: Ints) -> None:
    """Give all links of each flow from `first` on the same component number; components only ever grow together."""
    for f in range(first, num):
        mine = component[routes[f, 0]]
        for link in routes[f]:
            if link == NO_LINK:
                break
            other = component[link]
            if other != mine:
                for k in range(len(component)):
                    if component[k] == other:
                        component[k] = mine


def start_floor(num: int, routes: Small, weights: Small, first: int, capacity: Floats, num_real: int) -> float:
    """The smallest equal share on the links of flows from `first` on: no flow slower than it can be changed by them."""
    users = np.zeros(len(capacity), dtype=np.int64)
    for f in range(num):
        for link in routes[f]:
            if link == NO_LINK:
                break
            users[link] += weights[f]
    floor = np.inf
    for f in range(first, num):
        for link in routes[f]:
            if link == NO_LINK:
                break
            floor = min(floor, capacity[link] / (users[link] if link < num_real else 1))
    return floor


def choose(
    num: int,
    routes: Small,
    weights: Small,
    rates: Floats,
    capacity: Floats,
    num_real: int,
    component: Ints,
    touched: NDArray[np.bool_],
    floor: float,
    again: NDArray[np.bool_],
    left: Floats,
    users: Ints,
) -> int:
    """Choose the flows to fill again: those in touched components with a rate at or above the floor. The others keep
    their rates, and their links what is left. Returns how many rows were chosen."""
    todo = 0
    for f in range(num):
        again[f] = False
        if not touched[component[routes[f, 0]]]:
            continue
        again[f] = rates[f] >= floor or rates[f] == 0.0
        todo += again[f]
        weight = weights[f]
        for k in range(routes.shape[1]):
            link = routes[f, k]
            if link == NO_LINK:
                break
            if again[f]:
                users[link] += weight
            elif link < num_real:
                left[link] -= rates[f] * weight
    return todo


def raise_rates(
    num: int,
    routes: Small,
    weights: Small,
    rates: Floats,
    capacity: Floats,
    num_real: int,
    again: NDArray[np.bool_],
    left: Floats,
    users: Ints,
    todo: int,
) -> None:
    """Progressive filling of the chosen flows: freeze those of the link with the smallest equal share, and so on."""
    starts = np.zeros(len(capacity) + 1, dtype=np.int64)
    starts[1:] = np.cumsum(users)
    members, place = np.empty(starts[-1], dtype=np.int32), starts[:-1].copy()
    for f in range(num):
        if again[f]:
            for link in routes[f]:
                if link == NO_LINK:
                    break
                members[place[link]] = f
                place[link] += 1
    live = np.flatnonzero(users)
    num_live = len(live)
    while todo > 0:
        share, at, k = np.inf, 0, 0
        while k < num_live:
            link = live[k]
            if users[link] == 0:
                num_live -= 1
                live[k] = live[num_live]
                continue
            offer = max(left[link], 0.0) / users[link] if link < num_real else capacity[link]
            if offer < share:
                share, at = offer, link
            k += 1
        for f in members[starts[at] : place[at]]:
            if again[f]:
                again[f] = False
                rates[f] = share
                todo -= 1
                weight = weights[f]
                for link in routes[f]:
                    if link == NO_LINK:
                        break
                    left[link] -= share * weight
                    users[link] -= weight


def advance(num: int, remaining: Floats, rates: Floats, dt: float) -> None:
    for f in range(num):
        remaining[f] -= rates[f] * dt


def soonest(num: int, remaining: Floats, rates: Floats) -> float:
    """Seconds until the first of the flows is done."""
    best = np.inf
    for f in range(num):
        if remaining[f] < best * rates[f]:
            best = max(remaining[f], 0.0) / rates[f]
    return best


def retire(
    num: int,
    routes: Small,
    weights: Small,
    heads: Ints,
    remaining: Floats,
    rates: Floats,
    began: Floats,
    sizes: Floats,
    ids: Ints,
    now: float,
    slack: float,
    component: Ints,
    touched: NDArray[np.bool_],
    out: Ints,
) -> tuple[int, int, float, float, float]:
    """Take out flows that are done, or within relative slack of it; their ids go to `out` in order, their components
    are marked as touched. Returns how many rows are left, how many flows ended, the smallest of their rates, the bytes
    that slack forgave, and the largest fraction of its duration that it took off one of them."""
    num_ended, floor, forgiven, shortened = 0, np.inf, 0.0, 0.0
    f = 0
    while f < num:
        lacks_s = remaining[f] / rates[f]
        duration_s = now + lacks_s - began[f]
        if lacks_s > (slack + ROUNDING) * duration_s + INSTANT * now:
            f += 1
            continue
        head = heads[f]
        out[num_ended] = ids[head]
        num_ended += 1
        floor = min(floor, rates[f])
        forgiven += max(remaining[f], 0.0)
        if lacks_s > shortened * duration_s:
            shortened = min(slack, lacks_s / max(duration_s, lacks_s))
        touched[component[routes[f, 0]]] = True
        weights[f] -= 1
        if weights[f] > 0:
            heads[f] = head + 1
            remaining[f] += sizes[head + 1] - sizes[head]
            continue
        num -= 1
        weights[f], heads[f], remaining[f] = weights[num], heads[num], remaining[num]
        rates[f], began[f] = rates[num], began[num]
        for k in range(routes.shape[1]):
            routes[f, k] = routes[num, k]
    out[:num_ended].sort()
    return num, num_ended, floor, forgiven, shortened


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba  # half a second that small simulations do without

    jitted: Callable[..., Any] = numba.njit(cache=True)(function)
    return jitted


def is_loaded() -> bool:
    """Whether the compiled functions are loaded already, so that using them costs nothing."""
    return compiled.cache_info().currsize > 0


def fair_rates(routes: Sequence[Sequence[int]], capacity: Sequence[float]) -> Floats:
    """Max-min rates of flows given as lists of link numbers; the whole problem at once."""
    num, width = len(routes), max((len(route) for route in routes), default=1)
    table = np.full((num, width), NO_LINK, dtype=np.int32)
    for row, route in zip(table, routes, strict=True):
        row[: len(route)] = route
    rates, links = np.zeros(num), np.asarray(capacity, dtype=np.float64)
    users = np.bincount(table[table >= 0], minlength=len(links))
    weights, again = np.ones(num, dtype=np.int32), np.ones(num, dtype=np.bool_)
    raise_rates(num, table, weights, rates, links, len(links), again, links.copy(), users, num)
    return rates
