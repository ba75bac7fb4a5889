"""Running a scenario for real: on this machine as it is, or on emulated hosts with the NICs of a cluster.

torch is loaded by the ranks, not here, but for one question: whether there are GPUs to run on.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

from halocast.base.errors import InputError, RunError
from halocast.base.files import whole_directory
from halocast.cluster.catalogue import Cluster, Per
from halocast.exec.launch.emulate import BURST_S, Emulation, Host, can_emulate
from halocast.exec.launch.job import Job, Settings, read_job, write_job
from halocast.exec.launch.local import Run, execute, gather
from halocast.exec.run.outcome import Outcome
from halocast.graph.graph import Graph
from halocast.reports.metrics import default_warmup
from halocast.reports.summary import CountedShare, FoundAges, StaleError, Summary, Training, summarise
from halocast.reports.table import seconds
from halocast.schedule.trace import Trace
from halocast.study.clusters import scenario_cluster
from halocast.study.pipelines import settled
from halocast.study.scenario import Scenario
from halocast.study.showable import Showable
from halocast.study.workload import Say, Workload, prepare, silent

OnEpoch = Callable[[int], None]  # told how many epochs have ended on all ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunResult(Showable):
    """A scenario that was trained: its trace and what it learnt, epoch by epoch."""

    columns: ClassVar[tuple[str, ...]] = ("epoch", "loss", "train", "val", "test")
    workload: Workload
    trained: Run
    summary: Summary

    @property
    def trace(self) -> Trace:
        return self.trained.trace

    @property
    def losses(self) -> tuple[float, ...]:
        return self.trained.losses

    @property
    def accuracy(self) -> dict[str, float]:
        """The exact scores (train, val, test) of the weights after the last epoch."""
        return self.trained.evaluated[max(self.trained.evaluated)]

    @property
    def warnings(self) -> list[str]:
        last = self.losses[-1]
        return [] if isfinite(last) else [f"the loss is {last} after {len(self.losses)} epochs; try a smaller run.lr"]

    def line(self) -> str:
        first, last = self.losses[0], self.losses[-1]
        scores = ", ".join(f"{name} {value:.4f}" for name, value in self.accuracy.items())
        what = f"{self.workload.scenario.method.name} on {self.trace.num_ranks} ranks"
        epoch = seconds(self.summary.epoch_s)
        return f"{what}: {epoch} an epoch, loss {first:.4f} -> {last:.4f} in {len(self.losses)} epochs; {scores}"

    def records(self) -> list[dict[str, Any]]:
        """A row per epoch; scores are those of training, with dropout and rows as stale as they were."""
        pairs = zip(self.losses, self.trained.accuracy, strict=True)
        return [{"epoch": epoch, "loss": loss, **scores} for epoch, (loss, scores) in enumerate(pairs)]


def run(
    scenario: Scenario,
    *,
    graph: Graph | None = None,
    num_ranks: int | None = None,
    emulate: bool = False,
    port: int = 0,
    keep: Path | None = None,
    say: Say = silent,
    on_epoch: OnEpoch = lambda epochs: None,
) -> RunResult:
    """Train a scenario on this machine, one process per rank.

    `graph` takes the place of the scenario's own; `num_ranks` [graph.parts, cluster.gpus or 2]. `emulate` gives every
    host of the scenario's cluster a network of its NIC's rate (as root). `keep` is a directory for the job's files.
    `say` is told what is being prepared, `on_epoch` how many epochs have ended.
    """
    cluster = scenario_cluster(scenario)
    for warning in require_emulation(scenario, cluster, num_ranks) if emulate else ():
        say(warning)
    workload = prepare_run(scenario, cluster.num_ranks if emulate else num_ranks, graph=graph, say=say)
    return run_workload(workload, port=port, keep=keep, emulated=cluster if emulate else None, on_epoch=on_epoch)


def require_torch(what: str) -> None:
    """Refuse, in one line, what needs an extra that is not installed."""
    if find_spec("torch") is None:
        raise RunError(f"{what} needs torch, which is not installed: pip install 'halocast[run]'")


def run_ranks(scenario: Scenario, asked: int | None = None) -> int:
    """The number of ranks to run: as asked for, else the scenario's parts, else its GPUs, else two."""
    return asked or scenario.graph.parts or scenario.cluster.gpus or 2


def prepare_run(
    scenario: Scenario, num_ranks: int | None = None, *, graph: Graph | None = None, say: Say = silent
) -> Workload:
    """Load, partition and schedule a scenario for a real run."""
    require_torch("a real run")
    ranks = run_ranks(scenario, num_ranks)
    return prepare(settled(scenario, ranks, graph=graph, say=say), ranks, data=True, graph=graph, say=say)


def run_workload(
    workload: Workload,
    *,
    port: int = 0,
    keep: Path | None = None,
    emulated: Cluster | None = None,
    on_epoch: OnEpoch = lambda epochs: None,
) -> RunResult:
    """Train what is prepared, on this machine as it is or on the hosts and NICs of a cluster."""
    job = make_job(workload, "gloo" if emulated else None)
    trained = train(workload, job, emulated=emulated, port=port, keep=keep, on_progress=on_epoch)
    summary = replace(summarise_run(trained, job), cluster=machine(emulated))
    return RunResult(workload=workload, trained=trained, summary=summary)


def choose_backend(scenario: Scenario, num_ranks: int) -> str:
    """The transport the scenario names; else nccl where every rank of this host can have a GPU, and gloo on the CPU."""
    if scenario.cluster.transport is not None:
        return scenario.cluster.transport
    from halocast.exec.transport.device import usual_backend  # torch: seconds that only a real run needs

    return usual_backend(num_ranks)


def make_job(workload: Workload, backend: str | None = None) -> Job:
    """The job that the ranks of a run need; its backend, unless given, is the one that suits this machine."""
    scenario = workload.scenario
    settings = Settings(
        **asdict(scenario.run),
        speed=scenario.world.speed,
        delays=scenario.world.world.delays,
        delay_seed=scenario.world.seed,
        backend=backend or choose_backend(scenario, workload.schedule.num_ranks),
    )
    return Job(schedule=workload.schedule, spec=workload.spec, settings=settings)


def write_torchrun_job(workload: Workload, directory: Path) -> str:
    """Write the job for torchrun into a directory of its own; return the command that starts it."""
    if directory.exists():
        raise InputError(f"{directory}: exists; a job needs a directory of its own")
    with whole_directory(directory) as temporary:
        write_job(temporary, make_job(workload), workload.parts(), workload.scored())
    return f"torchrun --nproc-per-node {workload.schedule.num_ranks} -m halocast.exec.worker {directory}"


def require_emulation(scenario: Scenario, cluster: Cluster, asked: int | None) -> list[str]:
    """Refuse, before any work, what cannot be emulated; return warnings of what the rest will lack."""
    if asked not in (None, cluster.num_ranks):
        raise InputError(f"--ranks {asked}: --emulate runs all {cluster.num_ranks} ranks of the cluster (cluster.gpus)")
    if scenario.cluster.transport == "nccl":
        raise InputError("--emulate: cluster.transport = nccl: emulated hosts are joined by gloo")
    if cluster.num_hosts < 2:
        first = f"its first {cluster.num_ranks} ranks" if cluster.num_ranks > 1 else "its first rank"
        raise RunError(f"--emulate: cluster {cluster.name} has {first} on one host: no network to emulate")
    if cluster.nic is None:
        raise RunError(f"--emulate: cluster {cluster.name} has no [nic], whose rate would be emulated")
    if reason := can_emulate():
        raise RunError(f"--emulate: {reason}")
    left_out = "latency" if cluster.network is None else "latency and the way between leaf switches"
    warnings = [f"emulated is the rate of every host's NIC, not {left_out}"]
    cores, ranks = len(os.sched_getaffinity(0)), cluster.num_ranks
    if cores < ranks:
        warnings.append(f"warning: {ranks} ranks share {cores} CPU cores: they compute slower than hosts of their own")
    return warnings


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


def train(workload: Workload, job: Job, *, emulated: Cluster | None = None, **how: Any) -> Run:
    """Train a workload for real; `how` is what `execute` takes."""
    with rank_hosts(emulated) as hosts:
        return execute(job, workload.parts(), scored=workload.scored(), hosts=hosts, **how)


def machine(emulated: Cluster | None) -> str:
    """The name of where a run was: this machine, and the hosts emulated on it."""
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


def stale_errors(outcome: Outcome) -> tuple[StaleError, ...]:
    """The errors of stale rows that a training measured, as reports know them."""
    return tuple(StaleError(**asdict(error)) for error in outcome.errors)


def summarise_run(run: Run, job: Job) -> Summary:
    """The summary of a finished run on this machine."""
    warmup = default_warmup(job.settings.epochs)
    summary = summarise(run.trace, job.schedule, warmup, list(run.peak_memory_bytes))
    training = Training(
        loss=tuple(run.losses),
        accuracy=tuple(run.accuracy),
        evaluated=run.evaluated,
        final_accuracy=run.evaluated[max(run.evaluated)],
        ages=tuple(FoundAges(op=op, reads=buffer, rows_by_age=ages) for (op, buffer), ages in run.ages.items()),
        errors=stale_errors(run),
        shares=tuple(CountedShare(what=name, **asdict(tally)) for name, tally in run.tallies.items()),
    )
    return replace(summary, cluster=machine(None), transport=job.settings.backend, training=training)
