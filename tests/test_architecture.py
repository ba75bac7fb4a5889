"""The walks of docs/architecture.md are true: every function is there, and a run reaches them in that order."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
HOP = re.compile(r"^(\d+)\. `(?P<hop>[\w/]+\.py: [\w.]+)`: \S.*$")
RUN = "import sys; from halocast.cli import run; sys.exit(run(sys.argv[1:]))"
SMALL = ["--set", "model.layers=2", "--set", "model.hidden=8", "--set", "run.epochs=3"]
COMMANDS = {
    "From the file to a number in the report": ["compare", "--methods", "vanilla", "--scaling", "0"],
    "From the file to a worker's span": ["run", "--ranks", "2"],
}


def walks() -> dict[str, list[str]]:
    """Hops `path: function` by the heading of their walk."""
    _, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    return {
        section.split("\n")[0]: [match["hop"] for line in section.split("\n") if (match := HOP.match(line))]
        for section in sections
    }


def first_untrue(hops: Sequence[str], called: Sequence[str]) -> str | None:
    """The first hop that is not called after the one before it; none if all are."""
    calls = iter(called)
    return next((hop for hop in hops if hop not in calls), None)


def save_ring(path: Path, num_nodes: int = 40) -> None:
    """A ring: whatever the parts are, some edge leads from one to the other."""
    here = np.arange(num_nodes)
    there = np.roll(here, 1)
    train, val = here % 4 < 2, here % 4 == 2
    np.savez(
        path,
        edge_index=np.stack([np.concatenate([here, there]), np.concatenate([there, here])]),
        x=np.random.default_rng(0).normal(size=(num_nodes, 6)).astype(np.float32),
        y=here % 3,
        train_mask=train,
        val_mask=val,
        test_mask=~(train | val),
    )


def calls_of(command: Sequence[str], hops: Sequence[str], place: Path) -> list[list[str]]:
    """Hops in the order of their calls: those of the command's own process with those of each process it started."""
    walk = place / "walk"
    walk.mkdir()
    (walk / "hops").write_text("\n".join(hops), encoding="utf-8")
    save_ring(place / "ring.npz")
    recorder = str(ROOT / "tests/lib/recorder")
    environment = os.environ | {
        "HALOCAST_WALK": str(walk),
        "PYTHONPATH": os.pathsep.join([recorder, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    line = [sys.executable, "-c", RUN, *command, "--set", "graph.dataset=ring.npz", *SMALL]
    process = subprocess.Popen(line, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said.decode()
    own, *others = _calls(walk, process.pid)
    return [[hop for _, hop in sorted(own + other)] for other in others or [[]]]


def _calls(walk: Path, pid: int) -> list[list[tuple[int, str]]]:
    """Times and hops of the process `pid`, then those of all others."""
    files = sorted(walk.glob("calls-*"), key=lambda path: path.name != f"calls-{pid}")
    lines = [path.read_text(encoding="utf-8").splitlines() for path in files]
    return [[(int(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in calls] for calls in lines]


def test_the_page_has_two_walks_whose_hops_are_one_line_each_and_numbered() -> None:
    assert list(walks()) == list(COMMANDS)
    listed = [line for line in PAGE.read_text(encoding="utf-8").split("\n") if re.match(r"\d+\.", line)]
    assert len(listed) == sum(len(hops) for hops in walks().values())
    numbers = [int(line.split(".")[0]) for line in listed]
    assert numbers == [n for hops in walks().values() for n in range(1, len(hops) + 1)]


@pytest.mark.parametrize(
    ("walk", "number", "hop"), [(walk, n, hop) for walk, hops in walks().items() for n, hop in enumerate(hops, 1)]
)
def test_a_hop_names_a_function_that_exists(walk: str, number: int, hop: str) -> None:
    path, function = hop.split(": ")
    assert (ROOT / path).exists(), f"docs/architecture.md, {walk}, hop {number}: there is no {path}"
    module = importlib.import_module("halocast." + path.removesuffix(".py").replace("/", "."))
    place: Any = module
    for name in function.split("."):
        place = getattr(place, name, None)
    assert callable(place), f"docs/architecture.md, {walk}, hop {number}: {path} has no function {function}"


@pytest.mark.parametrize("walk", list(COMMANDS))
def test_a_walk_leaves_a_package_once(walk: str) -> None:
    packages = [hop.split("/")[0] for hop in walks()[walk]]
    visits = [package for k, package in enumerate(packages) if k == 0 or packages[k - 1] != package]
    assert len(set(visits)) == len(visits), visits


@pytest.mark.parametrize("walk", list(COMMANDS))
def test_a_run_takes_a_walk_as_the_page_tells_it(walk: str, tmp_path: Path) -> None:
    hops = walks()[walk]
    every = calls_of(COMMANDS[walk], hops, tmp_path)
    assert len(every) == (2 if walk.endswith("span") else 1)
    for called in every:
        untrue = first_untrue(hops, called)
        before = hops[hops.index(untrue) - 1] if untrue in hops[1:] else "the start"
        assert untrue is None, f"docs/architecture.md, {walk}: {untrue} is not called after {before}"


def test_a_hop_that_comes_too_early_or_never_is_named() -> None:
    assert first_untrue(["a", "b", "c"], ["a", "x", "b", "a", "c"]) is None
    assert first_untrue(["a", "b", "c"], ["a", "c", "b"]) == "c"
    assert first_untrue(["a", "b"], ["b"]) == "a"
