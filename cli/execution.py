"""Running a scenario for real on this machine, and what `run` says about it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from halocast.base.errors import InputError, RunError
from halocast.base.files import whole_directory
from halocast.cli.output import epoch_bar, note
from halocast.cluster.catalogue import Cluster, Per
from halocast.exec.launch.emulate import BURST_S, Emulation, Host, can_emulate
from halocast.exec.launch.job import Job, Optimizer, Settings, read_job, write_job
from halocast.exec.launch.local import Run, execute, gather
from halocast.graph.parts import iter_parts
from halocast.reports.metrics import default_warmup
from halocast.reports.summary import FoundAges, StaleError, Summary, Training, summarise
from halocast.study.scenario import Scenario
from halocast.study.workload import Workload


def num_ranks(scenario: Scenario, asked: int | None) -> int:
    """--ranks, else the scenario's parts, else its GPUs, else two."""
    return asked or scenario.graph.parts or scenario.cluster.gpus or 2


def backend(scenario: Scenario, ranks: int) -> str:
    """The transport the scenario names; else nccl where every rank can have a GPU, and gloo on the CPU."""
    if scenario.cluster.transport is not None:
        return scenario.cluster.transport
    import torch  # only a real run needs it

    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= ranks else "gloo"


def make_job(workload: Workload, transport: str | None = None) -> Job:
    run = workload.scenario.run
    settings = Settings(
        num_epochs=run.epochs,
        lr=run.lr,
        weight_decay=run.weight_decay,
        seed=run.seed,
        dtype=run.dtype,
        num_threads=run.threads,
        timeout_s=run.timeout_s,
        eval_every=run.eval_every,
        optimizer=Optimizer(run.optimizer),
        device=run.device,
        store=run.store,
        errors=run.errors,
        speed=workload.scenario.world.speed,
        delays=workload.scenario.world.world.delays,
        delay_seed=workload.scenario.world.seed,
        backend=transport or backend(workload.scenario, workload.schedule.num_ranks),
    )
    return Job(schedule=workload.schedule, spec=workload.spec, settings=settings)


def prepare_job(workload: Workload, directory: Path) -> None:
    """Write the job for torchrun and say how to start it."""
    assert workload.graph is not None
    assert workload.assignment is not None
    if directory.exists():
        raise InputError(f"{directory}: exists; a job needs a directory of its own")
    with whole_directory(directory) as temporary:
        write_job(temporary, make_job(workload), iter_parts(workload.graph, workload.assignment))
    ranks = workload.schedule.num_ranks
    note(f"job of {ranks} ranks in {directory}; start it with:")
    print(f"torchrun --nproc-per-node {ranks} -m halocast.exec.worker {directory}")
    note(f"then: halocast show job {directory}")


def require_emulation(scenario: Scenario, cluster: Cluster, asked: int | None) -> None:
    """Refuse, before any work, what cannot be emulated; say what is not."""
    if asked not in (None, cluster.num_ranks):
        raise InputError(f"--ranks {asked}: --emulate runs all {cluster.num_ranks} ranks of the cluster (cluster.gpus)")
    if scenario.cluster.transport == "nccl":
        raise InputError("--emulate: cluster.transport = nccl: emulated hosts are joined by gloo")
    if cluster.num_hosts < 2:
        ranks = f"its first {cluster.num_ranks} ranks" if cluster.num_ranks > 1 else "its first rank"
        raise RunError(f"--emulate: cluster {cluster.name} has {ranks} on one host: no network to emulate")
    if cluster.nic is None:
        raise RunError(f"--emulate: cluster {cluster.name} has no [nic], whose rate would be emulated")
    if reason := can_emulate():
        raise RunError(f"--emulate: {reason}")
    left_out = "latency" if cluster.network is None else "latency and the way between leaf switches"
    note(f"emulated is the rate of every host's NIC, not {left_out}")
    cores = len(os.sched_getaffinity(0))
    if cores < cluster.num_ranks:
        note(f"warning: {cluster.num_ranks} ranks share {cores} CPU cores: they compute slower than hosts of their own")


def nic_rates(cluster: Cluster) -> tuple[float, ...]:
    """Bytes per second of every host in use, all its NICs together."""
    assert cluster.nic is not None
    nics = [cluster.hosts.count(host) if cluster.nic.per is Per.DEVICE else 1 for host in range(cluster.num_hosts)]
    return tuple(cluster.nic.bytes_per_s * num for num in nics)


@contextmanager
def rank_hosts(cluster: Cluster | None) -> Iterator[tuple[Host, ...]]:
    """The emulated host of every rank of a cluster; nothing for the machine as it is."""
    if cluster is None:
        yield ()
        return
    # for the ranks: emulated hosts have no name service, and c10d would warn that it cannot name its peers
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    assert cluster.nic is not None
    with Emulation(nic_rates(cluster), cluster.nic.burst_s or BURST_S) as hosts:
        yield tuple(hosts[cluster.host(rank)] for rank in range(cluster.num_ranks))


def run_workload(
    workload: Workload, *, port: int = 0, keep: Path | None = None, emulated: Cluster | None = None
) -> tuple[Run, Summary]:
    """Train for real, on this machine as it is or on the hosts and NICs of a cluster; the run and its summary."""
    job = make_job(workload, "gloo" if emulated else None)
    label = f"{workload.scenario.method.name}, {job.schedule.num_ranks} ranks"
    with epoch_bar(job.settings.num_epochs, label) as bar:
        run = train(workload, job, emulated=emulated, port=port, keep=keep, on_progress=bar)
    return run, replace(summarise_run(run, job), cluster=machine(emulated))


def train(workload: Workload, job: Job, *, emulated: Cluster | None = None, **how: Any) -> Run:
    """Train for real and show nothing."""
    assert workload.graph is not None
    assert workload.assignment is not None
    with rank_hosts(emulated) as hosts:
        return execute(job, iter_parts(workload.graph, workload.assignment), hosts=hosts, **how)


def machine(emulated: Cluster | None) -> str:
    if emulated is None:
        return "this machine"
    rates = " or ".join(f"{8e-9 * rate:g}" for rate in dict.fromkeys(nic_rates(emulated)))
    return f"this machine, {emulated.num_hosts} emulated hosts at {rates} Gbit/s"


def summarise_job(directory: Path) -> Summary:
    """The summary of a job that has been run, by torchrun or otherwise."""
    job = read_job(directory)
    if not (directory / f"result-{job.schedule.num_ranks - 1}.json").exists():
        raise InputError(f"{directory}: the job has no results yet")
    return summarise_run(gather(directory, job), job)


def summarise_run(run: Run, job: Job) -> Summary:
    """The summary of a finished run on this machine."""
    warmup = default_warmup(job.settings.num_epochs)
    summary = summarise(run.trace, job.schedule, warmup, list(run.peak_memory_bytes))
    training = Training(
        loss=tuple(run.losses),
        accuracy=tuple(run.accuracy),
        evaluated=run.evaluated,
        final_accuracy=run.evaluated[max(run.evaluated)],
        ages=tuple(FoundAges(op=op, reads=buffer, rows_by_age=ages) for (op, buffer), ages in run.ages.items()),
        errors=tuple(StaleError(**asdict(error)) for error in run.errors),
    )
    return replace(summary, cluster=machine(None), transport=job.settings.backend, training=training)


def describe_ages(summary: Summary) -> list[str]:
    """How old stale rows really were, beside what the checker says; nothing where nothing is stale."""
    predicted = {(read.op, read.reads): read.ages for read in summary.staleness}
    lines = []
    for read in summary.training.ages if summary.training else ():
        expected = predicted.get((read.op, read.reads), ())
        if expected != (0,):
            rows = ", ".join(f"{num:,} rows {age}" for age, num in read.rows_by_age.items())
            ages = ", ".join(map(str, expected))
            lines.append(f"{read.op} read {read.reads}: {rows} epochs old (schedule: {ages})")
    return lines


def describe_errors(summary: Summary) -> list[str]:
    """How far stale rows were from fresh ones in the last epoch, relative to them."""
    errors = summary.training.errors if summary.training else ()
    last = max((error.epoch for error in errors), default=None)
    return [
        f"{error.what} of layer {error.layer} in epoch {last}: {error.relative:.2%} off fresh ones"
        for error in errors
        if error.epoch == last
    ]
