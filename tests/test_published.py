"""Published figures become scenarios and predictions; rows that cannot are listed with the reason."""

import csv
import json
from pathlib import Path

import pytest

from halocast.base.errors import InputError
from halocast.cli import run
from halocast.graph.chunks import WayHalo
from halocast.reports.published import PublishedResult, pairs, summarise_published
from halocast.reports.timers import timers
from halocast.schedule.ir import AllReduce, Compute, Exchange, Kind, Lane, Op, Schedule
from halocast.schedule.trace import Span, Trace
from halocast.study.predict import predict_on
from halocast.study.published import predict_rows
from halocast.study.published_figures import METRICS, figures_of
from halocast.study.published_rows import COLUMNS, Row, base_of, own_figures, read_rows, setting_of
from halocast.study.testbeds import load_testbed
from halocast.study.workload import prepare

VANILLA = {
    "source": "pipegcn",
    "where": "Table 6",
    "dataset": "flickr",
    "train_graph": "full",
    "model": "gcn",
    "layers": "2",
    "n_linear": "0",
    "hidden": "16",
    "testbed": "rtx2080ti-x10-pcie3",
    "gpus": "2",
    "nodes": "1",
    "method": "vanilla",
    "params": "{}",
    "metric": "epoch_s",
    "value": "0.5",
    "unit": "s",
    "note": "",
}


def row(**changes: str) -> Row:
    return VANILLA | changes


def write(path: Path, rows: list[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(
    ("name", "gpus", "hosts", "expected"),
    [
        ("mi60-2x4-10gbe", 8, 2, ("mi60-10gbe", 2, 8, 4)),
        ("mi60-4x8-10gbe", 32, None, ("mi60-10gbe", 4, 32, 8)),
        ("a5000-1x4-pcie4-ib200", 4, 1, ("a5000-2x4-pcie4-ib200", 1, 4, 4)),
        ("a5000-4x4-pcie4-ib200", 16, 4, ("a5000-2x4-pcie4-ib200", 4, 16, 4)),
        ("a5000-2x4-pcie4-ib200", None, None, ("a5000-2x4-pcie4-ib200", 2, 8, 4)),
        ("a100-ib100", 16, None, ("a100-ib100", 16, 16, 1)),
        ("rtx2080ti-x8-pcie3", 8, 1, ("rtx2080ti-x10-pcie3", 1, 8, 8)),
        ("v100-8x6", 48, 8, ("v100-32x6", 8, 48, 6)),
        ("t4-3x2-15gbe", 3, 3, ("t4-3x2-15gbe", 3, 3, 1)),
    ],
)
def test_a_testbed_is_a_cluster_with_the_runs_own_size(
    name: str, gpus: int | None, hosts: int | None, expected: tuple[str, int, int, int]
) -> None:
    cluster = load_testbed(name, gpus=gpus, hosts=hosts)
    assert (cluster.name, cluster.num_hosts, cluster.num_ranks, cluster.hosts.count(0)) == expected


@pytest.mark.parametrize(
    ("name", "gpus", "hosts", "message"),
    [
        ("b200-8x8", 8, 1, "unknown testbed 'b200-8x8'"),
        ("mi60-2x4-10gbe", 0, 1, "gpus = 0"),
        ("mi60-2x4-10gbe", 2, 4, "nodes = 4: more than gpus = 2"),
        ("rtx2080ti-x10-pcie3", 4, 2, "no way from host 0 to host 1"),  # one host's file has no network
    ],
)
def test_a_testbed_that_cannot_be_is_told(name: str, gpus: int, hosts: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_testbed(name, gpus=gpus, hosts=hosts)


def test_params_find_the_section_that_knows_them() -> None:
    params = '{"use_pp":true,"p":0.25,"dropout":0.3,"partitioner":"random","eval":true}'
    setting = setting_of(row(method="bns", params=params, n_linear="1", layers="3"))
    scenario = setting.scenario
    assert scenario.method.options.rate == 0.25
    assert (scenario.model.precompute, scenario.model.dropout, scenario.model.num_linear) == (True, 0.3, 1)
    assert scenario.graph.partitioner == "random"
    assert setting.ignored == ("eval",)


def test_a_baseline_that_drops_edges_is_an_option_of_bns() -> None:
    same = '{"edges_dropped":"same count as bns p=0.1"}'
    options = setting_of(row(method="bes", params=same)).scenario.method.options
    assert (options.what, options.rate) == ("edges", 0.1)


def test_a_speedup_is_over_the_method_its_note_names() -> None:
    assert base_of(row(note="throughput vs vanilla, same #partitions"))["method"] == "vanilla"
    assert base_of(row(note="epoch time over PipeGCN"))["method"] == "pipegcn"
    assert base_of(row())["method"] == "vanilla"
    with pytest.raises(InputError, match="'graphsage', is not available"):
        base_of(row(note="vs GraphSAGE sampling"))


def test_predictions_are_in_the_rows_unit_and_consistent(tmp_path: Path) -> None:
    wanted = [
        row(),
        row(unit="ms"),
        row(metric="throughput", unit="epochs/s"),
        row(metric="comm_ratio", unit="%"),
        row(metric="comm_s"),
        row(metric="speedup", unit="x", method="pipegcn", value="1.5"),
        row(method="pipegcn"),
        row(metric="bytes_total", unit="MB", source="bns"),
    ]
    told: list[int] = []
    results = predict_rows(wanted, results=tmp_path / "kept.sqlite", progress=lambda done, of: told.append(of))
    assert [result.reason for result in results] == [""] * len(wanted)
    epoch, in_ms, throughput, ratio, comm, speedup, pipelined, traffic = (one.predicted or 0.0 for one in results)
    assert in_ms == pytest.approx(1000 * epoch)
    assert throughput == pytest.approx(1 / epoch)
    assert ratio == pytest.approx(100 * comm / epoch)
    assert speedup == pytest.approx(epoch / pipelined)
    # two exchanges forward (500 and 16 columns); what goes back and weights are not counted here
    volume = prepare(setting_of(row()).scenario, 2).halo.volume
    assert traffic == pytest.approx(volume * 4 * (500 + 16) / 1e6)
    assert set(told) == {3}  # pipegcn, vanilla, and vanilla with another count of bytes


HYBRID = {
    "source": "mithril-log",
    "layers": "8",
    "testbed": "a5000-2x4-pcie4-ib200",
    "gpus": "8",
    "nodes": "2",
    "method": "gnnpipe-hybrid",
    "params": '{"stages":2,"ways":4,"chunks":32}',
}


def test_traffic_of_ways_is_graph_traffic_that_of_stages_layer_traffic_and_that_of_sums_weights() -> None:
    metrics = ("bytes_graph", "bytes_layer", "bytes_weight_sync", "bytes_total")
    results = predict_rows([row(**HYBRID | {"metric": metric, "unit": "B"}) for metric in metrics])
    graph, layer, weights, total = (one.predicted or 0.0 for one in results)
    setting = setting_of(row(**HYBRID))
    halo = prepare(setting.scenario, 8).halo
    assert isinstance(halo, WayHalo)
    assert layer == 2 * 89_250 * 16 * 4  # every node's row once forth and once back, between two stages
    # the four ways of a stage need of each other what four parts do; 8 layers of 16 columns, forth and back
    assert graph == pytest.approx(2 * 8 * halo.shared.sum() * 16 * 4, rel=1e-6)
    assert total == pytest.approx(graph + layer + weights)
    assert weights > 0


def test_where_ways_do_not_divide_memory_it_is_that_of_the_stages_alone() -> None:
    """Of the GNNPipe authors' code: four ways of two stages hold what two stages on two GPUs do."""
    alone = HYBRID | {"gpus": "2", "nodes": "1", "params": '{"stages":2,"ways":1,"chunks":8}'}
    rows = [row(**kind | {"metric": "memory_gb", "unit": "GB", "layers": "32"}) for kind in (HYBRID, alone)]
    shared, single = (one.predicted or 0.0 for one in predict_rows(rows))
    transport = 0.6  # buffers of nccl for more peers
    assert single < shared < single + transport


def test_every_metric_that_is_promised_is_made() -> None:
    setting = setting_of(row())
    made = figures_of(predict_on(prepare(setting.scenario, 2), setting.cluster), setting)
    assert set(made) == METRICS


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"value": "fast"}, "value = 'fast': expected a number"),
        ({"gpus": "two"}, "gpus = 'two': expected a whole number"),
        ({"gpus": ""}, "gpus: not stated"),
        ({"layers": ""}, "layers: not stated"),
        ({"params": "{"}, "not JSON"),
        ({"params": "[]"}, "expected an object"),
        ({"params": '{"dropout": "much"}'}, "dropout"),
        ({"method": "roc"}, "method 'roc' is not available"),
        ({"value": "nan"}, "expected a finite number"),
        ({"model": "gin"}, "model 'gin' needs a later version"),
        ({"model": "gnn"}, "unknown model 'gnn'"),
        ({"dataset": "ogbn-mag"}, "unknown dataset card 'ogbn-mag'"),
        ({"testbed": "none"}, "testbed = 'none': not stated"),
        ({"testbed": "laptop"}, "unknown testbed 'laptop'"),
        ({"train_graph": "half"}, "unknown train_graph 'half'"),
        ({"metric": "joules"}, "metric 'joules' is not one we predict"),
        ({"unit": "fortnights"}, "unknown unit 'fortnights'"),
        ({"metric": "speedup", "unit": "x"}, "a speedup over itself is 1 by definition"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(changes: dict[str, str], reason: str) -> None:
    (result,) = predict_rows([row(**changes)])
    assert reason in result.reason
    assert (result.predicted, result.error) == (None, None)


def test_parts_are_compared_by_their_place_in_the_order_of_size() -> None:
    part = row(method="partition", testbed="", model="", metric="boundary_nodes", unit="nodes", gpus="3", value="0")
    each = [part | {"params": json.dumps({"part": k}), "value": value} for k, value in enumerate(("30", "10", "20"))]
    predicted = [result.predicted or 0.0 for result in predict_rows(each)]
    assert predicted[1] < predicted[2] < predicted[0]
    total, average = predict_rows([part, part | {"note": "average per partition"}])
    assert total.predicted == sum(predicted)
    assert average.predicted == pytest.approx(sum(predicted) / 3)
    assert "2 of 3 parts" in predict_rows(each[:2])[0].reason


def test_a_file_needs_its_columns_and_a_short_row_is_only_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("source,where\npipegcn,Table 6\n", encoding="utf-8")
    with pytest.raises(InputError, match="no column 'dataset'"):
        read_rows(path)
    path.write_text(",".join(COLUMNS) + "\npipegcn,Table 6\n\n", encoding="utf-8")
    (short,) = predict_rows(read_rows(path))
    assert short.reason == "value = '': expected a number"
    with pytest.raises(InputError, match="no such file"):
        read_rows(tmp_path / "none.csv")


def test_the_shipped_figures_can_be_read_and_mapped() -> None:
    rows = read_rows(own_figures()[0])
    assert len(rows) == 587
    epochs = [one for one in rows if one["metric"] == "epoch_s" and one["method"] == "vanilla"]
    assert len({setting_of(one).key for one in epochs}) == 15


def result(method: str, published: float, predicted: float, **changes: str) -> PublishedResult:
    wanted = row(method=method, **changes)
    return PublishedResult(
        row=wanted, published=published, predicted=predicted, workload=wanted["dataset"], setting=method
    )


def test_the_order_of_methods_is_judged_within_one_source_and_workload() -> None:
    results = [
        result("vanilla", 2.0, 1.0),
        result("vanilla", 4.0, 1.0),  # measured again: 3.0 in the mean
        result("pipegcn", 2.9, 0.5),
        result("bns", 1.0, 0.7),
        result("bns", 9.0, 0.1, dataset="reddit"),
    ]
    found = {(pair.first.row["method"], pair.second.row["method"]): pair for pair in pairs(results)}
    assert {methods: (pair.right, pair.clear) for methods, pair in found.items()} == {
        ("pipegcn", "vanilla"): (True, False),
        ("bns", "vanilla"): (True, True),
        ("bns", "pipegcn"): (False, True),
    }
    summary = summarise_published(results)
    assert (summary["order"]["right"], summary["order"]["pairs"]) == (2, 3)
    assert [wrong["methods"] for wrong in summary["wrong_order"]] == [["bns {}", "pipegcn {}"]]


def test_errors_are_relative_and_a_published_zero_has_none() -> None:
    results = [result("vanilla", 2.0, 1.0), result("vanilla", 1.0, 1.1), result("vanilla", 0.0, 1.0)]
    assert results[2].error is None
    assert summarise_published(results)["epoch_s"] == {
        "num": 2,
        "median": pytest.approx(0.3),
        "mean": pytest.approx(0.3),
        "lean": pytest.approx(-0.2),
    }


def test_a_stopwatch_shows_the_wait_for_what_an_op_waited_for_last() -> None:
    """The rank computes 1 s, waits 2 s for an exchange, computes 1 s, waits 0.5 s for the reduction, steps 0.25 s."""
    names = [
        ("forward.0", Lane.COMPUTE, Compute(), (), 0.0, 1.0),
        ("exchange.1", Lane.HALO, Exchange(matrix="halo", row_bytes=4), (("forward.0", 0),), 1.0, 3.0),
        ("forward.1", Lane.COMPUTE, Compute(), (("exchange.1", 0),), 3.0, 4.0),
        ("allreduce", Lane.REDUCE, AllReduce(num_bytes=4), (("forward.1", 0),), 4.0, 4.5),
        ("step", Lane.COMPUTE, Compute(), (("allreduce", 0), ("exchange.1", 0)), 4.5, 4.75),
    ]
    ops = tuple(Op(name=n, rank=0, lane=lane, after=a, work=w) for n, lane, w, a, _, _ in names)
    spans = tuple(
        Span(rank=0, lane=lane, op=n, kind=w.kind, epoch=0, start_s=s, end_s=e) for n, lane, w, _, s, e in names
    )
    schedule = Schedule(num_ranks=1, matrices=(), buffers=(), ops=ops, meta=())
    (rank,) = timers(Trace(source="simulated", num_ranks=1, num_epochs=1, spans=spans), schedule, 0)
    assert (rank.epoch_s, rank.compute_s) == (4.75, 2.25)
    assert rank.waits == {Kind.EXCHANGE: 2.0, Kind.ALLREDUCE: 0.5}
    assert rank.by_verb == {"forward": 2.0, "step": 0.25}


def test_the_command_prints_every_row_and_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "rows.csv", [row(), row(method="pipegcn", value="0.2"), row(gpus="many")])
    out = tmp_path / "out"
    assert run(["published", "--data", str(data), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["gpus"] for one in printed["rows"]] == ["2", "2", "many"]
    assert printed["rows"][0]["error"] == pytest.approx(printed["rows"][0]["predicted"] / 0.5 - 1)
    assert printed["rows"][2]["predicted"] is None
    assert printed["summary"]["order"]["pairs"] == 1
    files = ["published.svg", "report.html", "report.md", "results.csv", "results.json", "scores.csv"]
    assert sorted(path.name for path in out.iterdir()) == files
    assert run(["published", "--data", str(data), "--out", str(out)]) == 0
    assert "2 of 3 rows are predicted." in capsys.readouterr().out


def test_epochs_of_the_gnnpipe_authors_are_predicted_within_fifteen_percent() -> None:
    rows = [row for row in read_rows(own_figures()[0]) if (row["source"], row["metric"]) == ("mithril-log", "epoch_s")]
    results = predict_rows(rows)
    assert len(results) == 8  # two graphs, two models, whole graph and pipeline
    errors = {f"{r.row['dataset']} {r.row['model']} {r.row['method']}": r.error for r in results}
    assert all(error is not None and abs(error) < 0.15 for error in errors.values()), errors
