"""The store among ranks in one process: a PUSH reads at its begin and writes at its end, a PULL the other way round."""

from collections.abc import Callable

import torch
from together import FREE, case

from halocast.exec.run.together import Together
from halocast.schedule.order import Moment

Event = Callable[[int, str, bool], None]


def two_ranks(method: str, interval: int) -> tuple[Together, Event]:
    """Two ranks, and a call (rank, op, whether it begins) that lets an event of epoch 0 happen."""
    job, parts = case(method, interval=interval).job(2)
    ranks = Together(job, parts)

    def happen(rank: int, name: str, begins: bool) -> None:
        op = job.schedule.find(rank, name)
        assert op is not None
        ranks.do(Moment(0.0, begins, op, 0))

    return ranks, happen


def test_weights_are_added_when_a_push_ends_and_read_when_a_pull_begins() -> None:
    ranks, happen = two_ranks(FREE.method, 2)
    reader, giver = ranks.states
    start = reader.weights.detach().clone()
    giver.weights.detach().add_(1.0)
    happen(1, "deliver", True)
    giver.weights.detach().add_(5.0)  # after its begin: not what is pushed
    happen(0, "fetch", True)
    happen(1, "deliver", False)
    happen(0, "fetch", False)
    assert torch.equal(reader.weights.detach(), start), "it read before the push had ended"
    happen(0, "fetch", True)
    giver.weights.detach().add_(1.0)
    happen(1, "deliver", True)
    happen(1, "deliver", False)
    assert torch.equal(reader.weights.detach(), start), "it has not ended yet"
    happen(0, "fetch", False)
    assert torch.equal(reader.weights.detach(), start + 1.0), "it read after the first push and before the second"


def test_rows_are_there_when_a_push_ends_and_are_read_when_a_pull_begins() -> None:
    """The pull of epoch 0 means rows of before the first push; the store is asked for what rank 1 has written."""
    ranks, happen = two_ranks("digest", 1)
    giver = ranks.states[1]
    assert giver.store is not None
    rows = torch.full((giver.part.num_inner, 8), 3.0, dtype=torch.float64)
    giver.values["h.1"][0] = rows

    def newest() -> set[int]:
        assert giver.store is not None
        return set(giver.store.pull("store.1", giver.part.inner)[1].tolist())

    happen(1, "push.1", True)
    giver.values["h.1"][0] = rows + 1  # after its begin: not what is pushed
    assert newest() == {-1}
    happen(1, "push.1", False)
    values, versions = giver.store.pull("store.1", giver.part.inner)
    assert set(versions.tolist()) == {0}
    assert (values == 3.0).all()


def test_a_pull_of_rows_finds_what_was_there_when_it_began() -> None:
    ranks, happen = two_ranks("digest", 1)
    reader = ranks.states[0]
    assert reader.store is not None
    halo, rows = reader.part.halo, torch.full((reader.part.num_halo, 8), 3.0, dtype=torch.float64).numpy()
    slots = reader.store.pull("store.1", halo)[0]
    happen(0, "pull.1", True)
    for slot in (0, sum(state.part.num_inner for state in ranks.states)):  # the table has room for two epochs
        reader.store.push("store.1", halo + slot, rows, 7)
    happen(0, "pull.1", False)
    assert (reader.values["halo.1"][0].numpy() == slots).all()
    happen(0, "pull.1", True)
    happen(0, "pull.1", False)
    assert (reader.values["halo.1"][0] == 3.0).all()
