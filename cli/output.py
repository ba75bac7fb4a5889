"""What commands share: a status line that shows only on a terminal, JSON for machines, and traces as files."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halocast.reports.formats.perfetto import write_perfetto
from halocast.schedule.ir import Schedule
from halocast.schedule.trace import Trace, require_trace_name, save_trace

Say = Callable[[str], None]


@contextmanager
def status() -> Iterator[Say]:
    """A spinner on stderr with what is being done; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("starting") as line:
        yield lambda text: line.update(text)


@contextmanager
def epoch_bar(num_epochs: int, label: str) -> Iterator[Callable[[int], None]]:
    """A bar over the epochs of a run; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=num_epochs)
        yield lambda epochs: bar.update(task, completed=epochs)


def require_trace(path: Path | None) -> None:
    """Refuse the name of a trace's file before hours of work, not after."""
    if path is not None:
        require_trace_name(path, (".parquet", ".jsonl", ".json"))


def write_trace(trace: Trace, schedule: Schedule, path: Path | None) -> None:
    """Write a trace where that was asked for: .json is for Perfetto."""
    if path is None:
        return
    if path.suffix == ".json":
        write_perfetto([(trace, schedule)], path)
    else:
        save_trace(trace, path)


def columns() -> int:
    """The letters that a line of the terminal has; 80 where there is none."""
    return shutil.get_terminal_size().columns


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def note(text: str) -> None:
    print(text, file=sys.stderr)
