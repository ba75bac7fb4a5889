"""A job on disk: everything the ranks of one run need, as files, so that spawn and torchrun start alike.

schedule.txt   the schedule in its text form
job.json       model spec and settings
part-K.npz     what rank K owns
score-K.npz    what rank K scores, where that is not what it trains on: pieces of the whole graph
result-K.json  (written by rank K) losses, hits, audit;  trace-K.jsonl  its spans;  error-K.json  why it failed
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from halocast.base.delays import Delay
from halocast.base.errors import InputError
from halocast.base.records import record, require
from halocast.graph.parts import Part, load_part, save_part
from halocast.models.spec import ModelSpec
from halocast.schedule.check import check
from halocast.schedule.ir import Numbers, Schedule
from halocast.schedule.text import format_schedule, parse_schedule

MASKS = ("train", "val", "test")
FORWARD_CHUNK, BACKWARD_CHUNK = "forward_chunk", "backward_chunk"
DTYPES = (Numbers.FLOAT32, Numbers.FLOAT64, Numbers.BFLOAT16)  # of rows


class Optimizer(StrEnum):
    ADAM = "adam"
    SGD = "sgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a training run, as the [run] section of a scenario says them.

    `eval_every` N scores the weights exactly every N epochs with the clock stopped (0: at the end).
    """

    epochs: int = 20
    lr: float = 0.01
    weight_decay: float = 0.0
    seed: int = 0
    dtype: str = "float32"  # of rows and products; of bfloat16 ones, weights and their steps are float32
    tf32: bool = False  # products of float32 numbers rounded to 10 bits, where a device has such a rate
    threads: int = 0  # 0: the machine's cores shared among the ranks
    timeout_s: float = 120.0
    eval_every: int = 0
    optimizer: Optimizer = Optimizer.ADAM
    device: str = "auto"  # a word of device.py's DeviceKind; auto: nccl on CUDA, gloo on the CPU
    store: str = "shared:"  # where stale rows are kept, if the method keeps some; or redis://HOST:PORT/DB
    errors: bool = False  # also measure how far stale rows are from fresh ones; a run of its own, not for timing

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"epochs = {self.epochs}: needs to be at least 1")
        require(self.dtype in DTYPES, f"dtype = {self.dtype!r}: needs to be {' or '.join(DTYPES)}")
        plain = not self.tf32 or self.dtype == Numbers.FLOAT32
        require(plain, f"tf32 = true: needs dtype = float32, not {self.dtype}")
        require(0 <= self.seed < 2**31, f"seed = {self.seed}: needs 0 <= seed < 2147483648")
        require(self.lr >= 0, f"lr = {self.lr}: needs to be at least 0")
        require(self.weight_decay >= 0, f"weight_decay = {self.weight_decay}: needs to be at least 0")
        require(self.timeout_s > 0, f"timeout_s = {self.timeout_s}: needs to be more than 0")
        require(self.eval_every >= 0, f"eval_every = {self.eval_every}: needs to be at least 0")
        require(self.threads >= 0, f"threads = {self.threads}: needs to be at least 0")

    @property
    def numbers(self) -> Numbers:
        """The type of numbers that layers compute with."""
        return Numbers.TF32 if self.tf32 else Numbers(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(RunSettings):
    """Settings of a training run, with what the machine and its world add to a scenario's [run] section."""

    backend: str = "gloo"
    speed: dict[str, float] = field(default_factory=dict)  # by rank: a straggler's, relative to what it could do
    delays: tuple[Delay, ...] = ()
    delay_seed: int = 0
    fresh_gradients: bool = True  # with errors, also that of the weights' gradient, which takes an epoch's time more
    audit: bool = False  # hash the weights after every step; keep last gradients, weights and logits

    @property
    def compares_gradients(self) -> bool:
        """Whether the gradient of every step is compared with a fresh one."""
        return self.errors and self.fresh_gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    schedule: Schedule
    spec: ModelSpec
    settings: Settings

    def __post_init__(self) -> None:
        if self.settings.errors:
            require_comparable(self.schedule)


def require_comparable(schedule: Schedule) -> None:
    """Refuse to measure errors where an op never has fresh rows to compare with."""
    require(not schedule.free, "errors = true: ranks that run freely never have rows of one epoch to compare")
    for rank in range(schedule.num_ranks):
        slots = [op.verb for op in schedule.by_rank[rank] if op.verb in (FORWARD_CHUNK, BACKWARD_CHUNK)]
        through = FORWARD_CHUNK not in slots[slots.index(BACKWARD_CHUNK) :] if BACKWARD_CHUNK in slots else True
        require(through, "errors = true: chunks that go back one by one do so before others have made their fresh rows")


def write_job(directory: Path, job: Job, parts: Iterable[Part], scored: Iterable[Part] = ()) -> None:
    """Write a job into a directory; `scored` are as many parts of what scores are of, if that is another graph."""
    (directory / "schedule.txt").write_text(format_schedule(job.schedule), encoding="utf-8")
    described = {"spec": asdict(job.spec), "settings": asdict(job.settings)}
    (directory / "job.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    for part in parts:
        save_part(directory / f"part-{part.rank}.npz", part)
    for old in directory.glob("score-*.npz"):  # of another job that was here before
        old.unlink()
    for part in scored:
        save_part(directory / f"score-{part.rank}.npz", part)


def read_job(directory: Path) -> Job:
    try:
        described = json.loads((directory / "job.json").read_text(encoding="utf-8"))
        text = (directory / "schedule.txt").read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{directory} is not a job: {error.filename} is missing") from None
    return Job(
        schedule=check(parse_schedule(text)),
        spec=record(ModelSpec, described["spec"], f"{directory}/job.json: spec"),
        settings=record(Settings, described["settings"], f"{directory}/job.json: settings"),
    )


def read_part(directory: Path, rank: int) -> Part:
    return load_part(directory / f"part-{rank}.npz")


def read_scored(directory: Path, rank: int) -> Part | None:
    """What a rank scores; None if that is what it trains on."""
    path = directory / f"score-{rank}.npz"
    return load_part(path) if path.exists() else None
