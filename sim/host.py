"""What an op takes of its rank's host beside its kernels: messages, calls and waits of the implementation."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from halocast.cluster.catalogue import Device
from halocast.codes.implementation import HostCosts, Implementation
from halocast.schedule.ir import COLLECTIVE, Kind, Op, Payload, Schedule
from halocast.sim.lower import STEP, num_calls


def host_seconds(schedule: Schedule, op: Op, code: Implementation, device: Device) -> float:
    """Seconds of host work of an op: of its communication before the first byte, of its loss, of its step of weights.

    Where a device was measured, so was what our executor takes on it.
    """
    if code.calibrated and device.measured is not None:
        return 0.0
    said = COSTS[op.kind](schedule, op, code.host) if op.kind in COSTS else 0.0
    return said + _loss_s(op, code) + (num_calls(op) * code.optimiser.step_s if op.verb == STEP else 0.0)


def _loss_s(op: Op, code: Implementation) -> float:
    """Seconds of a loss that is waited for, by the classes of its kernel."""
    if code.loss is None:
        return 0.0
    widths = [kernel.dims[1] for kernel in op.work.kernels if kernel.kind == "loss"]
    return sum(code.loss.base_s + width * code.loss.class_s for width in widths)


def _exchange_s(schedule: Schedule, op: Op, host: HostCosts) -> float:
    peers = len(schedule.partners(op))
    return host.exchange_s + peers * host.message_s if peers else 0.0


def _collective_s(schedule: Schedule, op: Op, host: HostCosts) -> float:
    group = schedule.group(op)
    if len(group) < 2:
        return 0.0
    through_s = 0.0
    if host.partial_bytes_per_s is not None and len(group) < schedule.num_ranks and isinstance(op.work, Payload):
        through_s = op.work.num_bytes / host.partial_bytes_per_s
    return num_calls(op) * host.collective_s + through_s


COSTS: Mapping[Kind, Callable[[Schedule, Op, HostCosts], float]] = MappingProxyType(
    {
        Kind.EXCHANGE: _exchange_s,
        Kind.SEND: lambda schedule, op, host: host.send_s,
        Kind.RECV: lambda schedule, op, host: host.send_s,
        Kind.PUSH: lambda schedule, op, host: host.store_s,
        Kind.PULL: lambda schedule, op, host: host.store_s,
        **dict.fromkeys(COLLECTIVE, _collective_s),
        Kind.BARRIER: lambda schedule, op, host: host.barrier_s,
    }
)
