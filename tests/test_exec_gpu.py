"""On GPUs: the executor's handlers, lanes, staging and nccl against the CPU. Skipped where torch sees no device."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from halocast.calibrate.measure.machine import Wanted, measure_here
from halocast.exec.launch.local import Run, execute
from halocast.graph.parts import iter_parts
from halocast.study.run import make_job
from halocast.study.scenario import load_scenario
from halocast.study.workload import prepare

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason="torch sees no CUDA device here")]
needs_two = pytest.mark.skipif(NUM_GPUS < 2, reason="nccl needs a GPU per rank: two")
SMALL = ["graph.nodes=600", "graph.degree=8", "model.hidden=16", "model.dropout=0", "run.epochs=4", "run.dtype=float64"]


def losses(method: str, model: str, ranks: int, device: str, backend: str) -> tuple[float, ...]:
    return trained(method, model, ranks, device, backend).losses


def trained(method: str, model: str, ranks: int, device: str, backend: str) -> Run:
    chosen = [*SMALL, f"method.name={method}", f"model.kind={model}", "cluster.name=cpu-local", f"cluster.gpus={ranks}"]
    workload = prepare(load_scenario("demo", chosen), ranks, data=True)
    assert workload.graph is not None
    assert workload.assignment is not None
    job = make_job(workload, backend)
    job = replace(job, settings=replace(job.settings, device=device))
    return execute(job, iter_parts(workload.graph, workload.assignment))


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gcnii"])
def test_handlers_on_a_gpu_train_as_on_the_cpu(model: str) -> None:
    assert losses("vanilla", model, 1, "cuda", "gloo") == pytest.approx(losses("vanilla", model, 1, "cpu", "gloo"))


@pytest.mark.parametrize("method", ["vanilla", "pipegcn", "bns", "digest"])
def test_messages_staged_through_pinned_memory_are_those_of_the_cpu(method: str) -> None:
    """Two ranks may share a GPU over gloo; lanes have a stream each."""
    assert losses(method, "sage", 2, "cuda", "gloo") == pytest.approx(losses(method, "sage", 2, "cpu", "gloo"))


@needs_two
@pytest.mark.parametrize("method", ["vanilla", "pipegcn", "gnnpipe"])
def test_grouped_messages_over_nccl_are_those_of_gloo(method: str) -> None:
    there, here = (trained(method, "sage", 2, *how) for how in (("cuda", "nccl"), ("cpu", "gloo")))
    assert there.losses == pytest.approx(here.losses)
    assert {s.op: s.num_bytes for s in there.trace.spans} == {s.op: s.num_bytes for s in here.trace.spans}


def measured(ranks: int, backend: str, *groups: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    wanted = Wanted(num_ranks=ranks, backend=backend, device="cuda", quick=True, groups=groups)
    measure_here(wanted, found.__setitem__, lambda text: None)
    return found


def test_kernels_and_copies_of_a_gpu_are_measured() -> None:
    found = measured(1, "gloo", "gemm", "spmm", "copies")
    assert {point["kind"] for point in found["copies"]} == {"copy_down", "copy_up"}
    assert all(point["seconds"] > 0 and "warm" not in point["note"] for points in found.values() for point in points)


@needs_two
def test_messages_over_nccl_are_measured() -> None:
    found = measured(2, "nccl", "messages", "exchanges", "allreduces", "overlap")
    assert set(found) == {"messages", "exchanges", "allreduces", "overlap"}
