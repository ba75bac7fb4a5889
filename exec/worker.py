"""One rank of a job: `python -m halocast.exec.worker JOB` under torchrun, or started by launch.py.

Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them.
"""

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from halocast.base.errors import InputError, RunError
from halocast.base.files import whole_file
from halocast.exec.chunks.stage import read_state
from halocast.exec.launch.affinity import give_turn, go_first, keep_to_cores, share_of_cores
from halocast.exec.launch.job import Job, read_job
from halocast.exec.run.begin import begin
from halocast.exec.run.handlers import handle, require_handlers
from halocast.exec.run.interpret import Interpreter
from halocast.exec.run.outcome import rank_seed, result_of
from halocast.exec.run.process import keep_freed_memory
from halocast.exec.run.state import RankState
from halocast.exec.run.straggle import straggling
from halocast.exec.run.train import Clock, train
from halocast.exec.store.push_pull import join_store, wait_for_pushes
from halocast.exec.transport.channels import make_channels
from halocast.exec.transport.comm import Endpoint, PeerError
from halocast.exec.transport.device import Seam, ending, open_device
from halocast.exec.transport.link import Call, drain
from halocast.schedule.ir import COLLECTIVE, MATCHED, Lane, Op
from halocast.schedule.trace import Trace, save_trace

LOOK_S = 0.1  # how often to look whether the launcher is there


def main() -> None:
    if len(sys.argv) != 2:
        print("usage: torchrun ... -m halocast.exec.worker JOB (made by `halocast run --prepare JOB`)", file=sys.stderr)
        raise SystemExit(2)
    directory, rank = Path(sys.argv[1]), int(os.environ.get("RANK", "0"))
    if "HALOCAST_LAUNCHED" in os.environ:
        launcher = int(os.environ["HALOCAST_LAUNCHED"])
        threading.Thread(target=end_with_parent, args=(launcher,), daemon=True).start()
    run_rank(directory, rank, int(os.environ.get("WORLD_SIZE", "1")))
    if rank == 0:
        print(f"done; to see the result: halocast show job {directory}", flush=True)
    # all is written; a thread of the transport that has not ended yet can abort the usual way out
    os._exit(0)


def end_with_parent(parent: int) -> None:
    """End the process once its launcher is gone: such a rank has nobody to tell, and peers that will not come."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def run_rank(directory: Path, rank: int, num_ranks: int) -> None:
    """Run one rank to its end; on any error leave the reason in the job and end the process at once.

    `os._exit`, because lanes may still wait in the transport and their threads would keep the process alive.
    """
    try:
        _run(directory, rank, num_ranks)
    except BaseException as error:
        _report(directory, rank, error)
        sys.stderr.flush()
        os._exit(1)


def _report(directory: Path, rank: int, error: BaseException) -> None:
    said = str(error) if isinstance(error, InputError | RunError) else f"{type(error).__name__}: {error}"
    message = said if f"rank {rank}" in said else f"rank {rank}: {said}"
    if "HALOCAST_LAUNCHED" not in os.environ:  # nobody else will say it
        print(f"error: {message}", file=sys.stderr)
    if not directory.is_dir():
        return
    with whole_file(directory / f"error-{rank}.json") as path:
        path.write_text(json.dumps({"message": message, "peer": isinstance(error, PeerError)}), encoding="utf-8")


def _run(directory: Path, rank: int, num_ranks: int) -> None:
    job = read_job(directory)
    if job.schedule.num_ranks != num_ranks:
        raise InputError(f"the job has {job.schedule.num_ranks} ranks but {num_ranks} were started")
    require_handlers(job.schedule)
    local, num_local = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
    device = open_device(job.settings.device, job.settings.backend, local)
    if device.where.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = job.settings.tf32
    placed = "LOCAL_RANK" in os.environ and "LOCAL_WORLD_SIZE" in os.environ  # else which cores are ours is not known
    keeps = placed and not device.stages
    num_cores = keep_to_cores(local, num_local) if keeps else share_of_cores(num_local)
    link = Endpoint(
        rank=rank,
        timeout_s=job.settings.timeout_s,
        backend=job.settings.backend,
        device=device.where,
        seam=device,
        groups=_join(job, num_ranks),
    )
    keep_freed_memory()
    threads = job.settings.threads or num_cores
    torch.set_num_threads(threads)
    torch.manual_seed(rank_seed(job.settings.seed, rank))
    state = read_state(job, directory, rank, link)
    state.channels = make_channels(state)
    clock = Clock(aligned=num_local < num_ranks)
    interpreter = Interpreter(
        schedule=job.schedule,
        rank=rank,
        handle=straggling(ending(device, partial(handle, state)), rank, job.settings),
        timeout_s=job.settings.timeout_s,
        clock=clock,
        enter_lane=_lane_setup(device, threads),
        ended=state.forget if device.stages else _ending(state),
        elsewhere=partial(wait_for_pushes, state),
    )
    state.progress = interpreter.progress
    drain(begin(state))
    join_store(state)
    scores = train(state, interpreter, clock, directory)
    _save(directory, state, interpreter, scores)
    drain(link.meet(Call("the end")))  # a rank that left early would break its peers
    if state.store is not None:
        state.store.close()
    dist.destroy_process_group()


def _join(job: Job, num_ranks: int) -> dict[tuple[Lane, tuple[int, ...]], Any]:
    """Meet the other ranks; returns the process groups of every lane that communicates, made in one order by all:
    one of all ranks, and one of each smaller group that has a collective there."""
    limit = timedelta(seconds=job.settings.timeout_s)
    try:
        dist.init_process_group(job.settings.backend, timeout=limit)
        groups = {(lane, ranks): dist.new_group(list(ranks) or None, timeout=limit) for lane, ranks in _groups(job)}
    except (RuntimeError, ValueError) as error:  # most likely another has failed before it came
        raise PeerError(f"cannot meet the other ranks: {str(error).splitlines()[0]}") from None
    if dist.get_world_size() != num_ranks:
        raise InputError(f"torch.distributed has {dist.get_world_size()} ranks, expected {num_ranks}")
    return groups


def _groups(job: Job) -> list[tuple[Lane, tuple[int, ...]]]:
    """The lanes that communicate, among all ranks (an empty tuple) and among each smaller group with a collective."""
    schedule = job.schedule
    lanes = sorted({op.lane for op in schedule.ops if op.kind in MATCHED})
    wanted = {(op.lane, schedule.group(op)) for op in schedule.ops if op.kind in COLLECTIVE}
    smaller = sorted((lane, ranks) for lane, ranks in wanted if 1 < len(ranks) < schedule.num_ranks)
    return [*((lane, ()) for lane in lanes), *smaller]


def _lane_setup(device: Seam, threads: int) -> Callable[[Lane], None]:
    """What the thread of a lane does first; a device may have a stream for it."""

    def enter(lane: Lane) -> None:
        if lane != Lane.COMPUTE and not device.stages:
            go_first()
        torch.set_num_threads(threads)  # OpenMP keeps this per thread
        device.enter(lane)

    return enter


def _ending(state: RankState) -> Callable[[Op], None]:
    """Let go of what an op has read; where bytes need the core that computes, let them have it between two ops."""

    def ended(op: Op) -> None:
        state.forget(op)
        if op.lane == Lane.COMPUTE:
            give_turn()

    return ended


def _save(directory: Path, state: RankState, interpreter: Interpreter, scores: dict[int, list[list[float]]]) -> None:
    rank, settings = state.rank, state.job.settings
    trace = Trace.of(
        interpreter.spans, source="executed", num_ranks=state.schedule.num_ranks, num_epochs=settings.epochs
    )
    save_trace(trace, directory / f"trace-{rank}.jsonl")
    result = {**result_of(state, scores), "peak_memory_bytes": _peak_memory(state.link.device)}
    (directory / f"result-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    if settings.audit:
        tensors = {"weights": state.weights, "grads": state.kept_grads, "logits": drain(state.logits())}
        torch.save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, directory / f"audit-{rank}.pt")


def _peak_memory(device: torch.device) -> int:
    """Peak bytes: what torch allocated on a GPU; on the CPU the largest resident set (with interpreter and torch)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
