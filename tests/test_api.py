"""`import halocast as hc`: light until used, works without torch, takes graphs from memory, shows results briefly."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import dgl
import numpy as np
import pytest
import torch

import halocast as hc
from halocast.base.errors import InputError
from halocast.graph import load, synthetic

HEAVY = ("numpy", "simpy", "torch", "dgl", "pandas", "matplotlib", "scipy", "networkx", "numba", "pyarrow")
SMALL = ("graph.nodes=300", "graph.degree=6", "graph.features=8", "model.hidden=8", "run.epochs=3", "run.threads=1")
NO_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "dgl"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def scenario(*more: str) -> hc.Scenario:
    return hc.Scenario.load("demo", *SMALL, "cluster.name=cpu-local", "cluster.gpus=2", *more)


def test_importing_it_loads_nothing_heavy() -> None:
    assert python(f"import sys, halocast; print(sorted(set({HEAVY}) & set(sys.modules)))") == "[]"


def test_every_name_it_promises_is_there_and_no_other() -> None:
    assert {"__version__", "Scenario", "predict", "run", "compare", "validate", "plan", "sweep"} < set(dir(hc))
    assert {"whatif", "published", "load_cluster", "Graph"} < set(dir(hc))
    assert all(getattr(hc, name) is not None for name in hc.__all__)
    assert hc.load_cluster("cpu-local", gpus=2).num_ranks == 2
    with pytest.raises(AttributeError, match="module 'halocast' has no attribute 'predcit'"):
        getattr(hc, "predcit")  # noqa: B009


def test_python_m_halocast_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "halocast", "list", "methods"], capture_output=True, text=True)
    assert done.stdout.startswith("methods: vanilla")


def test_it_predicts_without_torch() -> None:
    use = "import halocast as hc; print(hc.predict(hc.Scenario.load('demo', 'graph.nodes=300')).summary.epoch_s > 0)"
    assert python(NO_TORCH + use) == "True"


@pytest.mark.parametrize("command", [["run"], ["validate", "--quick"], ["calibrate"]])
def test_what_needs_torch_says_in_one_line_what_to_install(command: list[str], tmp_path: Path) -> None:
    refused = "from importlib import util\nfound = util.find_spec\n"
    refused += "util.find_spec = lambda name, *more: None if name == 'torch' else found(name, *more)\n"
    code = f"{refused}import halocast.study.run as r\nr.find_spec = util.find_spec\nfrom halocast.cli import run\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}raise SystemExit(run({command}))"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert line.endswith("needs torch, which is not installed: pip install 'halocast[run]'")


def pyg(**more: object) -> SimpleNamespace:
    """A path of four nodes, as PyTorch Geometric keeps it."""
    return SimpleNamespace(
        **{
            "x": torch.eye(4, 3),
            "edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]]),
            "y": torch.tensor([0, 1, 0, 1]),
            "train_mask": torch.tensor([True, True, False, False]),
            "val_mask": torch.tensor([False, False, True, False]),
            "test_mask": torch.tensor([False, False, False, True]),
            **more,
        }
    )


def test_a_graph_from_pytorch_geometric_keeps_edges_features_and_masks() -> None:
    graph = hc.Graph.from_pyg(pyg(), name="path")
    assert graph.indptr.tolist() == [0, 1, 3, 5, 7]
    assert graph.indices.tolist() == [0, 0, 1, 1, 2, 2, 3]  # what each node aggregates: its source and itself
    assert graph.features.tolist() == np.eye(4, 3).tolist()
    assert (graph.train_mask.tolist(), graph.num_classes) == ([True, True, False, False], 2)
    assert repr(graph) == "Graph('path': 4 nodes, 7 edges, 3 features, 2 classes)"


def test_a_graph_with_a_column_per_split_takes_the_first_and_one_without_masks_is_split_by_seed() -> None:
    ten = {name: getattr(pyg(), name).repeat(10, 1).T for name in ("train_mask", "val_mask", "test_mask")}
    assert hc.Graph.from_pyg(pyg(**ten)).train_mask.tolist() == [True, True, False, False]
    bare = hc.Graph.from_pyg(pyg(train_mask=None, val_mask=None, test_mask=None))
    assert bare.num_train == 2
    with pytest.raises(InputError, match="graph: of the masks only train_mask, val_mask; give all three or none"):
        hc.Graph.from_pyg(pyg(test_mask=None))
    with pytest.raises(InputError, match="graph: the data has no y; needed: x, edge_index and y"):
        hc.Graph.from_pyg(pyg(y=None))


def test_a_graph_from_dgl_is_the_same_as_from_pytorch_geometric() -> None:
    data = pyg()
    stored = dgl.graph((data.edge_index[0], data.edge_index[1]))
    stored.ndata.update({"feat": data.x, "label": data.y})
    stored.ndata.update({name: getattr(data, name) for name in ("train_mask", "val_mask", "test_mask")})
    ours, theirs = hc.Graph.from_dgl(stored), hc.Graph.from_pyg(data)
    for name in ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    with pytest.raises(InputError, match=r"graph: ndata has no 'label2' \(there are: feat, label,"):
        hc.Graph.from_dgl(stored, labels="label2")


def test_a_graph_that_was_saved_comes_back(tmp_path: Path) -> None:
    graph = replace(hc.Graph.from_pyg(pyg()), num_classes=5)
    graph.save(tmp_path / "path.npz")
    again = load(tmp_path / "path.npz")
    assert again.name == "path"
    assert again.num_classes == 5
    assert np.array_equal(again.indices, graph.indices)
    assert np.array_equal(again.labels, graph.labels)


@pytest.fixture(scope="module")
def graph() -> hc.Graph:
    return synthetic(nodes=300, degree=6, skew=1.0, classes=4, features=8, mixing=0.1, seed=7)


def test_a_graph_from_memory_is_predicted_as_the_same_one_from_a_file(graph: hc.Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "g.npz")
    from_file = hc.predict(scenario(f"graph.dataset={tmp_path / 'g.npz'}"))
    from_memory = hc.predict(scenario(), graph=graph)
    assert from_memory.summary.epoch_s == from_file.summary.epoch_s
    assert from_memory.workload.halo.num_inner.sum() == 300
    other = hc.predict(scenario("graph.seed=1"))
    assert other.summary.bytes_total != from_memory.summary.bytes_total


def test_a_graph_from_memory_is_run_and_compared(graph: hc.Graph) -> None:
    result = hc.run(scenario(), graph=graph)
    assert len(result.losses) == 3
    assert result.losses[-1] < result.losses[0]
    assert set(result.accuracy) == {"train", "val", "test"}
    compared = hc.compare(scenario(), graph=graph, methods=("vanilla", "bns"), execute=True)
    assert [(r.method, r.summary.source) for r in compared.results] == [
        ("vanilla", "simulated"),
        ("vanilla", "simulated"),
        ("vanilla", "executed"),
        ("bns", "simulated"),
        ("bns", "simulated"),
        ("bns", "executed"),
    ]
    executed = [r.summary for r in compared.results if r.summary.is_run and r.method == "vanilla"]
    assert executed[0].bytes_total == result.summary.bytes_total


def test_results_are_short_in_a_terminal_and_whole_in_a_frame(graph: hc.Graph) -> None:
    reddit = scenario("graph.dataset=reddit")
    results = {
        1: hc.predict(reddit),
        2: hc.sweep(reddit, {"method.name": ["vanilla", "bns"]}, jobs=1),
        3: hc.run(scenario(), graph=graph),
        9: hc.compare(reddit, methods=["vanilla", "pipegcn"]),
    }
    assert repr(results[1]).startswith("<Prediction: vanilla on 2 x cpu-local: ")
    assert repr(results[2]) == "<Sweep: 2 combinations of method.name, 2 predicted>"
    assert [len(results[key].frame()) for key in (1, 2, 3, 9)] == [1, 2, 3, 2]
    for result in results.values():
        assert len(repr(result)) < 600, repr(result)
        assert result._repr_html_().count("<table>") == 1
    assert list(results[3].frame().columns) == ["epoch", "loss", "train", "val", "test"]


def test_plans_and_gains_are_rows_too() -> None:
    space = ('plan.methods=["vanilla"]', "plan.gpus=[1, 2]")
    ranked = hc.plan(scenario("graph.dataset=reddit", *space), jobs=1)
    assert repr(ranked).startswith("<RankedPlan: shortest epoch; exact: vanilla on ")
    assert ranked.frame()["label"].iloc[0] == ranked.exact[0].candidate.label
    gains = hc.whatif(scenario("graph.dataset=reddit"), jobs=1)
    assert gains.frame()["resource"].iloc[0] == gains.bottleneck.resource
    assert len(repr(gains)) < 300
