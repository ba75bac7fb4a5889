"""Targets of accuracy: a validation score, or a share of the best that exact training reaches."""

from dataclasses import dataclass

from halocast.base.errors import InputError
from halocast.base.records import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target as it was asked for: a share of the best validation score of exact training, or a score itself."""

    value: float
    relative: bool

    def score(self, best: float | None) -> float:
        """The validation score that is meant, where exact training's best is known."""
        if not self.relative:
            return self.value
        if best is None:
            raise InputError(f"target {self.value:.0%}: of exact training's best score, but no exact training was done")
        return self.value * best

    def text(self, of: str) -> str:
        """The target in words; `of` is whose best score a share is of."""
        return f"{100 * self.value:g} % of {of}'s best" if self.relative else f"{self.value:g}"


def parse_target(text: str | float) -> Target:
    """Parse `95%` or `0.88`."""
    said = str(text).strip()
    legal = "expected a share of exact training's best validation score (95%) or a score (0.88)"
    try:
        relative = said.endswith("%")
        value = float(said.removesuffix("%")) / (100 if relative else 1)
    except ValueError:
        raise InputError(f"target {said!r}: {legal}") from None
    require(0 < value <= 1, f"target {said}: needs to be above 0 and at most {'100%' if relative else '1'}; {legal}")
    return Target(value=value, relative=relative)


def require_above_chance(target: float, chance: float | None, graph: str) -> None:
    """Refuse a target that one answer for all nodes meets."""
    if chance is not None and target <= chance:
        raise InputError(
            f"target {target:.3g}: needs to be above {chance:.3g}, the score of one answer for all of {graph}"
        )


def parse_budget(text: str | float | None) -> float | None:
    """Parse `10min`, `90s`, `2h` or seconds."""
    if text is None:
        return None
    said = str(text).strip()
    for unit, factor in (("min", 60.0), ("s", 1.0), ("h", 3600.0), ("d", 86400.0), ("", 1.0)):
        if said.endswith(unit):
            try:
                seconds = float(said.removesuffix(unit)) * factor
            except ValueError:
                break
            require(0 < seconds < float("inf"), f"budget {said}: needs to be above 0, for example 10min or 2h")
            return seconds
    raise InputError(f"budget {said!r}: expected a time such as 90s, 10min or 2h")
