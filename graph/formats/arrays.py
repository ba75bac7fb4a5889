"""Reading arrays from files so that every fault becomes one line that names the file."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from halocast.base.errors import InputError

Array = NDArray[Any]
_FAULTS = (OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error)


def read_npy(path: Path) -> Array:
    """The array of a .npy file."""
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except FileNotFoundError:
        raise InputError(f"{path.parent}: missing file {path.name}") from None
    except _FAULTS as error:
        raise InputError(f"{path}: cannot be read as .npy ({_line(error)})") from None


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of a .npz file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise InputError(f"{path.parent}: missing file {path.name}") from None
    except (*_FAULTS, AttributeError, TypeError) as error:  # the last two: a lone array under the name .npz
        raise InputError(f"{path}: cannot be read as .npz ({_line(error)})") from None


def entry(arrays: Mapping[str, Array], key: str, path: Path) -> Array:
    """One array of an .npz file by name; a missing one is an InputError that names the file."""
    if key not in arrays:
        raise InputError(f"{path}: missing array {key!r} (found: {', '.join(sorted(arrays))})")
    return arrays[key]


def read_table(path: Path, dtype: type, *, columns: int | None = None, separator: str = ",") -> Array:
    """A headerless table of numbers, gzipped or not; `columns` is how many there must be."""
    import pandas as pd  # a second to import, and only text formats need it

    try:
        frame = pd.read_csv(
            path, header=None, sep=separator, dtype=dtype, comment="#", skip_blank_lines=True, low_memory=False
        )
    except FileNotFoundError:
        raise InputError(f"{path.parent}: missing file {path.name}") from None
    except pd.errors.EmptyDataError:
        return np.empty((0, columns or 0), dtype)
    except (*_FAULTS, pd.errors.ParserError) as error:
        raise InputError(f"{path}: malformed row ({_line(error)})") from None
    if columns is not None and frame.shape[1] != columns:
        raise InputError(f"{path}: expected {columns} numbers per line, got {frame.shape[1]}")
    return np.asarray(frame.to_numpy())


def _line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
