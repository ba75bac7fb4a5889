"""Schedules in which some ranks sum, share out, join or pass on what others do not, made from vanilla's."""

from collections.abc import Callable
from dataclasses import replace

from halocast.schedule.ir import AllGather, AllReduce, Broadcast, Buffer, Lane, Op, ReduceScatter, Role, Schedule


def changed(schedule: Schedule, make: Callable[[Op], list[Op]]) -> Schedule:
    """Every rank's all-reduce by other ops; who waited for it waits for the last of them."""
    made = {old.rank: make(old) for old in schedule.ops if old.name == "allreduce"}
    ops = list[Op]()
    for old in schedule.ops:
        if old.name == "allreduce":
            ops += made[old.rank]
        else:
            last = made[old.rank][-1].name
            ops.append(replace(old, after=tuple((last if n == "allreduce" else n, lag) for n, lag in old.after)))
    return replace(schedule, ops=tuple(ops))


def in_two_levels(schedule: Schedule) -> Schedule:
    """Sums within pairs of ranks, then across them: {0, 1} and {2, 3}, then {0, 2} and {1, 3}."""

    def levels(old: Op) -> list[Op]:
        first, second = f"sum_near.{old.rank // 2}", f"sum_far.{old.rank % 2}"
        return [replace(old, name=first), replace(old, name=second, after=((first, 0),))]

    return changed(schedule, levels)


def in_shards(schedule: Schedule) -> Schedule:
    """A sum of which every rank keeps its piece, then the pieces to all."""

    def shards(old: Op) -> list[Op]:
        assert isinstance(old.work, AllReduce)
        size = old.work.num_bytes
        scatter = replace(old, name="scatter", work=ReduceScatter(num_bytes=size), writes=("piece",))
        gather = replace(old, name="gather", work=AllGather(num_bytes=size), reads=("piece",), after=(("scatter", 0),))
        return [scatter, gather]

    size = next(b.num_bytes for b in schedule.buffers if b.role is Role.WEIGHT_GRADS)
    pieces = [
        Buffer(name="piece", rank=rank, num_bytes=size // schedule.num_ranks, bits=64)
        for rank in range(schedule.num_ranks)
    ]
    return changed(replace(schedule, buffers=(*schedule.buffers, *pieces)), shards)


def from_rank_two(schedule: Schedule) -> Schedule:
    """Nobody sums gradients; instead ranks 1 to 3 take the weights of rank 2 between two epochs."""
    ops = list[Op]()
    for old in schedule.ops:
        if old.name == "allreduce":
            continue
        after = tuple(edge for edge in old.after if edge[0] != "allreduce")
        taken = (("copy", 1),) if old.name == "forward.0" and old.rank > 0 else ()
        ops.append(replace(old, after=(*after, *taken)))
        if old.name == "step" and old.rank > 0:
            size = next(b.num_bytes for b in schedule.buffers if b.role is Role.WEIGHTS)
            work = Broadcast(num_bytes=size, root=2)
            ops.append(
                Op(
                    name="copy",
                    rank=old.rank,
                    lane=Lane.REDUCE,
                    work=work,
                    reads=("weights",),
                    writes=("weights",),
                    after=(("step", 0),),
                )
            )
    return replace(schedule, ops=tuple(ops))
