"""What an epoch sends by the papers' formulas is what schedules count, where every part needs every node."""

import numpy as np
import pytest

from halocast.graph.halo import Halo
from halocast.methods import METHODS
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.schedule.check import check
from halocast.schedule.ir import Kind, Numbers, Schedule

NODES, WIDTH = 8000, 64
ONCE = NODES * WIDTH * 4  # bytes of every node's row


def complete_cut(num_parts: int) -> Halo:
    size = NODES // num_parts
    return Halo(
        num_inner=np.full(num_parts, size),
        num_edges=np.full(num_parts, 50 * size),
        num_train=np.full(num_parts, 10),
        matrix=np.where(np.eye(num_parts, dtype=bool), 0, size),
        num_features=WIDTH,
        num_classes=WIDTH,
        source="partition",
    )


def sent(method: str, layers: int, parts: int, kind: ModelKind = ModelKind.GCN, **options: int) -> int:
    """Bytes of rows and of their gradients in an epoch, those of weights aside."""
    spec = ModelSpec(
        kind=kind,
        layers=layers,
        hidden=WIDTH,
        num_features=WIDTH,
        num_classes=WIDTH,
        norm=Norm.NONE,
        precompute=kind is ModelKind.GCN,
    )
    chosen = METHODS[method]
    schedule: Schedule = check(chosen.make(complete_cut(parts), spec, chosen.options(**options), Numbers.FLOAT32))
    moved = (Kind.EXCHANGE, Kind.SEND)
    return sum(schedule.num_bytes(op) for op in schedule.ops if op.kind in moved)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("layers", [8, 32])
def test_a_graph_in_parts_sends_every_row_to_every_other_part_at_every_layer(layers: int, ranks: int) -> None:
    assert sent("vanilla", layers, ranks) == 2 * (layers - 1) * (ranks - 1) * ONCE


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("layers", [8, 32])
def test_a_pipeline_sends_every_row_once_between_stages_whatever_the_layers(layers: int, ranks: int) -> None:
    assert sent("gnnpipe", layers, 8, stages=ranks) == 2 * (ranks - 1) * ONCE
    assert sent("gnnpipe", layers, 8, ModelKind.GCNII, stages=ranks) == 2 * 2 * (ranks - 1) * ONCE


def test_ways_of_stages_add_what_parts_would_send() -> None:
    for stages, ways in ((4, 2), (2, 4), (1, 8)):
        expected = 2 * (stages - 1) * ONCE + 2 * (32 - 1) * (ways - 1) * ONCE
        assert sent("gnnpipe", 32, 8, stages=stages, ways=ways) == expected


def test_the_table_of_the_page_is_what_schedules_count() -> None:
    """Megabytes of an epoch by (layers, ranks): a graph in parts, and a pipeline."""
    table = {
        (layers, ranks): (sent("vanilla", layers, ranks) / 1e6, sent("gnnpipe", layers, 8, stages=ranks) / 1e6)
        for layers in (8, 32)
        for ranks in (2, 4, 8)
    }
    assert {key: tuple(round(size, 1) for size in sizes) for key, sizes in table.items()} == {
        (8, 2): (28.7, 4.1),
        (8, 4): (86.0, 12.3),
        (8, 8): (200.7, 28.7),
        (32, 2): (127.0, 4.1),
        (32, 4): (380.9, 12.3),
        (32, 8): (888.8, 28.7),
    }
