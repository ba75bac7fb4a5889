"""Memory of a device: closed formulas as literals, what transports and drivers take, and the verdict."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from halocast.cluster.catalogue import Cluster, load_cluster
from halocast.graph.halo import Halo
from halocast.methods.vanilla import Options, vanilla
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.schedule.check import check
from halocast.schedule.ir import Schedule
from halocast.schedule.passes import memory
from halocast.sim.memory import BLAS_BYTES, CONTEXT_BYTES, device_memory, pinned_bytes, tightest
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario

MIB = 2**20


def halo_of(num_inner: list[int], matrix: list[list[int]]) -> Halo:
    return Halo(
        num_inner=np.array(num_inner),
        num_edges=4 * np.array(num_inner),
        num_train=np.array(num_inner),
        matrix=np.array(matrix),
        num_features=6,
        num_classes=3,
        source="partition",
    )


def schedule_of(halo: Halo, **changes: object) -> Schedule:
    fields = {"kind": ModelKind.SAGE, "layers": 2, "hidden": 4, "dropout": 0.0, "norm": Norm.LAYER} | changes
    spec = ModelSpec(**({"num_features": 6, "num_classes": 3} | fields))  # type: ignore[arg-type]
    return check(vanilla(halo, spec, Options()))


def pair(**changes: object) -> Schedule:
    """Rank 0 has 10 nodes and 2 halo nodes and sends 3; rank 1 has 8 nodes and 3 halo nodes."""
    return schedule_of(halo_of([10, 8], [[0, 3], [2, 0]]), **changes)


def all_to_all(num_ranks: int) -> Schedule:
    return schedule_of(halo_of([10] * num_ranks, (1 - np.eye(num_ranks, dtype=int)).tolist()))


def on(cluster: str, num_ranks: int, **changes: str) -> Cluster:
    return load_cluster(cluster, gpus=num_ranks, **changes)


def test_vanillas_memory_is_the_closed_formula() -> None:
    peak = memory(pair(), 0)
    assert peak.at == "backward.1"
    assert dict(peak.alive) == {
        "topology": 2 * (4 + 4) * 40 + 4 * (10 + 12 + 2) + 2 * 12 * 4,
        "labels": 24 * 10,
        "weights": 376,  # 2 (6 x 4 + 4) + 2 x 4 of layer 0, 2 (4 x 3 + 3) of layer 1
        "moments": 752,
        "grads": 376,
        "workspace": 4 * (2 * 12 - 10) * 4,  # two partial gradients of 12 rows, less the freed aggregate
        "h.0": 4 * 10 * 6,
        "send_rows": 8 * 3,
        "packed.0": 4 * 3 * 6,
        "packed.1": 4 * 3 * 4,
        "halo.0": 2 * 4 * 2 * 6,
        "halo.1": 2 * 4 * 2 * 4,
        "gsent.1": 2 * 4 * 3 * 4,
        "keep.0": 4 * (12 * 6 + 10 * 6 + 10 * 4 + 10 * 4),  # joined, aggregate, before norm, after activation
        "keep.1": 4 * (12 * 4 + 10 * 4),
        "gh.2": 4 * 10 * 3,
        "gh.1": 4 * 10 * 4,
        "ghalo.1": 4 * 2 * 4,
    }
    assert peak.peak_bytes == 4952


def test_dropout_keeps_the_dropped_rows_and_a_byte_per_number_for_the_mask() -> None:
    plain, dropped = dict(memory(pair(), 0).alive), dict(memory(pair(dropout=0.5), 0).alive)
    assert dropped["keep.0"] - plain["keep.0"] == 4 * 12 * 6  # the features' gradient is not needed: no mask
    assert dropped["keep.1"] - plain["keep.1"] == 4 * 12 * 4 + 12 * 4
    assert dropped["workspace"] == 4 * (2 * 12 - 10 - 12) * 4


def test_a_cpu_holds_the_schedules_buffers_and_nothing_else() -> None:
    found = device_memory(pair(), on("cpu-local", 2), 0)
    assert found.allocated_bytes == found.total_bytes == 4952
    assert found.contributors[0] == ("keep", 848 + 352)
    assert "context" not in dict(found.contributors)


def test_a_gpu_has_a_context_and_blas_workspaces_and_gloo_stages_in_the_host() -> None:
    schedule, cluster = pair(), on("rtx2080ti-x10-pcie3", 2)
    found = device_memory(schedule, cluster, 0)
    assert found.allocated_bytes == 4952 + BLAS_BYTES
    assert found.total_bytes == found.allocated_bytes + CONTEXT_BYTES
    assert "transport" not in dict(found.contributors)
    # rows sent and received by exchange.0, exchange.1, exchange_grad.1, and the reduced gradients, on each rank
    assert pinned_bytes(schedule, cluster) == (2 * (5 * 24 + 5 * 16 + 5 * 16 + 376),)
    assert pinned_bytes(schedule, on("cpu-local", 2)) == (0,)


@pytest.mark.parametrize(
    ("cluster", "num_ranks", "expected"),
    [
        ("a5000-2x4-pcie4-ib200", 2, (1 + 1) * 2 * 12 * MIB),  # a peer and a ring, 2 channels
        ("a5000-2x4-pcie4-ib200", 8, (3 + 1) * 2 * 12 * MIB + 2 * 64 * MIB),  # 3 peers here, a pool for those there
        ("h100-4x8-nvlink-ib400", 8, (7 + 1) * 32 * 12 * MIB),  # NVLink wants 32 channels: 3 GiB, as nccl 1685 saw
    ],
)
def test_nccl_takes_device_memory_per_connection_and_channel(cluster: str, num_ranks: int, expected: int) -> None:
    found = device_memory(all_to_all(num_ranks), on(cluster, num_ranks), 0)
    assert dict(found.contributors)["transport"] == expected
    assert found.total_bytes == found.allocated_bytes + expected + CONTEXT_BYTES
    assert sum(num_bytes for _, num_bytes in found.contributors) == found.total_bytes
    assert pinned_bytes(all_to_all(num_ranks), on(cluster, num_ranks))[0] == 0


def with_capacity(cluster: Cluster, rank: int, num_bytes: int) -> Cluster:
    devices = list(cluster.devices)
    devices[rank] = replace(devices[rank], memory_bytes=num_bytes)
    return replace(cluster, devices=tuple(devices))


def test_the_verdict_flips_exactly_at_the_capacity() -> None:
    schedule, cluster = pair(), on("rtx2080ti-x10-pcie3", 2)
    needed = device_memory(schedule, cluster, 0).total_bytes
    assert device_memory(schedule, with_capacity(cluster, 0, needed), 0).fits
    short = device_memory(schedule, with_capacity(cluster, 0, needed - 1), 0)
    assert not short.fits
    assert short.headroom_bytes == -1


def test_the_rank_with_the_smaller_device_is_the_one_that_does_not_fit() -> None:
    schedule = pair()
    cluster = with_capacity(on("rtx2080ti-x10-pcie3", 2), 1, 10**6)
    memories = [device_memory(schedule, cluster, rank) for rank in range(2)]
    assert memories[0].total_bytes > memories[1].total_bytes
    assert tightest(memories).rank == 1
    assert not tightest(memories).fits


def test_a_summary_names_the_tightest_rank_and_its_largest_contributors() -> None:
    chosen = load_scenario(None, ["graph.dataset=reddit", "graph.source=card", "cluster.gpus=4"])
    summary = predict(chosen).summary
    used = summary.device_memory
    assert summary.fits
    assert used.memory_bytes == max(summary.peak_memory_bytes_by_rank)
    assert summary.peak_memory_bytes_by_rank[used.memory_rank] == used.memory_bytes
    assert "context" in dict(used.largest_buffers)
    assert used.pinned_host_bytes > 0


@settings(deadline=None, max_examples=50)
@given(
    kind=st.sampled_from(list(ModelKind)),
    layers=st.integers(1, 5),
    hidden=st.integers(1, 50),
    dropout=st.sampled_from([0.0, 0.5]),
    norm=st.sampled_from(list(Norm)),
    precompute=st.booleans(),
)
def test_memory_grows_with_every_width(
    kind: ModelKind, layers: int, hidden: int, dropout: float, norm: Norm, precompute: bool
) -> None:
    # a gcnii has a projection, which aggregates nothing, and at least one convolution
    assume(kind is not ModelKind.GCNII or (layers > 1 and not precompute))

    def peak(**changes: int) -> int:
        fixed = {"kind": kind, "dropout": dropout, "norm": norm, "precompute": precompute}
        return memory(pair(**fixed, **({"layers": layers, "hidden": hidden} | changes)), 0).peak_bytes

    assert peak(hidden=hidden + 1) >= peak() if layers == 1 else peak(hidden=hidden + 1) > peak()
    assert peak(num_features=7) > peak()
    assert peak(num_classes=4) > peak()
