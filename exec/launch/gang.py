"""Real runs with the ranks that torchrun has started: the first leads, the others run what it says.

Each run is a job directory, which all hosts see, and a fresh process per rank (`halocast.exec.worker`): a run that
fails leaves nothing behind, and the ranks that torchrun watches live on. They talk over gloo, whatever the run uses.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from halocast.base.errors import InputError, RunError
from halocast.base.records import require
from halocast.exec.launch.job import Job, write_job
from halocast.exec.launch.local import Run, failure_of, free_port, gather, store_place
from halocast.exec.launch.torchrun import num_here
from halocast.graph.parts import Part

MEETING, PATIENCE = timedelta(minutes=5), timedelta(hours=2)  # to meet at all; that followers wait for the next run


End = tuple[int, str]  # exit code of a rank's process, the last line it said


@dataclass(frozen=True, slots=True)
class Gang:
    rank: int
    num_ranks: int
    group: Any

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def require_grid(self, ranks: tuple[int, ...]) -> None:
        require(
            ranks == (self.num_ranks,),
            f"--ranks {','.join(map(str, ranks))}: torchrun has started {self.num_ranks}, and all of them run",
        )

    def train(self, job: Job, parts: Iterable[Part], place: Path) -> Run:
        """Lead one run on all ranks, in a directory below `place`, which all hosts see."""
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".job-", dir=place) as name, _stored(job) as stored:
            directory = Path(name).resolve()
            write_job(directory, stored, parts)
            ends = self._all(str(directory), free_port(0))
            if any(code for code, _ in ends):
                raise RunError(_failure(directory, ends))
            return gather(directory, stored)

    def follow(self) -> None:
        """Run what the leader says until it says that there is no more; for all ranks but the leader."""
        while True:
            directory, port = self._hear(None)
            if not directory:
                return
            self._run(directory, port)

    def dismiss(self) -> None:
        self._hear(("", 0))

    def _all(self, directory: str, port: int) -> list[End]:
        return self._run(*self._hear((directory, port)))

    def _hear(self, said: tuple[str, int] | None) -> tuple[str, int]:
        words: list[Any] = [said]
        dist.broadcast_object_list(words, src=0, group=self.group)
        directory, port = words[0]
        return str(directory), int(port)

    def _run(self, directory: str, port: int) -> list[End]:
        """Run this rank's process; returns how those of all ranks ended. None starts unless all see the directory."""
        if not all(self._everybodys(Path(directory).is_dir())):
            return self._everybodys((int(not Path(directory).is_dir()), f"{directory}: not to be seen on this host"))
        environment = {
            **os.environ,
            "HALOCAST_LAUNCHED": str(os.getpid()),  # the leader says what went wrong
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, "-m", "halocast.exec.worker", directory]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
        )
        return self._everybodys((done.returncode, (done.stderr.strip().splitlines() or [""])[-1]))

    def _everybodys(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(values, value, group=self.group)
        return values


def _failure(directory: Path, ends: list[End]) -> str:
    """The reason the ranks left in the job, or the last that one of them said."""
    codes = [code for code, _ in ends]
    if any((directory / f"error-{rank}.json").exists() for rank in range(len(ends))):
        return failure_of(directory, codes)
    rank, said = next((rank, said) for rank, (code, said) in enumerate(ends) if code)
    return f"rank {rank}: {said}" if said else failure_of(directory, codes)


@contextmanager
def _stored(job: Job) -> Iterator[Job]:
    """A job with its store, which is this host's memory unless it is said to be elsewhere."""
    with store_place(job) as placed:
        if placed is not job and num_here() < dist.get_world_size():
            raise RunError("rows are kept in the memory of one host; for several, --set run.store=redis://HOST:PORT/0")
        yield placed


@contextmanager
def gang() -> Iterator[Gang]:
    """Meet the others that torchrun has started."""
    try:
        dist.init_process_group("gloo", timeout=MEETING)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"torchrun's ranks cannot meet: {str(error).splitlines()[0]}") from None
    try:
        yield Gang(dist.get_rank(), dist.get_world_size(), dist.new_group(timeout=PATIENCE))
    finally:
        dist.destroy_process_group()
