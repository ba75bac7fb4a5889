"""Running a scenario for real on this machine, and what `run` says about it."""

from pathlib import Path
from typing import Any

from halocast.base.errors import InputError
from halocast.base.files import whole_directory
from halocast.cli.output import epoch_bar, note
from halocast.exec.job import Job, Settings, read_job, write_job
from halocast.exec.launch import Run, execute, gather
from halocast.graph.parts import iter_parts
from halocast.plan.scenario import Scenario
from halocast.plan.workload import Workload
from halocast.reports.metrics import default_warmup
from halocast.reports.summary import summarise


def num_ranks(scenario: Scenario, asked: int | None) -> int:
    """--ranks, else the scenario's parts, else its GPUs, else two."""
    return asked or scenario.graph.parts or scenario.cluster.gpus or 2


def backend(scenario: Scenario, ranks: int) -> str:
    """The transport the scenario names; else nccl where every rank can have a GPU, and gloo on the CPU."""
    if scenario.cluster.transport is not None:
        return scenario.cluster.transport
    import torch  # only a real run needs it

    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= ranks else "gloo"


def make_job(workload: Workload) -> Job:
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
        backend=backend(workload.scenario, workload.schedule.num_ranks),
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


def run_workload(workload: Workload, *, port: int = 0, keep: Path | None = None) -> tuple[Run, dict[str, Any]]:
    """Train for real; returns the run and its summary."""
    assert workload.graph is not None
    assert workload.assignment is not None
    job = make_job(workload)
    with epoch_bar(job.settings.num_epochs, f"{workload.scenario.method.name}, {job.schedule.num_ranks} ranks") as bar:
        run = execute(job, iter_parts(workload.graph, workload.assignment), port=port, keep=keep, on_progress=bar)
    return run, summarise_run(run, job)


def summarise_job(directory: Path) -> dict[str, Any]:
    """The summary of a job that has been run, by torchrun or otherwise."""
    job = read_job(directory)
    if not (directory / f"result-{job.schedule.num_ranks - 1}.json").exists():
        raise InputError(f"{directory}: the job has no results yet")
    return summarise_run(gather(directory, job), job)


def summarise_run(run: Run, job: Job) -> dict[str, Any]:
    warmup = default_warmup(job.settings.num_epochs)
    summary = summarise(run.trace, job.schedule, warmup, list(run.peak_memory_bytes))
    last = max(run.evaluated)
    return summary | {
        "cluster": "this machine",
        "transport": job.settings.backend,
        "loss": list(run.losses),
        "accuracy": list(run.accuracy),
        "evaluated": {str(epoch): scores for epoch, scores in run.evaluated.items()},
        "final_accuracy": run.evaluated[last],
    }
