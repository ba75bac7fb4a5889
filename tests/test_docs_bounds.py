"""Relations that the sections "Convergence" of docs/methods derive, computed from the schedules, draws and ops."""

from itertools import permutations
from math import factorial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from training import metis_parts, small_graph, spec_for

from halocast.exec.chunks.stage import drawn_order
from halocast.exec.run.handlers import smooth
from halocast.graph import assign, build_parts, from_parts
from halocast.graph.halo import from_assignment
from halocast.graph.inclusion import optimal_probabilities
from halocast.graph.sampling import Weighting, draw_edges, edge_weights
from halocast.methods import METHODS
from halocast.schedule.check import check, staleness
from halocast.schedule.ir import Numbers, Op, Schedule
from halocast.schedule.trace import Span
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario

GRAPH = small_graph()
HALO = from_parts(build_parts(GRAPH, metis_parts(GRAPH, 2)))
DRAWS = 4000


def make(method: str, **options: Any) -> Schedule:
    chosen = METHODS[method]
    halo = from_assignment(GRAPH, assign(GRAPH, 4, seed=1, cache=False)) if method == "gnnpipe" else HALO
    return check(chosen.make(halo, spec_for(GRAPH), chosen.options(**options), Numbers.FLOAT32))


def ages(schedule: Schedule, buffer: str) -> list[int]:
    """Ages of what is read of a buffer; in every period each of them is there in as many epochs as the others."""
    return sorted({age for read in staleness(schedule) if read.buffer == buffer for age in read.ages})


@pytest.mark.parametrize(("interval", "mean"), [(1, 1.0), (2, 1.5), (5, 6.0), (10, 13.5)])
def test_rows_of_digest_are_on_average_one_and_a_half_intervals_old(interval: int, mean: float) -> None:
    assert np.mean(ages(make("digest", interval=interval), "halo.1")) == mean


@pytest.mark.parametrize(("freeze", "mean"), [(1, 1.0), (5, 3.0), (23, 12.0)])
def test_snapshots_of_gnnpipe_are_on_average_half_of_their_service_old(freeze: int, mean: float) -> None:
    schedule = make("gnnpipe", stages=1, ways=1, chunks=4, freeze=freeze)
    assert np.mean(ages(schedule, "hist.1")) == mean


def op_of(schedule: Schedule, name: str) -> Op:
    (op,) = (op for op in schedule.by_rank[0] if op.name == name)
    return op


def smoothed(op: Op, values: torch.Tensor) -> torch.Tensor:
    """The running mean after every epoch, of values that arrive as many epochs after theirs as the op waits for."""
    ((_, lag),) = op.after
    means: list[torch.Tensor] = []
    state: Any = SimpleNamespace(
        kept={},
        initial=lambda name: torch.zeros_like(values[0]),
        value=lambda op, name, epoch: values[epoch - lag] if epoch >= lag else torch.zeros_like(values[0]),
        put=lambda op, name, mean, epoch: means.append(mean.clone()),
    )
    for epoch in range(len(values)):
        smooth(state, op, epoch)
    return torch.stack(means)


@pytest.mark.parametrize(("lag", "gamma", "age"), [(1, 0.95, 20.0), (2, 0.5, 3.0), (1, 0.0, 1.0)])
def test_a_running_mean_of_what_drifts_is_older_by_gamma_over_one_minus_gamma(
    lag: int, gamma: float, age: float
) -> None:
    schedule = make("pipegcn-gf", lag=lag, gamma=gamma)
    assert ages(schedule, "mean.halo.1") == [lag]  # a schedule counts the newest value of a mean
    epochs = torch.arange(600, dtype=torch.float64)
    for name in ("smooth.1", "smooth_grad.1"):
        last = smoothed(op_of(schedule, name), epochs)[-1]
        assert float(epochs[-1] - last) == pytest.approx(age, abs=1e-9)


def test_a_running_mean_lowers_independent_noise_to_a_39th_at_gamma_0_95() -> None:
    op = op_of(make("pipegcn-f"), "smooth.1")
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((400, 4000)))
    assert float(smoothed(op, noise)[-1].var()) == pytest.approx(1 / 39, rel=0.1)


@pytest.mark.parametrize(("hops", "expected"), [(1, 1.0), (2, 2 / 3), (3, 1 / 3)])
def test_a_gradient_over_k_chunks_counts_two_to_the_k_over_k_plus_one_factorial(hops: int, expected: float) -> None:
    places = np.argsort([drawn_order(5, 7, epoch) for epoch in range(DRAWS)], axis=1)
    paths = permutations(range(5), hops + 1)
    fresh = [float(np.all(np.diff(places[:, path]) > 0, axis=1).mean()) for path in paths]
    p = 1 / factorial(hops + 1)
    five_sigma = 5 * (p * (1 - p) / DRAWS) ** 0.5  # the share of one path; the most extreme of 120 stays within it
    assert 2**hops * p == pytest.approx(expected)
    assert fresh == pytest.approx([p] * len(fresh), abs=five_sigma)


def test_the_least_variance_of_a_sampled_sum_is_that_of_lengths_over_the_budget() -> None:
    lengths, indptr = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 4])
    p = optimal_probabilities(indptr, lengths, np.array([2.0]))
    assert p == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert (lengths**2) @ (1 / p - 1) == pytest.approx(10**2 / 2 - 30)
    assert (lengths**2).sum() * (4 / 2 - 1) == 30  # with an even p, instead of 20


def test_a_sum_over_sampled_edges_varies_as_their_probabilities_say() -> None:
    rows, p, indptr = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]), np.array([0.5, 0.8, 0.25]), np.array([0, 3])
    errors = []
    for epoch in range(DRAWS):
        kept = draw_edges(p, seed=0, rank=0, epoch=epoch)
        errors.append(edge_weights(Weighting.INVERSE, indptr, p, kept) @ rows[kept] - rows.sum(0))
    expected = 1 * 1 + 0.25 * 4 + 3 * 25
    assert np.abs(np.mean(errors, axis=0)) == pytest.approx(np.zeros(2), abs=4 * np.sqrt(expected / DRAWS))
    assert np.square(errors).sum(1).mean() == pytest.approx(expected, rel=0.1)


def most_steps_between(spans: list[Span]) -> int:
    """The steps that other ranks add to the weights at most while a rank takes one with those it fetched."""
    fetched = {(span.rank, span.epoch): span.start_s for span in spans if span.op == "fetch"}
    added = [span for span in spans if span.op == "deliver"]
    return max(
        sum(span.rank != own.rank and fetched[own.rank, own.epoch] < span.end_s < own.end_s for span in added)
        for own in added
    )


@pytest.mark.parametrize(("num_ranks", "bound", "most"), [(2, 0, 1), (3, 0, 2), (2, 1, 3), (3, 1, 6)])
def test_weights_of_digest_a_are_at_most_so_many_steps_old_as_its_bound_says(
    num_ranks: int, bound: int, most: int
) -> None:
    delays = ", ".join(f"{rank} = [0, 1]" for rank in range(num_ranks))
    scenario = load_scenario(
        None,
        [
            "method.name=digest-a",
            f"method.bound={bound}",
            "graph.nodes=500",
            "cluster.name=cpu-local",
            f"cluster.gpus={num_ranks}",
            f"world.delay_s={{{delays}}}",
        ],
    )
    assert most == (num_ranks - 1) * (2 * bound + 1)
    assert most_steps_between(list(predict(scenario, num_epochs=100).trace.spans)) == most
