"""Seconds of sparse products: a row of a table is read per entry, from the cache or from memory, and summed into one.

Columns are computed some at a time, so a wide product is several passes over the entries, and the table that a pass
reads is no wider than that. All reads pass the cache, those that miss it pass memory as well, and the slower of the two
paces them. An entry takes its compute unit some clocks however narrow the row is, which rules narrow products, and so
does a row of the output, which is written at less than the full rate. Table and output that fit the cache stay in it.
"""

import math

from halocast.base.kernels import Dims
from halocast.cluster.machine import Device


def sparse_seconds(dims: Dims, itemsize: int, device: Device) -> float:
    """Seconds of a sparse product beside its launch."""
    rows, cols, nnz, width = dims
    e = device.efficiency
    table, output = (num * min(width, e.spmm_columns) * itemsize for num in (cols, rows))
    stays = table + output <= device.cache_bytes
    num_passes = -(-width // e.spmm_columns)
    written_s = _written_s(rows * width * itemsize, stays, device)
    read_s = _read_s(dims, itemsize, stays, device)
    clocks_per_s = device.unit_clocks_per_s
    if clocks_per_s is None:
        return read_s + written_s
    entries_s = num_passes * nnz * e.spmm_entry_clocks / clocks_per_s
    rows_s = num_passes * rows * e.spmm_row_clocks / clocks_per_s
    return _blended(read_s, entries_s, e.spmm_blend) + written_s + rows_s


def _read_s(dims: Dims, itemsize: int, stays: bool, device: Device) -> float:
    """Seconds of reading a row per entry, and the entries."""
    rows, cols, nnz, width = dims
    e = device.efficiency
    table = cols * min(width, e.spmm_columns) * itemsize
    num_first = 0.0 if stays else cols * -math.expm1(-nnz / cols)  # columns that have an entry, if it may be any
    again = (nnz - num_first) * (1 - hit_share(device.cache_bytes / table, nnz / rows, e.degree_sigma * e.spmm_skew))
    missed = (num_first + again) * width * itemsize + ENTRY_BYTES * nnz
    memory_s = missed / (device.memory_bytes_per_s * e.stream)
    return max(nnz * width * itemsize / device.cache_rate, memory_s)


ENTRY_BYTES = 4  # the number of its column


def hit_share(kept: float, degree: float, skew: float) -> float:
    """The share of reads, beside each row's first, that the cache serves which keeps `kept` of the table.

    Of the others those hit that a row has in common with rows near it, the more the more neighbours it has, and the
    more unequal these are: none where neighbours are drawn evenly from all (skew 0).
    """
    if kept >= 1:
        return 1.0
    shared = skew * degree
    return kept + (1 - kept) * shared / (1 + shared)


def _written_s(num_bytes: float, stays: bool, device: Device) -> float:
    if stays:
        return num_bytes / device.cache_rate
    return num_bytes / (device.memory_bytes_per_s * device.efficiency.spmm_store)


def _blended(first_s: float, second_s: float, sharpness: float) -> float:
    """The longer of two that overlap, and somewhat more where they are about equal."""
    longer = max(first_s, second_s)
    return float(longer * (1 + (min(first_s, second_s) / longer) ** sharpness) ** (1 / sharpness))
