"""In which order a stage takes its slots forward and backward, and where all stages meet in between."""

from enum import StrEnum

from halocast.methods.skeleton import After
from halocast.schedule.ir import Barrier, Kind, Lane, Op


class Order(StrEnum):
    """Whether a stage sends all slots forward before the first goes back."""

    ALL = "all"  # all slots forward, then all backward in reverse: a chunk gets gradients of all that used its rows
    ONE = "1f1b"  # one back as soon as one is through: fewer slots are under way, but gradients do not cross chunks


def turns(order: Order, stage: int, num_stages: int, num_slots: int) -> list[tuple[bool, int]]:
    """Pairs (whether forward, slot) in the order of a stage. One by one, a stage is ahead by the stages behind it."""
    forth = [(True, slot) for slot in range(num_slots)]
    if order == Order.ALL:
        return [*forth, *((False, slot) for slot in reversed(range(num_slots)))]
    back = [(False, slot) for slot in range(num_slots)]
    ahead = min(num_stages - 1 - stage, num_slots)
    paired = [turn for pair in zip(forth[ahead:], back, strict=False) for turn in pair]
    return [*forth[:ahead], *paired, *back[num_slots - ahead :]]


def in_step(ops: list[Op], stage: int, num_stages: int, num_slots: int) -> list[Op]:
    """Let all stages meet at the end of every slot of the fill, the steady part and the drain of both phases.

    A slot ends when what it sends has gone and what the next one needs has come.
    """
    num_turns, rank = num_slots + num_stages - 1, ops[0].rank
    forth = [op for op in ops if op.verb in ("pass", "swap", "forward_chunk", "loss_chunk")]
    back = [op for op in ops if op.verb in ("pass_grad", "swap_grad", "backward_chunk")]
    met = [op for op in ops if op.verb == "shuffle"]
    for phase, (of_phase, begins) in enumerate(((forth, stage), (back, num_stages - 1 - stage))):
        order = range(num_slots) if phase == 0 else range(num_slots)[::-1]
        for turn in range(num_turns):
            here = [order[k] for k in (turn - begins, turn - begins + 1) if 0 <= k < num_slots]
            now = order[turn - begins] if 0 <= turn - begins < num_slots else None
            met += [op for op in of_phase if op.index[-1] == now]
            waits = [op for op in of_phase if op.index[-1] in here and op.kind in (Kind.SEND, Kind.RECV)]
            ends = tuple((op.name, 0) for op in waits if (op.kind is Kind.SEND) == (op.index[-1] == now))
            met.append(meeting(phase * num_turns + turn, rank, ends))
    return met


def meeting(turn: int, rank: int, after: After) -> Op:
    """The barrier that ends a turn."""
    return Op(name=f"meet.{turn}", rank=rank, lane=Lane.COMPUTE, work=Barrier(), after=after)
