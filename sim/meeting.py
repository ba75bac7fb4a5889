"""Instances of communication under way: who has come, what has arrived, and whom that lets go on."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import simpy

from halocast.sim.network.fairshare import Floats, Ints
from halocast.sim.network.links import after


@dataclass(slots=True)
class Meeting:
    """A collective instance: who has come, who is ready for its bytes, and the events of its begin and end."""

    begun: simpy.Event
    done: simpy.Event
    present: set[int] = field(default_factory=set)
    num_ready: int = 0


class Messages:
    """The messages of one communication instance: per rank, how many of its own have yet to arrive somewhere and how
    many are yet to arrive at it. Messages may arrive at a rank that has not come yet."""

    def __init__(self, num_ranks: int, num_open: int) -> None:
        self.missing = np.zeros(num_ranks, dtype=np.int64)
        self.latest_s = np.zeros(num_ranks)
        self.ended: set[int] = set()
        self.events: dict[int, simpy.Event] = {}
        self.num_open = num_open
        self._held: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by whom they wait for

    def expect(self, env: simpy.Environment, rank: int, num_sent: int, num_received: int) -> simpy.Event:
        self.missing[rank] += num_sent + num_received
        self.events[rank] = env.event()
        self._end(env, [rank])
        return self.events[rank]

    def meet(self, rank: int, targets: Ints, sizes: Ints) -> list[tuple[int, Ints, Ints]]:
        """Messages that may leave now that a rank has come, if both ends are needed: to and from those here."""
        here = np.array([int(target) in self.events for target in targets], dtype=np.bool_)
        for target, size in zip(targets[~here].tolist(), sizes[~here].tolist(), strict=True):
            self._held[target].append((rank, size))
        waited = self._held.pop(rank, [])
        return [(rank, targets[here], sizes[here])] + [
            (source, np.array([rank]), np.array([size])) for source, size in waited
        ]

    def arrive(self, env: simpy.Environment, dead_s: Floats, source: int, targets: Ints, times_s: Floats) -> None:
        """Let messages arrive; what reaches, or comes from, a rank after it has died is lost."""
        kept = times_s <= np.minimum(dead_s[source], dead_s[targets])
        if not kept.all():
            targets, times_s = targets[kept], times_s[kept]
        if len(targets) == 0:
            return
        self.missing[source] -= len(targets)
        self.missing[targets] -= 1
        self.latest_s[source] = max(self.latest_s[source], float(times_s.max()))
        self.latest_s[targets] = np.maximum(self.latest_s[targets], times_s)
        self._end(env, [source, *targets[self.missing[targets] == 0].tolist()])

    def _end(self, env: simpy.Environment, ranks: list[int]) -> None:
        """End the ranks that miss nothing any more, each at its latest arrival."""
        for rank in ranks:
            if self.missing[rank] == 0 and rank in self.events and rank not in self.ended:
                self.ended.add(rank)
                after(env, max(0.0, float(self.latest_s[rank]) - env.now), partial(succeed, self.events[rank]))


def succeed(event: simpy.Event) -> None:
    event.succeed()
