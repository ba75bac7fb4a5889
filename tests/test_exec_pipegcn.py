"""PipeGCN on real processes: vanilla without lag, exact in the end with frozen weights, smoothed as defined."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training import Trained, metis_parts, reference_for, small_graph, spec_for, train

from halocast.methods.pipegcn import Lanes, Smooth, Warmup
from halocast.schedule.check import staleness
from halocast.schedule.ir import Kind

GRAPH = small_graph()
LAYERS = 3
GAMMA = 0.8


def pipelined(
    directory: Path, *, layers: int = LAYERS, options: dict[str, Any] | None = None, **settings: Any
) -> Trained:
    spec = spec_for(GRAPH, layers=layers)
    return train(GRAPH, metis_parts(GRAPH, 3), spec, directory, method="pipegcn", options=options, **settings)


def test_without_lag_it_is_vanilla(tmp_path: Path) -> None:
    vanilla = train(GRAPH, metis_parts(GRAPH, 3), spec_for(GRAPH), tmp_path / "vanilla")
    trained = pipelined(tmp_path / "lag0", options={"lag": 0})
    assert trained.run.losses == vanilla.run.losses
    assert trained.run.weight_hashes == vanilla.run.weight_hashes


def test_how_many_exchanges_are_under_way_at_once_changes_no_number(tmp_path: Path) -> None:
    """A stream for both, a lane each for rows and gradients, or a lane per layer: a run keeps to each of them."""
    runs = {lanes: pipelined(tmp_path / lanes, options={"lanes": lanes}, epochs=5) for lanes in Lanes}
    assert len({trained.run.weight_hashes for trained in runs.values()}) == 1
    used = {
        lanes: {str(span.lane) for span in trained.run.trace.spans if span.kind is Kind.EXCHANGE}
        for lanes, trained in runs.items()
    }
    assert used == {
        Lanes.STREAM: {"halo"},
        Lanes.ONE: {"halo", "grad"},
        Lanes.LAYER: {"halo", "halo.1", "halo.2", "grad.1", "grad.2"},
    }


@pytest.mark.parametrize("lag", [1, 2])
def test_with_frozen_weights_it_becomes_exact_and_not_an_epoch_sooner(tmp_path: Path, lag: int) -> None:
    """Layer 0's rows need a lag as well here; rows are exact after a lag per layer, gradients after one more per layer
    but the first."""
    num_epochs = lag * (2 * LAYERS - 1) + 1
    expected = reference_for(GRAPH, spec_for(GRAPH, layers=LAYERS), lr=0.0)
    off = [
        float(
            (pipelined(tmp_path / str(n), options={"lag": lag}, epochs=n, lr=0.0).grads[0] - expected.grads).abs().max()
        )
        for n in (num_epochs - 1, num_epochs)
    ]
    assert off[1] <= 1e-12
    assert off[0] > 1e-6


def test_rows_and_gradients_are_as_old_as_the_checker_says(tmp_path: Path) -> None:
    trained = pipelined(tmp_path, options={"lag": 2}, epochs=8)
    predicted = {(read.op, read.buffer): set(read.ages) for read in staleness(trained.schedule)}
    assert {key: set(ages) for key, ages in trained.run.ages.items()} == {
        key: predicted[key] for key in trained.run.ages
    }
    assert set(trained.run.ages) == {
        *((f"forward.{layer}", f"halo.{layer}") for layer in range(LAYERS)),
        *((f"backward.{layer - 1}", f"gsent.{layer}") for layer in range(1, LAYERS)),
    }
    halo = sum(part.num_halo for part in trained.parts)
    assert trained.run.ages["forward.1", "halo.1"] == {2: halo * (8 - 2)}
    # every gradient row that was sent is added, as many epochs later
    assert trained.run.ages["backward.0", "gsent.1"] == {2: halo * (8 - 2)}


@pytest.mark.parametrize("smooth", list(Smooth))
def test_a_running_mean_of_constant_rows_approaches_them_as_a_power_of_gamma(tmp_path: Path, smooth: Smooth) -> None:
    """Frozen weights and two layers: the rows of layer 1 depend on layer 0's, which are there from epoch 1 on; its
    means from epoch 2 on see constants, so the error falls by gamma each epoch."""
    options = {"smooth": smooth, "gamma": GAMMA}
    trained = pipelined(tmp_path, layers=2, options=options, epochs=8, lr=0.0, errors=True)
    ratios = {
        what: [
            np.sqrt(error.squared_error / error.squared_norm)
            for error in trained.run.errors
            if error.layer == 1 and error.what == what
        ]
        for what in ("features", "gradients")
    }
    for what, letter in (("features", "f"), ("gradients", "g")):
        assert len(ratios[what]) == 8
        if letter in smooth.value and smooth is not Smooth.NONE:
            late = np.array(ratios[what][4:])
            if what == "features":
                assert late[1:] / late[:-1] == pytest.approx(GAMMA, rel=1e-6)
            assert (late > 0.01).all()
        elif smooth in (Smooth.NONE, Smooth.GRADIENTS):
            assert max(ratios[what][4:]) <= 1e-12


def test_a_running_mean_is_one_minus_gamma_to_the_t(tmp_path: Path) -> None:
    """With exact rows of layer 0 those of layer 1 are constant: after t of them the mean is 1 - gamma^t of them."""
    spec = spec_for(GRAPH, layers=2, precompute=True)
    options = {"smooth": Smooth.BOTH, "gamma": GAMMA}
    trained = train(
        GRAPH,
        metis_parts(GRAPH, 3),
        spec,
        tmp_path,
        method="pipegcn",
        options=options,
        epochs=6,
        lr=0.0,
        errors=True,
    )
    errors = [e for e in trained.run.errors if e.what == "features"]
    assert [np.sqrt(e.squared_error / e.squared_norm) for e in errors] == pytest.approx([GAMMA**t for t in range(6)])


def test_an_exact_start_is_exact_from_the_first_epoch_on(tmp_path: Path) -> None:
    trained = pipelined(tmp_path, options={"warmup": Warmup.EXACT, "lag": 2}, epochs=3, lr=0.0, errors=True)
    assert len(trained.run.errors) == 3 * (LAYERS + LAYERS - 1 + 1)  # rows and gradients by layer, and the weights'
    assert max(error.squared_error for error in trained.run.errors) <= 1e-24
    expected = reference_for(GRAPH, spec_for(GRAPH, layers=LAYERS), lr=0.0)
    assert float((trained.grads[0] - expected.grads).abs().max()) <= 1e-12


@pytest.mark.parametrize("options", [{}, {"smooth": Smooth.BOTH}, {"lag": 3}])
def test_it_sends_what_vanilla_sends_and_keeps_weights_alike(tmp_path: Path, options: dict[str, Any]) -> None:
    trained = pipelined(tmp_path, options=options, epochs=5)
    volume = sum(part.num_halo for part in trained.parts)
    widths = spec_for(GRAPH, layers=LAYERS).widths
    for layer in range(LAYERS):
        sent = sum(s.num_bytes for s in trained.run.trace.spans if s.op == f"exchange.{layer}")
        assert sent == 5 * volume * widths[layer] * 8
    for step in zip(*trained.run.weight_hashes, strict=True):
        assert len(set(step)) == 1
    kinds = {op.kind for op in trained.schedule.ops}
    assert kinds == {Kind.COMPUTE, Kind.EXCHANGE, Kind.ALLREDUCE}
