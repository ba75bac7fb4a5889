"""What was measured of a device or a transport: seconds as sums of terms that cannot be negative, and where they hold.

A term is a quantity of the work (bytes, entries, one launch) times what one of it costs. Caches are terms, too: bytes
beyond a size cost more than those before, and of the rows a sparse product reads, those cost more that do not fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from types import MappingProxyType

from halocast.base.kernels import KERNEL_DIMS, KERNEL_LIKE, PASSES
from halocast.base.records import require

Dims = tuple[int, ...]
Terms = dict[str, float]
MIB = 2**20
BEYOND = (MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB)  # where the price of a byte may change: caches are of such sizes
FLOAT_BYTES = 4
RATES = ("passes",)  # dims that are no sizes
LANE_WIDTH = 16  # columns a vector unit computes at once


def beyond(num_bytes: float) -> Terms:
    """Terms of the bytes beyond each size of BEYOND: seconds are then a convex line with a bend at every one."""
    return {f"byte_beyond_{size // 1024}k": max(0.0, num_bytes - size) for size in BEYOND}


def _far(num_bytes: float) -> Terms:
    return {name: beyond(num_bytes)[name] for name in ("byte_beyond_1024k", "byte_beyond_16384k")}


def _streamed(dims: Dims, itemsize: int) -> Terms:
    numel, passes = dims
    num_bytes = numel * passes * itemsize
    return {"launch": 1, "byte": num_bytes, **beyond(num_bytes)}


def _indexed(dims: Dims, itemsize: int) -> Terms:
    rows, width = dims
    num_bytes = rows * width * itemsize
    return {"launch": 1, "row": rows, "byte": num_bytes, **beyond(num_bytes)}


def _product(dims: Dims, itemsize: int) -> Terms:
    """Terms of a product: multiply-adds, again those of results too narrow for vector units (far slower), operands."""
    m, k, n = dims
    flops = 2 * m * k * n * itemsize / FLOAT_BYTES
    return {
        "launch": 1,
        "flop": flops,
        "narrow_flop": flops if min(m, n) < LANE_WIDTH else 0.0,
        "byte_left": m * k * itemsize,
        "byte_right": k * n * itemsize,
        "byte_out": m * n * itemsize,
        **_far((m * k + k * n + m * n) * itemsize),
    }


def _sparse(dims: Dims, itemsize: int) -> Terms:
    rows, cols, nnz, width = dims
    read, table = nnz * width * itemsize, cols * width * itemsize
    missed = {f"byte_missing_{size // 1024}k": read * max(0.0, 1 - size / max(table, 1)) for size in BEYOND[1:]}
    return {
        "launch": 1,
        "row": rows,
        "entry": nnz,
        "byte_read": read,
        "byte_out": rows * width * itemsize,
        **missed,
    }


_TERMS: Mapping[str, Callable[[Dims, int], Terms]] = MappingProxyType(
    {"gemm": _product, "spmm": _sparse, "elementwise": _streamed, "gather": _indexed, **dict.fromkeys(PASSES, _indexed)}
)


def kernel_terms(kind: str, dims: Dims, itemsize: int) -> Terms:
    return _TERMS[KERNEL_LIKE.get(kind, kind)](dims, itemsize)


def message_terms(num_bytes: float) -> Terms:
    return {"latency": 1, "byte": num_bytes}


def terms_of(kind: str) -> Callable[[Dims, int], Terms]:
    """The terms of a kind of kernel, or of what takes bytes and nothing else."""
    if kind == "cores":
        return lambda dims, itemsize: {"message": dims[0], "byte": dims[1]}
    return partial(kernel_terms, kind) if kind in KERNEL_DIMS else lambda dims, itemsize: message_terms(dims[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Seconds of one kind of work; `low` and `high` are the smallest and largest dims that were measured."""

    kind: str
    prices: tuple[tuple[str, float], ...]
    low: Dims
    high: Dims
    num_points: int
    num_held_out: int
    median_error: float  # absolute and relative, of points that the fit has not seen
    p90_error: float

    def __post_init__(self) -> None:
        require(all(price >= 0 for _, price in self.prices), f"{self.kind}: a price needs to be at least 0")
        require(len(self.low) == len(self.high), f"{self.kind}: low and high need to have as many dims")

    def seconds(self, dims: Dims, itemsize: int) -> float:
        terms = terms_of(self.kind)(dims, itemsize)
        return sum(price * terms[name] for name, price in self.prices)

    def outside(self, dims: Dims) -> float:
        """How many times beyond the measured range the work is, in its worst dim; 1 within."""
        names = KERNEL_DIMS.get(self.kind, ("bytes",))
        ends = zip(names, dims, self.low, self.high, strict=True)
        known = [(dim, low, high) for name, dim, low, high in ends if name not in RATES]
        return max(max(low / max(dim, 1), dim / max(high, 1), 1.0) for dim, low, high in known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Kernels and ops of a device as they were measured on it.

    Kernels find what they work on in the caches (warm) or not (cold). Of an epoch that touches more than the caches
    keep, the share beyond is cold.
    """

    kernels: tuple[Fit, ...]  # cold, where both were measured
    warm: tuple[Fit, ...] = ()
    cache_bytes: float = 0.0  # of an epoch's bytes, those that caches keep for the next kernel
    cold: float = 1.0  # how far kernels are cold
    op_s: float = 0.0  # of an op, beside its kernels: finding values, keeping the span, telling who waits
    communication_op_s: float = 0.0  # the same of one on another lane: its thread has to wake up
    launch_s: float = 0.0  # of a kernel in an op, beside what it takes alone: autograd, modules
    store: Fit | None = None  # what a core takes to copy rows to or from the store of its host
    context: tuple[tuple[str, float], ...] = ()  # by kind: what it takes in an op, times what it takes alone
    busy: tuple[tuple[str, float], ...] = ()  # by kind: how much slower when all cores do the same at once
    crowd: float = 0.0  # how far that holds: 0 for a rank alone, 1 with all cores busy
    turns: float = 1.0  # times as long on a core that several ranks take turns on, beside their turns themselves
    speed: float = 1.0  # times as fast as measured
    message_bytes: tuple[float, float] = (0.0, inf)  # the smallest and the largest message that were measured
    quick: bool = False  # from fewer and smaller points
    source: str = ""  # the profile: its file, date and host

    def fit(self, kind: str) -> Fit | None:
        return _find(self.kernels, kind)

    def touching(self, num_bytes: float) -> "Measured":
        """The measured device where an epoch touches so many bytes: kernels are as cold as that makes them."""
        cold = max(0.0, 1 - self.cache_bytes / max(num_bytes, 1)) if self.warm else 1.0
        return replace(self, cold=cold)

    def seconds(self, kind: str, dims: Dims, itemsize: int) -> float:
        """Seconds that a kernel takes in an op."""
        cold, warm = self.fit(kind), _find(self.warm, kind)
        require(cold is not None, f"the profile has no {kind}: measure again (halocast calibrate --fresh)")
        assert cold is not None
        seconds = cold.seconds(dims, itemsize)
        if warm is not None and self.cold < 1:
            seconds = self.cold * seconds + (1 - self.cold) * min(seconds, warm.seconds(dims, itemsize))
        return (self.launch_s + seconds * self._slower(kind) / self.speed) * self.turns

    def _slower(self, kind: str) -> float:
        context = dict(self.context).get(kind)
        if context is None:  # no op had it: as alone, or as the kind whose price it has
            context = 1.0 if any(fit.kind == kind for fit in self.kernels) else _factor(self.context, kind)
        return context * (1 + self.crowd * (_factor(self.busy, kind) - 1))

    def store_s(self, num_bytes: int) -> float:
        """Seconds of a core to copy rows to or from the store of its host; 0 where that was not measured."""
        return 0.0 if self.store is None else self.store.seconds((num_bytes,), FLOAT_BYTES)


def crowd_of(together: int, measured: int) -> float:
    """How far kernels of so many ranks at once are as slow as those of the number that was measured."""
    return (min(together, measured) - 1) / (measured - 1) if measured > 1 else 0.0


def share_of_caches(measured: int, together: int) -> float:
    """The share of its measured caches that a rank has now: more ranks of a machine than were measured divide them."""
    return min(1.0, measured / together)


def _factor(factors: tuple[tuple[str, float], ...], kind: str) -> float:
    """The factor of a kind, or of the one it is like; 1 where neither has one."""
    known = dict(factors)
    return known.get(kind, known.get(KERNEL_LIKE.get(kind, kind), 1.0))


def _find(fits: tuple[Fit, ...], kind: str) -> Fit | None:
    """The fit of a kind, or of the one it is like."""
    by_kind = {fit.kind: fit for fit in fits}
    return by_kind.get(kind) or by_kind.get(KERNEL_LIKE.get(kind, kind))
