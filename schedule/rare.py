"""Ops that run once in many epochs: counted in every epoch by their share, so that a few epochs stand for all.

With a cadence of 23 a period has 23 epochs, of which 22 are alike. An op that nobody waits for, and that waits for
nothing its lane has not waited for already, only adds its own duration D to one epoch of N. An epoch with it takes at
least as long as one without and at most D longer; the same holds of D / N in every epoch: the means differ by at most
D / N.
"""

from dataclasses import replace

from halocast.schedule.ir import Kind, Op, Schedule

FEW_EPOCHS = 4  # cadences up to this are simulated as they are
Rare = dict[tuple[int, str], int]  # (rank, name) -> cadence


def spread_rare(schedule: Schedule) -> tuple[Schedule, Rare]:
    """The schedule with its rare ops in every epoch, and which ones they are: their durations are to be divided."""
    awaited = {(op.rank, name) for op in schedule.ops for name, _ in op.after}
    rare: Rare = {}
    for rank in range(schedule.num_ranks):
        for ops in schedule.lanes(rank).values():
            known: set[tuple[str, int]] = set()
            for op in ops:
                known |= set(op.after) if op.every == 1 else set()
                if _is_rare(op) and (rank, op.name) not in awaited and set(op.after) <= known:
                    rare[rank, op.name] = op.every
    if not rare:
        return schedule, {}
    eased = (replace(op, every=1, offset=0) if (op.rank, op.name) in rare else op for op in schedule.ops)
    return replace(schedule, ops=tuple(eased)), rare


def _is_rare(op: Op) -> bool:
    return op.kind is Kind.COMPUTE and op.every > FEW_EPOCHS
