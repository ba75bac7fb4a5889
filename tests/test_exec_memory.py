"""The memory the schedule predicts is the memory a rank of the executor holds, buffer by buffer."""

import torch
from torch import Tensor
from training import metis_parts, schedule_for, small_graph, spec_for

from halocast.exec.comm import Link
from halocast.exec.job import Job, Settings
from halocast.exec.state import RankState
from halocast.graph import build_parts
from halocast.schedule.passes import memory, num_slots


def state_of(num_parts: int, *, precompute: bool) -> RankState:
    """Rank 0 with everything it allocates before the first epoch; nobody is sent anything."""
    graph = small_graph()
    parts, spec = build_parts(graph, metis_parts(graph, num_parts)), spec_for(graph, precompute=precompute)
    job = Job(schedule=schedule_for(parts, spec, "float32"), spec=spec, settings=Settings())
    return RankState(job, parts[0], Link(rank=0, timeout_s=1.0, backend="gloo", device=torch.device("cpu")))


def held(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def predicted(state: RankState) -> dict[str, int]:
    return {buffer.name: buffer.num_bytes for buffer in state.schedule.buffers if buffer.rank == 0}


def test_what_stays_on_a_rank_is_what_its_buffers_say() -> None:
    state = state_of(3, precompute=False)
    assert predicted(state)["h.0"] == held(state.features)
    assert predicted(state)["weights"] == predicted(state)["grads"] == held(state.weights) == held(state.grads)
    assert predicted(state)["send_rows"] == held(state.send_rows)


def test_a_precomputed_aggregate_is_counted_where_there_is_one() -> None:
    state = state_of(1, precompute=True)
    assert state.aggregated is not None
    assert predicted(state)["aggregated.0"] == held(state.aggregated)
    assert "aggregated.0" not in predicted(state_of(1, precompute=False))


def test_every_exchange_holds_a_ring_and_a_send_buffer_as_large_as_predicted() -> None:
    state = state_of(3, precompute=False)
    alive = dict(memory(state.schedule, 0).alive)
    assert set(state.channels) == {"exchange.0", "exchange.1", "exchange.2", "exchange_grad.1", "exchange_grad.2"}
    for channel in state.channels.values():
        target = channel.op.writes[0]
        assert len(channel.ring) == num_slots(state.schedule, 0, target) == 2
        assert alive[target] == sum(held(slot) for slot in channel.ring)
    for layer in range(3):
        assert alive[f"packed.{layer}"] == held(state.channels[f"exchange.{layer}"].packed) > 0
    assert held(state.channels["exchange_grad.1"].packed) == 0
