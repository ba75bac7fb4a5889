"""Durations, prices, points and settings as a person reads them."""

from collections.abc import Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any

from halocast.reports.table import seconds

MISSING = "-"
LONGER = (("d", 86400.0, 2.0), ("h", 3600.0, 2.0), ("min", 60.0, 2.0))  # unit, its seconds, from how many of them on
SHORTER = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
UNITS = {"network_gbps": ("Gb/s", "Gb/s"), "gpus": ("GPU", "GPUs"), "hosts": ("host", "hosts")}  # one, and several


def duration(value: float | None) -> str:
    """A time with three digits, in days, hours or minutes where seconds would be hard to read."""
    if value is None or not isfinite(value):
        return MISSING
    unit, scale = _unit(value)
    return f"{value / scale:.3g} {unit}" if unit else seconds(value)


def _unit(value: float) -> tuple[str, float]:
    """The unit above seconds in which a time is told, and its seconds; none where it is seconds or less."""
    return next(((unit, scale) for unit, scale, least in LONGER if value >= least * scale), ("", 1.0))


def band(low: float | None, high: float | None) -> str:
    """Two times as a band with two digits and the unit of the second; an end that is not known is open."""
    if low is None:
        return MISSING
    if high is None:
        return f"from {duration(low)}"
    unit, scale = _unit(high)
    if not unit:
        unit, scale = next(((u, s) for u, s in SHORTER if high >= s), SHORTER[-1])
    first, last = (f"{two_digits(value / scale)}" for value in (low, high))
    return f"{first} {unit}" if first == last else f"{first} to {last} {unit}"


def two_digits(value: float) -> str:
    """A number with two significant digits, and all digits before the point."""
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"


def dollars(value: float | None) -> str:
    """A price in cents, in more digits if it is less than ten of them, in whole dollars from a hundred on."""
    if value is None or not isfinite(value):
        return MISSING
    if value == 0:
        return "$0"
    digits = 0 if abs(value) >= 100 else max(2, 1 - floor(log10(abs(value))))
    return f"${value:,.{digits}f}"


def points(share: float | None, *, signed: bool = False) -> str:
    """A score in points with one decimal."""
    if share is None:
        return MISSING
    value = round(100 * share, 1) + 0.0  # not -0.0
    return f"{value:+.1f}" if signed else f"{value:.1f}"


def plus_minus(mean: float | None, error: float | None, *, signed: bool = False) -> str:
    """A mean in points and its deviation or error; without one where there is but a single value."""
    known = points(mean, signed=signed)
    return known if mean is None or error is None else f"{known}±{points(error)}"


def times(ratio: float) -> str:
    """How many times: three digits below ten, whole numbers from a hundred on."""
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:,.0f}"


def epochs(number: float) -> str:
    return f"{number:.0f} epoch{'' if number == 1 else 's'}"


def gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def plain(value: Any) -> str:
    """A value of a scenario in few letters."""
    if value is None:
        return MISSING
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(plain, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_value(key: str, value: Any) -> str:
    """The value of a varied key, with its unit or its name."""
    name = key.rpartition(".")[2]
    if isinstance(value, Mapping) and not value:
        return f"{name} as described"
    unit = UNITS.get(name) if isinstance(value, int | float) else None
    if unit is None:
        return f"{name} {plain(value)}"
    return f"{plain(value)} {unit[0] if value == 1 else unit[1]}"


def setting_text(values: Mapping[str, Any]) -> str:
    return ", ".join(setting_value(key, value) for key, value in values.items())


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"
