"""The worker under torchrun: the same job, the same numbers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from training import EPOCHS, metis_parts, reference_for, schedule_for, small_graph, spec_for

from halocast.exec.launch.job import Job, Settings, write_job
from halocast.exec.launch.local import gather
from halocast.graph import build_parts
from halocast.study.run import prepare_run, run_workload, summarise_job, write_torchrun_job
from halocast.study.scenario import load_scenario

ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def torchrun(directory: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*command, "-m", "halocast.exec.worker", str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT,
        check=False,
    )


def write_two_rank_job(directory: Path) -> Job:
    graph = small_graph()
    parts, spec = build_parts(graph, metis_parts(graph, 2)), spec_for(graph)
    settings = Settings(epochs=EPOCHS, dtype="float64", seed=5)
    job = Job(schedule=schedule_for(parts, spec, "float64"), spec=spec, settings=settings)
    write_job(directory, job, parts)
    return job


def test_torchrun_trains_the_same_model(tmp_path: Path) -> None:
    job = write_two_rank_job(tmp_path)
    done = torchrun(tmp_path, 2)
    assert done.returncode == 0, done.stderr
    graph = small_graph()
    expected = reference_for(graph, spec_for(graph))
    assert np.allclose(gather(tmp_path, job).losses, expected.losses, rtol=1e-10)


def test_a_job_of_the_train_nodes_carries_the_whole_graph_to_score(tmp_path: Path) -> None:
    scenario = load_scenario("demo", ["graph.inductive=true", "run.epochs=2"])
    workload = prepare_run(scenario, 2, graph=small_graph())
    write_torchrun_job(workload, tmp_path / "job")
    done = torchrun(tmp_path / "job", 2)
    assert done.returncode == 0, done.stderr
    training = summarise_job(tmp_path / "job").training
    assert training is not None
    assert training.final_accuracy == run_workload(workload).accuracy
    assert list(training.final_accuracy) == ["train", "val", "test"]


def test_the_wrong_number_of_ranks_is_an_error_not_a_hang(tmp_path: Path) -> None:
    write_two_rank_job(tmp_path)
    done = torchrun(tmp_path, 1)
    assert done.returncode != 0
    assert "error: rank 0: the job has 2 ranks but 1 were started" in done.stderr
