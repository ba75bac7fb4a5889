"""Who waits for whom: edges in columns say what the rule says pair by pair, and a cycle is found if there is one."""

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules import legal_schedules, op

from halocast.schedule.check import problems
from halocast.schedule.ir import (
    SHARED,
    Barrier,
    Broadcast,
    Buffer,
    Compute,
    Exchange,
    Kind,
    Lane,
    Matrix,
    Message,
    Op,
    Payload,
    Schedule,
    Work,
)
from halocast.schedule.passes import (
    Dependence,
    Dependences,
    dependence_edges,
    find_cycle,
    hyperperiod,
    max_cycle_ratio,
    unroll,
)


def plain_edges(schedule: Schedule, rendezvous: bool) -> set[Dependence]:
    """The rule, op by op and rank by rank."""
    place = {(o.rank, o.name): k for k, o in enumerate(schedule.ops)}
    edges = {Dependence(2 * k, 2 * k + 1, 0, k) for k in range(len(schedule.ops))}
    for k, o in enumerate(schedule.ops):
        edges |= {Dependence(2 * place[o.rank, name] + 1, 2 * k, lag) for name, lag in o.after}
        for rank in schedule.partners(o) if rendezvous else schedule.senders(o):
            peer = place[rank, o.name]
            edges.add(Dependence(2 * peer, 2 * k + 1, 0, peer))
    for rank in range(schedule.num_ranks):
        for ops in schedule.lanes(rank).values():
            ids = [place[rank, o.name] for o in ops]
            edges |= {Dependence(2 * a + 1, 2 * b, 0) for a, b in pairwise(ids)}
            edges.add(Dependence(2 * ids[-1] + 1, 2 * ids[0], 1))
    return edges


def pair_by_pair(edges: Dependences) -> set[Dependence]:
    """The edges with every end that stands for its group replaced by the starts it waits for."""
    found = set(edges)
    relayed = {e for e in found if e.source % 2 and e.target % 2}
    starts = {e: [s for s in found - relayed if s.target == e.source] for e in relayed}
    return (found - relayed) | {Dependence(s.source, e.target, 0, s.carries) for e in relayed for s in starts[e]}


def graph_of(edges: set[Dependence]) -> nx.DiGraph:
    return nx.DiGraph([(e.source, e.target) for e in edges if e.lag == 0])


def group(num_ranks: int, name: str = "meet", work: Work | None = None, **fields: object) -> tuple[Op, ...]:
    return tuple(op(name, rank, Lane.REDUCE, work=work or Barrier(), **fields) for rank in range(num_ranks))


@given(legal_schedules(max_ranks=5), st.booleans())
def test_the_edges_are_those_of_the_rule(schedule: Schedule, rendezvous: bool) -> None:
    assert pair_by_pair(dependence_edges(schedule, rendezvous=rendezvous)) == plain_edges(schedule, rendezvous)


@given(legal_schedules(max_ranks=5), st.booleans())
def test_where_every_rank_needs_every_other_they_are_too(schedule: Schedule, rendezvous: bool) -> None:
    dense = replace(schedule, matrices=(Matrix("halo", 1 - np.eye(schedule.num_ranks, dtype=np.int64)),))
    assert pair_by_pair(dependence_edges(dense, rendezvous=rendezvous)) == plain_edges(dense, rendezvous)


def test_a_group_that_waits_for_itself_has_edges_in_proportion_to_its_ranks() -> None:
    # 50 durations, 50 lanes, 49 starts that one end waits for, 49 ends that wait for that one
    assert len(list(dependence_edges(Schedule(num_ranks=50, ops=group(50))))) == 198


def test_ranks_outside_an_exchange_have_no_part_in_it() -> None:
    work = Exchange(matrix="halo", row_bytes=4)
    ops = tuple(op("swap", rank, Lane.HALO, work=work) for rank in (0, 2))
    counts = np.array([[0, 0, 3], [0, 0, 0], [0, 0, 0]])
    schedule = Schedule(num_ranks=3, ops=(*ops, op("swap", 1)), matrices=(Matrix("halo", counts),))
    assert problems(schedule) == ()
    met = {e for e in dependence_edges(schedule) if e.source // 2 != e.target // 2}
    assert met == {Dependence(0, 3, 0, 0)}
    met = {e for e in pair_by_pair(dependence_edges(schedule, rendezvous=True)) if e.source // 2 != e.target // 2}
    assert met == {Dependence(0, 3, 0, 0), Dependence(2, 1, 0, 1)}


def test_two_exchanges_of_one_name_among_different_ranks_do_not_meet() -> None:
    counts = np.zeros((4, 4), dtype=np.int64)
    counts[0, 1] = counts[2, 3] = 1
    works = [Exchange(matrix="halo", row_bytes=row_bytes) for row_bytes in (4, 4, 8, 8)]
    ops = tuple(op("swap", rank, Lane.HALO, work=works[rank]) for rank in range(4))
    schedule = Schedule(num_ranks=4, ops=ops, matrices=(Matrix("halo", counts),))
    assert problems(schedule) == ()
    met = {e for e in dependence_edges(schedule) if e.source // 2 != e.target // 2}
    assert met == {Dependence(0, 3, 0, 0), Dependence(4, 7, 0, 2)}


RANDOM_EDGES = st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0, 0, 0, 1])).map(
    lambda e: Dependence(*e)
)


@given(st.integers(0, 14).flatmap(lambda size: st.lists(RANDOM_EDGES, min_size=size, max_size=size)))
def test_a_cycle_is_found_if_and_only_if_there_is_one(edges: list[Dependence]) -> None:
    graph = graph_of(set(edges))
    cycle = find_cycle(Dependences.of(edges), 5)
    assert bool(cycle) != nx.is_directed_acyclic_graph(graph)
    assert len(set(cycle)) == len(cycle)
    assert all(graph.has_edge(a, b) for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True))


def test_without_events_there_is_no_cycle() -> None:
    assert find_cycle(Dependences.of([]), 0) == []
    assert problems(Schedule(num_ranks=1, ops=())) == ()


@given(legal_schedules(max_ranks=5), st.randoms(use_true_random=False))
def test_in_any_order_of_ops_a_deadlock_is_reported_if_there_is_one_and_names_only_ops_in_it(
    schedule: Schedule, random: Random
) -> None:
    ops = list(schedule.ops)
    random.shuffle(ops)
    shuffled = replace(schedule, ops=tuple(ops))
    graph = graph_of(plain_edges(shuffled, rendezvous=True))
    knots = [part for part in nx.strongly_connected_components(graph) if len(part) > 1]
    stuck = {ops[event // 2].label for part in knots for event in part}
    found = [message for message in problems(shuffled) if "deadlock" in message]
    assert bool(found) == bool(stuck)
    for message in found:
        assert set(message.rpartition(": ")[2].split(" -> ")) <= stuck


def test_of_ranks_that_meet_in_opposite_orders_two_are_named_and_not_the_one_that_stands_for_the_group() -> None:
    first, second = group(4, name="a"), group(4, name="b")
    lanes = list(zip(first, second, strict=True))
    crossed = Schedule(num_ranks=4, ops=tuple(o for rank in (0, 1, 2) for o in lanes[rank]) + lanes[3][::-1])
    (message,) = problems(crossed)
    assert set(message.rpartition(": ")[2].split(" -> ")) == {"2/a", "2/b", "3/a", "3/b"}


@given(legal_schedules(max_ranks=4, max_steps=5), st.data())
def test_no_cycle_of_the_plain_edges_is_slower_than_the_ratio_and_one_is_as_slow(
    schedule: Schedule, data: st.DataObject
) -> None:
    body = unroll(schedule, hyperperiod(schedule))
    seconds = [float(data.draw(st.integers(1, 9))) for _ in body.ops]
    ratio = max_cycle_ratio(body, {(o.rank, o.name): s for o, s in zip(body.ops, seconds, strict=True)})
    for bound, exceeded in ((ratio + 1e-6, False), (ratio - 1e-6, True)):
        graph = nx.MultiDiGraph()
        for e in plain_edges(body, rendezvous=False):
            weight = seconds[e.carries] if e.carries >= 0 else 0.0
            graph.add_edge(e.source, e.target, weight=bound * e.lag - weight)
        assert nx.negative_edge_cycle(graph) is exceeded


def agree(a: Op, b: Op) -> bool:
    opposite = {Kind.SEND: Kind.RECV, Kind.RECV: Kind.SEND}
    sides = [(sizes(o.work), o.every, o.offset) for o in (a, b)]
    return b.kind is opposite.get(a.kind, a.kind) and sides[0] == sides[1]


def sizes(work: Work) -> dict[str, object]:
    """All that is said of bytes; who the peer is may differ."""
    said = {field.name: getattr(work, field.name) for field in fields(work)}
    return {name: value for name, value in said.items() if name not in ("kernels", "scale", "params", "peer")}


def resized(o: Op) -> Op:
    if isinstance(o.work, Exchange):
        return replace(o, work=replace(o.work, row_bytes=8))
    return replace(o, work=replace(o.work, num_bytes=99)) if isinstance(o.work, Message | Payload) else o


CHANGES: dict[str, Callable[[Op], tuple[Op, ...]]] = {
    "nothing": lambda o: (o,),
    "absent": lambda o: (),
    "another size": lambda o: (resized(o),),
    "another cadence": lambda o: (replace(o, every=7),),
    "a computation": lambda o: (replace(o, work=Compute()),),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@given(schedule=legal_schedules(max_ranks=5), data=st.data())
def test_a_communication_is_refused_if_and_only_if_two_of_its_ranks_disagree(
    change: Callable[[Op], tuple[Op, ...]], schedule: Schedule, data: st.DataObject
) -> None:
    ops = [replace(o, reads=(), writes=(), after=()) for o in schedule.ops]
    chosen = data.draw(st.integers(0, len(ops) - 1))
    changed = replace(schedule, ops=(*ops[:chosen], *change(ops[chosen]), *ops[chosen + 1 :]))
    pairs = [(o, changed.find(rank, o.name)) for o in changed.ops for rank in changed.partners(o)]
    refused = {message.split(" ")[1].rstrip(":") for message in problems(changed)}
    # a group that lost the root of its broadcast is refused before anything is compared
    rootless = {o.label for o in changed.ops if isinstance(o.work, Broadcast) and o.work.root not in changed.group(o)}
    assert refused == (rootless or {o.label for o, peer in pairs if peer is None or not agree(o, peer)})


def test_who_writes_its_own_buffer_does_not_write_the_shared_one_of_that_name() -> None:
    ops = tuple(op("make", rank, writes=("table",)) for rank in range(3))
    buffers = tuple(Buffer(name="table", rank=rank, num_bytes=1) for rank in (SHARED, 1))
    schedule = Schedule(num_ranks=3, ops=ops, buffers=buffers)
    assert schedule.writers(0, "table") == schedule.writers(2, "table") == [ops[0], ops[2]]
    assert schedule.writers(1, "table") == [ops[1]]
