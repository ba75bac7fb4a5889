"""Implementations: what they launch and spend on a schedule that says neither."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from schedules import op

from halocast.base.errors import InputError
from halocast.cluster.catalogue import load_cluster
from halocast.codes.catalogue import list_codes, load_code
from halocast.codes.implementation import BARE, HostCosts, Optimiser, Tensors
from halocast.models.spec import ModelKind, ModelSpec, Norm
from halocast.schedule.check import check
from halocast.schedule.ir import AllReduce, Buffer, Compute, Exchange, Kernel, Lane, Matrix, Op, Pull, Schedule
from halocast.sim.cost import op_times
from halocast.sim.engine import simulate
from halocast.sim.lower import lower
from halocast.sim.memory import device_memory
from halocast.study.predict import Prediction, predict
from halocast.study.scenario import load_scenario
from halocast.study.workload import prepare

# One rank, 3 layers of which the first projects 7 features: 10 rows, 5 hidden columns, 3 classes.
GCN = ModelSpec(kind=ModelKind.GCN, layers=3, hidden=5, num_features=7, num_classes=3, norm=Norm.NONE, projection=True)
GNNPIPE = load_code("gnnpipe-code")
STATES = (589_824, 2)  # 64 x 1536 states of 24 bytes, as numbers of 4, read and written


def computing(*kernels: Kernel) -> Compute:
    return Compute(kernels=kernels)


def layers_of(spec: ModelSpec, num_rows: int, num_edges: int) -> Schedule:
    """The forward and backward ops of a model, with no more kernels than say its sizes."""
    ops: list[Op] = []
    for layer in range(spec.layers):
        wide, out = spec.widths[layer : layer + 2]
        summed = (Kernel("spmm", (num_rows, num_rows, num_edges, wide)),) if spec.aggregates(layer) else ()
        ops.append(op(f"forward.{layer}", 0, work=computing(*summed, Kernel("gemm", (num_rows, wide, out)))))
    for layer in reversed(range(spec.layers)):
        wide, out = spec.widths[layer : layer + 2]
        summed = (Kernel("spmm", (num_rows, num_rows, num_edges, wide)),) if spec.aggregates(layer) else ()
        ops.append(op(f"backward.{layer}", 0, work=computing(Kernel("gemm", (wide, num_rows, out)), *summed)))
    return check(Schedule(num_ranks=1, ops=tuple(ops)))


def kernels_of(schedule: Schedule, name: str) -> list[tuple[str, tuple[int, ...]]]:
    found = schedule.find(0, name)
    assert found is not None
    return [(kernel.kind, kernel.dims) for kernel in found.work.kernels]


def test_kernels_of_three_gcn_layers_in_the_gnnpipe_code_are_literally_these() -> None:
    schedule = lower(layers_of(GCN, 10, 40), GNNPIPE, GCN)
    agg = [("elementwise", (10, 1)), ("spmm", (10, 10, 40, 5))]
    assert kernels_of(schedule, "forward.0") == [("gemm", (10, 7, 5))]
    assert kernels_of(schedule, "forward.1") == [
        *agg,
        ("elementwise", (50, 2)),
        ("elementwise", STATES),
        ("dropout", (50, 3)),
    ]
    assert kernels_of(schedule, "forward.2") == [*agg, ("gemm", (10, 5, 3)), ("elementwise", (30, 4))]
    assert kernels_of(schedule, "backward.2") == [
        ("elementwise", (30, 4)),  # the softmax again
        ("elementwise", (30, 1)),  # its gradient cleared
        ("elementwise", (30, 4)),
        ("elementwise", (30, 1)),  # of the product
        *[("gemm", (5, 10, 3)), ("gemm", (10, 3, 5))],
        *[("elementwise", (15, 1)), ("elementwise", (15, 3)), ("elementwise", (15, 2))],
        ("elementwise", (50, 1)),  # of the sum
        *agg,
        ("elementwise", (50, 3)),
    ]
    assert kernels_of(schedule, "backward.0") == [
        ("elementwise", (50, 1)),
        *[("gemm", (7, 10, 5)), ("gemm", (10, 5, 7))],  # also the gradient of the features, which nobody needs
        *[("elementwise", (35, 1)), ("elementwise", (35, 3)), ("elementwise", (35, 2))],
    ]


def test_a_code_without_lists_runs_the_schedule_as_it_is() -> None:
    schedule = layers_of(GCN, 10, 40)
    assert lower(schedule, load_code("halocast"), GCN) is schedule


def test_halo_rows_are_summed_where_they_lie() -> None:
    """A part with 10 rows of its own and 6 of others: nothing joins them, and backward sums into all 16."""
    forward = op("forward.1", 0, work=computing(Kernel("elementwise", (80, 2)), Kernel("spmm", (10, 16, 40, 5))))
    backward = op("backward.1", 0, work=computing(Kernel("gemm", (5, 10, 5)), Kernel("spmm", (16, 10, 40, 5))))
    schedule = lower(check(Schedule(num_ranks=1, ops=(forward, backward))), GNNPIPE, GCN)
    assert kernels_of(schedule, "forward.1")[:2] == [("elementwise", (10, 1)), ("spmm", (10, 16, 40, 5))]
    assert ("spmm", (16, 10, 40, 5)) in kernels_of(schedule, "backward.1")


def test_a_model_that_a_code_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match=r"gnnpipe-code has no gat \(it has: gcn, gcnii, sage, resgcn\)"):
        lower(layers_of(GCN, 10, 40), GNNPIPE, replace(GCN, kind=ModelKind.GAT))


def test_ops_whose_kernels_do_not_say_how_many_rows_there_are_are_refused() -> None:
    schedule = check(Schedule(num_ranks=1, ops=(op("forward.1", 0, work=computing(Kernel("loss", (10, 3)))),)))
    with pytest.raises(InputError, match=r"0/forward\.1: its kernels do not say how many rows it works on"):
        lower(schedule, GNNPIPE, GCN)


COSTS = HostCosts(exchange_s=1.0, message_s=10.0, collective_s=100.0, store_s=1000.0)
SLOW = replace(BARE, host=COSTS)
FEW = np.array([[0, 4, 4], [4, 0, 0], [4, 0, 0]])  # rank 0 trades with both others, these with it alone


def communicating() -> Schedule:
    swaps = [op("swap", r, lane=Lane.HALO, work=Exchange(matrix="halo", row_bytes=4)) for r in range(3)]
    sums = [op("sum", r, lane=Lane.REDUCE, work=AllReduce(num_bytes=8)) for r in range(3)]
    return check(Schedule(num_ranks=3, ops=(*swaps, *sums), matrices=(Matrix("halo", FEW),)))


def test_an_exchange_costs_once_and_again_for_every_peer() -> None:
    cluster = load_cluster("rtx2080ti-x10-pcie3", gpus=3)
    bare, slow = (op_times(communicating(), cluster, code=code) for code in (BARE, SLOW))
    extra = {key: slow[key] - bare[key] for key in slow}
    assert extra == {
        (0, "swap"): 1 + 2 * 10,
        (1, "swap"): 1 + 10,
        (2, "swap"): 1 + 10,
        **{(rank, "sum"): 100 for rank in range(3)},
    }


def test_two_codes_differ_in_time_only_where_one_says_so() -> None:
    cluster = load_cluster("rtx2080ti-x10-pcie3", gpus=3)
    bare, slow = (simulate(communicating(), cluster, 1, code=code) for code in (BARE, SLOW))
    longer = {(s.rank, s.op): s.end_s - s.start_s for s in slow.spans}
    for span in bare.spans:
        assert longer[span.rank, span.op] > span.end_s - span.start_s
        assert span.num_bytes == next(s.num_bytes for s in slow.spans if (s.rank, s.op) == (span.rank, span.op))


def test_a_pull_from_the_store_costs_a_call_like_any_message() -> None:
    schedule = Schedule(num_ranks=1, ops=(op("pull", 0, lane=Lane.STORE, work=Pull(num_bytes=8)),))
    cluster = load_cluster("t4-x8-g4dn", gpus=1)
    seconds = op_times(schedule, cluster, code=SLOW)[0, "pull"] - op_times(schedule, cluster)[0, "pull"]
    assert seconds == 1000.0


def test_a_code_that_sums_each_tensor_calls_as_often_as_there_are_tensors() -> None:
    """Two layers of sage with a norm between them: 4 + 2 and 4 tensors."""
    spec = ModelSpec(kind=ModelKind.SAGE, layers=2, hidden=4, num_features=4, num_classes=4)
    ops = [op(name, r) for r in range(2) for name in ("forward.0", "forward.1")]
    sums = [op("sum", r, lane=Lane.REDUCE, work=AllReduce(num_bytes=8)) for r in range(2)]
    each = replace(SLOW, optimiser=Optimiser(tensors=Tensors.EACH))
    schedule = lower(check(Schedule(num_ranks=2, ops=(*ops, *sums))), each, spec)
    cluster = load_cluster("rtx2080ti-x10-pcie3", gpus=2)
    seconds = op_times(schedule, cluster, code=each)
    assert seconds[0, "sum"] == 10 * 100


def test_a_loss_that_is_waited_for_grows_with_the_classes() -> None:
    schedule = check(Schedule(num_ranks=1, ops=(op("loss", 0, work=computing(Kernel("loss", (10, 40)))),)))
    cluster = load_cluster("a5000-2x4-pcie4-ib200", gpus=1)
    extra = op_times(schedule, cluster, code=GNNPIPE)[0, "loss"] - op_times(schedule, cluster)[0, "loss"]
    assert extra == pytest.approx(80e-6 + 40 * 9e-6)


def test_every_code_of_the_catalogue_loads_and_predicts_what_is_ours() -> None:
    assert list_codes() == ("gnnpipe-code", "halocast", "pipegcn-code", "psc-code")
    epochs = {name: demo(f"code.name={name}", "model.kind=gcn").summary.epoch_s for name in list_codes()}
    assert len(set(epochs.values())) >= 3


def demo(*overrides: str) -> Prediction:
    return predict(load_scenario("demo", ["graph.nodes=2000", *overrides]), lean=True)


def test_our_executor_is_predicted_unless_another_code_is_named() -> None:
    default = demo().summary
    assert default.basis is not None
    assert default.basis.code == "halocast"
    assert default.epoch_s == demo("code.name=halocast").summary.epoch_s
    assert default.epoch_s != demo("code.name=pipegcn-code").summary.epoch_s


def test_a_code_of_ones_own_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('description = "mine"\nsource = "guessed"\n[host]\nmessage_us = 2_000_000\n')
    prediction = demo(f"code.file={path}")
    assert prediction.summary.basis is not None
    assert prediction.summary.basis.code == "mine"
    assert prediction.summary.epoch_s > 2.0 * sum(o.kind == "exchange" for o in prediction.workload.schedule.by_rank[0])


def test_an_unknown_code_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"unknown code 'gnnpipe'; did you mean 'gnnpipe-code'\? \(known: "):
        demo("code.name=gnnpipe")


def test_a_word_of_a_list_that_is_no_step_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    lists = "".join(f'{place} = ["fc", "rule!"]\n' for place in ("first", "second", "middle", "last"))
    path.write_text(f'description = "mine"\nsource = "guessed"\n[layers.gcn]\n{lists}')
    with pytest.raises(InputError, match=r"mine.toml.layers.gcn: unknown step 'rule!' \(known: add, affine, agg"):
        load_code(path)


def test_lowering_changes_neither_what_travels_nor_who_waits() -> None:
    scenario = load_scenario("demo", ["model.kind=gcn", "graph.nodes=2000", "cluster.gpus=2"])
    workload = prepare(scenario, 2)
    lowered = lower(workload.schedule, GNNPIPE, workload.spec)
    assert [o.name for o in lowered.ops] == [o.name for o in workload.schedule.ops]
    assert [o.after for o in lowered.ops] == [o.after for o in workload.schedule.ops]
    assert [lowered.num_bytes(o) for o in lowered.ops] == [workload.schedule.num_bytes(o) for o in lowered.ops]
    assert [b.name for b in lowered.buffers] == [b.name for b in workload.schedule.buffers]


def test_a_layer_keeps_what_its_list_does_not_compute_again() -> None:
    """10 rows of 5: the sum, the product and the dropped rows of a layer in the middle, and 0.65 of four gradients; its
    output and that one's gradient are buffers of their own. A dropout keeps the states of its generators."""
    spec = replace(GCN, layers=4)
    schedule = layers_of(spec, 10, 40)
    ops = tuple(replace(o, writes=("keep.2",)) if o.name == "forward.2" else o for o in schedule.ops)
    kept = Buffer(name="keep.2", rank=0, num_bytes=1)
    lowered = lower(replace(schedule, ops=ops, buffers=(kept,)), GNNPIPE, spec)
    assert lowered.buffers[0].num_bytes == 4 * (3 * 50 + 130 - 2 * 50) + 2_359_296


def test_libraries_of_a_code_take_device_memory() -> None:
    schedule, cluster = layers_of(GCN, 10, 40), load_cluster("a5000-2x4-pcie4-ib200", gpus=1)
    bare, loaded = (device_memory(schedule, cluster, 0, code).total_bytes for code in (BARE, GNNPIPE))
    assert loaded - bare == 900_000_000
