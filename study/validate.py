"""Validation: a grid of scenarios is run for real and simulated, and the results say how far apart they are.

A *case* is one scenario; a *cell* holds the cases that differ in the method only, so that methods can be put in order.
Every run that ends is kept as a trace and used again, so an interruption loses the run under way and no more;
predictions are made anew each time. Methods of a cell take turns in rounds: a slow spell of the machine hits all.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from halocast.base.errors import InputError, RunError, unknown
from halocast.base.records import require
from halocast.calibrate.measure.pace import Machine
from halocast.calibrate.profile import Profile, calibrated
from halocast.cluster.catalogue import Cluster, list_clusters, load_cluster
from halocast.exec.launch.emulate import BURST_S, can_emulate
from halocast.exec.launch.torchrun import num_here, on_several_hosts, under_torchrun
from halocast.graph.parts import iter_parts
from halocast.reports.metrics import default_warmup
from halocast.reports.validation import ValidatedScenario, blame_of, figures, summarise_rows
from halocast.reports.validation_report import verdict, write_validation
from halocast.schedule.ir import Schedule
from halocast.schedule.passes import hyperperiod, steady_epochs
from halocast.schedule.text import format_schedule
from halocast.schedule.trace import Trace, load_trace, save_trace
from halocast.study.predict import predict_on
from halocast.study.run import choose_backend, make_job, require_torch, train
from halocast.study.scenario import Scenario, format_scenario, load_scenario
from halocast.study.showable import Showable
from halocast.study.workload import Say, Workload, prepare, silent

if TYPE_CHECKING:
    from halocast.exec.launch.gang import Gang

OWN = "own"  # links: this machine as it is
LOOPBACK = "cpu-local"  # what describes it where it has no GPUs
DIVIDED_RANKS = 4  # the fewest for stages of several ways

# Options with short cycles (every 4 epochs), so that a run of a dozen epochs has whole ones.
METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vanilla": ("method.name=vanilla",),
        "pipegcn": ("method.name=pipegcn",),
        "pipegcn-gf": ("method.name=pipegcn-gf",),
        "bns": ("method.name=bns", "method.rate=0.1"),
        "psc": ("method.name=psc", "method.eps=0.3", "method.refresh=4"),
        "digest": ("method.name=digest", "method.interval=4"),
        "digest-a": ("method.name=digest-a", "method.interval=4"),
        "gnnpipe": ("method.name=gnnpipe", "method.freeze=4"),
        "gnnpipe-hybrid": ("method.name=gnnpipe", "method.freeze=4", "method.ways=2"),
    }
)
LINKS: Mapping[str, str] = MappingProxyType(
    {"200mbit": "cpu-4x1-200mbit", "1gbit": "cpu-4x1-1gbit", "unlimited": "cpu-4x1-unlimited", OWN: LOOPBACK}
)
MODELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sage": ("model.kind=sage",),
        "gcn": ("model.kind=gcn",),
        "gat": ("model.kind=gat",),
    }
)
# Edges between communities so few that rows travel about as long as they take to compute.
GRAPHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sparse": ("graph.nodes=20000", "graph.degree=12", "graph.mixing=0.02", "graph.features=64"),
        "dense": ("graph.nodes=6000", "graph.degree=80", "graph.mixing=0.02", "graph.features=64"),
    }
)
COMMON = ("model.layers=4", "model.hidden=64", "run.threads=1")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """One scenario of the grid, by the words the user chooses it with."""

    link: str
    ranks: int
    model: str
    graph: str
    method: str

    @property
    def cell(self) -> tuple[str, int, str, str]:
        return self.link, self.ranks, self.model, self.graph

    @property
    def name(self) -> str:
        """The name of the case and of its files, without slashes: a graph or a cluster may be a path."""
        parts = (self.link, f"x{self.ranks}", self.model, self.graph, self.method)
        return "_".join(part.strip("/").replace("/", "-") for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationGrid:
    """A grid of cases to compare: all combinations of these words, each run `rounds` times for `epochs` epochs."""

    methods: tuple[str, ...] = tuple(METHODS)
    links: tuple[str, ...] = ("200mbit", "1gbit", "unlimited")
    ranks: tuple[int, ...] = (2, 4)
    models: tuple[str, ...] = ("sage", "gcn")
    graphs: tuple[str, ...] = tuple(GRAPHS)
    epochs: int = 12
    rounds: int = 3

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise unknown("method", name, METHODS, "--methods")
        for name in self.models:
            if name not in MODELS:
                raise unknown("model", name, MODELS, "--models")
        for name in self.links:
            if name not in LINKS and name not in list_clusters() and not name.endswith(".toml"):
                raise unknown("link", name, LINKS, "--links: one of these, or a cluster")
        for ranks in self.ranks:
            require(ranks >= 2, f"--ranks {ranks}: communication needs at least 2")
        require(self.epochs >= 2, f"--epochs {self.epochs}: needs to be at least 2, the first ones are warm-up")
        require(self.rounds >= 1, f"--rounds {self.rounds}: needs to be at least 1")

    def cells(self) -> list[list[Case]]:
        """The cases of each cell; stages of two ways need four ranks."""
        places = product(self.links, self.ranks, self.models, self.graphs)
        return [
            [
                Case(link=link, ranks=ranks, model=model, graph=graph, method=method)
                for method in self.methods
                if not (method == "gnnpipe-hybrid" and ranks < DIVIDED_RANKS)
            ]
            for link, ranks, model, graph in places
        ]


QUICK = ValidationGrid(
    methods=("vanilla", "pipegcn", "bns", "psc", "digest", "gnnpipe"),
    links=("200mbit", "unlimited"),
    models=("sage",),
    graphs=("sparse",),
    epochs=10,
    rounds=2,
)


def case_scenario(case: Case, overrides: Iterable[str] = ()) -> Scenario:
    graph = GRAPHS.get(case.graph, (f"graph.dataset={case.graph}", "graph.source=data"))
    chosen = (*graph, *MODELS[case.model], *COMMON, *METHODS[case.method], *overrides)
    return load_scenario("demo", [*chosen, f"cluster.name={LOOPBACK}", f"cluster.gpus={case.ranks}"])


def case_cluster(case: Case, num_cores: int | None, profile: Profile | None = None) -> Cluster:
    """The cluster of a case, as described or measured, on as many cores as one machine has; ranks on GPUs have a device
    each, and where no number is given, hosts are machines of their own."""
    described = load_cluster(LINKS.get(case.link, case.link), gpus=case.ranks)
    here = described if described.staged or num_cores is None else replace(described, shared_cores=num_cores)
    return here if profile is None else calibrated(here, profile)


def measured_epochs(schedule: Schedule, at_least: int) -> tuple[int, int]:
    """Numbers of (warm-up epochs, all epochs) of a run and of its simulation: whole cycles before and after warm-up."""
    period, (steady, _) = hyperperiod(schedule), steady_epochs(schedule)
    warmup = period * -(-max(steady, default_warmup(at_least)) // period)
    return warmup, warmup + period * -(-max(1, at_least - warmup) // period)


def with_epochs(workload: Workload, at_least: int) -> Workload:
    _, epochs = measured_epochs(workload.schedule, at_least)
    scenario = replace(workload.scenario, run=replace(workload.scenario.run, epochs=epochs))
    return replace(workload, scenario=scenario)


def fingerprint(workload: Workload, cluster: Cluster) -> str:
    """A fingerprint of all that a run depends on: a result of other settings is not taken for one of these.

    Kernels are left out: they say what an op costs, not what it does.
    """
    rates = [] if cluster.nic is None else [cluster.nic.bytes_per_s] * cluster.num_hosts
    ops = tuple(replace(op, work=replace(op.work, kernels=())) for op in workload.schedule.ops)
    schedule = format_schedule(replace(workload.schedule, ops=ops, buffers=()))
    burst_s = 0.0 if cluster.nic is None else cluster.nic.burst_s
    text = f"{format_scenario(workload.scenario)}{schedule}{rates}{burst_s}{cluster.num_hosts}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def chosen_from(
    grid: ValidationGrid, texts: Mapping[str, str], *, epochs: int | None = None, rounds: int | None = None
) -> ValidationGrid:
    """The grid with the comma-separated choices that were made, the others as they are."""
    words = {name: tuple(word.strip() for word in text.split(",") if word.strip()) for name, text in texts.items()}
    return ValidationGrid(
        methods=words.get("methods") or grid.methods,
        links=words.get("links") or grid.links,
        ranks=_numbers(words.get("ranks", ())) or grid.ranks,
        models=words.get("models") or grid.models,
        graphs=words.get("graphs") or grid.graphs,
        epochs=grid.epochs if epochs is None else epochs,
        rounds=grid.rounds if rounds is None else rounds,
    )


def _numbers(words: tuple[str, ...]) -> tuple[int, ...]:
    for word in words:
        require(word.isdecimal(), f"--ranks {word}: needs to be whole numbers such as 2,4")
    return tuple(int(word) for word in words)


RUNS, REPORT = "runs", "validate.md"  # in the directory of a validation

Train = Callable[[Workload, Cluster], Trace]
TwoTraces = list[tuple[Trace, Schedule]]  # predicted and measured


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Validation(Showable):
    """Cases with their predicted and measured figures, what they say together, and both timelines of the first."""

    columns: ClassVar[tuple[str, ...]] = (
        "method",
        "link",
        "ranks",
        "model",
        "graph",
        "predicted_epoch_s",
        "measured_epoch_s",
        "error",
    )
    rows: tuple[ValidatedScenario, ...]
    summary: dict[str, Any]
    traces: tuple[tuple[Trace, Schedule], ...]  # predicted and measured; none where nothing was compared

    def line(self) -> str:
        return " ".join(verdict(self.summary))

    def records(self) -> list[dict[str, Any]]:
        return [row.as_dict() for row in self.rows]


@dataclass(frozen=True, slots=True)
class Runs:
    """Traces of real runs, one file each."""

    directory: Path

    def path(self, case: Case, turn: int) -> Path:
        return self.directory / case.name / f"{turn}.parquet"

    def load(self, case: Case, turn: int, wanted: str) -> Trace | None:
        """The run's trace, unless it has not been run or was run with other settings."""
        if not self.path(case, turn).exists():
            return None
        try:
            trace = load_trace(self.path(case, turn))
        except InputError:  # of another version of ours: to be run again
            return None
        return trace if trace.meta.get("fingerprint") == wanted else None

    def save(self, case: Case, turn: int, trace: Trace) -> None:
        self.path(case, turn).parent.mkdir(parents=True, exist_ok=True)
        save_trace(trace, self.path(case, turn))


@dataclass(slots=True, kw_only=True)
class Cell:
    """Cases that differ in the method only, as they are being run."""

    cases: Sequence[Case]
    grid: ValidationGrid
    runs: Runs
    profile: Profile | None = None
    workloads: dict[Case, Workload] = field(default_factory=dict)
    failed: dict[Case, str] = field(default_factory=dict)

    def prepare(self, overrides: Sequence[str]) -> None:
        for case in self.cases:
            try:
                workload = prepare(case_scenario(case, overrides), case.ranks, data=True)
                self.workloads[case] = with_epochs(workload, self.grid.epochs)
            except InputError as error:
                self.failed[case] = str(error)

    def stored(self, case: Case, turn: int) -> Trace | None:
        return self.runs.load(case, turn, fingerprint(self.workloads[case], self.cluster(case)))

    def cluster(self, case: Case) -> Cluster:
        cluster = case_cluster(case, None if on_several_hosts() else len(os.sched_getaffinity(0)), self.profile)
        if under_torchrun() or not emulates(cluster) or cluster.nic is None or cluster.nic.burst_s:
            return cluster
        # what emulation gives to those that say nothing
        return replace(cluster, nic=replace(cluster.nic, burst_s=BURST_S))

    def todo(self) -> Iterator[tuple[Case, int]]:
        """Cases that have not been run yet, with their turns, one turn of all cases after the other."""
        for turn in range(self.grid.rounds):
            for case in self.workloads:
                if case not in self.failed and self.stored(case, turn) is None:
                    yield case, turn

    def run(self, case: Case, turn: int, train: Train, pace: Machine) -> None:
        workload, cluster = self.workloads[case], self.cluster(case)
        try:
            trace, pace_s = pace.measure(lambda: train(workload, cluster))
        except RunError as error:
            self.failed[case] = str(error)
            return
        meta = {"fingerprint": fingerprint(workload, cluster), "reference_s": repr(pace_s), "case": case.name}
        self.runs.save(case, turn, replace(trace, meta={**trace.meta, **meta}))

    def compare(self, case: Case) -> tuple[ValidatedScenario, TwoTraces]:
        """The case's row, and a predicted and a measured trace if there are any."""
        if case in self.failed:
            return ValidatedScenario(case=asdict(case), reason=self.failed[case]), []
        stored = [self.stored(case, turn) for turn in range(self.grid.rounds)]
        traces = [trace for trace in stored if trace is not None]
        if not traces:
            return ValidatedScenario(case=asdict(case), reason="not run"), []
        schedule = self.workloads[case].schedule
        warmup, epochs = measured_epochs(schedule, self.grid.epochs)
        predicted = predict_on(self.workloads[case], self.cluster(case), num_epochs=epochs).trace
        row = ValidatedScenario(
            case=asdict(case),
            predicted=figures([predicted], schedule, warmup),
            measured=figures(traces, schedule, warmup),
            num_runs=len(traces),
            reference_s=median(float(trace.meta["reference_s"]) for trace in traces),
            blame=blame_of(predicted, traces, schedule, warmup),
        )
        return row, [(predicted, schedule), (traces[0], schedule)]


def train_on(workload: Workload, cluster: Cluster) -> Trace:
    """Run a workload for real: on emulated hosts if the cluster has several of CPUs, else on this machine as it is."""
    emulated = cluster if emulates(cluster) else None
    return train(workload, make_job(workload, "gloo" if emulated else None), emulated=emulated).trace


def train_with(ranks: "Gang", place: Path, workload: Workload, cluster: Cluster) -> Trace:
    """Run a workload for real with the ranks that torchrun has started."""
    assert workload.graph is not None
    assert workload.assignment is not None
    job = make_job(workload, choose_backend(workload.scenario, num_here()))
    return ranks.train(job, iter_parts(workload.graph, workload.assignment), place).trace


def emulates(cluster: Cluster) -> bool:
    """Whether a cluster's hosts are network namespaces of this machine."""
    return cluster.num_hosts > 1 and not cluster.staged


def require_runnable(cells: Sequence[Cell]) -> None:
    """Refuse before any work what this machine may not do."""
    require_torch("validating with real runs")
    if under_torchrun():
        return  # nothing is emulated
    link = next((cell.cases[0].link for cell in cells if emulates(cell.cluster(cell.cases[0]))), None)
    reason = can_emulate() if link is not None else ""
    if reason:
        raise RunError(f"--links {link}: {reason}; --links own takes this machine's own links")


def validate(
    grid: ValidationGrid = QUICK,
    *,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    profile: Profile | None = None,
    fresh: bool = False,
    say: Say = silent,
) -> Validation | None:
    """Run the cases of a grid that have not been run, predict all of them, and say how far apart they are.

    `out` is the directory of the runs that are kept, and of the report; without it nothing is kept. `profile` is what
    was measured of this machine; `fresh` forgets earlier runs. Under torchrun its ranks run the cases: the first one
    returns the validation, the others nothing.
    """
    with _place(out) as place:
        study = partial(_validate, grid, place, overrides=overrides, profile=profile, fresh=fresh, say=say)
        if not under_torchrun():
            return study(train_on)
        from halocast.exec.launch.gang import gang  # torch

        with gang() as ranks:
            if not ranks.leads:
                ranks.follow()
                return None
            try:
                ranks.require_grid(grid.ranks)
                _require_own_links(grid, choose_backend(Scenario(), num_here()))
                validation = study(partial(train_with, ranks, place / RUNS))
            except (InputError, RunError):  # between two runs; what interrupts one is torchrun's to tell the others
                ranks.dismiss()
                raise
            ranks.dismiss()
            return validation


@contextmanager
def _place(out: str | Path | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="halocast-") as directory:
        yield Path(directory)


def _require_own_links(grid: ValidationGrid, backend: str) -> None:
    for link in grid.links:
        require(
            link == OWN or link not in LINKS,
            f"--links {link}: under torchrun nothing is emulated; give a file that describes this cluster, or own",
        )
        require(
            link != OWN or (backend != "nccl" and not on_several_hosts()),
            f"--links {OWN}: describes the cores of one machine; give a file that describes its GPUs or hosts",
        )


def _validate(
    grid: ValidationGrid,
    place: Path,
    train: Train,
    *,
    overrides: Sequence[str],
    profile: Profile | None,
    fresh: bool,
    say: Say,
) -> Validation:
    _require_place(place)
    if fresh:
        shutil.rmtree(place / RUNS, ignore_errors=True)
    runs = Runs(place / RUNS)
    cells = [Cell(cases=cases, grid=grid, runs=runs, profile=profile) for cases in grid.cells() if cases]
    rows, traces = _all_rows(cells, overrides, train, say)
    summary = summarise_rows(rows, profile.source if profile else None)
    write_validation(place, rows, summary)
    return Validation(rows=tuple(rows), summary=summary, traces=tuple(traces))


def _require_place(out: Path) -> None:
    ours = not out.exists() or (out.is_dir() and (not any(out.iterdir()) or (out / RUNS).is_dir()))
    require(ours, f"{out}: exists and holds no runs of ours; choose another --out")


def _all_rows(
    cells: Sequence[Cell], overrides: Sequence[str], train: Train, say: Say
) -> tuple[list[ValidatedScenario], TwoTraces]:
    """Run and compare cell by cell, so that graphs of one cell only are in memory; rows, and traces of the first."""
    rows: list[ValidatedScenario] = []
    first: TwoTraces = []
    pace = Machine()
    may_run = False
    for k, cell in enumerate(cells):
        say(f"cell {k + 1} of {len(cells)}: preparing")
        cell.prepare(overrides)
        for case, turn in cell.todo():
            if not may_run:
                require_runnable(cells[k:])
                may_run = True
            say(f"cell {k + 1} of {len(cells)}, round {turn + 1} of {cell.grid.rounds}: {case.name}")
            cell.run(case, turn, train, pace)
        compared = [cell.compare(case) for case in cell.cases]
        rows += [row for row, _ in compared]
        first = first or next((traces for _, traces in compared if traces), [])
        cell.workloads.clear()
    return rows, first
