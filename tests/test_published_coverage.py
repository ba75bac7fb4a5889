"""Rows of other people's tables find their machine, graph and model by name, or say why not; predictions are kept."""

import csv
import json
from pathlib import Path

import pytest

from halocast.base.errors import InputError
from halocast.cli import run
from halocast.cluster.catalogue import list_clusters
from halocast.study.descriptions import read_descriptions
from halocast.study.published import Beside, predict_rows
from halocast.study.published_cards import find_card
from halocast.study.published_rows import COLUMNS, Row, own_figures, read_rows, setting_of
from halocast.study.testbeds import load_testbed
from halocast.study.version import FIGURES

ROW = {
    **dict.fromkeys(COLUMNS, ""),
    "source": "mine",
    "where": "Table 1",
    "dataset": "flickr",
    "train_graph": "full",
    "model": "gcn",
    "layers": "2",
    "hidden": "16",
    "testbed": "dgx-a100-x8",
    "gpus": "2",
    "nodes": "1",
    "method": "vanilla",
    "params": "{}",
    "metric": "epoch_s",
    "value": "0.1",
    "unit": "s",
}


@pytest.mark.parametrize(
    ("name", "gpus", "hosts", "expected"),
    [
        ("a100-80-3x4-nvlink-25gbe", 12, 3, ("a100-80", 3)),
        ("A100-80-1x4-NVLink-25GbE", 4, 1, ("a100-80", 1)),
        ("m40-24-3x4-pcie3-1gbe", 12, 3, ("m40-24", 3)),
        ("v100-1x4-nvlink", 4, 1, ("v100-16", 1)),
        ("t4-16x1-15gbe", 16, 16, ("t4", 16)),
        ("dgx-a100-x8", 8, 1, ("a100-40", 1)),
        ("utah-4x2", 8, 4, ("v100-16", 4)),
        ("icelake-cpu-ib200", 32, 32, ("icelake-2x36", 32)),
        ("sylvie-pcie4", 4, 1, ("a10g", 1)),
        ("sylvie-pcie4-oregon", 8, 1, ("a10g", 1)),
        ("sylvie-pcie4-oregon2", 8, 1, ("a10g", 1)),
        ("sylvie-2x4-pcie4-eth", 8, 2, ("a10g", 2)),
        ("sylvie-3x4-pcie4-eth", 12, 3, ("a10g", 3)),
        ("rtx3090-x1", 1, 1, ("rtx-3090", 1)),
        ("a5000-1x2-pcie4", 2, 1, ("a5000", 1)),
        ("perlmutter (A100 x4 per node; not named)", 8, 2, ("a100-40", 2)),
    ],
)
def test_every_testbed_of_published_rows_is_described(
    name: str, gpus: int, hosts: int, expected: tuple[str, int]
) -> None:
    cluster = load_testbed(name, gpus=gpus, hosts=hosts)
    assert (cluster.device(0).name, cluster.num_hosts) == expected
    assert cluster.num_ranks == gpus


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Reddit", "reddit"),
        ("ogbn-papers100m", "ogbn-papers100M"),
        ("AmazonProducts", "amazon"),
        ("com-Orkut", "orkut"),
        ("Friendster", "friendster"),
        ("products", "ogbn-products"),
    ],
)
def test_graphs_are_found_without_regard_to_case_and_by_their_other_names(name: str, expected: str) -> None:
    assert find_card(name, {}).name == expected


def test_a_row_that_states_the_sizes_of_its_graph_needs_no_card() -> None:
    sizes = {"num_nodes": 1000, "nnz": 5000, "in_dim": 7, "out_dim": 3}
    card = find_card("my-graph", sizes)
    assert (card.full.nodes, card.full.edges, card.features, card.classes) == (1000, 5000, 7, 3)
    assert find_card("ogbn-proteins", {**sizes, "num_nodes": 132_534}).features == 7
    with pytest.raises(InputError, match="unknown dataset card 'my-graph'"):
        find_card("my-graph", {})
    with pytest.raises(InputError, match="not in_dim, and there is no card"):
        find_card("my-graph", {"num_nodes": 1000, "nnz": 5000})


def test_one_gpu_is_our_one_rank_run() -> None:
    for method, ours in (("single-gpu", "vanilla"), ("single-gpu-chunked", "gnnpipe")):
        chunks = '{"chunks": 4, "stages": 1, "ways": 1}'
        setting = setting_of(ROW | {"method": method, "gpus": "1", "params": chunks, "source": "mithril-log"})
        assert (setting.scenario.method.name, setting.cluster.num_ranks) == (ours, 1)
    assert setting_of(ROW | {"model": "GCN", "method": "VANILLA"}).key == setting_of(ROW).key


def test_no_row_of_the_shipped_tables_fails_without_a_reason() -> None:
    reasons = set()
    for row in (row for path in own_figures() for row in read_rows(path)):
        try:
            setting_of(row)
        except InputError as error:
            reasons.add(str(error).partition("'")[0])
    assert reasons == {"method ", "train_graph: not stated", "model ", "testbed = ", "model: not stated"}


def describe(directory: Path) -> Beside:
    """A machine and a graph of one's own."""
    clusters, cards = directory / "clusters", directory / "cards"
    for place in (clusters, cards):
        place.mkdir()
    text = (Path(__file__).parents[1] / "cluster/machines/dgx-a100.toml").read_text(encoding="utf-8")
    (clusters / "lab-x2.toml").write_text(
        text.replace("devices_per_host = 8", "devices_per_host = 2"), encoding="utf-8"
    )
    (cards / "own.toml").write_text(
        'name = "own"\nfeatures = 8\nclasses = 2\nmultilabel = false\n\n[full]\nnodes = 1000\nedges = 9000\n'
        "train_nodes = 500\ndegree_sigma = 1.0\n",
        encoding="utf-8",
    )
    return Beside(clusters=clusters, cards=cards)


def test_descriptions_of_ones_own_are_found_by_name(tmp_path: Path) -> None:
    beside = describe(tmp_path)
    own = ROW | {"testbed": "Lab-x2", "dataset": "OWN"}
    missing, *_ = predict_rows([own], results=tmp_path / "a.sqlite")
    assert "unknown dataset card 'OWN'" in missing.reason
    (found,) = predict_rows([own], beside=beside, results=tmp_path / "a.sqlite")
    assert found.reason == ""
    assert (found.facts["testbed"], found.facts["dataset"], found.in_sample) == ("lab-x2", "own", False)
    card = tmp_path / "cards" / "own.toml"
    card.write_text(card.read_text(encoding="utf-8").replace("9000", "90_000"), encoding="utf-8")
    (more,) = predict_rows([own], beside=beside, results=tmp_path / "a.sqlite")
    assert (more.predicted or 0.0) > (found.predicted or 0.0)  # kept by content, not by name
    with pytest.raises(InputError, match="no directory with"):
        read_descriptions(tmp_path / "none")
    with pytest.raises(InputError, match="unknown code 'mine'"):
        read_descriptions(code="mine")


def test_a_second_time_nothing_is_predicted(tmp_path: Path) -> None:
    said: list[tuple[int, int]] = []
    rows = [ROW, ROW | {"metric": "memory_gb", "unit": "GiB"}, ROW | {"method": "pipegcn"}]
    first = predict_rows(rows, results=tmp_path / "kept.sqlite", progress=lambda done, of: said.append((done, of)))
    assert said[0] == (0, 2)
    assert said[-1] == (2, 2)
    said.clear()
    again = predict_rows(rows, results=tmp_path / "kept.sqlite", progress=lambda done, of: said.append((done, of)))
    assert said == [(2, 2)]
    assert [one.predicted for one in again] == [one.predicted for one in first]


def test_the_same_rows_by_another_code_are_other_predictions(tmp_path: Path) -> None:
    row = ROW | {"source": "pipegcn", "testbed": "rtx2080ti-x10-pcie3"}
    theirs, ours = (
        predict_rows([row], beside=Beside(code=code), results=tmp_path / "kept.sqlite")[0]
        for code in (None, "halocast")
    )
    assert (theirs.facts["code"], ours.facts["code"]) == ("pipegcn-code", "halocast")
    assert theirs.predicted != ours.predicted


def test_a_pool_of_processes_predicts_what_this_process_does(tmp_path: Path) -> None:
    rows: list[Row] = [ROW | {"hidden": str(8 * k)} for k in range(1, 9)]  # more than are predicted here
    pooled = predict_rows(rows, results=tmp_path / "pool.sqlite", jobs=2)
    for row, one in zip(rows[:2], pooled[:2], strict=True):
        assert predict_rows([row], results=tmp_path / "here.sqlite")[0].predicted == one.predicted


def test_files_are_taken_together_and_the_brief_output_is_what_errors_come_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, row in (("a", ROW), ("b", ROW | {"method": "warp"})):
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS).writeheader()
            csv.DictWriter(file, COLUMNS).writerow(row)
    files = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    assert run(["published", *files, "--out", str(tmp_path / "out"), "--brief"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Epochs in sample: none\nEpochs left out: median error ")
    assert "mine" in out.splitlines()[-1]
    rows = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["rows"]
    assert [one["reason"] for one in rows] == ["", "method 'warp' is not available"]


def test_what_figures_are_made_by_is_there() -> None:
    root = Path(__file__).parents[1]
    assert [place for place in FIGURES if not (root / place).exists()] == []


def test_every_machine_can_be_loaded_at_its_own_size() -> None:
    for name in list_clusters():
        cluster = load_testbed(name, gpus=None, hosts=None) if not name.startswith("mixed") else None
        assert cluster is None or cluster.num_ranks >= 1
