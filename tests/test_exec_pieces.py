"""A layer in pieces: rows are summed as they come, with the results of the layer as a whole."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training import metis_parts, small_graph, spec_for, train

from halocast.exec.run.part_tensors import block_of
from halocast.exec.run.pieces import BACK, cut
from halocast.graph import build_parts
from halocast.models.modules import NEIGHBOURS, build_model, random_states, with_random_states
from halocast.models.spec import ModelKind
from halocast.schedule.check import check
from halocast.schedule.ir import Buffer, Op, Role, Rows, Schedule

GRAPH = small_graph()


def in_pieces(schedule: Schedule) -> Schedule:
    """Every layer that exchanges rows in two pieces, forth and back: the part's own columns, then those of the halo."""
    ops, buffers = list[Op](), list(schedule.buffers)
    for op in schedule.ops:
        halo = [name for name in op.reads + op.writes if name.startswith(("halo.", "ghalo."))]
        pieces = halo and op.verb in ("forward", "backward")
        ops += _pieces(op, halo) if pieces else [replace(op, after=_after(op))]
        if pieces and op.verb == "forward":
            row = next(b for b in buffers if b.rank == op.rank and b.name == op.reads[0])
            for name, role in ((f"sum.{op.index[0]}", Role.SUM), (f"gsum.{op.index[0]}", Role.SUM_GRAD)):
                buffers.append(Buffer(name=name, rank=op.rank, num_bytes=row.num_bytes, rows=Rows.INNER, role=role))
    return check(replace(schedule, ops=tuple(ops), buffers=tuple(buffers)))


def _pieces(op: Op, halo: list[str]) -> list[Op]:
    layer, rest = op.index[0], tuple(name for name in op.reads if name not in halo)
    if op.verb == "forward":
        own = replace(op, name=f"forward.{layer}.0", reads=op.reads[:1], writes=(f"sum.{layer}",), after=())
        others = (*halo, f"sum.{layer}", *rest)
        return [own, replace(op, name=f"forward.{layer}.1", reads=others, after=_after(op))]
    writes = tuple(name for name in op.writes if name not in halo)
    first = replace(op, name=f"backward.{layer}.0", writes=(*writes, f"gsum.{layer}"), after=_after(op))
    back = replace(op, name=f"backward.{layer}.1", reads=(f"gsum.{layer}",), writes=tuple(halo), after=())
    return [first, back]


def _after(op: Op) -> tuple[tuple[str, int], ...]:
    """Edges to a layer are edges to its last piece."""
    return tuple((f"{name}.1" if name in SPLIT else name, lag) for name, lag in op.after)


SPLIT = {"forward.0", "forward.1", "forward.2", "backward.1", "backward.2"}


@pytest.mark.parametrize("kind", [ModelKind.SAGE, ModelKind.GCN, ModelKind.RESGCN])
def test_layers_in_pieces_train_as_whole_layers_do(kind: ModelKind, tmp_path: Path) -> None:
    spec, parts = spec_for(GRAPH, kind=kind), metis_parts(GRAPH, 3)
    whole = train(GRAPH, parts, spec, tmp_path / "whole")
    pieces = train(GRAPH, parts, spec, tmp_path / "pieces", change=in_pieces)
    assert sum(op.name.startswith("forward") for op in pieces.schedule.by_rank[0]) == 6
    for a, b in zip(whole.weights, pieces.weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    torch.testing.assert_close(whole.logits, pieces.logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [ModelKind.SAGE, ModelKind.GCN])
def test_a_pieces_gradient_is_what_autograd_finds_with_the_same_draw(kind: ModelKind) -> None:
    part = build_parts(GRAPH, metis_parts(GRAPH, 3))[1]
    full = block_of(part, torch.float64, torch.device("cpu"))
    columns = cut(part, full, part.num_inner + np.arange(5, 40))
    model = build_model(spec_for(GRAPH, kind=kind, dropout=0.5), 0, torch.float64)
    rows = torch.randn(35, 12, dtype=torch.float64, requires_grad=True)
    states, grad = random_states(rows.device), torch.randn(part.num_inner, 12, dtype=torch.float64)
    with with_random_states(states, rows.device):
        NEIGHBOURS[kind](columns.block, model.drop(rows)).backward(grad)  # type: ignore[no-untyped-call]
    with with_random_states(states, rows.device):
        found = model.drop(BACK[kind](columns, grad))
    assert rows.grad is not None
    assert (found == 0).sum() > 100
    torch.testing.assert_close(found, rows.grad, rtol=0, atol=1e-12)


def test_the_columns_of_all_pieces_add_up_to_the_whole_sum() -> None:
    part = build_parts(GRAPH, metis_parts(GRAPH, 3))[0]
    full = block_of(part, torch.float64, torch.device("cpu"))
    rows = torch.randn(part.num_inner + part.num_halo, 7, dtype=torch.float64)
    order = np.random.default_rng(0).permutation(len(rows))
    cuts = [order[:50], order[50:51], order[51:]]
    total = sum(cut(part, full, some).block.aggregate(rows[torch.from_numpy(some)]) for some in cuts)
    torch.testing.assert_close(total, full.aggregate(rows), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [ModelKind.SAGE, ModelKind.GCN])
def test_a_peer_that_gives_nothing_adds_nothing(kind: ModelKind) -> None:
    part = build_parts(GRAPH, metis_parts(GRAPH, 3))[0]
    full = block_of(part, torch.float64, torch.device("cpu"))
    none = cut(part, full, np.arange(0))
    summed = NEIGHBOURS[kind](none.block, torch.zeros(0, 7, dtype=torch.float64))
    assert torch.equal(summed, torch.zeros(part.num_inner, 7, dtype=torch.float64))
    assert BACK[kind](none, summed).shape == (0, 7)
