"""DIGEST on real processes against its definition; DIGEST-A in a fixed order against its sequential one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training import Trained, metis_parts, schedule_for, small_graph, spec_for, train

from halocast.exec.launch.job import Job, Optimizer, Settings
from halocast.exec.run.handlers import handle
from halocast.exec.run.interpret import Progress
from halocast.exec.run.state import RankState, flatten
from halocast.exec.store.push_pull import make_store
from halocast.exec.transport.comm import Endpoint
from halocast.exec.transport.link import drain
from halocast.graph import build_parts
from halocast.methods.digest import Average, ServerStep
from halocast.models.modules import build_model, summed_loss
from halocast.models.spec import ModelKind
from halocast.schedule.check import staleness
from halocast.schedule.ir import Kind, Op, Schedule

GRAPH = small_graph()
ASSIGNED = metis_parts(GRAPH, 3)
LAYERS = 3


def digest(directory: Path, *, method: str = "digest", spec: dict[str, Any] | None = None, **settings: Any) -> Trained:
    options = settings.pop("options", {})
    model = spec_for(GRAPH, layers=LAYERS, **(spec or {}))
    return train(GRAPH, ASSIGNED, model, directory, method=method, options=options, **settings)


def one_epoch_stale(schedule: Schedule) -> Schedule:
    """A pipeline of lag 1 whose halo rows are constants in backward: no gradient is sent or added."""

    def without(op: Op) -> Op:
        reads = tuple(name for name in op.reads if not name.startswith("gsent"))
        writes = tuple(name for name in op.writes if not name.startswith("ghalo"))
        after = tuple(edge for edge in op.after if not edge[0].startswith("exchange_grad"))
        return replace(op, reads=reads, writes=writes, after=after)

    ops = tuple(without(op) for op in schedule.ops if not op.name.startswith("exchange_grad"))
    return replace(schedule, ops=ops)


def test_every_epoch_it_is_one_epoch_stale_training_with_constant_halo_rows(tmp_path: Path) -> None:
    """With plain gradient descent, averaging weights by train nodes is averaging gradients."""
    common: dict[str, Any] = {"epochs": 8, "optimizer": Optimizer.SGD, "lr": 0.5}
    expected = train(
        GRAPH,
        ASSIGNED,
        spec_for(GRAPH, layers=LAYERS, precompute=True),
        tmp_path / "lag",
        method="pipegcn",
        change=one_epoch_stale,
        **common,
    )
    trained = digest(tmp_path / "digest", spec={"precompute": True}, options={"interval": 1}, **common)
    assert np.allclose(trained.run.losses, expected.run.losses, rtol=1e-12, atol=0)
    assert len(set(trained.run.losses)) == 8
    for weights in trained.weights:
        assert (weights - expected.weights[0]).abs().max() <= 1e-13


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_pulled_rows_are_exactly_as_old_as_the_interval_says(tmp_path: Path, interval: int) -> None:
    trained = digest(tmp_path, options={"interval": interval}, epochs=4 * interval)
    expected = {1} if interval == 1 else set(range(interval - 1, 2 * interval - 1))
    predicted = {read.buffer: set(read.ages) for read in staleness(trained.schedule) if read.buffer.startswith("halo")}
    assert predicted == {"halo.1": expected, "halo.2": expected}
    halo = sum(part.num_halo for part in trained.parts)
    for layer in (1, 2):
        found = trained.run.ages[f"forward.{layer}", f"halo.{layer}"]
        assert set(found) == expected
        assert sum(found.values()) == halo * (4 * interval - (1 if interval == 1 else interval))


def test_layer_0_has_the_halo_features_from_the_start(tmp_path: Path) -> None:
    """One graph layer: nothing is stale, so with plain descent it is vanilla."""
    spec = spec_for(GRAPH, layers=1)
    common: dict[str, Any] = {"optimizer": Optimizer.SGD, "lr": 0.5}
    vanilla = train(GRAPH, ASSIGNED, spec, tmp_path / "vanilla", **common)
    trained = train(GRAPH, ASSIGNED, spec, tmp_path / "digest", method="digest", **common)
    assert np.allclose(trained.run.losses, vanilla.run.losses, rtol=1e-12)


@pytest.mark.parametrize("average", list(Average))
def test_weights_are_alike_after_every_average(tmp_path: Path, average: Average) -> None:
    trained = digest(tmp_path, options={"average": average, "interval": 2}, epochs=6)
    for step in zip(*trained.run.weight_hashes, strict=True):
        assert len(set(step)) == 1
    assert len(set(trained.run.weight_hashes[0])) == 6


def test_bytes_are_rows_pushed_and_pulled_every_interval(tmp_path: Path) -> None:
    trained = digest(tmp_path, options={"interval": 2}, epochs=8)
    width, itemsize = 16, 8
    moved = dict.fromkeys((Kind.PUSH, Kind.PULL), 0)
    for span in trained.run.trace.spans:
        if span.kind in moved:
            moved[span.kind] += span.num_bytes
    inner, halo = GRAPH.num_nodes, sum(part.num_halo for part in trained.parts)
    assert moved[Kind.PUSH] == 4 * inner * (LAYERS - 1) * width * itemsize
    assert moved[Kind.PULL] == 4 * halo * (LAYERS - 1) * width * itemsize
    assert not any(span.kind is Kind.EXCHANGE for span in trained.run.trace.spans)


def test_no_rank_runs_further_ahead_than_the_bound(tmp_path: Path) -> None:
    trained = digest(tmp_path, method="digest-a", options={"bound": 1}, epochs=8, speed={"0": 0.2}, delay_seed=1)
    ends = {(s.rank, s.epoch): s.end_s for s in trained.run.trace.spans if s.op == "deliver"}
    starts = {(s.rank, s.epoch): s.end_s for s in trained.run.trace.spans if s.op == "fetch"}
    for rank in range(3):
        for epoch in range(2, 8):
            assert starts[rank, epoch] >= max(ends[other, epoch - 2] for other in range(3) if other != rank)


class Sequential:
    """DIGEST-A as one would write it down: ranks take turns, everything between them in two dictionaries."""

    def __init__(self, states: list[RankState], lr: float, interval: int, step: ServerStep) -> None:
        self.states, self.interval, self.step = states, interval, step
        spec = states[0].job.spec
        self.models = [build_model(spec, states[0].job.settings.seed, torch.float64) for _ in states]
        self.flat = [flatten(model) for model in self.models]
        self.optimizers = [torch.optim.Adam([weights], lr=lr) for weights, _ in self.flat]
        self.server = self.flat[0][0].detach().clone()
        self.rows = {layer: torch.zeros(GRAPH.num_nodes, spec.hidden, dtype=torch.float64) for layer in (1, 2)}
        self.halo: list[dict[int, Tensor]] = [{} for _ in states]
        self.losses: list[float] = []

    def turn(self, rank: int, epoch: int) -> None:
        state, (weights, grads) = self.states[rank], self.flat[rank]
        part, model = state.part, self.models[rank]
        with torch.no_grad():
            weights.copy_(self.server)
        rows, features = state.features, torch.from_numpy(GRAPH.features).double()
        pulled = {0: features[torch.from_numpy(part.halo)]}
        for layer in (1, 2):
            if epoch % self.interval == 0:
                self.halo[rank][layer] = self.rows[layer][torch.from_numpy(part.halo)].clone()
            pulled[layer] = self.halo[rank][layer]
        pushed: dict[int, Tensor] = {}
        for layer in range(LAYERS):
            rows = model.layer(layer, torch.cat([rows, pulled[layer]]), state.block)
            pushed[layer + 1] = rows.detach()
        loss = summed_loss(rows[state.mask_rows[0]], state.mask_labels[0])
        (loss / part.num_train).backward()  # type: ignore[no-untyped-call]
        self.optimizers[rank].step()
        grads.zero_()
        share = {ServerStep.FULL: 1.0, ServerStep.SHARE: part.num_train / part.num_train_total}[self.step]
        self.server += share * (weights.detach() - self.server)
        if (epoch - 1) % self.interval == 0:
            for layer in (1, 2):
                self.rows[layer][torch.from_numpy(part.inner)] = pushed[layer]
        self.losses.append(float(loss.detach()) / part.num_train_total)


def lonely(rank: int) -> Endpoint:
    """A rank's end of a link that nobody uses."""
    return Endpoint(rank=rank, timeout_s=5, backend="gloo", device=torch.device("cpu"))


def do_epoch(state: RankState, epoch: int) -> None:
    """All ops of a rank's epoch, one after the other."""
    assert state.progress is not None
    for op in state.schedule.by_rank[state.rank]:
        if op.exists(epoch):
            handle(state, op, epoch)
            state.progress.finish(op, epoch)


@pytest.mark.parametrize("step", list(ServerStep))
def test_taking_turns_it_is_its_sequential_definition(step: ServerStep) -> None:
    """The executor's handlers on three ranks of one process, each doing a whole epoch in turn."""
    interval, num_epochs, lr = 2, 7, 0.02
    parts, spec = build_parts(GRAPH, ASSIGNED), spec_for(GRAPH, layers=LAYERS)
    schedule = schedule_for(parts, spec, "float64", "digest-a", interval=interval, step=step)
    job = Job(schedule=schedule, spec=spec, settings=Settings(dtype="float64", lr=lr, seed=5))
    states = [RankState(job, part, lonely(part.rank)) for part in parts]
    sequential = Sequential(states, lr, interval, step)
    features = torch.from_numpy(GRAPH.features).double()
    with make_store(states[0]) as store:
        for state in states:
            state.store, state.progress = store, Progress(schedule, state.rank, 5.0)
            state.kept["halo.0"] = features[torch.from_numpy(state.part.halo)]
        for epoch in range(num_epochs):
            for state in states:
                do_epoch(state, epoch)
                sequential.turn(state.rank, epoch)
        final, _ = store.read("server")
    found = [state.history[epoch].loss for epoch in range(num_epochs) for state in states]
    assert np.allclose(found, sequential.losses, rtol=1e-10)
    assert np.abs(final - sequential.server.numpy()).max() <= 1e-12


def learnt_in_turns(kind: ModelKind, order: list[int]) -> float:
    """The test accuracy of DIGEST-A's weights when ranks do an epoch each in this order, on a graph of six classes."""
    graph = small_graph(nodes=600, degree=10, classes=6, features=32, mixing=0.2, seed=1)
    parts, spec = build_parts(graph, metis_parts(graph, 2)), spec_for(graph, hidden=32, kind=kind)
    schedule = schedule_for(parts, spec, "float32", "digest-a")
    job = Job(schedule=schedule, spec=spec, settings=Settings(lr=0.01, seed=5))
    states = [RankState(job, part, lonely(part.rank)) for part in parts]
    features, epochs = torch.from_numpy(graph.features), [0, 0]
    with make_store(states[0]) as store:
        for state in states:
            state.store, state.progress = store, Progress(schedule, state.rank, 5.0)
            state.kept["halo.0"] = features[torch.from_numpy(state.part.halo)]
        for rank in order:
            do_epoch(states[rank], epochs[rank])
            epochs[rank] += 1
        final, _ = store.read("server")
    states[0].weights.detach().copy_(torch.from_numpy(final))
    whole = RankState(job, build_parts(graph, np.zeros(graph.num_nodes, np.int32))[0], lonely(0))
    whole.weights.detach().copy_(torch.from_numpy(final))
    right, of = whole.score(drain(whole.logits()))[2]
    return right / of


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several would wait for each other on a busy machine, small as the tensors are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [ModelKind.SAGE, ModelKind.GAT])
def test_at_ten_to_one_a_slow_rank_that_ends_alone_forgets_what_the_other_knew(kind: ModelKind) -> None:
    """Rank 0 is ten times as fast. Where it stops after its 40 epochs, rank 1 trains 36 alone."""
    alone = [*([0] * 10 + [1]) * 4, *[1] * 36]
    together = ([0] * 10 + [1]) * 40
    assert learnt_in_turns(kind, alone) < 0.8
    assert learnt_in_turns(kind, together) > 0.93
