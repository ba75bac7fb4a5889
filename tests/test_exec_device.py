"""The seam to a device: work in the order of its lane, complete when it is waited for, and not a moment sooner."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from halocast.base.errors import InputError
from halocast.exec.transport.comm import ONCE, Endpoint
from halocast.exec.transport.device import OPEN, Cpu, DeviceKind, Seam, Twin, open_device
from halocast.exec.transport.dist_channel import message_tag
from halocast.schedule.ir import Lane

GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not GPU, reason="torch sees no CUDA device here")
DEVICES = ["cpu", "twin", pytest.param("cuda", marks=[needs_gpu, pytest.mark.gpu])]
LANES = [Lane.COMPUTE, Lane.HALO, Lane.REDUCE]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Seam]:
    made = open_device(request.param, "gloo", 0)
    made.enter(Lane.COMPUTE)
    yield made
    made.enter(Lane.COMPUTE)


def on_lane(device: Seam, lane: Lane, work: Callable[[], None]) -> None:
    """Do it in a thread of the lane, to its end."""

    def run() -> None:
        device.enter(lane)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def here(device: Seam, *values: float) -> Tensor:
    return torch.tensor(values, device=device.where)


def room(device: Seam, size: int = 2) -> Tensor:
    return device.host_like(torch.empty(size, device="meta"))


def test_rows_go_down_and_up_again(device: Seam) -> None:
    rows, back, host = here(device, 1.0, 2.0), here(device, 0.0, 0.0), room(device)
    device.copy(rows, host)
    device.copy(host, back)
    device.finish()
    assert (host.tolist(), back.tolist()) == ([1.0, 2.0], [1.0, 2.0])
    assert host.device.type == "cpu"


def test_an_event_waits_for_its_own_lane_up_to_itself(device: Seam) -> None:
    rows, host = here(device, 1.0, 2.0), room(device)
    device.copy(rows, host)
    event = device.record()
    device.copy(torch.zeros_like(rows), rows)
    event.synchronize()
    assert host.tolist() == [1.0, 2.0]


def test_a_lane_may_wait_for_an_event_of_another_lane_without_its_thread(device: Seam) -> None:
    first, between, last = here(device, 3.0, 4.0), room(device), here(device, 0.0, 0.0)
    events = []

    def bring_down() -> None:
        device.copy(first, between)
        events.append(device.record())

    on_lane(device, Lane.HALO, bring_down)
    device.wait(events[0])
    device.copy(between, last)
    device.finish()
    assert last.tolist() == [3.0, 4.0]


def test_a_lane_begins_after_what_the_compute_lane_was_told_before(device: Seam) -> None:
    rows, host, filled = here(device, 0.0, 0.0), room(device), room(device)
    device.copy(torch.ones(2), filled)
    device.finish()
    device.copy(filled, rows)  # nobody waits for it, as for the filling of buffers

    def bring_down() -> None:
        device.copy(rows, host)
        device.finish()

    on_lane(device, Lane.HALO, bring_down)
    assert host.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", DEVICES)
@given(program=st.lists(st.tuples(st.sampled_from(LANES), st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_copies_on_any_lanes_that_wait_for_each_other_are_as_copies_in_sequence(
    name: str, program: list[tuple[Lane, int, int]]
) -> None:
    device = open_device(name, "gloo", 0)
    device.enter(Lane.COMPUTE)
    buffers, expected = [here(device, float(k)) for k in range(4)], [0.0, 1.0, 2.0, 3.0]
    event = device.record()
    for lane, source, target in program:
        device.enter(lane)
        device.wait(event)
        device.copy(buffers[source], buffers[target])
        event = device.record()
        expected[target] = expected[source]
    event.synchronize()
    device.enter(Lane.COMPUTE)
    assert [float(buffer) for buffer in buffers] == expected


def test_the_twin_copies_only_when_somebody_waits() -> None:
    twin = Twin()
    rows, host = torch.ones(2), room(twin)
    twin.copy(rows, host)
    assert host.isnan().all()
    rows.fill_(5.0)  # too early: the copy has not happened
    twin.finish()
    assert host.tolist() == [5.0, 5.0]


def test_waiting_for_one_lane_of_the_twin_does_not_wait_for_the_others() -> None:
    twin = Twin()
    computed, received = room(twin), room(twin)
    twin.copy(torch.ones(2), computed)

    def receive() -> None:
        twin._thread.lane = Lane.HALO  # not by `enter`, which would wait for the compute lane
        twin.copy(torch.ones(2), received)
        twin.finish()

    thread = threading.Thread(target=receive)
    thread.start()
    thread.join()
    assert received.tolist() == [1.0, 1.0]
    assert computed.isnan().all()


@needs_gpu
@pytest.mark.gpu
def test_host_memory_of_a_gpu_is_pinned() -> None:
    assert room(open_device("cuda", "gloo", 0)).is_pinned()


@pytest.mark.skipif(GPU, reason="torch sees a CUDA device here")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(InputError, match="device cuda needs one, and torch sees none here"):
        open_device("cuda", "gloo", 0)
    with pytest.raises(InputError, match="backend nccl needs CUDA devices, and torch sees none here"):
        open_device("auto", "nccl", 0)


def test_every_word_for_a_device_opens_one_and_others_are_refused() -> None:
    assert set(OPEN) | {DeviceKind.AUTO} == set(DeviceKind)
    assert isinstance(open_device("auto", "gloo", 0), Cpu)
    with pytest.raises(InputError, match=r"run.device: unknown device 'cdua'; did you mean 'cuda'\?"):
        open_device("cdua", "gloo", 0)
    with pytest.raises(InputError, match="backend nccl needs device cuda or auto, not 'cpu'"):
        open_device("cpu", "nccl", 0)


@pytest.mark.parametrize(
    ("seam", "backend", "staged"),
    [(Cpu(), "gloo", False), (Twin(), "gloo", True), (Twin(), "nccl", False)],
)
def test_only_messages_that_the_transport_cannot_reach_are_staged(seam: Seam, backend: str, staged: bool) -> None:
    link = Endpoint(rank=0, timeout_s=1.0, backend=backend, device=seam.where, seam=seam)
    rows = torch.ones(2)
    assert link.staged is staged
    assert (link.down(rows) is not rows) is staged
    assert link.down(rows).tolist() == [1.0, 1.0]


@given(
    first=st.integers(0, 2**40) | st.integers(2**30 - 50, 2**30 + 50),
    num_epochs=st.integers(1, 50),
    num_exchanges=st.integers(1, 60),
)
def test_no_two_messages_in_flight_have_one_tag(first: int, num_epochs: int, num_exchanges: int) -> None:
    epochs = range(first, first + num_epochs)
    tags = [message_tag(epoch, k, num_exchanges) for epoch in epochs for k in range(num_exchanges)]
    assert len(set(tags)) == num_epochs * num_exchanges
    assert ONCE not in tags
    assert all(0 < tag < 2**31 for tag in tags)
