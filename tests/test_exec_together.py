"""All ranks in one process: the same numbers as one process per rank, in every legal order of events."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from groups import from_rank_two, in_shards, in_two_levels
from hypothesis import given, settings
from hypothesis import strategies as st
from together import EPOCHS, FREE, GRAPH, MEETING, VARIANTS, Case, case
from training import metis_parts, reference_for, schedule_for, spec_for

from halocast.base.delays import Delay
from halocast.base.errors import RunError
from halocast.cluster.catalogue import load_cluster
from halocast.exec.chunks.stage import ChunkState
from halocast.exec.launch.job import Job
from halocast.exec.launch.local import Run, execute
from halocast.exec.run.outcome import Outcome
from halocast.exec.run.together import Together, train_together
from halocast.exec.transport.inside import Inside, Post
from halocast.exec.transport.inside_channel import Given
from halocast.exec.transport.link import Call, drain
from halocast.graph import build_parts, from_parts
from halocast.graph.graph import induced
from halocast.graph.partition import extended
from halocast.graph.parts import iter_parts
from halocast.methods.digest import ServerStep
from halocast.methods.gnnpipe.slots import Order
from halocast.schedule.check import check
from halocast.schedule.ir import Kind, Numbers, Schedule
from halocast.schedule.order import Moment, legal_order, list_order, of_trace
from halocast.schedule.races import order_matters
from halocast.sim.engine import moments, simulate
from halocast.sim.world import PERFECT, World

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import sar  # type: ignore[import-not-found]  # it is no part of the package

CLUSTERS = ("rtx2080ti-x10-pcie3", "a5000-2x4-pcie4-ib200")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_same(found: Outcome, run: Run, tolerance: float) -> None:
    assert np.allclose(found.losses, run.losses, rtol=tolerance, atol=tolerance)
    assert len(found.losses) == len(run.losses) == EPOCHS
    assert found.ages == run.ages
    assert found.tallies == run.tallies
    assert set(found.evaluated) == set(run.evaluated)
    assert [(e.epoch, e.layer, e.what) for e in found.errors] == [(e.epoch, e.layer, e.what) for e in run.errors]
    for mine, theirs in zip(found.errors, run.errors, strict=True):
        assert mine.squared_norm == pytest.approx(theirs.squared_norm, rel=100 * tolerance, abs=tolerance)
        assert mine.squared_error == pytest.approx(theirs.squared_error, abs=100 * tolerance * theirs.squared_norm)


def measures_errors(chosen: Case) -> bool:
    """A pipeline that goes back one by one cannot be compared with fresh rows."""
    return "order" not in chosen.options


def assert_numbers_of_processes(chosen: Case, num_ranks: int, **settings: Any) -> None:
    job, parts = chosen.job(num_ranks, errors=measures_errors(chosen), **settings)
    run, found = execute(job, parts), train_together(job, parts, list_order(job.schedule, EPOCHS))
    tolerance = 1e-12 if job.settings.dtype == "float64" else 1e-6
    assert_same(found, run, tolerance)
    assert bool(found.errors) == measures_errors(chosen)
    for epoch, scores in run.evaluated.items():
        assert found.evaluated[epoch] == pytest.approx(scores, abs=0 if tolerance < 1e-6 else 0.02)


FEW = [case("vanilla"), *(chosen for chosen in MEETING if {"tau", "late_gradients", "interval"} & set(chosen.options))]


@pytest.mark.parametrize("chosen", MEETING, ids=str)
def test_numbers_are_those_of_a_process_per_rank(chosen: Case) -> None:
    assert_numbers_of_processes(chosen, 2)


@pytest.mark.parametrize("chosen", FEW, ids=str)
def test_numbers_are_those_of_more_processes_or_of_one(chosen: Case) -> None:
    for num_ranks in (1, 4):
        assert_numbers_of_processes(chosen, num_ranks)


def test_numbers_are_those_of_eight_processes() -> None:
    assert_numbers_of_processes(case("bns", rate=0.3), 8)


@pytest.mark.parametrize("chosen", FEW, ids=str)
def test_numbers_of_float32_are_those_of_a_process_per_rank(chosen: Case) -> None:
    assert_numbers_of_processes(chosen, 2, dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("chosen", [*MEETING, *VARIANTS], ids=str)
def test_numbers_of_every_variant_are_those_of_a_process_per_rank(chosen: Case, num_ranks: int) -> None:
    assert_numbers_of_processes(chosen, num_ranks)
    assert_numbers_of_processes(chosen, num_ranks, dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"bound": 0}, {"step": ServerStep.SHARE, "interval": 1}])
def test_a_free_rank_alone_has_the_numbers_of_a_process(options: dict[str, Any]) -> None:
    """Errors are not for ranks that run freely."""
    job, parts = case("digest-a", **{"interval": 2, **options}).job(1)
    found = train_together(job, parts, list_order(job.schedule, EPOCHS))
    assert_same(found, execute(job, parts), 1e-12)


def test_numbers_of_bfloat16_are_those_of_a_process_per_rank() -> None:
    """Whose rows are no numbers that numpy knows: they travel as bits. Sums of gradients differ in their last bits."""
    job, parts = case("psc", tau=2, eps=0.3).job(2, dtype="bfloat16")
    run, found = execute(job, parts), train_together(job, parts, list_order(job.schedule, EPOCHS))
    assert np.allclose(found.losses, run.losses, rtol=1e-2, atol=0)
    assert found.losses[0] == pytest.approx(run.losses[0], rel=1e-6)
    assert found.ages == run.ages


@pytest.mark.parametrize("change", [in_two_levels, in_shards, from_rank_two])
def test_groups_sum_share_out_join_and_pass_on_as_processes_do(change: Callable[[Schedule], Schedule]) -> None:
    job, parts = case("vanilla", {"hidden": 16, "layers": 3}).job(4)
    job = replace(job, schedule=check(change(job.schedule)))
    run, found = execute(job, parts), train_together(job, parts, list_order(job.schedule, EPOCHS))
    assert_same(found, run, 1e-12)
    alike = [len(set(step)) == 1 for step in zip(*found.weight_hashes, strict=True)]
    assert all(alike) is (change is not from_rank_two)
    assert found.weight_hashes[1] == found.weight_hashes[3]


def test_layers_in_pieces_have_the_numbers_of_a_process_per_rank() -> None:
    """Each piece draws its dropout again on the way back."""
    job, parts = case("vanilla").job(4)
    schedule = check(sar.sar(from_parts(parts), job.spec, sar.Options(ahead=1), Numbers.FLOAT64))
    job = replace(job, schedule=schedule)
    assert_same(train_together(job, parts, list_order(schedule, EPOCHS)), execute(job, parts), 1e-12)


@pytest.mark.parametrize("chosen", [case("pipegcn-gf", gamma=0.5), case("gnnpipe", freeze=2)], ids=str)
def test_errors_of_rows_are_the_same_without_those_of_gradients(chosen: Case) -> None:
    job, parts = chosen.job(2, errors=True)
    rows_only = replace(job, settings=replace(job.settings, fresh_gradients=False))
    both, rows = (train_together(each, parts, list_order(job.schedule, EPOCHS)) for each in (job, rows_only))
    assert rows.errors
    assert rows.errors == tuple(error for error in both.errors if error.what != "weights")
    assert len(both.errors) == len(rows.errors) + EPOCHS
    assert rows.weight_hashes == both.weight_hashes


def test_one_process_is_the_reference() -> None:
    """Independent of the executor: plain autograd on the whole graph."""
    chosen = case("vanilla", {"dropout": 0.0, "layers": 3, "hidden": 16})
    job, parts = chosen.job(4, epochs=4)
    expected = reference_for(GRAPH, spec_for(GRAPH))
    found = train_together(job, parts, list_order(job.schedule, 4))
    assert np.allclose(found.losses, expected.losses, rtol=1e-10, atol=0)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MEETING), st.sampled_from([2, 4]), st.randoms(use_true_random=False))
def test_no_legal_order_changes_a_bit_where_order_does_not_matter(
    chosen: Case, num_ranks: int, draw: random.Random
) -> None:
    job, parts = chosen.job(num_ranks)
    assert not order_matters(job.schedule)
    plain = train_together(job, parts, list_order(job.schedule, EPOCHS))
    drawn = train_together(job, parts, legal_order(job.schedule, EPOCHS, draw.randrange))
    assert drawn.weight_hashes == plain.weight_hashes
    assert drawn.losses == plain.losses
    assert drawn.ages == plain.ages


def worlds(num_ranks: int) -> list[World]:
    return [PERFECT, World(speed={0: 0.2}), World(speed={num_ranks - 1: 0.5})]


@pytest.mark.parametrize("chosen", MEETING, ids=str)
def test_no_cluster_and_no_straggler_changes_a_bit_where_ranks_meet(chosen: Case) -> None:
    job, parts = chosen.job(4)
    expected = train_together(job, parts, list_order(job.schedule, EPOCHS))
    for name, world in zip(CLUSTERS, worlds(4), strict=False):
        timed = moments(job.schedule, load_cluster(name, gpus=4), num_epochs=EPOCHS, world=world)
        found = train_together(job, parts, timed)
        assert found.weight_hashes == expected.weight_hashes
        assert found.losses == expected.losses
        assert found.evaluated == expected.evaluated


def test_how_often_scores_are_taken_changes_nothing_else() -> None:
    """Evaluation draws nothing, and leaves weights and gradients as they were."""
    for chosen in (case("vanilla"), case("gnnpipe", freeze=2), FREE):
        rare, often = (chosen.job(2, eval_every=every) for every in (0, 1))
        found = [train_together(job, parts, list_order(job.schedule, EPOCHS)) for job, parts in (rare, often)]
        assert found[0].weight_hashes == found[1].weight_hashes
        assert found[0].losses == found[1].losses
        assert found[0].evaluated.items() <= found[1].evaluated.items()
        assert list(found[1].evaluated) == list(range(EPOCHS))


def test_scores_are_those_of_the_weights_after_their_epoch() -> None:
    """In an order in which rank 0 is ahead as far as it can be: a training that ends there has the same scores."""
    job, parts = case("pipegcn").job(2, eval_every=1)
    ahead = legal_order(job.schedule, EPOCHS, lambda number: 0)
    found = train_together(job, parts, ahead)
    for last in range(EPOCHS):
        short = replace(job, settings=replace(job.settings, epochs=last + 1, eval_every=0))
        ended = train_together(short, parts, list_order(job.schedule, last + 1))
        assert ended.evaluated[last] == found.evaluated[last]


def test_free_ranks_give_the_same_bits_in_the_same_world_and_others_in_another() -> None:
    job, parts = FREE.job(3, eval_every=1)
    assert order_matters(job.schedule)
    cluster = load_cluster(CLUSTERS[0], gpus=3)

    def hashes(world: World) -> Any:
        return train_together(job, parts, moments(job.schedule, cluster, num_epochs=EPOCHS, world=world)).weight_hashes

    found = [hashes(world) for world in worlds(3)]
    assert [hashes(world) for world in worlds(3)] == found
    assert len({str(one) for one in found}) == 3


def test_a_fast_free_rank_goes_on_until_the_slowest_is_done() -> None:
    job, parts = FREE.job(2, epochs=10)
    slow = moments(job.schedule, load_cluster(CLUSTERS[0], gpus=2), num_epochs=10, world=World(speed={1: 0.1}))
    ranks = Together(job, parts)
    for moment in slow:
        ranks.do(moment)
    fast, straggler = (len(state.history) for state in ranks.states)
    assert straggler == 10
    assert fast > 30


def is_clean(run: Run) -> bool:
    """Whether no pull of a run overlaps a push of another rank, so that its spans tell the order."""
    spans = run.trace.all_spans
    pushes = [span for span in spans if span.kind is Kind.PUSH]
    pulls = [span for span in spans if span.kind is Kind.PULL]
    both = [(a, b) for a in (*pulls, *pushes) for b in pushes if a.rank != b.rank]
    return not any(a.start_s <= b.end_s and b.start_s <= a.end_s for a, b in both)


def test_the_moments_of_a_real_free_run_give_its_losses() -> None:
    """A pull that overlaps a push saw it or not, which spans do not tell; ranks that sleep a while rarely overlap."""
    delays = tuple(Delay(rank=rank, low_s=0.005, high_s=0.06) for rank in (0, 1))
    for seed in range(8):
        job, parts = FREE.job(2, delays=delays, delay_seed=seed)
        run = execute(job, parts)
        if is_clean(run):
            found = train_together(job, parts, of_trace(job.schedule, run.trace))
            assert np.allclose(found.losses, run.losses, rtol=1e-12, atol=0)
            assert found.ages == run.ages
            return
    pytest.skip("in none of 8 runs did all pulls and pushes miss each other: the machine is too busy")


EARLY = [
    ("vanilla", "exchange.0", 0, 1),
    ("vanilla", "exchange_grad.1", 0, 1),
    ("vanilla", "allreduce", 0, 1),
    ("gnnpipe", "pass.2.0", 1, 0),
    ("psc", "exchange_ids", 0, 1),
]


@pytest.mark.parametrize(("method", "name", "taker", "giver"), EARLY)
def test_who_takes_before_it_is_given_is_told_so(method: str, name: str, taker: int, giver: int) -> None:
    """Up to its first communication of a name one rank goes on without the other; it begins it and cannot end it."""
    job, parts = case(method).job(2)
    ranks = Together(job, parts)
    for moment in takewhile(lambda m: m.op.name != name, list_order(job.schedule, 1)):
        ranks.do(moment)
    op = job.schedule.find(taker, name)
    assert op is not None
    ranks.do(Moment(0.0, True, op, 0))
    said = rf"rank {taker} takes {name} of epoch 0 from rank {giver}, which has not given it yet"
    with pytest.raises(RunError, match=said.replace(".", r"\.")):
        ranks.do(Moment(0.0, False, op, 0))


def test_rows_that_change_before_they_are_taken_are_a_mistake() -> None:
    """Of what a rank gives nothing is copied until a peer takes it."""
    rows = torch.ones(4, 2)
    given = Given(rows, torch.tensor([0, 2]), [0, 2], rows._version)
    rows.add_(1)
    with pytest.raises(AssertionError, match="have changed before they were taken"):
        given.part(1)


def test_a_factor_of_zero_leaves_rows_alone_that_another_lane_may_be_sending() -> None:
    """Not even zeros are added: of a gradient that is no number they would make one."""
    job, parts = case("gnnpipe", {"dropout": 0.0}, order=Order.ONE, shuffle=False).job(1)
    ranks = Together(job, parts)
    state = ranks.states[0]
    assert isinstance(state, ChunkState)
    for moment in list_order(job.schedule, 1):
        op = moment.op
        if moment.begins and op.name == "backward_chunk.3.5":
            before = state.tables["gh.3"].clone()
            state.tables["gh.4"][state.chunks[5].rows] = float("inf")
            ranks.do(moment)
            others = [row for chunk in state.chunks if chunk.number < 5 for row in range(*chunk.rows.indices(10**6))]
            assert torch.equal(state.tables["gh.3"][others], before[others])
            return
        ranks.do(moment)


def test_a_sum_is_made_in_the_order_of_ranks_whoever_comes_first() -> None:
    """The second number swallows the first, and the third takes the second away; in another order 1 would be left."""
    post, values = Post(3), [torch.tensor([number]) for number in (1.0, 1e30, -1e30)]
    halves = {rank: Inside(rank=rank, post=post).sum(values[rank], Call("sum", 0)) for rank in (2, 0, 1)}
    for steps in halves.values():
        next(steps)
    for rank in (1, 2, 0):
        drain(halves[rank])
    assert [value.item() for value in values] == [0.0, 0.0, 0.0]


def test_a_moment_of_an_op_that_is_not_there_is_refused() -> None:
    job, parts = case("vanilla").job(2)
    other = case("bns").job(2)[0].schedule.find(0, "rebuild")
    assert other is not None
    with pytest.raises(RunError, match="a moment of 0/rebuild, which the schedule has not"):
        Together(job, parts).do(Moment(0.0, True, other, 0))


def test_nothing_is_left_behind_when_all_is_taken() -> None:
    for chosen in MEETING:
        job, parts = chosen.job(4)
        ranks = Together(job, parts)
        for moment in list_order(job.schedule, EPOCHS):
            ranks.do(moment)
        assert ranks.post.num_open == 0, str(chosen)


def test_scores_may_end_a_training() -> None:
    job, parts = case("pipegcn").job(2, epochs=20, eval_every=2)
    seen: list[int] = []

    def told(epoch: int, time_s: float, scores: dict[str, float]) -> bool:
        seen.append(epoch)
        return len(seen) < 3

    found = train_together(job, parts, list_order(job.schedule, 20), on_scores=told)
    assert seen == [1, 3, 5]
    assert list(found.evaluated) == seen
    assert 6 <= len(found.losses) < 20


def test_a_loss_that_is_no_number_ends_a_training() -> None:
    job, parts = case("vanilla").job(2, epochs=30, lr=1e200)
    found = train_together(job, parts, list_order(job.schedule, 30))
    assert found.diverged is not None
    assert found.diverged < 30
    assert not np.isfinite(found.losses[-1])


def test_times_are_those_of_the_moments() -> None:
    """Scores of epoch e come when the last rank has made its step."""
    job, parts = case("pipegcn").job(2, eval_every=1)
    cluster = load_cluster(CLUSTERS[0], gpus=2)
    found = train_together(job, parts, moments(job.schedule, cluster, num_epochs=EPOCHS))
    spans = simulate(job.schedule, cluster, EPOCHS).spans
    steps = [max(s.end_s for s in spans if s.op == "step" and s.epoch == epoch) for epoch in range(EPOCHS)]
    assert [found.times_s[epoch] for epoch in range(EPOCHS)] == steps


def test_times_of_ranks_that_run_freely_are_those_of_the_slowest() -> None:
    job, parts = FREE.job(2, eval_every=1)
    cluster, slow = load_cluster(CLUSTERS[0], gpus=2), World(speed={0: 0.3})
    found = train_together(job, parts, moments(job.schedule, cluster, num_epochs=EPOCHS, world=slow))
    spans = simulate(job.schedule, cluster, EPOCHS, world=slow).all_spans
    ends = [max(span.end_s for span in spans if span.epoch == epoch and span.rank == 0) for epoch in range(EPOCHS)]
    assert [found.times_s[epoch] for epoch in range(EPOCHS)] == ends


def test_what_is_scored_may_be_another_graph() -> None:
    """An inductive training: the scores are those of a process per rank."""
    small = induced(GRAPH, GRAPH.train_mask)
    assignment = metis_parts(small, 2)
    parts, spec = build_parts(small, assignment), spec_for(GRAPH, precompute=True)
    scored = list(iter_parts(GRAPH, extended(GRAPH, GRAPH.train_mask, assignment)))
    plain = case("vanilla").job(2)[0]
    job = replace(plain, schedule=schedule_for(parts, spec, "float64"), spec=spec)
    run = execute(job, parts, scored=scored)
    found = train_together(job, parts, list_order(job.schedule, EPOCHS), scored=scored)
    assert found.evaluated == run.evaluated


def test_a_killed_training_leaves_nothing_in_shared_memory() -> None:
    """It has nothing there while it runs, so that no kill could leave it."""
    code = (
        "from together import FREE\n"
        "from halocast.exec.run.together import train_together\n"
        "from halocast.schedule.order import list_order\n"
        "job, parts = FREE.job(4, epochs=100000, eval_every=1)\n"
        "told = lambda *said: print(said[0], flush=True) is None\n"
        "train_together(job, parts, list_order(job.schedule), on_scores=told)\n"
    )
    before = set(Path("/dev/shm").iterdir())
    lib = Path(__file__).parent / "lib"
    with subprocess.Popen([sys.executable, "-c", code], cwd=lib, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "0"
        held = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
        process.kill()
    assert "/dev/shm" not in held
    assert [path for path in set(Path("/dev/shm").iterdir()) - before if "halocast" in path.name] == []


def test_the_job_itself_is_not_changed() -> None:
    job, parts = case("digest", interval=2).job(2)
    same: Job = replace(job)
    train_together(job, parts, list_order(job.schedule, EPOCHS))
    assert job == same
