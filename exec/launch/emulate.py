"""Hosts of a cluster on this one machine: a network namespace each, joined by a bridge, every NIC limited to its rate.

    host 0: eth0 (tbf) ---- (tbf) port0 \\
                                         bridge, in a namespace of its own
    host 1: eth0 (tbf) ---- (tbf) port1 /

A pair of veth devices is a NIC and its cable; the token bucket at its host's end limits what the host sends, the one at
the bridge's end what it receives. Nothing of the machine's own network is touched. Latency is not emulated: that takes
`netem`, which many kernels lack.

A namespace's name says which process made it, so that a run which was killed is cleaned up after by the next one.
"""

import ctypes
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from types import MappingProxyType

from halocast.base.errors import RunError

NAMESPACES = Path("/var/run/netns")  # where `ip netns` keeps their names
OURS = re.compile(r"halocast-(?P<owner>(?P<pid>\d+)-\d+)-[0-9a-f]{6}-\w+")  # the names of our namespaces, no others
INTERFACE = "eth0"
BRIDGE = "br0"
FIRST_ADDRESS, NETWORK_BITS = IPv4Address("10.0.0.1"), 16
MTU, FRAME_BYTES = 9000, 9014  # jumbo frames: a sixth of the packets, whose cost the cores of the ranks pay
BURST_S = 1e-3  # after a pause a link is this far ahead: no message gains more, and a late timer costs no bandwidth
QUEUE_S = 50e-3  # what a port holds before it drops: several senders to one host need some
UNLIMITED_BYTES_PER_S = 10e9  # a core moves a few GB/s through a pair of veth devices
COMMAND_S = 10.0
CLONE_NEWNET = 0x40000000  # of Linux's sched.h
CAPABILITIES = MappingProxyType({"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21})  # bits, of Linux's capability.h


@dataclass(frozen=True, slots=True)
class Host:
    """One emulated host: its namespace, and its address in all of them."""

    namespace: str
    address: str


class Emulation:
    """A context in which there is a Host per given NIC rate; at its end, however it comes, all of them are removed."""

    def __init__(self, nic_bytes_per_s: Sequence[float], burst_s: float = BURST_S) -> None:
        self._rates, self._burst_s = tuple(nic_bytes_per_s), burst_s
        self._name = f"halocast-{_owner(str(os.getpid()))}-{secrets.token_hex(3)}"

    def __enter__(self) -> tuple[Host, ...]:
        remove_stale()
        try:
            return self._build()
        except BaseException:
            _remove(self._namespaces())
            raise

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        failed = _remove(self._namespaces())
        if failed and kind is None:  # else the reason why the context ends is the one to tell
            raise RunError(failed[0])

    def _namespaces(self) -> list[str]:
        """The own namespaces as the machine has them, since an interrupted command may or may not have made one."""
        return [name for name in _all_namespaces() if name.startswith(f"{self._name}-")]

    def _build(self) -> tuple[Host, ...]:
        bridge = f"{self._name}-bridge"
        _do("ip", "netns", "add", bridge)
        _do("ip", "-n", bridge, "link", "add", BRIDGE, "type", "bridge")
        _do("ip", "-n", bridge, "link", "set", BRIDGE, "up")
        return tuple(self._add_host(bridge, k, rate) for k, rate in enumerate(self._rates))

    def _add_host(self, bridge: str, k: int, bytes_per_s: float) -> Host:
        host = Host(f"{self._name}-{k}", str(FIRST_ADDRESS + k))
        inside, outside, port = ("ip", "-n", host.namespace), ("ip", "-n", bridge), f"port{k}"
        _do("ip", "netns", "add", host.namespace)
        _do(*inside, "link", "set", "lo", "up")
        peer = ("peer", "name", INTERFACE, "mtu", str(MTU), "netns", host.namespace)
        _do(*outside, "link", "add", port, "mtu", str(MTU), "type", "veth", *peer)
        _limit(host.namespace, INTERFACE, bytes_per_s, self._burst_s)
        _limit(bridge, port, bytes_per_s, self._burst_s)
        _do(*outside, "link", "set", port, "master", BRIDGE, "up")
        _do(*inside, "address", "add", f"{host.address}/{NETWORK_BITS}", "dev", INTERFACE)
        _do(*inside, "link", "set", INTERFACE, "up")
        return host


def can_emulate() -> str:
    """The reason why hosts cannot be emulated here; empty if they can, which is tried."""
    missing = _missing_capabilities()
    if missing:
        return f"it needs root ({' and '.join(missing)} missing)"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command `{tool}` is not here (install iproute2)"
    try:
        with Emulation((1e6,)):
            return ""
    except RunError as error:
        return str(error)


def enter(host: Host) -> None:
    """Move the calling thread, and all it starts from now on, to a host. (os.setns exists from Python 3.12 on.)"""
    path = NAMESPACES / host.namespace
    with path.open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))


def remove_stale() -> None:
    """Remove what runs that are no more have left; two that do this at a time get into each other's way harmlessly."""
    ours = [match for name in _all_namespaces() if (match := OURS.fullmatch(name))]
    _remove([match[0] for match in ours if match["owner"] != _owner(match["pid"])])


def _owner(pid: str) -> str:
    """Process id and start time: ids are used again, both together are not. Empty if there is no such process."""
    try:
        stat = Path("/proc", pid, "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return f"{pid}-{stat.rpartition(')')[2].split()[19]}"  # the name in brackets may hold anything


def _all_namespaces() -> list[str]:
    return sorted(path.name for path in NAMESPACES.glob("*"))


def _missing_capabilities() -> list[str]:
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:  # not Linux
        return list(CAPABILITIES)
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]


def _limit(namespace: str, device: str, bytes_per_s: float, burst_s: float) -> None:
    """Limit a NIC's rate; one that the cores do not reach needs no bucket, which would only cost them time."""
    if bytes_per_s >= UNLIMITED_BYTES_PER_S:
        return
    burst = max(FRAME_BYTES, round(bytes_per_s * burst_s))
    limit = burst + round(bytes_per_s * QUEUE_S)
    bucket = ("rate", f"{round(bytes_per_s * 8)}bit", "burst", str(burst), "limit", str(limit))
    _do("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *bucket)


def _remove(namespaces: Sequence[str]) -> list[str]:
    """Remove all namespaces that can be; returns what went wrong with the others. Devices end with their namespace."""
    failed = []
    for name in namespaces:
        try:
            _do("ip", "netns", "delete", name)
        except RunError as error:
            failed.append(str(error))
    return failed


def _do(*command: str) -> None:
    text = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
            start_new_session=True,  # a terminal's Ctrl-C is for us, not for a command that is cleaning up
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"`{text}` did not end within {COMMAND_S:g} s") from None
    except OSError as error:
        raise RunError(f"`{text}` cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        raise RunError(f"`{text}` failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
