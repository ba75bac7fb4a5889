"""The memory the schedule predicts is the memory a rank of the executor holds, buffer by buffer and at its peak."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training import metis_parts, schedule_for, small_graph, spec_for, with_channels

from halocast.exec.launch.job import Job, Settings
from halocast.exec.run.handlers import handle
from halocast.exec.run.interpret import Interpreter
from halocast.exec.run.state import RankState
from halocast.exec.transport.comm import Endpoint
from halocast.exec.transport.link import drain
from halocast.graph import build_parts
from halocast.models.spec import ModelKind
from halocast.schedule.passes import memory, num_slots


def state_of(num_parts: int, *, nodes: int = 300, **model: Any) -> RankState:
    """Rank 0 with everything it allocates before the first epoch."""
    graph = small_graph(nodes=nodes)
    parts, spec = build_parts(graph, metis_parts(graph, num_parts)), spec_for(graph, **model)
    job = Job(schedule=schedule_for(parts, spec, "float32"), spec=spec, settings=Settings(epochs=1))
    link = Endpoint(rank=0, timeout_s=1.0, backend="gloo", device=torch.device("cpu"))
    state = RankState(job, parts[0], link)
    drain(state.precompute())
    return state


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group whose other ranks are not there: it sends nothing and receives what lies in the buffer."""
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield request.param
    dist.destroy_process_group()


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it, nor StorageWeakRef
    """The bytes of the storages that exist, and the most that did after any torch operation."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0
        self._note(tensors)

    def _note(self, tensors: list[Tensor]) -> None:
        for storage in (tensor.untyped_storage() for tensor in tensors):
            self._found[storage._cdata] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        gone = [key for key, (ref, _) in self._found.items() if ref.expired()]  # type: ignore[no-untyped-call]
        for key in gone:
            del self._found[key]
        self.peak_bytes = max(self.peak_bytes, sum(num_bytes for _, num_bytes in self._found.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self._note([leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor) and leaf.layout == torch.strided])
        return made


def tensors_of(state: RankState) -> list[Tensor]:
    """What a rank holds before the first epoch, without its topology."""
    rings = [slot for channel in with_channels(state).values() for slot in (*channel.ring, channel.packed)]
    nodes = [state.features, state.labels, state.send_rows, *state.mask_rows, *state.mask_labels]
    aggregated = [] if state.aggregated is None else [state.aggregated]
    return [*nodes, *aggregated, state.weights, state.grads, *rings]


def measured_peak(state: RankState) -> int:
    """The most bytes of tensors during one epoch, topology excluded."""
    state.block.aggregate(torch.zeros(len(state.block.out_degree), 1))  # makes what it keeps of the topology
    interpreter = Interpreter(
        schedule=state.schedule, rank=0, handle=lambda op, epoch: handle(state, op, epoch), timeout_s=5.0
    )
    state.progress = interpreter.progress
    with Alive(tensors_of(state)) as mode:
        interpreter.run(interpreter.ending(1))
    return int(mode.peak_bytes)


def extra_mask_bytes(state: RankState) -> int:
    """The CPU's dropout keeps a mask of float32, the prediction (and a GPU) one of bytes."""
    spec, num_inner = state.job.spec, state.part.num_inner
    rows = [num_inner + (state.part.num_halo if spec.aggregates(k) else 0) for k in range(spec.layers)]
    return sum(3 * rows[k] * spec.widths[k] for k in range(1, spec.layers)) if spec.dropout else 0


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"dropout": 0.5},
        {"dropout": 0.5, "precompute": True},
        {"kind": ModelKind.GCN},
        {"kind": ModelKind.GCN, "dropout": 0.5},
        {"layers": 5, "num_linear": 2, "dropout": 0.5},
    ],
)
@pytest.mark.parametrize("alone", [1, 3], indirect=True)
def test_the_peak_of_an_epoch_is_the_predicted_one(alone: int, model: dict[str, Any]) -> None:
    state = state_of(alone, nodes=3000, hidden=96, **model)
    held = predicted(state)
    not_yet = held["moments"]  # Adam makes them in its first step, after the peak
    expected = memory(state.schedule, 0).peak_bytes - held["topology"] - not_yet + extra_mask_bytes(state)
    assert measured_peak(state) == pytest.approx(expected, rel=0.05)


def held(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def predicted(state: RankState) -> dict[str, int]:
    return {buffer.name: buffer.num_bytes for buffer in state.schedule.buffers if buffer.rank == 0}


def test_what_stays_on_a_rank_is_what_its_buffers_say() -> None:
    state = state_of(3, precompute=False)
    assert predicted(state)["h.0"] == held(state.features)
    assert predicted(state)["weights"] == predicted(state)["grads"] == held(state.weights) == held(state.grads)
    assert predicted(state)["send_rows"] == held(state.send_rows)
    assert predicted(state)["labels"] == held(state.labels) + sum(map(held, [*state.mask_rows, *state.mask_labels]))


def test_a_precomputed_aggregate_is_counted_where_there_is_one() -> None:
    state = state_of(1, precompute=True)
    assert state.aggregated is not None
    assert predicted(state)["aggregated.0"] == held(state.aggregated)
    assert "aggregated.0" not in predicted(state_of(1, precompute=False))


def test_every_exchange_holds_a_ring_and_a_send_buffer_as_large_as_predicted() -> None:
    state = state_of(3, precompute=False)
    alive = dict(memory(state.schedule, 0).alive)
    channels = with_channels(state)
    assert set(channels) == {"exchange.0", "exchange.1", "exchange.2", "exchange_grad.1", "exchange_grad.2"}
    for channel in channels.values():
        target = channel.op.writes[0]
        assert len(channel.ring) == num_slots(state.schedule, 0, target) == 2
        assert alive[target] == sum(held(slot) for slot in channel.ring)
    for layer in range(3):
        assert alive[f"packed.{layer}"] == held(channels[f"exchange.{layer}"].packed) > 0
    assert held(channels["exchange_grad.1"].packed) == 0
