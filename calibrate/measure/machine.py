"""Measures a machine, group by group: kernels on rank 0 alone, messages among all ranks.

Every rank goes through the same groups in the same order. A group's points are told when it has ended, so an
interruption loses the group under way and nothing else.
"""

import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from halocast.base.errors import InputError, RunError
from halocast.calibrate.measure.alone import ALONE
from halocast.calibrate.measure.bench import Bench, Limits, PlainPoint
from halocast.calibrate.measure.messages import COMMUNICATION
from halocast.calibrate.points import EMULATED
from halocast.exec.launch.affinity import go_back, keep_to_cores, placement
from halocast.exec.launch.emulate import Host
from halocast.exec.launch.local import free_port, rank_environment, settle_rank, start_server
from halocast.exec.run.process import keep_freed_memory
from halocast.exec.transport.comm import Endpoint
from halocast.exec.transport.device import open_device
from halocast.schedule.ir import Lane

FULL, BRIEF = Limits(most_s=0.3), Limits(most_s=0.1)
# More than a core's share of the last cache. On a GPU kernels are not timed one by one: that would time its wake-up.
COLD_BYTES = 64 * 2**20
BETWEEN_HOSTS = ("messages", "exchanges", "allreduces")
OWN = (*ALONE, *COMMUNICATION)  # of the machine as it is
HOSTS = tuple(f"{EMULATED}{name}" for name in BETWEEN_HOSTS)
GROUPS = (*OWN, *HOSTS)
ROUNDS = 3  # of what ranks do together: a core that others take for a while spoils all points of one
RATIOS = ("busy", "overlap")
OnGroup = Callable[[str, list[PlainPoint]], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A wish for a calibration: what to measure, and how."""

    num_ranks: int
    backend: str
    device: str
    quick: bool
    groups: tuple[str, ...] = OWN
    timeout_s: float = 60.0


def measure_here(wanted: Wanted, on_group: OnGroup, say: Say, hosts: Sequence[Host] = ()) -> None:
    """Measure with processes of this machine, started and ended here, each on an emulated host if there are any."""
    assert len(hosts) in (0, wanted.num_ranks)
    if not wanted.groups:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["halocast.exec.launch.preload"])
    start_server()
    reports: Any = context.Queue()
    port = free_port(0)
    places: Sequence[Host | None] = hosts or [None] * wanted.num_ranks
    ranks = [
        context.Process(
            target=_enter,
            args=(wanted, place, rank_environment(rank, port, hosts, wanted.num_ranks), reports),
            name=f"rank-{rank}",
        )
        for rank, place in enumerate(places)
    ]
    for process in ranks:
        process.daemon = True
        process.start()
    try:
        _listen(ranks, reports, on_group, say)
    finally:
        for process in ranks:
            if process.exitcode is None:
                process.kill()
        for process in ranks:
            process.join()


def _listen(ranks: list[Any], reports: Any, on_group: OnGroup, say: Say) -> None:
    """Pass on what ranks tell, until all have ended."""
    while True:
        ended = all(process.exitcode is not None for process in ranks)
        try:
            what, name, points = reports.get(timeout=0.1)
        except queue.Empty:
            if ended:
                return
            failed = [process for process in ranks if process.exitcode]
            if failed:
                raise RunError(f"{failed[0].name} of the calibration ended with {failed[0].exitcode}") from None
            continue
        if what == "error":
            raise RunError(name)
        if what == "group":
            on_group(name, points)
        else:
            say(name)


def _enter(wanted: Wanted, host: Host | None, environment: dict[str, str], reports: Any) -> None:
    settle_rank(host, environment)
    try:
        measure_rank(
            wanted,
            lambda name, points: reports.put(("group", name, points)),
            lambda text: reports.put(("say", text, [])),
        )
    except BaseException as error:
        said = str(error) if isinstance(error, InputError | RunError) else f"{type(error).__name__}: {error}"
        reports.put(("error", f"rank {environment['RANK']}: {said}", []))
        time.sleep(0.5)  # let the queue's thread send it
        os._exit(1)


def measure_rank(wanted: Wanted, on_group: OnGroup, say: Say) -> None:
    """Measure one rank's part, in a process that torchrun or `measure_here` started; rank 0 hands on the points."""
    with _bench(wanted, say) as bench:
        for name in _agreed(bench, wanted.groups):
            if name not in ALONE and bench.num_ranks < 2:
                continue
            bench.meet()
            points = _measure(bench, name)
            if bench.rank == 0:
                on_group(name, points)


def _measure(bench: Bench, name: str) -> list[PlainPoint]:
    if name not in ALONE:
        run = COMMUNICATION[name.removeprefix(EMULATED)]
        points = merged([_counted(bench, name, run(bench)) for _ in range(ROUNDS)])
        return [{**one, "group": name} for one in points]
    points = _counted(bench, name, ALONE[name](bench)) if bench.rank == 0 else []
    bench.meet()
    return points


def merged(rounds: Sequence[list[PlainPoint]]) -> list[PlainPoint]:
    """The least disturbed time of every point; of a ratio, which others can bend both ways, the middle one."""
    best: list[PlainPoint] = []
    for same in zip(*rounds, strict=True):
        ordered = sorted(same, key=lambda one: float(one["seconds"]))
        best.append(ordered[len(ordered) // 2 if same[0]["group"] in RATIOS else 0])
    return best


def _counted(bench: Bench, name: str, measured: Iterator[PlainPoint]) -> list[PlainPoint]:
    points: list[PlainPoint] = []
    for measured_point in measured:
        points.append(measured_point)
        bench.say(f"{name}: {len(points)} points")
    return points


def _agreed(bench: Bench, wanted: Collection[str]) -> list[str]:
    """The groups that rank 0 wants; what other hosts have from earlier runs does not count."""
    return [name for name in GROUPS if bench.agree(float(name in wanted))]


@contextmanager
def _bench(wanted: Wanted, say: Say) -> Iterator[Bench]:
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    device = open_device(wanted.device, wanted.backend, local)
    before = None if device.stages else placement()
    if before is not None:
        keep_to_cores(local, int(os.environ.get("LOCAL_WORLD_SIZE", wanted.num_ranks)))
    limit = timedelta(seconds=wanted.timeout_s)
    dist.init_process_group(wanted.backend, timeout=limit)
    # ranks that only wait do so here: as long as the longest group takes
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=600))
    keep_freed_memory()
    torch.set_num_threads(1)
    device.enter(Lane.COMPUTE)
    link = Endpoint(rank=rank, timeout_s=wanted.timeout_s, backend=wanted.backend, device=device.where, seam=device)
    try:
        yield Bench(
            rank=rank,
            num_ranks=dist.get_world_size(),
            device=device,
            link=link,
            control=control,
            limits=BRIEF if wanted.quick else FULL,
            quick=wanted.quick,
            flush=None if device.stages else torch.zeros(COLD_BYTES // 4),
            say=say if rank == 0 else lambda text: None,
        )
    finally:
        dist.destroy_process_group()
        if before is not None:
            go_back(before)  # under torchrun this process goes on, and starts others
