"""Settings of an answer: the curves that are compared with each other, and how their order changes between settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from halocast.reports.converge.targets import Reached, reaches
from halocast.reports.converge.words import listed, setting_text, setting_value
from halocast.reports.curves import Converged
from halocast.schedule.approximation import Approximation

BASELINE = "vanilla"  # the method that others are compared with
Values = Mapping[str, Any]  # by varied key, as section.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Curves under the same conditions; `alone` are those on one GPU, wherever the others have more."""

    values: Values
    curves: tuple[Reached, ...]
    alone: tuple[Reached, ...]

    @property
    def rivals(self) -> tuple[Reached, ...]:
        """The curves that compete: those on several GPUs, or all if there are no others than on one."""
        several = tuple(reach for reach in self.curves if reach.curve.gpus > 1)
        return several or self.curves

    @property
    def exact(self) -> tuple[Reached, ...]:
        return tuple(reach for reach in self.rivals if reach.curve.approximation is Approximation.EXACT)

    @property
    def approximate(self) -> tuple[Reached, ...]:
        return tuple(reach for reach in self.rivals if reach.curve.approximation is not Approximation.EXACT)

    @property
    def shown(self) -> tuple[Reached, ...]:
        """All curves of its tables: those of the setting, and one GPU's."""
        return (*self.curves, *(reach for reach in self.alone if reach not in self.curves))

    @property
    def text(self) -> str:
        return setting_text(self.values)


def contests(converged: Converged, target: float | None = None) -> list[Contest]:
    """The settings of an answer in the order of its curves; a curve that lacks varied keys belongs to all of them."""
    every = reaches(converged, target)
    all_values = {_key(reach.curve.setting): reach.curve.setting for reach in every}
    whole = [v for v in all_values.values() if not any(_is_part(v, w) for w in all_values.values() if len(w) > len(v))]
    return [_contest(values, every) for values in whole]


def _key(values: Values) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _is_part(values: Values, whole: Values) -> bool:
    return all(key in whole and whole[key] == value for key, value in values.items())


def _contest(values: Values, every: Sequence[Reached]) -> Contest:
    curves = tuple(reach for reach in every if _is_part(reach.curve.setting, values))
    free = {key for key in values if _decides_gpus(key, every)}
    rest = {key: value for key, value in values.items() if key not in free}
    single = [reach for reach in every if reach.curve.gpus == 1]
    apart = [reach for reach in single if _is_part(_without(reach.curve.setting, free), rest)]
    return Contest(values=values, curves=curves, alone=tuple(apart))


def _without(values: Values, keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _decides_gpus(key: str, every: Sequence[Reached]) -> bool:
    """Whether a key is varied to have more GPUs: every value of it has one number of them, and there are several."""
    counts: dict[str, set[int]] = {}
    for reach in every:
        if key in reach.curve.setting:
            counts.setdefault(_key({key: reach.curve.setting[key]}), set()).add(reach.curve.gpus)
    return all(len(some) == 1 for some in counts.values()) and len({n for some in counts.values() for n in some}) > 1


def baseline_of(contest: Contest, named: str | None) -> Reached | None:
    """The curve that others are compared with: the one that was named, else vanilla, else the first exact one."""
    if named is not None:
        return next((reach for reach in contest.shown if reach.curve.label == named), None)
    vanilla = (reach for reach in contest.exact if reach.curve.method == BASELINE)
    return next(vanilla, next(iter(contest.exact), None))


def in_order(some: Sequence[Reached]) -> list[Reached]:
    """Those that meet the target in a known time and fit in memory, the first to do so first."""
    timed = [(reach.seconds, reach) for reach in some if reach.curve.fits]
    known = [(seconds, reach) for seconds, reach in timed if seconds is not None]
    return [reach for _, reach in sorted(known, key=lambda item: item[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Labels in the order in which they meet the target, for a value of a varied key."""

    value: Any
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Two neighbouring values of a key between which the order of two cases changes."""

    low: Any
    high: Any
    falls: str  # the label that is before the other at the lower value, and behind it at the upper one
    rises: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How the order by time to the target changes with one key, all others fixed."""

    key: str
    fixed: Values
    rankings: tuple[Ranking, ...]
    exact: bool  # only of the exact methods

    @property
    def crossovers(self) -> tuple[Crossover, ...]:
        return tuple(change for low, high in pairwise(self.rankings) for change in _changes(low, high))

    @property
    def text(self) -> str:
        """Who meets the target first, from value to value."""
        runs: list[list[Ranking]] = []
        for ranking in self.rankings:
            if runs and runs[-1][0].labels[:1] == ranking.labels[:1]:
                runs[-1].append(ranking)
            else:
                runs.append([ranking])
        said = "; ".join(self._run(run, k, len(runs)) for k, run in enumerate(runs))
        aside = f" ({setting_text(self.fixed)})" if self.fixed else ""
        first = "First exact method" if self.exact else "First"
        return f"{first} to the target by {self.key}{aside}: {said}."

    def _run(self, run: Sequence[Ranking], number: int, of: int) -> str:
        first, last = setting_value(self.key, run[0].value), setting_value(self.key, run[-1].value)
        name = run[0].labels[0] if run[0].labels else "none"
        if of == 1:
            return f"{name} at {'every value' if len(run) > 1 else first}"
        if not all(_is_number(ranking.value) for ranking in self.rankings):
            return f"{name} with {listed([setting_value(self.key, ranking.value) for ranking in run])}"
        return (
            f"{name} up to {last}"
            if number == 0
            else f"from {first} {name}"
            if number == of - 1
            else (f"{name} from {first} to {last}" if len(run) > 1 else f"{name} at {first}")
        )


def _changes(low: Ranking, high: Ranking) -> list[Crossover]:
    both = [label for label in low.labels if label in high.labels]
    return [
        Crossover(low=low.value, high=high.value, falls=first, rises=then)
        for k, first in enumerate(both)
        for then in both[k + 1 :]
        if high.labels.index(then) < high.labels.index(first)
    ]


def variations(some: Sequence[Contest], *, exact: bool = False) -> list[Variation]:
    """For every varied key and every choice of the others: the orders at its values, numbers ascending.

    Of all methods, which is at equal accuracy, or of the exact ones; none where nothing could change place.
    """
    keys = list(dict.fromkeys(key for contest in some for key in contest.values))
    every = [variation for key in keys for variation in _variations(key, some, exact)]
    return [reach for reach in every if len({label for ranking in reach.rankings for label in ranking.labels}) > 1]


def _variations(key: str, some: Sequence[Contest], exact: bool) -> list[Variation]:
    rows: dict[str, list[Contest]] = {}
    for contest in some:
        if key in contest.values:
            rows.setdefault(_key(_without(contest.values, {key})), []).append(contest)
    ordered = [sorted(row, key=lambda contest: _rank(contest.values[key])) for row in rows.values() if len(row) > 1]
    return [
        Variation(
            key=key,
            fixed=_without(row[0].values, {key}),
            rankings=tuple(_ranking(key, contest, exact) for contest in row),
            exact=exact,
        )
        for row in ordered
    ]


def _ranking(key: str, contest: Contest, exact: bool) -> Ranking:
    some = in_order(contest.exact if exact else contest.rivals)
    return Ranking(value=contest.values[key], labels=tuple(reach.curve.label for reach in some))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rank(value: Any) -> float:
    """Numbers ascending; the sort is stable, so anything else stays as it was given."""
    return float(value) if _is_number(value) else 0.0
