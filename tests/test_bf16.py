"""Training with bfloat16 rows and float32 weights on real processes: every method and model, and how close it stays."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training import metis_parts, reference_for, schedule_for, small_graph, spec_for, train

from halocast.base.errors import InputError
from halocast.exec.launch.job import Job, Settings
from halocast.exec.launch.local import Run, execute
from halocast.exec.run.reference import train_reference
from halocast.exec.store.blocks import Table
from halocast.exec.store.kvs import create_store
from halocast.graph import Part, assign, build_parts
from halocast.graph.chunks import ways_of_graph
from halocast.methods import METHODS
from halocast.models.aggregate import kernels, neighbour_sum
from halocast.models.modules import NEIGHBOURS, build_model, make_block, summed_loss, unit_rows
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.schedule.check import check
from halocast.schedule.ir import Kind, Numbers, Role, Schedule

GRAPH = small_graph()
EPOCHS = 3
MODELS: dict[ModelKind, dict[str, Any]] = {
    ModelKind.SAGE: {"norm": Norm.LAYER},
    ModelKind.GCN: {"norm": Norm.L2},
    ModelKind.GAT: {"heads": 2},
    ModelKind.GCNII: {"layers": 4, "norm": Norm.NONE},
}


@dataclass(frozen=True)
class Case:
    method: str
    kind: ModelKind
    options: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    alike: bool = True  # all ranks end every epoch with the same weights

    def __str__(self) -> str:
        return "-".join([self.method, self.kind, *map(str, self.options), *self.model, *self.settings])


CASES = (
    Case("vanilla", ModelKind.SAGE, settings={"device": "twin"}),
    Case("vanilla", ModelKind.GCN, model={"precompute": True, "dropout": 0.3}),
    Case("vanilla", ModelKind.GAT, model={"recompute": True}),
    Case("pipegcn", ModelKind.GCNII, settings={"errors": True}),
    Case("pipegcn-f", ModelKind.GCN),
    Case("pipegcn-g", ModelKind.GAT),
    Case("pipegcn-gf", ModelKind.SAGE, model={"dropout": 0.3}),
    Case("digest", ModelKind.SAGE, {"interval": 2}),
    Case("digest-a", ModelKind.GCNII, {"interval": 1}, alike=False),
    Case("gnnpipe", ModelKind.GCNII, {"stages": 2, "freeze": 1, "late_gradients": True}, alike=False),
    Case("gnnpipe", ModelKind.SAGE, {"stages": 1, "ways": 2, "freeze": 1}),
)
DRAWN = (
    Case("bns", ModelKind.SAGE, {"rate": 0.3}),
    Case("bns", ModelKind.GCN, {"rate": 0.5, "what": "edges"}),
    Case("psc", ModelKind.SAGE, {"eps": 0.5, "cache": 0.3, "refresh": 2}),
)


def prepared(case: Case, dtype: str) -> tuple[ModelSpec, tuple[Part, ...], Schedule]:
    """A schedule for two ranks: of a part each, or of four chunks."""
    spec = spec_for(GRAPH, kind=case.kind, **MODELS[case.kind] | case.model)
    method, options = METHODS[case.method], case.options
    if not method.chunks:
        parts = build_parts(GRAPH, metis_parts(GRAPH, 2))
        return spec, parts, schedule_for(parts, spec, dtype, case.method, **options)
    assignment = assign(GRAPH, 4, balance="cost", seed=1)
    halo = ways_of_graph(GRAPH, assignment, options.get("ways", 1))
    schedule = check(method.make(halo, spec, method.options(shuffle=False, **options), Numbers(dtype)))
    return spec, build_parts(GRAPH, assignment), schedule


def run_case(case: Case, dtype: str, directory: Path) -> tuple[Run, Schedule, list[dict[str, torch.Tensor]]]:
    """Train for a few epochs; the last are each rank's tensors."""
    spec, parts, schedule = prepared(case, dtype)
    settings = Settings(epochs=EPOCHS, dtype=dtype, audit=True, seed=5, **case.settings)
    run = execute(Job(schedule=schedule, spec=spec, settings=settings), parts, keep=directory)
    return run, schedule, [torch.load(directory / f"audit-{rank}.pt") for rank in range(schedule.num_ranks)]


def moves_weights(schedule: Schedule, rank: int, name: str) -> bool:
    op = schedule.find(rank, name)
    assert op is not None
    names = (*op.reads, *op.writes)
    roles = {buffer.role for name in names if (buffer := schedule.buffer(rank, name)) is not None}
    return bool(roles & {Role.WEIGHTS, Role.WEIGHT_GRADS})


def assert_trained(case: Case, run: Run, audits: list[dict[str, torch.Tensor]]) -> None:
    """Finite losses, rows of 16 bits, weights of 32 that agree where the method says so."""
    assert len(run.losses) == EPOCHS
    assert np.isfinite(run.losses).all()
    for audit in audits:
        assert {name: tensor.dtype for name, tensor in audit.items()} == {
            "weights": torch.float32,
            "grads": torch.float32,
            "logits": torch.bfloat16,
        }
        assert not torch.equal(audit["weights"], audit["weights"].bfloat16().float())  # not rounded to 16 bits
    if case.alike:
        assert all(len(set(step)) == 1 for step in zip(*run.weight_hashes, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_take_half_the_bytes_and_weights_as_many_in_every_method(case: Case, tmp_path: Path) -> None:
    run, schedule, audits = run_case(case, "bfloat16", tmp_path)
    assert_trained(case, run, audits)
    (_, _, wide), num_moving = prepared(case, "float32"), 0
    for span in run.trace.spans:
        op, before = schedule.find(span.rank, span.op), wide.find(span.rank, span.op)
        assert op is not None
        assert before is not None
        assert span.num_bytes == schedule.num_bytes(op)
        factor = 1 if op.kind is Kind.COMPUTE or moves_weights(schedule, span.rank, span.op) else 2
        assert factor * span.num_bytes == wide.num_bytes(before)
        num_moving += factor == 2 and span.num_bytes > 0
    assert num_moving >= EPOCHS  # rows did travel
    if case.settings.get("errors"):
        assert {error.what for error in run.errors} == {"features", "gradients", "weights"}
        assert all(np.isfinite(error.squared_error) for error in run.errors)


@pytest.mark.parametrize("case", DRAWN, ids=str)
def test_drawn_rows_take_half_the_bytes_of_the_same_draws_in_float32(case: Case, tmp_path: Path) -> None:
    """PSC draws by the rows' lengths from its first refresh on, so only the epochs before draw the same."""
    run, _, audits = run_case(case, "bfloat16", tmp_path / "narrow")
    assert_trained(case, run, audits)
    wide, _, _ = run_case(case, "float32", tmp_path / "wide")
    same = case.options.get("refresh", EPOCHS)
    moved = [{(s.rank, s.op, s.epoch): s.num_bytes for s in r.trace.spans if s.epoch < same} for r in (run, wide)]
    assert moved[0].keys() == moved[1].keys()
    for (rank, name, epoch), num_bytes in moved[0].items():
        is_rows = name.partition(".")[0] in ("exchange", "exchange_grad")
        assert (2 if is_rows else 1) * num_bytes == moved[1][rank, name, epoch]
    assert any(num_bytes for (_, name, _), num_bytes in moved[0].items() if name == "exchange.1")


@pytest.mark.parametrize("kind", [ModelKind.SAGE, ModelKind.GCN])
def test_vanilla_on_two_ranks_stays_close_to_one_process_in_bfloat16(kind: ModelKind, tmp_path: Path) -> None:
    """Both round the same rows, but sum gradients of rows in another order: a row's differ by a few roundings of 2^-8.

    After four steps of Adam, which moves a weight by up to 0.01 whatever the size of its gradient, weights whose
    gradients are near 0 may differ by as much as a step; logits differ by a few per cent of the largest.
    """
    spec = spec_for(GRAPH, kind=kind)
    trained = train(GRAPH, metis_parts(GRAPH, 2), spec, tmp_path, dtype="bfloat16")
    expected, exact = reference_for(GRAPH, spec, "bfloat16"), reference_for(GRAPH, spec, "float32")
    assert expected.weights.dtype is torch.float32
    assert trained.run.losses == pytest.approx(expected.losses, rel=2**-8)
    assert trained.run.losses == pytest.approx(exact.losses, rel=2**-8)
    assert trained.run.losses != pytest.approx(exact.losses, rel=1e-6)  # it did compute with fewer bits
    off = (trained.logits.float() - expected.logits.float()).abs().max()
    assert off <= 0.03 * expected.logits.float().abs().max()
    for grads in trained.grads:
        assert (grads - expected.grads).abs().max() <= 0.05 * expected.grads.abs().max()


def test_bfloat16_learns_as_well_as_float32() -> None:
    """Accuracy on 120 test nodes after 40 epochs, within two points."""
    graph = small_graph(nodes=600, mixing=0.4)
    spec = spec_for(graph, dropout=0.2)
    scores = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        found = train_reference(graph, spec, num_epochs=40, lr=0.01, seed=5, dtype=dtype).logits
        right = (found.argmax(1).numpy() == graph.labels)[graph.test_mask]
        scores[dtype] = right.mean()
    assert scores[torch.float32] > 0.6  # of 4 classes: it did learn
    assert scores[torch.bfloat16] == pytest.approx(scores[torch.float32], abs=0.02)


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize("kind", list(ModelKind))
def test_a_layer_keeps_its_rows_narrow_and_its_weights_wide(kind: ModelKind, kernel: str) -> None:
    spec = spec_for(GRAPH, kind=kind, **MODELS.get(kind, {}))
    table = (torch.from_numpy(GRAPH.indptr), torch.from_numpy(GRAPH.indices), GRAPH.num_nodes)
    degrees = [torch.from_numpy(np.asarray(d)).float() for d in (GRAPH.in_degree, GRAPH.out_degree)]
    block = make_block(neighbour_sum(*table, kernel=kernel), *degrees)
    models = [build_model(spec, 5, dtype) for dtype in (torch.bfloat16, torch.float32)]
    given = torch.from_numpy(GRAPH.features).bfloat16()
    outs = []
    for model, features in zip(models, (given, given.float()), strict=True):
        rows = features.requires_grad_()
        first = model.layer(0, rows, block)
        out = first
        for layer in range(1, spec.layers):
            out = model.layer(layer, out, block, None, first if spec.mixes_first(layer) else None)
        summed_loss(out, torch.from_numpy(GRAPH.labels)).backward()  # type: ignore[no-untyped-call]
        assert rows.grad is not None
        assert out.dtype == rows.grad.dtype == rows.dtype
        weights = list(model.parameters())
        assert {weight.dtype for weight in weights} == {torch.float32}
        assert {weight.grad.dtype for weight in weights if weight.grad is not None} == {torch.float32}
        outs.append(out.detach().float())
    assert (outs[0] - outs[1]).abs().max() <= 0.05 * outs[1].abs().max()  # some ten roundings of 2^-9 each


def test_a_sum_of_many_narrow_rows_is_rounded_once() -> None:
    """In bfloat16 1 + 1 + ... stays at 256: the next number is 258."""
    indptr, indices = torch.tensor([0, 1000]), torch.arange(1000)
    degrees = torch.ones(1), torch.ones(1000)
    block = make_block(neighbour_sum(indptr, indices, 1000), *degrees)
    found = NEIGHBOURS[ModelKind.GCN](block, torch.ones(1000, 8, dtype=torch.bfloat16))
    assert found.dtype is torch.bfloat16
    assert found.tolist() == [[1000.0] * 8]
    lengths = torch.linalg.vector_norm(unit_rows(torch.ones(2, 4096, dtype=torch.bfloat16)).float(), dim=1)
    assert lengths.tolist() == [1.0, 1.0]


def test_the_store_keeps_the_bits_of_bfloat16_and_adds_to_none(tmp_path: Path) -> None:
    table = Table(name="rows", num_rows=1, width=3, dtype="bfloat16")
    assert table.row_bytes == 6
    rows = torch.tensor([[1.5, -0.01, torch.inf]], dtype=torch.bfloat16)
    with create_store([table], f"shared:{tmp_path}") as store:
        store.push("rows", slice(0, 1), rows.view(torch.int16).numpy(), 0)
        values, versions = store.pull("rows", slice(0, 1))
        assert torch.equal(torch.from_numpy(values).view(torch.bfloat16), rows)
        assert versions.tolist() == [0]
        with pytest.raises(InputError, match="'rows' holds the bits of bfloat16, which cannot be added to"):
            store.add("rows", values[0])
