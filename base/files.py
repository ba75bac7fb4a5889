"""Files that appear whole or not at all: written beside their place, then renamed into it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same directory; on success it becomes `path`, on error it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `path`; on success it replaces `path`, on error it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    temporary.chmod(0o755)  # mkdtemp's 0700 would hide a report from the people it is for
    try:
        yield temporary
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cache_dir() -> Path:
    """The directory where derived data (partitions) is kept between runs: $HALOCAST_CACHE, else the user's cache."""
    root = os.environ.get("HALOCAST_CACHE")
    return Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "halocast"
